//! What the client needs of a pool, as a trait: so that it can be tested over a store that is slow, reorders,
//! fills up and fails on purpose.

use bytes::Bytes;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_base::block::Sealed;
use tarn_base::sabotage::{self, Sabotage};
use tarn_base::{BlockPtr, ChecksumKind, Compression, FsError, RecordOwner, SegmentId, Txg, VdevId};
use tarn_pool::{Caching, Error, Pool, SegmentBody, SegmentBuilder, Space};

/// How records of one segment are stored.
#[derive(Clone, Copy, Debug)]
pub struct Storing {
    pub compression: Compression,
    pub checksum: ChecksumKind,
}

/// Records in buckets.
pub trait Records: Send + Sync + 'static {
    /// The vdev that the next segment of `bytes` should go to.
    fn place(&self, bytes: u64) -> Result<VdevId, Error>;
    /// Vdevs that take new segments.
    fn writable_vdevs(&self) -> Vec<VdevId>;
    /// Bytes of records that a segment gathers before it is written.
    fn segment_size(&self) -> u64;
    /// Vdevs that segments are spread over.
    fn stripes(&self) -> u64 {
        self.writable_vdevs().len() as u64
    }
    /// Bytes of records that memory keeps at the most.
    fn kept_max(&self) -> u64;
    /// Packs the records into the segment `id` and writes it; answers one pointer for each, in order. The
    /// pointers are durable only after a transaction group that names them.
    fn write(
        self: Arc<Self>,
        id: SegmentId,
        records: Vec<(RecordOwner, Bytes)>,
        storing: Storing,
    ) -> BoxFuture<'static, Result<Vec<BlockPtr>, Error>>;
    /// As [`Records::write`], but leaves it to the caller to have the segment brought to its bucket
    /// ([`tarn_proto::Mds::commit_carried`]).
    fn pack(
        self: Arc<Self>,
        id: SegmentId,
        records: Vec<(RecordOwner, Bytes)>,
        storing: Storing,
    ) -> BoxFuture<'static, Result<(Sealed, Vec<BlockPtr>), Error>> {
        let _ = (records, storing);
        Box::pin(async move { Err(Error::Usage(format!("segment {id} cannot be carried"))) })
    }
    /// A segment was written, and nothing will point to it.
    fn discard(&self, _segment: SegmentId) {}
    /// The record if memory has it. Never waits.
    fn cached(&self, ptr: &BlockPtr) -> Option<Bytes>;
    /// Lets memory have a record that was just written.
    fn insert_cached(&self, ptr: &BlockPtr, logical: Bytes, caching: Caching);
    /// A stream has passed these records.
    fn passed(&self, ptrs: &[BlockPtr]);
    /// Verified records, `result[i]` for `ptrs[i]`.
    fn read(
        self: Arc<Self>,
        ptrs: Vec<BlockPtr>,
        caching: Caching,
    ) -> BoxFuture<'static, Result<Vec<Bytes>, Error>>;
    /// A record could not be read for good: lets the pool know whose it is.
    fn note_lost(&self, _ptr: &BlockPtr, _owner: RecordOwner, _error: &Error) {}
    fn space(&self) -> Space;
}

/// The real thing.
pub(crate) struct PoolRecords {
    pool: Arc<Pool>,
    /// The pool's property, read anew with each segment: looking it up is too dear for every read.
    segment_size: AtomicU64,
    /// As many vdevs as the pool had when something was last asked of it.
    stripes: AtomicU64,
}

impl PoolRecords {
    pub fn new(pool: Arc<Pool>) -> PoolRecords {
        let segment_size = AtomicU64::new(pool.segment_size());
        let stripes = AtomicU64::new(pool.vdev_count());
        PoolRecords { pool, segment_size, stripes }
    }
}

async fn build(
    id: SegmentId,
    records: Vec<(RecordOwner, Bytes)>,
    storing: Storing,
) -> Result<(SegmentBody, Vec<BlockPtr>), Error> {
    // Compression and checksums take milliseconds: not on a thread that others wait for.
    let build = tarn_pool::offload_heavy(move || {
        let mut builder = SegmentBuilder::new(id);
        let mut ptrs = Vec::with_capacity(records.len());
        for (owner, logical) in records {
            // The transaction group that takes the pointer in decides its birth.
            ptrs.push(builder.add(owner, logical, storing.compression, storing.checksum, Txg(0)));
        }
        (builder.finish(), ptrs)
    });
    build.await.map_err(|e| Error::Usage(format!("packing segment {id} failed: {e}")))
}

impl Records for PoolRecords {
    fn place(&self, bytes: u64) -> Result<VdevId, Error> {
        self.pool.place(bytes)
    }

    fn writable_vdevs(&self) -> Vec<VdevId> {
        self.pool.writable_vdevs()
    }

    fn segment_size(&self) -> u64 {
        self.segment_size.load(Ordering::Relaxed)
    }

    fn stripes(&self) -> u64 {
        self.stripes.load(Ordering::Relaxed)
    }

    fn kept_max(&self) -> u64 {
        self.pool.arc_for_kept()
    }

    fn write(
        self: Arc<Self>,
        id: SegmentId,
        records: Vec<(RecordOwner, Bytes)>,
        storing: Storing,
    ) -> BoxFuture<'static, Result<Vec<BlockPtr>, Error>> {
        self.segment_size.store(self.pool.segment_size(), Ordering::Relaxed);
        Box::pin(async move {
            let (body, ptrs) = build(id, records, storing).await?;
            if sabotage::on(Sabotage::CommitBeforePut) {
                tokio::spawn(async move { self.pool.put_segment(body).await });
                return Ok(ptrs);
            }
            self.pool.put_segment(body).await?;
            Ok(ptrs)
        })
    }

    fn pack(
        self: Arc<Self>,
        id: SegmentId,
        records: Vec<(RecordOwner, Bytes)>,
        storing: Storing,
    ) -> BoxFuture<'static, Result<(Sealed, Vec<BlockPtr>), Error>> {
        Box::pin(async move {
            let (body, ptrs) = build(id, records, storing).await?;
            Ok((self.pool.seal(body), ptrs))
        })
    }

    fn discard(&self, segment: SegmentId) {
        self.pool.note_stray(segment.grant);
    }

    fn cached(&self, ptr: &BlockPtr) -> Option<Bytes> {
        self.pool.cached(ptr)
    }

    fn insert_cached(&self, ptr: &BlockPtr, logical: Bytes, caching: Caching) {
        self.pool.insert_cached(ptr, &logical, caching);
    }

    fn passed(&self, ptrs: &[BlockPtr]) {
        self.pool.passed(ptrs);
    }

    fn read(
        self: Arc<Self>,
        ptrs: Vec<BlockPtr>,
        caching: Caching,
    ) -> BoxFuture<'static, Result<Vec<Bytes>, Error>> {
        self.stripes.store(self.pool.vdev_count(), Ordering::Relaxed);
        Box::pin(async move { self.pool.read(&ptrs, caching).await })
    }

    fn note_lost(&self, ptr: &BlockPtr, owner: RecordOwner, error: &Error) {
        self.pool.note_lost(ptr, owner, error);
    }

    fn space(&self) -> Space {
        self.pool.space()
    }
}

/// What a caller of the file system is told of a pool's failure.
pub(crate) fn fs_error(error: Error) -> FsError {
    match error {
        Error::NoSpace => FsError::NoSpace,
        Error::Fenced | Error::Held(_) => FsError::Fenced,
        other => FsError::Io(other.to_string()),
    }
}
