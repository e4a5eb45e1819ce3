//! A bucket: the leaf of every pool. One store trait and its backends, and the wrapper that gives each vdev its
//! concurrency limit, retries, deadline, counters and histograms.

use bytes::Bytes;
use std::ops::Range;
use thiserror::Error;

/// What went wrong with a bucket, by what the caller can do about it. The text names the bucket and the key.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// No object of that key.
    #[error("{0}: no such object")]
    NotFound(String),
    /// Create-if-absent found an object there.
    #[error("{0}: object exists")]
    Exists(String),
    /// The store is full.
    #[error("{0}: no space left")]
    NoSpace(String),
    /// The store refused the credentials or the action.
    #[error("{0}")]
    Denied(String),
    /// The deadline passed; the last failure is in the text.
    #[error("{0}")]
    Timeout(String),
    /// What the administrator named cannot be used; the text says why and what to do.
    #[error("{0}")]
    Config(String),
    /// Anything else, retried until the deadline where that could help.
    #[error("{0}")]
    Io(String),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

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
    pub total: u64,
    pub free: u64,
}

/// One object store, as Tarn needs it. Keys are relative to the bucket's prefix.
#[async_trait::async_trait]
pub trait Bucket: Send + Sync + 'static {
    /// The URL it was opened by, without credentials.
    fn url(&self) -> &str;
    /// Bytes of `range` of the object; an object that is shorter gives what it has of it.
    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes>;
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
    /// Every object whose key starts with `prefix` (up to a `/`), sorted by key.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;
    /// Returns when every `put` and `delete` answered before the call is durable.
    async fn sync(&self) -> Result<()>;
    async fn capacity(&self) -> Result<Option<Capacity>>;
}
