//! A pool as a client of its host sees it: it reads and writes segments and nothing else. Labels, metadata and the
//! authority are the host's.
//!
//! Its vdevs are the host's, one by one, and each is a [`Bucket`] whose requests go to the host. So all that a pool does
//! for its readers holds for a guest's as well: placement, prefetch and the ARC, and every record is verified where it
//! is used. What the host must look after is done by the other half of this file, which serves the guest: a segment
//! gets the host's epoch and is entered in its books, and nothing but segments of the guest's dataset can be reached.

use crate::authority::{Authority, Gate};
use crate::config::PoolConfig;
use crate::label::{Features, HostId};
use crate::open::Opened;
use crate::pool::Parts;
use crate::segment::{SegmentTrailer, TRAILER_LEN, parse_key, segment_key};
use crate::space::Device;
use crate::text::now_ms;
use crate::vdev::Vdev;
use crate::{Error, Pool, Result, usage};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tarn_base::{DatasetId, Epoch, SegmentId, VdevId};
use tarn_bucket::{Bucket, Capacity, Guarded, ObjectInfo, OpenOptions};

/// The host of a pool, as a guest reaches it. Errors are those of the host's buckets, and of the way to it.
#[async_trait::async_trait]
pub trait Far: Send + Sync + 'static {
    async fn get(&self, segment: SegmentId, range: Range<u64>) -> tarn_bucket::Result<Bytes>;
    /// The last `len` bytes, and the length of all.
    async fn get_tail(&self, segment: SegmentId, len: u64) -> tarn_bucket::Result<(Bytes, u64)>;
    async fn put(&self, segment: SegmentId, body: Vec<Bytes>) -> tarn_bucket::Result<()>;
    async fn capacity(&self, vdev: VdevId) -> tarn_bucket::Result<Option<Capacity>>;
}

/// One of the host's buckets.
struct FarBucket {
    far: Arc<dyn Far>,
    vdev: VdevId,
    url: String,
}

impl FarBucket {
    fn segment(&self, key: &str) -> tarn_bucket::Result<SegmentId> {
        parse_key(key).ok_or_else(|| self.refused(key))
    }

    fn refused(&self, key: &str) -> tarn_bucket::Error {
        tarn_bucket::Error::Denied(format!("{}: {key}: only the pool's own host may do that", self.url))
    }
}

#[async_trait::async_trait]
impl Bucket for FarBucket {
    fn url(&self) -> &str {
        &self.url
    }

    async fn get(&self, key: &str, range: Range<u64>) -> tarn_bucket::Result<Bytes> {
        self.far.get(self.segment(key)?, range).await
    }

    async fn get_tail(&self, key: &str, len: u64) -> tarn_bucket::Result<(Bytes, u64)> {
        self.far.get_tail(self.segment(key)?, len).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> tarn_bucket::Result<()> {
        self.far.put(self.segment(key)?, body).await
    }

    async fn head(&self, key: &str) -> tarn_bucket::Result<ObjectInfo> {
        Err(self.refused(key))
    }

    async fn create(&self, key: &str, _: Vec<Bytes>) -> tarn_bucket::Result<()> {
        Err(self.refused(key))
    }

    async fn delete(&self, _: &[String]) -> tarn_bucket::Result<()> {
        Err(self.refused("delete"))
    }

    /// Asked by who wants to know whether the store answers: the host does.
    async fn list(&self, _: &str) -> tarn_bucket::Result<Vec<ObjectInfo>> {
        self.far.capacity(self.vdev).await.map(|_| Vec::new())
    }

    /// What was put is durable with the transaction group that names it, which is the host's affair.
    async fn sync(&self) -> tarn_bucket::Result<()> {
        Ok(())
    }

    async fn capacity(&self) -> tarn_bucket::Result<Option<Capacity>> {
        self.far.capacity(self.vdev).await
    }
}

/// A guest has none: its host does.
struct Nobody;

#[async_trait::async_trait]
impl Authority for Nobody {
    fn epoch(&self) -> Epoch {
        Epoch(0)
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn extend(&self, _: &Vdev) -> Result<()> {
        Err(usage("a vdev is added on the pool's own host"))
    }

    async fn release(&self) -> Result<()> {
        Ok(())
    }
}

impl Pool {
    /// What a guest must know of the pool and of one of its datasets.
    pub fn invitation(&self, dataset: DatasetId) -> Result<Vec<u8>> {
        let mut config = (*self.config()).clone();
        config.datasets.retain(|row| row.id == dataset);
        serde_json::to_vec(&config).map_err(|e| usage(format!("the pool cannot be described: {e}")))
    }

