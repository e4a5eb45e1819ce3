//! What the stores that are reached over HTTP have in common: how long a request may take, how connections are kept,
//! what an answer means.
//!
//! One request is one attempt: `object_store`'s own retries are off, because the guard decides what is tried again and
//! for how long, and must see each failure to do so.

pub(crate) mod answer;
pub(crate) mod ask;
pub(crate) mod body;
mod counted;
pub(crate) mod customer_key;
mod direct;
pub(crate) mod folder;
pub(crate) mod objects;
pub(crate) mod renew;
pub(crate) mod xml;

use crate::url::Terms;
use crate::{Error, Result};
pub(crate) use counted::Counted;
pub(crate) use direct::{Connector, parses_head};
use object_store::{Certificate, ClientOptions, RetryConfig};
use std::fmt::Write;
use std::time::Duration;

/// Connections kept open to the store while nothing uses them.
const IDLE_CONNECTIONS: usize = 512;
/// How long such a connection is kept.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// No request takes longer, whoever waits for it.
const REQUEST_LIMIT: Duration = Duration::from_secs(300);
/// How long a connection may take to open.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Who gives credentials to a machine, which no proxy can ask for it.
const METADATA_HOSTS: &str = "169.254.169.254,169.254.170.2,169.254.170.23,metadata.google.internal";

/// How the library's client reaches the endpoint of the bucket `url`.
pub(crate) fn options(url: &str, endpoint: &str, terms: &Terms) -> Result<ClientOptions> {
    let mut options = plain_options(endpoint);
    if let Some(proxy) = &terms.proxy {
        options = options.with_proxy_url(proxy).with_proxy_excludes(METADATA_HOSTS);
    }
    let Some(file) = &terms.ca_file else { return Ok(options) };
    let wrong = |why: &str| {
        let shown = file.display();
        Error::Config(format!(
            "{url}: the certificates in {shown} cannot be used: {why}: ca_file names a PEM file"
        ))
    };
    let pem = std::fs::read(file).map_err(|e| wrong(&e.kind().to_string()))?;
    let found = Certificate::from_pem_bundle(&pem).map_err(|_| wrong("they are damaged"))?;
    if found.is_empty() {
        return Err(wrong("it has none"));
    }
    Ok(found.into_iter().fold(options, ClientOptions::with_root_certificate))
}

fn plain_options(endpoint: &str) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(endpoint.starts_with("http://"))
        .with_http1_only()
        .with_connect_timeout(CONNECT_LIMIT)
        .with_timeout(REQUEST_LIMIT)
        .with_pool_max_idle_per_host(IDLE_CONNECTIONS)
        .with_pool_idle_timeout(IDLE_LIMIT)
}

/// What makes the clients: see [`direct`].
pub(crate) fn connector(counted: Counted) -> Connector {
    Connector {
        counted,
        connect_limit: CONNECT_LIMIT,
        request_limit: REQUEST_LIMIT,
        idle_limit: IDLE_LIMIT,
        idle_connections: IDLE_CONNECTIONS,
    }
}

/// One attempt.
pub(crate) fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// What lies at the bottom of an error, which says most.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Whether what is sent to the endpoint can be read and changed on its way: neither TLS nor this host's own loopback
/// protects it. Then every byte should be signed, which costs more than all else that a PUT does here, and no token sent.
pub(crate) fn is_exposed(endpoint: &str) -> bool {
    let Ok(url) = ::url::Url::parse(endpoint) else { return true };
    let loopback = match url.host() {
        Some(::url::Host::Ipv4(address)) => address.is_loopback(),
        Some(::url::Host::Ipv6(address)) => address.is_loopback(),
        Some(::url::Host::Domain(name)) => name == "localhost",
        None => false,
    };
    url.scheme() != "https" && !loopback
}

/// A name as a part of a URL's path or query, RFC 3986: all but what needs none is encoded.
pub(crate) fn encoded(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len() + 16);
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tls_and_the_loopback_protect_what_is_sent() {
        for (endpoint, exposed) in [
            ("http://10.0.0.1:9000", true),
            ("http://127.0.0.1.example.org", true),
            ("http://127.0.0.1:9000", false),
            ("http://[::1]:9000", false),
            ("http://localhost:9000", false),
            ("https://10.0.0.1", false),
        ] {
            assert_eq!(is_exposed(endpoint), exposed, "{endpoint}");
        }
    }
}
