//! Names of pools and datasets, and URLs as they are typed.

use crate::error::usage;
use anyhow::{Context, Result};
use tarn_bucket::url::SCHEMES;

/// Longest name of a dataset with its pool's, in bytes.
const NAME_MAX: usize = 255;
/// Checks a pool's name as zpool does.
pub fn check_pool(name: &str) -> Result<()> {
    // The lock and the socket are named after it, and a file's name has an end too.
    const LONGEST: usize = 200;
    match tarn_pool::name_problem(name) {
        Some(problem) => Err(usage(problem)),
        None if name.len() > LONGEST => {
            Err(usage(format!("invalid pool name: it is longer than {LONGEST} bytes")))
        }
        None => Ok(()),
    }
}

/// Checks a dataset's name (`tank` or `tank/a/b`) and gives its pool's.
pub fn pool_of(name: &str) -> Result<&str> {
    let (pool, rest) = name.split_once('/').map_or((name, None), |(pool, rest)| (pool, Some(rest)));
    check_pool(pool)?;
    let good = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(allowed);
    if name.len() > NAME_MAX {
        return Err(usage(format!(
            "the dataset's name '{}...' has {} bytes: use at most {NAME_MAX}",
            name.chars().take(24).collect::<String>(),
            name.len()
        )));
    }
    if !rest.is_none_or(|rest| rest.split('/').all(good)) {
        return Err(usage(format!(
            "'{name}' is no name for a dataset: write POOL/NAME with letters, digits, '-', '_', '.' or ':'"
        )));
    }
    Ok(pool)
}

fn allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':')
}

/// `name` is `ancestor` or lies below it.
pub fn is_within(name: &str, ancestor: &str) -> bool {
    name.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A bucket's URL as it was typed; a path becomes absolute, for a daemon has another working directory.
pub fn url(text: &str) -> Result<String> {
    // One that lacks a slash is a mistake, and not a path.
    let scheme =
        SCHEMES.iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| rest.starts_with(':')));
    if scheme || text.contains("://") || text.starts_with('/') {
        return Ok(text.to_string());
    }
    if text.is_empty() {
        return Err(usage(
            "a bucket is a URL (s3://bucket/prefix, gs://bucket/prefix, az://container/prefix) or a directory",
        ));
    }
    let path = std::path::absolute(text).with_context(|| text.to_string())?;
    path.into_os_string().into_string().map_err(|_| usage(format!("'{text}': the path is not UTF-8")))
}

/// [`url`] for each of several.
pub fn urls(texts: &[String]) -> Result<Vec<String>> {
    texts.iter().map(|text| url(text)).collect()
}

/// A directory's path as the pool knows it: absolute and, where it is there, without symbolic links.
pub fn directory(text: &str) -> Result<String> {
    let path = std::path::absolute(text).with_context(|| text.to_string())?;
    let path = path.canonicalize().unwrap_or(path);
    path.into_os_string().into_string().map_err(|_| usage(format!("'{text}': the path is not UTF-8")))
}

/// What follows the word `cache` in a list of vdevs, as zpool has it, is a list of caches: gives both lists.
pub fn split_caches(words: &[String]) -> Result<(&[String], &[String])> {
    let Some(at) = words.iter().position(|word| word == "cache") else { return Ok((words, &[])) };
    let (vdevs, caches) = (&words[..at], &words[at + 1..]);
    if caches.is_empty() || caches.iter().any(|word| word == "cache") {
        return Err(usage(
            "after 'cache' come directories (a bucket in a directory of that name is ./cache)",
        ));
    }
    Ok((vdevs, caches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["tank", "t", "a-b_c.d:e", "tank/a", "tank/a/b.1"] {
            assert!(pool_of(good).is_ok(), "{good}");
        }
        for bad in ["", "1tank", "mirror", "tank/", "/tank", "tank//a", "tank/..", "ta nk", "tank/ä", "-f"] {
            assert!(pool_of(bad).is_err(), "{bad}");
        }
        assert!(pool_of(&format!("tank/{}", "x".repeat(300))).is_err());
        assert_eq!(pool_of("tank/a/b").unwrap(), "tank");
    }

    #[test]
    fn descent_goes_by_whole_names() {
        assert!(is_within("tank/a/b", "tank/a") && is_within("tank/a", "tank/a"));
        assert!(!is_within("tank/ab", "tank/a"));
    }

    #[test]
    fn caches_follow_their_word() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        let split = |text: &str| {
            let words = words(text);
            split_caches(&words).map(|(vdevs, caches)| (vdevs.join(" "), caches.join(" "))).ok()
        };
        let pair = |a: &str, b: &str| Some((a.to_string(), b.to_string()));
        assert_eq!(split("/a ./cache"), pair("/a ./cache", ""));
        assert_eq!(split("/a cache /b /c"), pair("/a", "/b /c"));
        assert_eq!(split("cache /b"), pair("", "/b"));
        assert_eq!((split("/a cache"), split("cache /b cache /c")), (None, None));
    }

    #[test]
    fn paths_become_absolute() {
        assert!(url("disk1").unwrap().starts_with('/'));
        assert_eq!(url("s3://b/p").unwrap(), "s3://b/p");
        assert_eq!(url("gs:/b").unwrap(), "gs:/b");
    }
}
