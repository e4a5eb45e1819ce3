//! On what terms a bucket is used: parameters that the names of all services have.

use super::place::{self, Kind};
use crate::{Error, Result};
use ::url::Url;
use std::path::PathBuf;

/// What the parameters are called, for messages.
pub(super) const PARAMETERS: &str = "endpoint, ca_file, proxy, storage_class, customer_key_file";

/// Classes whose objects must be fetched from an archive before they can be read.
const ARCHIVES: [&str; 3] = ["GLACIER", "DEEP_ARCHIVE", "Archive"];

/// The terms on which a bucket is used. A file is named and not read: what it holds is no part of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// `http://` or `https://`, host, port and what else leads there; the service's own if not given.
    pub endpoint: Option<String>,
    /// Certificates (PEM) that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Where requests go instead of to the endpoint itself: `http://host:port`.
    pub proxy: Option<String>,
    /// The storage class, or access tier, of what is written; the bucket's own if not given.
    pub storage_class: Option<String>,
    /// A key of 32 bytes with which the store encrypts what is written, and forgets it.
    pub customer_key_file: Option<PathBuf>,
}

impl Terms {
    /// Takes a parameter; `false` where it is none of these.
    pub(super) fn take(&mut self, kind: &Kind, bucket: &str, name: &str, value: &str) -> Result<bool> {
        match name {
            "endpoint" => self.endpoint = Some(place::endpoint(kind, bucket, value)?),
            "ca_file" => self.ca_file = Some(file(kind, bucket, name, value)?),
            "proxy" => self.proxy = Some(proxy(kind, bucket, value)?),
            "storage_class" => self.storage_class = Some(storage_class(kind, bucket, value)?),
            "customer_key_file" => self.customer_key_file = Some(file(kind, bucket, name, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The parameters as they are written; those without a value are not.
    pub(super) fn parameters(&self) -> Vec<(&'static str, Option<&str>)> {
        vec![
            ("endpoint", self.endpoint.as_deref()),
            ("ca_file", self.ca_file.as_ref().and_then(|path| path.to_str())),
            ("proxy", self.proxy.as_deref()),
            ("storage_class", self.storage_class.as_deref()),
            ("customer_key_file", self.customer_key_file.as_ref().and_then(|path| path.to_str())),
        ]
    }
}

fn wrong(kind: &Kind, bucket: &str, why: &str) -> Error {
    Error::Config(format!("{}://{bucket}: {why}", kind.scheme))
}

/// A name is used by whoever opens the pool, wherever that is done from.
fn file(kind: &Kind, bucket: &str, name: &str, value: &str) -> Result<PathBuf> {
    if !value.starts_with('/') || value.contains(char::is_control) {
        return Err(wrong(kind, bucket, &format!("{name} is no path: write {name}=/absolute/path")));
    }
    Ok(value.into())
}

fn proxy(kind: &Kind, bucket: &str, value: &str) -> Result<String> {
    let bad = || wrong(kind, bucket, "the proxy is no URL: write proxy=http://host:port");
    let url = Url::parse(value).map_err(|_| bad())?;
    if !url.username().is_empty() || url.password().is_some() {
        let why =
            "credentials in the proxy are refused, as names are stored and shown: set HTTPS_PROXY instead";
        return Err(wrong(kind, bucket, why));
    }
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || url.query().is_some() {
        return Err(bad());
    }
    Ok(value.trim_end_matches('/').to_string())
}

fn storage_class(kind: &Kind, bucket: &str, value: &str) -> Result<String> {
    if value.is_empty() || !value.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        return Err(wrong(kind, bucket, "storage_class is no name of a class"));
    }
    if ARCHIVES.iter().any(|archive| archive.eq_ignore_ascii_case(value)) && kind.scheme != "gs" {
        let why = "cannot be read without fetching it first: take a class that is read at once";
        return Err(wrong(kind, bucket, &format!("what is in storage_class={value} {why}")));
    }
    Ok(value.to_string())
}

/// A name of a key, as messages and requests can bear it.
pub(super) fn key_name(kind: &Kind, bucket: &str, value: &str) -> Result<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_/:.".contains(c);
    if value.is_empty() || !value.chars().all(good) {
        return Err(wrong(kind, bucket, "kms is no name of a key: copy it as the service shows it"));
    }
    Ok(value.to_string())
}

/// Refuses two keys for the same thing.
pub(super) fn one_key(kind: &Kind, bucket: &str, terms: &Terms, kms: Option<&String>) -> Result<()> {
    match (kms, &terms.customer_key_file) {
        (Some(_), Some(_)) => {
            Err(wrong(kind, bucket, "kms and customer_key_file exclude each other: keep one"))
        }
        _ => Ok(()),
    }
}
