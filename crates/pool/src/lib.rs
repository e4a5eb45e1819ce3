//! A pool: vdevs as one store. Labels, authority, allocation, segments, checksums, compression, the ARC, and the
//! object-store facade through which metadata goes with two copies.
//!
//! This crate knows of records and their owners' numbers, never of files.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_base::{
    BlockPtr, ChecksumKind, Compression, DatasetId, Epoch, Grant, PoolGuid, RecordOwner, SegmentId, Txg, VdevGuid,
    VdevId,
};

/// Errors of a pool, by what the caller can do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A bucket failed; the text names vdev and object.
    #[error("{0}")]
    Bucket(#[from] tarn_bucket::Error),
    /// Stored bytes are not what was written, in every copy.
    #[error("{0}")]
    Damaged(String),
    /// An object that must be there is not.
    #[error("{0}")]
    Missing(String),
    #[error("no space left in the pool")]
    NoSpace,
    /// Another host holds the pool, or has taken it over.
    #[error("{0}")]
    Held(String),
    #[error("the pool was taken over by another host")]
    Fenced,
    /// A wrong argument: the text names it and the remedy.
    #[error("{0}")]
    Usage(String),
}
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// One dataset as the pool's configuration keeps it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DatasetConfig {
    pub id: DatasetId,
    /// Full name with the pool's: `tank/home/ann`. The pool's own dataset is `tank`.
    pub name: String,
    pub guid: u64,
    pub created_ms: i64,
    /// Properties set here (not inherited), by name.
    pub properties: BTreeMap<String, String>,
    /// Leaf vdevs that hold the dataset's metadata objects: placement is by hash over this list, in this order,
    /// and never changes when vdevs are added.
    pub metadata_vdevs: Vec<VdevGuid>,
    /// A destroyed dataset whose segments are still being freed.
    #[serde(default)]
    pub destroying: bool,
}

/// What every label carries of the pool: written whole, with a higher generation, at each change.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PoolConfig {
    pub guid: PoolGuid,
    pub name: String,
    pub generation: u64,
    pub epoch: Epoch,
    pub created_ms: i64,
    /// Pool properties that were set, by name.
    pub properties: BTreeMap<String, String>,
    pub datasets: Vec<DatasetConfig>,
    pub next_dataset: u32,
    pub vdevs: Vec<VdevConfig>,
    pub next_vdev: u16,
}

/// One top-level vdev; today always a single bucket.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VdevConfig {
    pub id: VdevId,
    pub guid: VdevGuid,
    /// Where it was last seen.
    pub url: String,
    pub added_ms: i64,
}

/// Room in the pool, in bytes. Stores without a limit count as 1 EiB each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    pub total: u64,
    pub free: u64,
}

/// How a read treats the ARC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Keep as long as it is used.
    Keep,
    /// Part of a stream: first to go.
    Stream,
    /// Leave no trace (compaction, scrub).
    Bypass,
}

/// What a segment holds, from its own directory.
#[derive(Debug, Clone)]
pub struct SegmentEntry {
    pub owner: RecordOwner,
    pub ptr: BlockPtr,
}

/// Packs records into one segment.
pub struct SegmentBuilder {}

impl SegmentBuilder {
    /// Starts an empty segment.
    pub fn new(id: SegmentId) -> SegmentBuilder {
        let _ = id;
        unimplemented!()
    }
    /// Compresses and checksums `logical` (pieces of one record, in order), and appends it. Keeps compressed
    /// bytes only if they are at least an eighth shorter. Gives the pointer that the record will have.
    pub fn add(
        &mut self,
        owner: RecordOwner,
        logical: Bytes,
        compression: Compression,
        checksum: ChecksumKind,
        birth: Txg,
    ) -> BlockPtr {
        let _ = (owner, logical, compression, checksum, birth);
        unimplemented!()
    }
    /// Appends a record as it is stored elsewhere (compaction): nothing is compressed or hashed anew.
    pub fn add_stored(&mut self, owner: RecordOwner, ptr: &BlockPtr, stored: Bytes) -> BlockPtr {
        let _ = (owner, ptr, stored);
        unimplemented!()
    }
    /// Stored bytes so far.
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Ends the segment with its directory and trailer.
    pub fn finish(self) -> SegmentBody {
        unimplemented!()
    }
}

