//! A pool as a client of its host sees it: it reads and writes segments and nothing else. Labels, metadata and the
//! authority are the host's.
//!
//! Its vdevs are the host's, one by one, and each is a [`Bucket`] whose requests go to the host. So all that a pool does
//! for its readers holds for a guest's as well: placement, prefetch and the ARC, and every record is verified where it
//! is used. What the host must look after is done by the other half of this file, which serves the guest: a segment
//! gets the host's epoch and is entered in its books, and nothing but segments of the guest's dataset can be reached.

use crate::authority::{Authority, Gate};
use crate::config::PoolConfig;
use crate::label::{self, Features, Found, HostId};
use crate::open::{Opened, open};
use crate::outage::PROBE;
use crate::pool::Parts;
use crate::segment::{SegmentTrailer, TRAILER_LEN, parse_key, segment_key};
use crate::space::Device;
use crate::text::now_ms;
use crate::vdev::Vdev;
use crate::{Pool, Result, usage};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::{DatasetId, Epoch, SegmentId, VdevGuid, VdevId};
use tarn_bucket::{Bucket, Capacity, Guarded, Location, ObjectInfo, OpenOptions};
use tokio::time::timeout;

/// Whether a bucket can be reached shows within this time.
const OWN_LIMIT: Duration = Duration::from_secs(10);
/// No segment is longer, in bytes.
const SEGMENT_MAX: u64 = 1 << 30;

/// Why the host did not do it.
#[derive(Debug)]
pub enum FarError {
    /// As its bucket said, or the way to it.
    Bucket(tarn_bucket::Error),
    /// Nothing that this guest writes arrives any more.
    Fenced,
}

/// The host of a pool, as a guest reaches it.
#[async_trait::async_trait]
pub trait Far: Send + Sync + 'static {
    async fn get(&self, segment: SegmentId, range: Range<u64>) -> std::result::Result<Bytes, FarError>;
    /// The last `len` bytes, and the length of all.
    async fn get_tail(&self, segment: SegmentId, len: u64) -> std::result::Result<(Bytes, u64), FarError>;
    async fn put(&self, segment: SegmentId, body: Vec<Bytes>) -> std::result::Result<(), FarError>;
    /// The guest has written a segment itself, whose records take so many bytes.
    async fn stored(&self, segment: SegmentId, bytes: u64) -> std::result::Result<(), FarError>;
    async fn capacity(&self, vdev: VdevId) -> std::result::Result<Option<Capacity>, FarError>;
}

/// How a guest gets at the pool's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of it by way of the host.
    Host,
    /// By itself, from buckets on the network that it has credentials for; from others by way of the host. What a host
    /// has in directories of its own is durable only when the host says so, and is nobody else's to write.
    Buckets,
}

/// One of the host's buckets.
struct FarBucket {
    far: Arc<dyn Far>,
    /// The bucket itself, where the guest has it.
    own: Option<Arc<dyn Bucket>>,
    gate: Arc<Gate>,
    vdev: VdevId,
    url: String,
}

impl FarBucket {
    fn segment(&self, key: &str) -> tarn_bucket::Result<SegmentId> {
        parse_key(key).ok_or_else(|| self.refused(key))
    }

    fn heard<T>(&self, answer: std::result::Result<T, FarError>) -> tarn_bucket::Result<T> {
        answer.map_err(|error| match error {
            FarError::Bucket(error) => error,
            FarError::Fenced => {
                self.gate.fence();
                tarn_bucket::Error::Denied(format!("{}: the pool is somebody else's", self.url))
            }
        })
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
        if let Some(own) = &self.own {
            return own.get(key, range).await;
        }
        self.heard(self.far.get(self.segment(key)?, range).await)
    }