    /// The pool as it was described by its host, which `far` reaches; `memory` in bytes for records.
    pub async fn guest(invitation: &[u8], far: Arc<dyn Far>, memory: u64) -> Result<Arc<Pool>> {
        let config: PoolConfig = serde_json::from_slice(invitation)
            .map_err(|e| usage(format!("what the server says of the pool cannot be understood: {e}")))?;
        if let Some(problem) = config.problem() {
            return Err(usage(format!("what the server says of the pool cannot be: {problem}")));
        }
        let mut vdevs = Vec::with_capacity(config.vdevs.len());
        for vdev in &config.vdevs {
            let bucket: Arc<dyn Bucket> =
                Arc::new(FarBucket { far: far.clone(), vdev: vdev.id, url: vdev.url.clone() });
            let guarded = Guarded::new(bucket, &OpenOptions::default());
            let device = Device::open(None, guarded.clone()).await?;
            let opened = Opened { bucket: guarded.clone(), guarded: Some(guarded), local: None };
            vdevs.push(Arc::new(Vdev::new(vdev.id, vdev.guid, opened, device)));
        }
        vdevs.sort_by_key(|vdev| vdev.id);
        Ok(Pool::assemble(Parts {
            config,
            host: HostId { id: 0, name: String::new() },
            held_since_ms: now_ms(),
            features: Features::default(),
            vdevs,
            gate: Gate::new(Box::new(Nobody)),
            memory,
        }))
    }

    /// For a guest: bytes of a segment's object.
    pub async fn guest_get(&self, segment: SegmentId, range: Range<u64>) -> tarn_bucket::Result<Bytes> {
        self.guests_vdev(segment)?.get(&segment_key(segment), range).await
    }

    /// For a guest: the end of a segment's object, and the length of all of it.
    pub async fn guest_get_tail(&self, segment: SegmentId, len: u64) -> tarn_bucket::Result<(Bytes, u64)> {
        self.guests_vdev(segment)?.get_tail(&segment_key(segment), len).await
    }

    fn guests_vdev(&self, segment: SegmentId) -> tarn_bucket::Result<Arc<Vdev>> {
        self.vdev(segment.grant.vdev).map_err(|e| tarn_bucket::Error::Config(e.to_string()))
    }

    /// For a guest: writes what it packed as this segment. Its trailer gets the epoch of this host.
    pub async fn guest_put(&self, segment: SegmentId, body: Bytes) -> Result<()> {
        let trailer = SegmentTrailer::of(segment, self.guid, &body, body.len() as u64)
            .map_err(|problem| usage(format!("segment {segment} from a client: {problem}")))?;
        let payload = trailer.directory_offset;
        let trailer = SegmentTrailer { epoch: self.gate.epoch(), ..trailer };
        let pieces = vec![body.slice(..body.len() - TRAILER_LEN), trailer.to_bytes()];
        self.store_segment(segment, payload, pieces).await
    }

    /// For a guest: the size of a vdev's store.
    pub fn guest_capacity(&self, vdev: VdevId) -> Result<Option<Capacity>> {
        let device = self.vdev(vdev)?.device.clone();
        let space = device.space();
        Ok((!device.unlimited()).then_some(Capacity { total: space.total, free: space.free }))
    }

    /// For a guest: what an error of the pool is to it.
    pub fn guest_error(error: Error) -> tarn_bucket::Error {
        match error {
            Error::Bucket(error) => error,
            Error::NoSpace => tarn_bucket::Error::NoSpace("the pool".into()),
            other => tarn_bucket::Error::Denied(other.to_string()),
        }
    }
}
