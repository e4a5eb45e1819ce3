//! How an administrator names a bucket.
//!
//! ```text
//! s3://bucket/prefix?endpoint=http://host:port&region=eu-west-1   S3 and what speaks its protocol
//! /path, path, file:///path                                       a local directory
//! mem://name                                                      memory of this process, for tests
//! ```
//!
//! A name never carries credentials: it is stored in the pool's label, shown by `status`, seen in the list of
//! processes. One that does is refused, and the refusal does not repeat it.

use crate::{Error, Result, key};
use ::url::Url;
use std::path::{Path, PathBuf};

/// A parsed bucket name. [`Location::url`] gives the name by which it is parsed to the same again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    S3(S3Location),
    /// An absolute path, as written: symbolic links in it are followed when it is opened.
    Local(PathBuf),
    Memory(String),
}

/// A bucket at S3 or a compatible store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Location {
    pub bucket: String,
    /// Folder below which Tarn's keys lie, without slashes at its ends; empty for the bucket's root.
    pub prefix: String,
    /// `http://` or `https://`, host and port; AWS's own by region if not given here or in the environment.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// The bucket's name goes into the host name (`virtual_host`) and not into the path (`path_style`).
    pub virtual_host: Option<bool>,
    /// Bodies are sent without a hash of every byte in the signature; by default where TLS or the loopback
    /// protects them.
    pub unsigned_payload: Option<bool>,
    /// Whose credentials of the profile files to use.
    pub profile: Option<String>,
}

const PARAMETERS: &str = "endpoint, region, path_style, virtual_host, allow_http, unsigned_payload, profile";

impl Location {
    /// Parses a name. A relative path is taken from the current directory.
    pub fn parse(name: &str) -> Result<Location> {
        let Some((scheme, rest)) = name.split_once("://") else {
            return parse_path(name);
        };
        match scheme {
            "s3" => parse_s3(rest),
            "file" => parse_file(name),
            "mem" if !rest.is_empty() && !rest.contains(['?', '@']) => Ok(Location::Memory(rest.to_string())),
            "mem" => Err(Error::Config("mem:// wants a name and nothing else, as in mem://name".into())),
            _ => Err(Error::Config(format!(
                "unknown scheme {scheme}://: a bucket is s3://bucket/prefix, file:///path or a directory"
            ))),
        }
    }

    /// The name, in one way of several: what the pool's label keeps and messages show.
    pub fn url(&self) -> String {
        match self {
            Location::S3(s3) => s3.url(),
            Location::Local(path) => path.display().to_string(),
            Location::Memory(name) => format!("mem://{name}"),
        }
    }
}

impl S3Location {
    fn url(&self) -> String {
        let mut url = format!("s3://{}", self.bucket);
        if !self.prefix.is_empty() {
            url.push('/');
            url.push_str(&self.prefix);
        }
        let mut query = ::url::form_urlencoded::Serializer::new(String::new());
        let mut parameters = 0;
        let mut add = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                query.append_pair(name, value);
                parameters += 1;
            }
        };
        let word = |value: Option<bool>| value.map(|b| if b { "true" } else { "false" });
        add("endpoint", self.endpoint.as_deref());
        add("region", self.region.as_deref());
        add("virtual_host", word(self.virtual_host));
        add("unsigned_payload", word(self.unsigned_payload));
        add("profile", self.profile.as_deref());
        if parameters > 0 {
            url.push('?');
            // An endpoint reads better as it was typed.
            url.push_str(&query.finish().replace("%3A", ":").replace("%2F", "/"));
        }
        url
    }
}

