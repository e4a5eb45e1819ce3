//! How an administrator names a bucket.
//!
//! ```text
//! s3://bucket/prefix?endpoint=http://host:port&region=eu-west-1    S3 and what speaks its protocol
//! gs://bucket/prefix                                              Google Cloud Storage
//! az://container/prefix?account=name                              Azure Blob Storage
//! /path, path, file:///path                                       a local directory
//! mem://name                                                      memory of this process, for tests
//! ```
//!
//! A name never carries credentials: it is stored in the pool's label, shown by `status`, seen in the list of
//! processes. One that does is refused, and the refusal does not repeat it.

mod azure;
mod gcs;
mod place;
mod s3;
mod terms;

pub use azure::AzureLocation;
pub use gcs::GcsLocation;
pub use s3::S3Location;
pub use terms::Terms;

use crate::{Error, Result};
use ::url::Url;
use std::path::{Path, PathBuf};

/// A parsed bucket name. [`Location::url`] gives the name by which it is parsed to the same again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    S3(S3Location),
    Gcs(GcsLocation),
    Azure(AzureLocation),
    /// An absolute path, as written: symbolic links in it are followed when it is opened.
    Local(PathBuf),
    Memory(String),
}

/// Every scheme there is.
pub const SCHEMES: &[&str] = &["s3", "gs", "az", "azure", "abfs", "abfss", "file", "mem"];

impl Location {
    /// Parses a name. A relative path is taken from the current directory.
    pub fn parse(name: &str) -> Result<Location> {
        let Some((scheme, rest)) = name.split_once("://") else {
            return parse_path(name);
        };
        match scheme {
            "s3" => s3::parse(rest).map(Location::S3),
            "gs" => gcs::parse(rest).map(Location::Gcs),
            "az" | "azure" | "abfs" | "abfss" => azure::parse(rest).map(Location::Azure),
            "file" => parse_file(name),
            "mem" if !rest.is_empty() && !rest.contains(['?', '@']) => Ok(Location::Memory(rest.to_string())),
            "mem" => Err(Error::Config("mem:// wants a name and nothing else, as in mem://name".into())),
            _ => Err(Error::Config(format!(
                "unknown scheme {scheme}://: a bucket is s3://bucket/prefix, gs://bucket/prefix, \
                 az://container/prefix, file:///path or a directory"
            ))),
        }
    }

    /// The name, in one way of several: what the pool's label keeps and messages show.
    pub fn url(&self) -> String {
        match self {
            Location::S3(s3) => s3.url(),
            Location::Gcs(gcs) => gcs.url(),
            Location::Azure(azure) => azure.url(),
            Location::Local(path) => path.display().to_string(),
            Location::Memory(name) => format!("mem://{name}"),
        }
    }
}

fn parse_path(name: &str) -> Result<Location> {
    if name.is_empty() {
        return Err(Error::Config("a bucket's name is empty: give s3://bucket/prefix or a directory".into()));
    }
    for scheme in SCHEMES {
        if name.strip_prefix(scheme).is_some_and(|rest| rest.starts_with(':')) {
            return Err(Error::Config(format!(
                "{name}: write {scheme}:// with two slashes, or ./ before a path"
            )));
        }
    }
    let path = std::path::absolute(name)
        .map_err(|e| Error::Config(format!("{name}: cannot be made an absolute path: {e}")))?;
    local(name, &path)
}

/// A directory by its absolute path, without what `absolute` leaves in: repeated or trailing slashes and single dots.
fn local(name: &str, path: &Path) -> Result<Location> {
    // The path becomes a name in labels and part of a line, and must mean the same when it is read from there.
    if path.to_str().is_none_or(|text| text.contains(char::is_control)) {
        return Err(Error::Config(format!(
            "{}: a bucket's path is UTF-8 without control characters: rename the directory",
            name.escape_debug()
        )));
    }
    Ok(Location::Local(path.components().collect()))
}

