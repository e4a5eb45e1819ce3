//! Where a bucket's keys lie at its store: all below one prefix.

use crate::{Result, key};

/// A folder of a bucket at a store, or all of the bucket.
pub(crate) struct Folder {
    /// The bucket's name for messages.
    pub url: String,
    /// Ends in `/` unless it is empty.
    pub prefix: String,
}

impl Folder {
    /// `prefix` has no slash at its end.
    pub fn new(url: String, prefix: &str) -> Folder {
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Folder { url, prefix }
    }

    /// The object's name at the store. A key that cannot be used is refused.
    pub fn name(&self, key: &str) -> Result<String> {
        key::check(&self.url, key)?;
        let name = format!("{}{key}", self.prefix);
        key::check(&self.url, &name)?;
        Ok(name)
    }

    /// The key of the object of that name, if it is one of this folder's.
    pub fn key_of(&self, name: &str) -> Option<String> {
        let key = name.strip_prefix(&self.prefix)?;
        key::check(&self.url, key).ok().map(|()| key.to_string())
    }

    /// What the names of all objects begin with whose keys lie below `prefix`; ends in `/` unless it is empty.
    pub fn below(&self, prefix: &str) -> Result<String> {
        let folder = key::folder(&self.url, prefix)?;
        Ok(if folder.is_empty() { self.prefix.clone() } else { format!("{}{folder}/", self.prefix) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lie_below_the_prefix_and_lead_back() {
        for (prefix, name, all, some) in [("", "a/b", "", "a/"), ("p q", "p q/a/b", "p q/", "p q/a/")] {
            let folder = Folder::new("s3://x".into(), prefix);
            assert_eq!(folder.name("a/b").unwrap(), name);
            assert_eq!(folder.key_of(name).unwrap(), "a/b");
            assert_eq!(
                (folder.below("").unwrap().as_str(), folder.below("a").unwrap().as_str()),
                (all, some)
            );
            assert!(folder.name("../a").is_err());
        }
        let folder = Folder::new("s3://x".into(), "p");
        assert_eq!((folder.key_of("q/a"), folder.key_of("p/"), folder.key_of("p")), (None, None, None));
    }
}