fn parse_path(name: &str) -> Result<Location> {
    if name.is_empty() {
        return Err(Error::Config("a bucket's name is empty: give s3://bucket/prefix or a directory".into()));
    }
    for scheme in ["s3", "file", "mem"] {
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

fn parse_s3(rest: &str) -> Result<Location> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.contains('@') {
        return Err(credentials("in front of the bucket's name"));
    }
    if bucket.is_empty() {
        return Err(Error::Config("s3:// lacks the bucket's name: write s3://bucket/prefix".into()));
    }
    if !bucket.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
        return Err(Error::Config(format!(
            "s3://{}: a bucket's name has letters, digits, `-`, `.` and `_`; a host goes into ?endpoint=http://host:port",
            bucket.escape_debug()
        )));
    }
    let prefix = prefix.trim_matches('/');
    if !prefix.is_empty() {
        key::check(&format!("s3://{bucket}"), prefix)?;
    }
    let mut s3 = S3Location { bucket: bucket.into(), prefix: prefix.into(), ..S3Location::default() };
    let mut allow_http = None;
    for (name, value) in ::url::form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match name.as_ref() {
            "endpoint" => s3.endpoint = Some(endpoint(bucket, &value)?),
            "region" => s3.region = Some(value),
            "profile" => s3.profile = Some(value),
            "path_style" => s3.virtual_host = Some(!truth(bucket, &name, &value)?),
            "virtual_host" => s3.virtual_host = Some(truth(bucket, &name, &value)?),
            "unsigned_payload" => s3.unsigned_payload = Some(truth(bucket, &name, &value)?),
            "allow_http" => allow_http = Some(truth(bucket, &name, &value)?),
            secret if is_secret(secret) => return Err(credentials(&format!("in the parameter {secret}"))),
            unknown => {
                return Err(Error::Config(format!(
                    "s3://{bucket}: unknown parameter {unknown}: there are {PARAMETERS}"
                )));
            }
        }
    }
    let plain = s3.endpoint.as_deref().is_some_and(|e| e.starts_with("http://"));
    if plain && allow_http == Some(false) {
        return Err(Error::Config(format!(
            "s3://{bucket}: allow_http=false and an http:// endpoint contradict each other: use https://"
        )));
    }
    Ok(Location::S3(s3))
}

fn is_secret(parameter: &str) -> bool {
    let parameter = parameter.to_ascii_lowercase();
    ["key", "secret", "token", "password", "credential", "signature"]
        .iter()
        .any(|word| parameter.contains(word))
}

fn credentials(place: &str) -> Error {
    Error::Config(format!(
        "credentials {place} are refused, as names are stored and shown: put them into AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY or into ~/.aws/credentials"
    ))
}

fn endpoint(bucket: &str, value: &str) -> Result<String> {
    let bad = |why: &str| {
        Error::Config(format!(
            "s3://{bucket}: the endpoint {why}: write endpoint=https://host or http://host:port"
        ))
    };
    let url = Url::parse(value).map_err(|_| bad("is not a URL"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(credentials("in the endpoint"));
    }
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(bad("is not one of http or https"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("has parameters of its own"));
    }
    Ok(value.trim_end_matches('/').to_string())
}

fn truth(bucket: &str, name: &str, value: &str) -> Result<bool> {
    match value {
        "true" | "1" | "yes" | "on" | "" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Error::Config(format!("s3://{bucket}: {name}={value} is neither true nor false"))),
    }
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
        assert_eq!(full.endpoint.as_deref(), Some("http://127.0.0.1:7070"));
        assert_eq!((full.virtual_host, full.region.as_deref()), (Some(false), Some("eu-west-1")));
        for name in [
            "s3://data",
            "s3://data/a b/ü?endpoint=http://127.0.0.1:7070&region=x&virtual_host=true",
            "s3://d?endpoint=https%3A%2F%2Fh&unsigned_payload=1",
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
    fn what_cannot_be_used_is_refused_in_one_line_that_helps() {
        for (name, part) in [
            ("gs://b", "unknown scheme gs://"),
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
        ] {
            let text = Location::parse(name).unwrap_err().to_string();
            assert!(text.contains("refused") && !text.to_lowercase().contains("hush"), "{text}");
        }
    }
}