fn parse_file(name: &str) -> Result<Location> {
    let usage = |why: &str| Error::Config(format!("{name}: {why}: write file:///absolute/path"));
    let url = Url::parse(name).map_err(|e| usage(&e.to_string()))?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(usage("a file URL has no parameters"));
    }
    let path = url.to_file_path().map_err(|()| usage("this is not a path on this host"))?;
    local(name, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(name: &str) -> S3Location {
        match Location::parse(name) {
            Ok(Location::S3(s3)) => s3,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn names_are_parsed_and_survive_being_written_again() {
        let full =
            s3("s3://data/a/b/?endpoint=http://127.0.0.1:7070/&region=eu-west-1&path_style=true&profile=lab");
        assert_eq!((full.bucket.as_str(), full.prefix.as_str()), ("data", "a/b"));
        assert_eq!(full.terms.endpoint.as_deref(), Some("http://127.0.0.1:7070"));
        assert_eq!((full.virtual_host, full.region.as_deref()), (Some(false), Some("eu-west-1")));
        for name in [
            "s3://data",
            "s3://data/a b/ü?endpoint=http://127.0.0.1:7070&region=x&virtual_host=true",
            "s3://d?endpoint=https%3A%2F%2Fh&unsigned_payload=1",
            "s3://d?storage_class=STANDARD_IA&customer_key_file=/k e&ca_file=/c&proxy=http://p:1&requester_pays=1",
            "s3://d?kms=arn:aws:kms:eu-central-1:1:key/2-3",
            "gs://d?storage_class=ARCHIVE&kms=projects/p/locations/l/keyRings/r/cryptoKeys/k&billing_project=p-1",
            "az://d?account=lab&storage_class=Cool&customer_key_file=/key",
            "gs://data",
            "gs://data/a b/ü?endpoint=http://127.0.0.1:4443",
            "az://data?account=lab",
            "az://data/a b/ü?account=lab&endpoint=http://127.0.0.1:10000/lab",
            "az://data/p",
            "/a/b",
            "/a//b/./c/",
            "mem://one",
            "file:///a%20b",
        ] {
            let location = Location::parse(name).unwrap();
            assert_eq!(Location::parse(&location.url()).unwrap(), location, "{name}");
        }
        assert_eq!(Location::parse("file:///a%20b").unwrap(), Location::Local("/a b".into()));
        assert_eq!(Location::parse("/a//b/./c/").unwrap(), Location::Local("/a/b/c".into()));
        let here = std::env::current_dir().unwrap();
        assert_eq!(Location::parse("x/y").unwrap(), Location::Local(here.join("x/y")));
    }

    #[test]
    fn azure_is_written_as_others_write_it() {
        let full = Location::parse("az://data/a/b?account=lab123").unwrap();
        for name in [
            "azure://data/a/b/?account=lab123",
            "abfss://data@lab123.dfs.core.windows.net/a/b",
            "abfs://data@lab123.blob.core.windows.net/a/b",
        ] {
            assert_eq!(Location::parse(name).unwrap(), full, "{name}");
        }
        assert_eq!(full.url(), "az://data/a/b?account=lab123");
    }

    #[test]
    fn what_cannot_be_used_is_refused_in_one_line_that_helps() {
        for (name, part) in [
            ("ftp://b", "unknown scheme ftp://"),
            ("gs://", "lacks the bucket"),
            ("gs:/b", "two slashes"),
            ("gs://b?region=x", "unknown parameter region"),
            ("gs://b?endpoint=4443", "endpoint"),
            ("az://?account=a", "lacks the container"),
            ("az://c?account=", "3 to 24"),
            ("az://c?account=a.b", "3 to 24"),
            ("abfss://c@lab.example.org/p", "core.windows.net"),
            ("abfss://c@lab.dfs.core.windows.net/p?account=other", "two accounts"),
            ("s3://", "lacks the bucket"),
            ("s3:/b/c", "two slashes"),
            ("s3://host:9000/b", "endpoint=http://host:port"),
            ("s3://b?regoin=x", "unknown parameter regoin"),
            ("s3://b?endpoint=localhost", "endpoint"),
            ("s3://b?endpoint=ftp://h", "http or https"),
            ("s3://b?path_style=maybe", "neither true nor false"),
            ("s3://b?endpoint=http://h&allow_http=false", "https://"),
            ("s3://b/../c", "cannot be used"),
            ("file://host/x", "file:///absolute/path"),
            ("s3://b?storage_class=GLACIER", "read at once"),
            ("az://b?storage_class=archive", "read at once"),
            ("s3://b?storage_class=", "no name"),
            ("s3://b?customer_key_file=key", "/absolute/path"),
            ("s3://b?kms=a&customer_key_file=/k", "keep one"),
            ("s3://b?kms=a b", "as the service shows it"),
            ("gs://b?proxy=host:1", "proxy=http://host:port"),
            ("gs://b?proxy=http://u:p@host:1", "HTTPS_PROXY"),
            ("gs://b?billing_project=", "no project"),
            ("mem://", "mem://name"),
            ("file:///a%FF", "rename the directory"),
            ("file:///a%0Ab", "rename the directory"),
            ("/a\nb", "rename the directory"),
            ("", "empty"),
        ] {
            let error = Location::parse(name).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Config(_)) && text.contains(part), "{name}: {text}");
            assert!(!text.contains('\n'));
        }
    }

    #[test]
    fn credentials_in_a_name_are_refused_and_not_repeated() {
        for name in [
            "s3://AKIAHUSH:hush@bucket/p",
            "s3://b?access_key_id=AKIAHUSH",
            "s3://b?aws_secret_access_key=hush",
            "s3://b?session_token=hush",
            "s3://b?endpoint=http://u:hush@host",
            "gs://hush@b",
            "gs://b?service_account_key=hush",
            "az://c?account_key=hush",
            "az://c?sv=2023-11-03&sig=hush",
            "az://hush:hush@c",
        ] {
            let text = Location::parse(name).unwrap_err().to_string();
            assert!(text.contains("refused") && !text.to_lowercase().contains("hush"), "{text}");
        }
    }
}
