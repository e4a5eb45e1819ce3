//! The contract that every backend keeps.

use crate::{Error, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tarn_base::Tally;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Key below the bucket's prefix, `/`-separated.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Milliseconds since 1970, by the store's clock.
    pub modified_ms: i64,
}

/// How large the store is, where it has an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes.
    pub total: u64,
    /// Bytes that may still be written.
    pub free: u64,
}

/// One piece of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPage {
    pub objects: Vec<ObjectInfo>,
    /// What to pass for the next page; `None` after the last.
    pub next: Option<String>,
}

/// An upload in parts that was begun and not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedUpload {
    /// The key that it is for.
    pub key: String,
    /// The store's name for it.
    pub id: String,
}

/// The kinds of request, as limits, counters and faults tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Get,
    Put,
    Create,
    Delete,
    List,
    Head,
    Sync,
}

impl Operation {
    pub const ALL: [Operation; 7] = [
        Operation::Get,
        Operation::Put,
        Operation::Create,
        Operation::Delete,
        Operation::List,
        Operation::Head,
        Operation::Sync,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::Create => "create",
            Operation::Delete => "delete",
            Operation::List => "list",
            Operation::Head => "head",
            Operation::Sync => "sync",
        }
    }
}

/// One object store, as Tarn needs it. Keys are relative to the bucket's prefix and must pass
/// [`crate::key::check`].
///
/// A key is an object or a folder of others, never both: `a` and `a/b` cannot exist together, because a
/// directory-backed store cannot hold them.
///
/// A request that was given up (its future dropped, or a time limit passed) may still take effect later. Objects
/// that are written once do not mind; who overwrites one must be able to tell which is newer.
/// Where credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// In words, without the credentials.
    pub says: String,
    /// Whether they are good, or renewed, for as long as a pool is mounted.
    pub lasts: bool,
}

impl Source {
    pub(crate) fn lasting(says: &str) -> Source {
        Source { says: says.to_string(), lasts: true }
    }

    /// What ends some time and nobody renews; `instead` says what somebody does.
    pub(crate) fn ending(says: &str, instead: &str) -> Source {
        Source {
            says: format!("{says}, which nobody renews while a pool is mounted: {instead}"),
            lasts: false,
        }
    }
}

#[async_trait::async_trait]
pub trait Bucket: Send + Sync + 'static {
    /// The URL it was opened by, without credentials.
    fn url(&self) -> &str;

    /// Bytes of `range` of the object; an object that is shorter gives what it has of it. An empty range gives
    /// no bytes, and may do so without asking the store.
    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes>;

    /// The object's first `len` bytes (all of it when it is shorter), for a reader who wants nearly the whole: some
    /// stores send a whole object with half the effort of a part of it, so they may be asked for the whole.
    async fn get_start(&self, key: &str, len: u64) -> Result<Bytes> {
        self.get(key, 0..len).await
    }

    /// The last `len` bytes of the object (all of it when it is shorter) and the object's size.
    async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)>;

    async fn head(&self, key: &str) -> Result<ObjectInfo>;

    /// Writes the object whole, over any that is there; readers see the old or the new. `body` is written
    /// piece after piece.
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()>;

    /// Writes the object only if the key is free, durably, else [`Error::Exists`].
    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()>;

    /// Deletes the objects, in batches where the store can; one that is not there is no error.
    async fn delete(&self, keys: &[String]) -> Result<()>;

    /// Every object whose key starts with `prefix` (up to a `/`), sorted by key: `a` and `a/` both name what
    /// lies below `a/`, and not `ab/c`. The empty prefix names everything.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// One piece of [`Bucket::list`], in no particular order: the first for `None`, then the one that follows
    /// [`ListPage::next`]. A store that lists in many requests gives one request's worth, so that a long listing
    /// is known to make progress.
    async fn list_page(&self, prefix: &str, after: Option<String>) -> Result<ListPage> {
        match after {
            None => Ok(ListPage { objects: self.list(prefix).await?, next: None }),
            Some(_) => Err(Error::Config(format!("{}: lists in one page only", self.url()))),
        }
    }

    /// Uploads in parts that somebody else has begun and neither finished nor ended: a crash leaves them. Stores that
    /// have no such thing give none.
    async fn uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        Ok(Vec::new())
    }

    /// Ends such an upload, so that its parts do not stay. One that is not there is no error.
    async fn end_upload(&self, _upload: &UnfinishedUpload) -> Result<()> {
        Ok(())
    }

    /// Returns when every `put` and `delete` answered before the call is durable. An error says that some of
    /// them may be lost; asking again does not bring them back.
    async fn sync(&self) -> Result<()>;

    async fn capacity(&self) -> Result<Option<Capacity>>;

    /// Where this bucket's credentials come from, if it has any.
    fn credentials(&self) -> Option<Source> {
        None
    }

    /// Why what is deleted would not give its space back (old versions are kept, say), in one line; `None` when it
    /// does or the store does not tell.
    async fn keeps(&self) -> Option<String> {
        None
    }

    /// Where the requests that go out are counted, for a store that charges for them.
    fn tally(&self) -> Option<&Tally> {
        None
    }
}

/// Every piece of a listing, sorted by key: [`Bucket::list`] for a store that lists in pieces.
pub(crate) async fn every_page(bucket: &impl Bucket, prefix: &str) -> Result<Vec<ObjectInfo>> {
    let (mut objects, mut after) = (Vec::new(), None);
    loop {
        let page = bucket.list_page(prefix, after).await?;
        objects.extend(page.objects);
        after = page.next;
        if after.is_none() {
            objects.sort_unstable_by(|a: &ObjectInfo, b| a.key.cmp(&b.key));
            return Ok(objects);
        }
    }
}

/// Bytes in the pieces of a body.
pub fn body_len(body: &[Bytes]) -> u64 {
    body.iter().map(|piece| piece.len() as u64).sum()
}
