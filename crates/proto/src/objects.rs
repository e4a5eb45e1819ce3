//! What a client without credentials for the buckets asks of a server that has them: objects, whole or in part.
//!
//! The server looks into none of them. Whoever reads verifies, as it would from a bucket: what a wire or a server did to
//! the bytes is found like what a bucket did.

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tarn_base::{SegmentId, VdevId};

/// Why an object could not be read or written, in the terms of a bucket; the text says of which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OssError {
    #[error("{0}: not found")]
    NotFound(String),
    #[error("{0}")]
    NoSpace(String),
    #[error("{0}")]
    Denied(String),
    /// Past the deadline: trying again at once does not help.
    #[error("{0}")]
    Timeout(String),
    /// Nothing that is written arrives any more: somebody else has the pool, or the dataset.
    #[error("{0}")]
    Fenced(String),
    #[error("{0}")]
    Io(String),
}

/// Size of a store in bytes, where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub total: u64,
    pub free: u64,
}

/// An object storage server as its client sees it: segments of the dataset that the client has.
pub trait Oss: Send + Sync + 'static {
    /// Bytes of `range`; fewer where the object ends before.
    fn get(&self, segment: SegmentId, range: Range<u64>) -> BoxFuture<'static, Result<Bytes, OssError>>;
    /// The last `len` bytes, and the object's size.
    fn get_tail(&self, segment: SegmentId, len: u64) -> BoxFuture<'static, Result<(Bytes, u64), OssError>>;
    /// Writes a segment, which becomes durable with the transaction group that names it.
    fn put(&self, segment: SegmentId, body: Vec<Bytes>) -> BoxFuture<'static, Result<(), OssError>>;
    /// The client has written a segment into its bucket by itself; its records take so many bytes.
    fn stored(&self, segment: SegmentId, bytes: u64) -> BoxFuture<'static, Result<(), OssError>>;
    /// `None` for a store without a limit.
    fn room(&self, vdev: VdevId) -> BoxFuture<'static, Result<Option<Room>, OssError>>;
}