    async fn get_tail(&self, key: &str, len: u64) -> tarn_bucket::Result<(Bytes, u64)> {
        if let Some(own) = &self.own {
            return own.get_tail(key, len).await;
        }
        self.heard(self.far.get_tail(self.segment(key)?, len).await)
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> tarn_bucket::Result<()> {
        if key == PROBE {
            // Whether the store takes what is written the host finds out by itself.
            return self.capacity().await.map(drop);
        }
        if let Some(own) = &self.own {
            let segment = self.segment(key)?;
            let records = body.last().and_then(|end| SegmentTrailer::parse(end).ok());
            let records = records.ok_or_else(|| self.refused(key))?.directory_offset;
            own.put(key, body).await?;
            return self.heard(self.far.stored(segment, records).await);
        }
        self.heard(self.far.put(self.segment(key)?, body).await)
    }

    /// Asked when less of a segment came than was wanted: whether it is cut short. When it was written nobody asks.
    async fn head(&self, key: &str) -> tarn_bucket::Result<ObjectInfo> {
        if let Some(own) = &self.own {
            return own.head(key).await;
        }
        if key == label::KEY {
            // As for a list: only whether there is an answer is wanted.
            self.capacity().await?;
            return Ok(ObjectInfo { key: key.to_string(), size: 0, modified_ms: 0 });
        }
        let (_, size) = self.heard(self.far.get_tail(self.segment(key)?, 0).await)?;
        Ok(ObjectInfo { key: key.to_string(), size, modified_ms: 0 })
    }

    async fn create(&self, key: &str, _: Vec<Bytes>) -> tarn_bucket::Result<()> {
        Err(self.refused(key))
    }

    async fn delete(&self, _: &[String]) -> tarn_bucket::Result<()> {
        Err(self.refused("delete"))
    }

    /// Asked by who wants to know whether the store answers: the host does.
    async fn list(&self, prefix: &str) -> tarn_bucket::Result<Vec<ObjectInfo>> {
        if let Some(own) = &self.own {
            return own.list(prefix).await;
        }
        self.heard(self.far.capacity(self.vdev).await).map(|_| Vec::new())
    }

    /// What was put is durable with the transaction group that names it, which is the host's affair.
    async fn sync(&self) -> tarn_bucket::Result<()> {
        Ok(())
    }

    async fn capacity(&self) -> tarn_bucket::Result<Option<Capacity>> {
        self.heard(self.far.capacity(self.vdev).await)
    }
}

/// A guest has none: its host does.
struct Nobody(Epoch);

#[async_trait::async_trait]
impl Authority for Nobody {
    fn epoch(&self) -> Epoch {
        self.0
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn extend(&self, _: &Vdev) -> Result<()> {
        Err(usage("a vdev is added on the pool's own host"))
    }

    fn shrink(&self, _: &Vdev) {}

    async fn release(&self) -> Result<()> {
        Ok(())
    }
}

/// The bucket of that name, if the guest can use it and it is the one that the host means.
async fn own_bucket(url: &str, guid: VdevGuid) -> Option<Arc<dyn Bucket>> {
    if !matches!(Location::parse(url), Ok(Location::S3(_) | Location::Gcs(_) | Location::Azure(_))) {
        return None;
    }
    let found = async {
        let opened = open(url).await?;
        let label = opened.label().await?;
        Ok::<_, crate::Error>((opened, label))
    };
    match timeout(OWN_LIMIT, found).await {
        Ok(Ok((opened, Found::Label(label)))) if label.vdev == guid => {
            tracing::info!("{url}: reached without the server");
            return Some(opened.bucket);
        }
        Ok(Ok(_)) => tracing::warn!("{url}: another bucket than the server's; going by way of the server"),
        Ok(Err(error)) => tracing::info!("going by way of the server: {error}"),
        Err(_) => tracing::info!("{url}: no answer; going by way of the server"),
    }
    None
}

impl Pool {
    /// What a guest must know of the pool and of one of its datasets: with it the properties that hold for the dataset,
    /// since there is nothing above it there.
    pub fn invitation(&self, dataset: DatasetId, properties: &BTreeMap<String, String>) -> Result<Vec<u8>> {
        let mut config = (*self.config()).clone();
        config.datasets.retain(|row| row.id == dataset);
        config.caches.clear();
        config.datasets.iter_mut().for_each(|row| row.properties = properties.clone());
        serde_json::to_vec(&config).map_err(|e| usage(format!("the pool cannot be described: {e}")))
    }

    /// The pool as it was described by its host, which `far` reaches; `name` is what its dataset is called here, `memory`
    /// in bytes for records.
    pub async fn guest(
        invitation: &[u8],
        name: &str,
        far: Arc<dyn Far>,
        reach: Reach,
        memory: u64,
    ) -> Result<Arc<Pool>> {
        let mut config: PoolConfig = serde_json::from_slice(invitation)
            .map_err(|e| usage(format!("what the server says of the pool cannot be understood: {e}")))?;
        if let Some(problem) = config.problem() {
            return Err(usage(format!("what the server says of the pool cannot be: {problem}")));
        }
        config.datasets.iter_mut().for_each(|row| row.name = name.to_string());
        let gate = Arc::new(Gate::new(Box::new(Nobody(config.epoch))));
        let mut vdevs = Vec::with_capacity(config.vdevs.len());
        for vdev in &config.vdevs {
            let (far, gate) = (far.clone(), gate.clone());
            let own = match reach {
                Reach::Buckets => own_bucket(&vdev.url, vdev.guid).await,
                Reach::Host => None,
            };
            let bucket: Arc<dyn Bucket> =
                Arc::new(FarBucket { far, own, gate, vdev: vdev.id, url: vdev.url.clone() });
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
            gate,
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

    /// For a guest whose host was started anew: enters a segment that was written before in the books once more. Fails if
    /// the segment is not there.
    pub async fn guest_recall(&self, segment: SegmentId) -> tarn_bucket::Result<()> {
        let (tail, size) = self.guest_get_tail(segment, TRAILER_LEN as u64).await?;
        if let Ok(trailer) = SegmentTrailer::of(segment, self.guid, &tail, size) {
            self.book(segment.grant.dataset, segment.grant.vdev, trailer.directory_offset as i64);
        }
        Ok(())
    }

    /// For a guest: it has written this segment itself.
    pub fn guest_stored(&self, segment: SegmentId, bytes: u64) -> Result<()> {
        self.gate.pass()?;
        if bytes > SEGMENT_MAX {
            return Err(usage(format!("segment {segment} from a client: no segment is so long")));
        }
        self.book(segment.grant.dataset, segment.grant.vdev, bytes as i64);
        Ok(())
    }

    /// For a guest: the size of a vdev's store.
    pub fn guest_capacity(&self, vdev: VdevId) -> Result<Option<Capacity>> {
        let device = self.vdev(vdev)?.device.clone();
        let space = device.space();
        Ok((!device.unlimited()).then_some(Capacity { total: space.total, free: space.free }))
    }
}
