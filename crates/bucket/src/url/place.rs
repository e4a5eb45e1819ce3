//! What the names of buckets at services have in common: `scheme://bucket/prefix?parameter=value`.

use crate::{Error, Result, key};
use ::url::Url;

/// What one service's names are like.
pub(super) struct Kind {
    pub scheme: &'static str,
    /// What the service calls a bucket.
    pub bucket: &'static str,
    /// Which parameters there are besides those of [`Terms`](super::Terms).
    pub parameters: &'static [&'static str],
    /// Where credentials belong instead.
    pub credentials: &'static str,
}

/// A name in its parts.
pub(super) struct Place {
    pub bucket: String,
    /// Without slashes at its ends; empty for the bucket's root.
    pub prefix: String,
    pub parameters: Vec<(String, String)>,
}

/// Parses what follows the scheme. Credentials in it are refused.
pub(super) fn parse(kind: &Kind, rest: &str) -> Result<Place> {
    let Kind { scheme, bucket: called, .. } = kind;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.contains('@') {
        return Err(credentials(kind, &format!("in front of the {called}'s name")));
    }
    if bucket.is_empty() {
        return Err(Error::Config(format!(
            "{scheme}:// lacks the {called}'s name: write {scheme}://{called}/prefix"
        )));
    }
    if !bucket.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
        return Err(Error::Config(format!(
            "{scheme}://{}: a {called}'s name has letters, digits, `-`, `.` and `_`; a host goes into \
             ?endpoint=http://host:port",
            bucket.escape_debug()
        )));
    }
    let prefix = prefix.trim_matches('/');
    if !prefix.is_empty() {
        key::check(&format!("{scheme}://{bucket}"), prefix)?;
    }
    let parameters: Vec<(String, String)> =
        ::url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    if let Some((secret, _)) = parameters.iter().find(|(name, _)| is_secret(name)) {
        return Err(credentials(kind, &format!("in the parameter {secret}")));
    }
    Ok(Place { bucket: bucket.into(), prefix: prefix.into(), parameters })
}

/// The name of these parts; parameters without a value are left out.
pub(super) fn write(
    kind: &Kind,
    bucket: &str,
    prefix: &str,
    parameters: &[(&'static str, Option<&str>)],
) -> String {
    let mut url = format!("{}://{bucket}", kind.scheme);
    if !prefix.is_empty() {
        url.push('/');
        url.push_str(prefix);
    }
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let query = ::url::form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish();
    if !query.is_empty() {
        url.push('?');
        // An endpoint reads better as it was typed.
        url.push_str(&query.replace("%3A", ":").replace("%2F", "/"));
    }
    url
}

fn is_secret(parameter: &str) -> bool {
    let parameter = parameter.to_ascii_lowercase();
    // The name of a file is none.
    if parameter.ends_with("_file") {
        return false;
    }
    let words = ["key", "secret", "token", "password", "credential", "signature"];
    // The parameters of a shared access signature.
    words.iter().any(|word| parameter.contains(word)) || ["sas", "sig"].contains(&parameter.as_str())
}

fn credentials(kind: &Kind, place: &str) -> Error {
    Error::Config(format!(
        "credentials {place} are refused, as names are stored and shown: put them into {}",
        kind.credentials
    ))
}

pub(super) fn unknown(kind: &Kind, bucket: &str, parameter: &str) -> Error {
    let (scheme, mut all) = (kind.scheme, super::terms::PARAMETERS.to_string());
    for more in kind.parameters {
        all.push_str(", ");
        all.push_str(more);
    }
    Error::Config(format!("{scheme}://{bucket}: unknown parameter {parameter}: there are {all}"))
}

/// An endpoint that can be used, without a slash at its end.
pub(super) fn endpoint(kind: &Kind, bucket: &str, value: &str) -> Result<String> {
    let bad = |why: &str| {
        Error::Config(format!(
            "{}://{bucket}: the endpoint {why}: write endpoint=https://host or http://host:port",
            kind.scheme
        ))
    };
    let url = Url::parse(value).map_err(|_| bad("is not a URL"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(credentials(kind, "in the endpoint"));
    }
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(bad("is not one of http or https"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("has parameters of its own"));
    }
    Ok(value.trim_end_matches('/').to_string())
}

pub(super) fn truth(kind: &Kind, bucket: &str, name: &str, value: &str) -> Result<bool> {
    match value {
        "true" | "1" | "yes" | "on" | "" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Error::Config(format!(
            "{}://{bucket}: {name}={value} is neither true nor false",
            kind.scheme
        ))),
    }
}
