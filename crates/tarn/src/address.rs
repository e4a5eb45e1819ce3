//! Where a dataset is that another host serves: `HOST[:PORT]:/POOL/DATASET`.

use crate::error::usage;
use crate::names;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The port of `tarn serve`, unless another is asked for.
pub const PORT: u16 = 8276;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// A name, an IPv4 address, or an IPv6 address in brackets.
    pub host: String,
    pub port: u16,
    pub dataset: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            PORT => write!(f, "{}:/{}", self.host, self.dataset),
            port => write!(f, "{}:{port}:/{}", self.host, self.dataset),
        }
    }
}

impl Address {
    /// Reads what was typed; `None`: it names a dataset of this host.
    pub fn parse(text: &str) -> Option<Result<Address>> {
        let (server, dataset) = text.split_once(":/")?;
        Some(Self::read(text, server, dataset))
    }

    fn read(text: &str, server: &str, dataset: &str) -> Result<Address> {
        let bad = || usage(format!("'{text}': write HOST:/POOL/DATASET or HOST:PORT:/POOL/DATASET"));
        let (host, port) = match server.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| bad())?),
            _ => (server, PORT),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let good = match bare {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c)),
        };
        if !good || port == 0 {
            return Err(bad());
        }
        names::pool_of(dataset)?;
        Ok(Address { host: host.into(), port, dataset: dataset.into() })
    }

    /// The host without brackets.
    pub fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// A name for its lock, socket and log, which no pool can have.
    pub fn key(&self) -> String {
        format!("@{}:{}:{}", self.bare_host(), self.port, self.dataset.replace('/', ":"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in
            ["server:/tank", "10.0.0.1:/tank/a/b", "server:9000:/tank", "[::1]:/tank", "[fe80::1]:99:/tank"]
        {
            let address = Address::parse(text).unwrap().unwrap();
            assert_eq!(address.to_string(), text);
            assert!(!address.key().contains('/'));
        }
        let address = Address::parse("[::1]:77:/tank/a").unwrap().unwrap();
        assert_eq!((address.bare_host(), address.port, address.dataset.as_str()), ("::1", 77, "tank/a"));
        assert_eq!(Address::parse("server:8276:/tank").unwrap().unwrap().to_string(), "server:/tank");
    }

    #[test]
    fn what_is_no_address_is_told() {
        assert!(Address::parse("tank/a").is_none() && Address::parse("tank:a").is_none());
        for text in
            [":/tank", "a b:/tank", "server:/", "server:x:/tank", "server:0:/tank", "[1]:/tank", "s:/-"]
        {
            assert!(Address::parse(text).unwrap().is_err(), "{text}");
        }
    }
}
