//! A key of the customer's own, with which a store encrypts what it keeps, and which it forgets with each request.

use super::is_exposed;
use crate::{Error, Result};
use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;

/// Bytes of a key.
const LEN: usize = 32;

/// A key for AES-256. Has no `Debug`, for it is a secret.
pub(crate) struct CustomerKey {
    /// In base64, as the services want it.
    pub key: String,
    /// The SHA-256 of the key, in base64.
    pub sha256: String,
}

impl CustomerKey {
    /// Reads a file of 32 bytes, or of their base64.
    pub fn load(url: &str, file: &Path, endpoint: &str) -> Result<CustomerKey> {
        let shown = file.display();
        if is_exposed(endpoint) {
            return Err(Error::Config(format!(
                "{url}: the customer's key would be readable on its way to {endpoint}: use https://"
            )));
        }
        let bytes = std::fs::read(file).map_err(|e| {
            let why = e.kind();
            Error::Config(format!("{url}: the customer's key {shown} cannot be read: {why}: put it there"))
        })?;
        CustomerKey::of(&bytes).ok_or_else(|| {
            Error::Config(format!(
                "{url}: {shown} is no customer's key: it has {LEN} bytes, or their base64: make one with `openssl rand \
                 -base64 {LEN}`"
            ))
        })
    }

    fn of(bytes: &[u8]) -> Option<CustomerKey> {
        let raw =
            if bytes.len() == LEN { bytes.to_vec() } else { STANDARD.decode(bytes.trim_ascii()).ok()? };
        let sha256 = STANDARD.encode(digest::digest(&digest::SHA256, &raw));
        (raw.len() == LEN).then(|| CustomerKey { key: STANDARD.encode(raw), sha256 })
    }
}

/// Whether bytes are a key; for tests that give it what nobody would.
pub(crate) fn parses_key(bytes: &[u8]) -> bool {
    let key = CustomerKey::of(bytes);
    assert!(key.as_ref().is_none_or(|key| key.key.len() == 44 && key.sha256.len() == 44));
    key.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_32_bytes_or_their_base64() {
        let of = |bytes: &[u8]| CustomerKey::of(bytes).map(|key| (key.key, key.sha256));
        let raw = of(&[7; 32]).unwrap();
        assert_eq!(of(format!("{}\n", raw.0).as_bytes()).unwrap(), raw);
        assert_eq!(raw.1, "S7Bvjk46dxXSAdVz0KpCN2LlXavWGiwCJ4+lbMbSlOA=");
        for bad in [&b""[..], b"aHVzaA==", &[0; 31], &[0; 33], b"\xff"] {
            assert_eq!(of(bad), None);
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let text = |endpoint| CustomerKey::load("s3://b", &file, endpoint).err().unwrap().to_string();
        assert!(text("https://h").contains("cannot be read"));
        std::fs::write(&file, "hush").unwrap();
        let bad = text("https://h");
        assert!(bad.contains("openssl rand") && !bad.contains("hush"), "{bad}");
        assert!(text("http://10.0.0.1").contains("https://"));
    }
}
