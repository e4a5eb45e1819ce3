//! Which keys are allowed: those that every backend holds without changing or misreading them.

use crate::{Error, Result};

/// Longest key in bytes, with the bucket's prefix: S3's limit.
pub const MAX_KEY: usize = 1024;
/// Longest part of a key between slashes, in bytes: what a directory entry holds.
pub const MAX_PART: usize = 255;
/// The folder at the root of a local bucket in which objects are written before they get their name.
pub const TEMPORARY: &str = ".tarn-tmp";

/// Refuses a key that is empty or too long, has an empty part, a part of `.` or `..`, a control character, or
/// would lie in the local backend's own folder.
pub fn check(url: &str, key: &str) -> Result<()> {
    let bad = |why: &str| Err(Error::Config(format!("{url}: the key {key:?} cannot be used: {why}")));
    if key.is_empty() {
        return bad("it is empty");
    }
    if key.len() > MAX_KEY {
        return bad("it is longer than 1024 bytes");
    }
    if key.chars().any(|c| c.is_ascii_control()) {
        return bad("it has a control character");
    }
    for (i, part) in key.split('/').enumerate() {
        match part {
            "" => return bad("it has an empty part"),
            "." | ".." => return bad("it has a part `.` or `..`"),
            TEMPORARY if i == 0 => return bad("that folder is for unfinished writes"),
            _ if part.len() > MAX_PART => return bad("a part is longer than 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}

/// A listing's prefix without its last `/`; empty for everything. Refused by the rules of [`check`].
pub(crate) fn folder<'a>(url: &str, prefix: &'a str) -> Result<&'a str> {
    let folder = prefix.strip_suffix('/').unwrap_or(prefix);
    if !folder.is_empty() {
        check(url, folder)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_could_escape_or_be_misread_are_refused() {
        for bad in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\nb", "a\0b", ".tarn-tmp/x"] {
            assert!(matches!(check("mem://t", bad), Err(Error::Config(_))), "{bad:?}");
        }
        assert!(check("mem://t", &"k".repeat(256)).is_err());
        assert!(check("mem://t", &"k/".repeat(600)).is_err());
        for good in ["a", "a/b", "...", "a b", "%2F", "ünï", "a/.tarn-tmp", "#?&=+", "..a"] {
            assert!(check("mem://t", good).is_ok(), "{good:?}");
        }
    }
}