/// A finished segment, ready to be PUT.
pub struct SegmentBody {
    pub id: SegmentId,
    /// Pieces in order.
    pub pieces: Vec<Bytes>,
    /// Bytes of records (what accounting calls the segment's size).
    pub payload: u64,
    /// Bytes of the object.
    pub object: u64,
}

/// An open pool.
pub struct Pool {}

impl Pool {
    pub fn guid(&self) -> PoolGuid {
        unimplemented!()
    }
    pub fn config(&self) -> Arc<PoolConfig> {
        unimplemented!()
    }
    /// Changes the configuration and writes it to every label before it returns.
    pub async fn update_config(&self, change: impl FnOnce(&mut PoolConfig) -> Result<()> + Send) -> Result<()> {
        let _ = change;
        unimplemented!()
    }

    // Data plane: used by clients (put, read) and metadata targets (sync, delete, list, directory).

    /// The top-level vdev that the next segment of `bytes` should go to: weighted round-robin by free space and
    /// health, so that buckets carry equal load.
    pub fn place(&self, bytes: u64) -> Result<VdevId> {
        let _ = bytes;
        unimplemented!()
    }
    /// Top-level vdevs that take new segments.
    pub fn writable_vdevs(&self) -> Vec<VdevId> {
        unimplemented!()
    }
    /// PUTs a segment. Durable only after [`Pool::sync`].
    pub async fn put_segment(&self, body: SegmentBody) -> Result<()> {
        let _ = body;
        unimplemented!()
    }
    /// Every segment PUT answered before the call is durable when it returns.
    pub async fn sync(&self) -> Result<()> {
        unimplemented!()
    }
    /// The record, decompressed and verified, if the ARC has it. Never waits.
    pub fn cached(&self, ptr: &BlockPtr) -> Option<Bytes> {
        let _ = ptr;
        unimplemented!()
    }
    /// Reads records: from the ARC, or by as few ranged GETs as their places allow (adjacent records in one
    /// segment are one GET, all GETs in flight together, one fetch for several waiters). Every record is
    /// verified and decompressed; `result[i]` belongs to `ptrs[i]` and has `ptrs[i].logical` bytes.
    pub async fn read(self: &Arc<Self>, ptrs: &[BlockPtr], caching: Caching) -> Result<Vec<Bytes>> {
        let _ = (ptrs, caching);
        unimplemented!()
    }
    /// A record's stored bytes, verified but not decompressed (compaction). Leaves no trace in the ARC.
    pub async fn read_stored(&self, ptrs: &[BlockPtr]) -> Result<Vec<Bytes>> {
        let _ = ptrs;
        unimplemented!()
    }
    pub async fn delete_segments(&self, ids: &[SegmentId]) -> Result<()> {
        let _ = ids;
        unimplemented!()
    }
    /// Segments of a grant that exist, with their object sizes in bytes.
    pub async fn list_grant(&self, grant: Grant) -> Result<Vec<(SegmentId, u64)>> {
        let _ = grant;
        unimplemented!()
    }
    pub async fn segment_directory(&self, id: SegmentId) -> Result<Vec<SegmentEntry>> {
        let _ = id;
        unimplemented!()
    }
    /// The store in which a dataset keeps its metadata: two copies of each object where there are two vdevs.
    pub fn metadata_store(&self, dataset: &DatasetConfig) -> Result<Arc<dyn object_store::ObjectStore>> {
        let _ = dataset;
        unimplemented!()
    }
    pub async fn check_authority(&self) -> Result<()> { unimplemented!() }
    pub fn rewind(&self) -> std::time::Duration { unimplemented!() }
    pub async fn list_segments(&self, dataset: DatasetId) -> Result<Vec<(SegmentId, u64)>> { let _ = dataset; unimplemented!() }
    pub fn space(&self) -> Space {
        unimplemented!()
    }
    /// A pool property's value, set or default, parsed by the caller: `rewind`, `failmode`, ...
    pub fn property(&self, name: &str) -> Option<String> {
        let _ = name;
        unimplemented!()
    }
}
