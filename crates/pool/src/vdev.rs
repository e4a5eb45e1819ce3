//! One top-level vdev as the pool uses it: its bucket, with counters, health and the books of what must be synced.
//!
//! # Health
//! The bucket's own wrapper retries until its deadline; an error that arrives here is one that the administrator
//! should know of. [`FAULT_AFTER`] failed writes in a row make the vdev FAULTED for [`FAULT_FOR`]: nothing new is
//! placed on it while another vdev can take it, so that one dead bucket does not slow every write by its deadline.
//! After that it gets another chance; the first success clears it.
//!
//! # Durability
//! Every put and delete that was answered raises `written`; a sync first notes that number, then syncs, then
//! raises `synced` to it. So what was answered before a sync began is covered by it, what came later makes the
//! next sync necessary, and a vdev that nobody wrote to is not bothered.

use crate::space::Device;
use crate::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tarn_base::{VdevGuid, VdevId};
use tarn_bucket::{Bucket, ObjectInfo};

/// Failed writes in a row that make a vdev FAULTED.
const FAULT_AFTER: u32 = 3;
/// How long a FAULTED vdev is left alone.
const FAULT_FOR: Duration = Duration::from_secs(30);
/// Small objects are fetched whole in one request when they are no longer than this, in bytes.
const WHOLE: u64 = 1 << 20;
/// Labels, epochs and the like are never longer, in bytes: what a bucket has in their place is not read into memory
/// whatever its size.
const WHOLE_MAX: u64 = 64 << 20;

/// How a vdev does, in zpool's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum VdevState {
    Online,
    /// It failed lately, and works or may work again.
    Degraded,
    /// It fails every write; nothing new is placed on it for now.
    Faulted,
}

#[derive(Default)]
struct Health {
    write_failures: u32,
    faulted_at: Option<Instant>,
}

pub(crate) struct Vdev {
    pub id: VdevId,
    pub guid: VdevGuid,
    pub bucket: Arc<dyn Bucket>,
    /// The bucket's wrapper, for statistics and the deadline.
    pub guarded: Option<Arc<tarn_bucket::Guarded>>,
    /// Where the bucket lies, if it is a local directory.
    pub local: Option<PathBuf>,
    pub device: Arc<Device>,
    /// Bytes stored, as far as the books know.
    allocated: AtomicI64,
    pub read_errors: AtomicU64,
    pub write_errors: AtomicU64,
    pub checksum_errors: AtomicU64,
    written: AtomicU64,
    synced: AtomicU64,
    health: Mutex<Health>,
}

impl Vdev {
    pub fn new(id: VdevId, guid: VdevGuid, opened: crate::open::Opened, device: Arc<Device>) -> Vdev {
        Vdev {
            id,
            guid,
            bucket: opened.bucket,
            guarded: opened.guarded,
            local: opened.local,
            device,
            allocated: AtomicI64::new(0),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            checksum_errors: AtomicU64::new(0),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            health: Mutex::default(),
        }
    }

    pub fn url(&self) -> &str {
        self.bucket.url()
    }

    pub fn allocated(&self) -> u64 {
        self.allocated.load(Relaxed).max(0) as u64
    }

    pub fn add_allocated(&self, bytes: i64) {
        self.allocated.fetch_add(bytes, Relaxed);
    }

    pub fn state(&self) -> VdevState {
        let health = self.health.lock();
        match health.faulted_at {
            Some(at) if at.elapsed() < FAULT_FOR => VdevState::Faulted,
            Some(_) => VdevState::Degraded,
            None if health.write_failures > 0 => VdevState::Degraded,
            None => VdevState::Online,
        }
    }

    pub fn clear_errors(&self) {
        for count in [&self.read_errors, &self.write_errors, &self.checksum_errors] {
            count.store(0, Relaxed);
        }
        *self.health.lock() = Health::default();
    }

    /// Counts the outcome of a write.
    fn wrote<T>(&self, result: tarn_bucket::Result<T>) -> Result<T> {
        let mut health = self.health.lock();
        match result {
            Ok(value) => {
                *health = Health::default();
                self.written.fetch_add(1, SeqCst);
                Ok(value)
            }
            Err(tarn_bucket::Error::NoSpace(text)) => {
                tracing::warn!("{text}: no space left");
                self.device.mark_full();
                Err(Error::NoSpace)
            }
            // An object that is there already is an answer, not a failure.
            Err(error @ tarn_bucket::Error::Exists(_)) => Err(error.into()),
            Err(error) => {
                self.write_errors.fetch_add(1, Relaxed);
                health.write_failures += 1;
                if health.write_failures >= FAULT_AFTER {
                    health.faulted_at = Some(Instant::now());
                }
                // The request may still take effect.
                self.written.fetch_add(1, SeqCst);
                Err(error.into())
            }
        }
    }

    /// Counts the outcome of a read. An absent object is the caller's to judge.
    fn read<T>(&self, result: tarn_bucket::Result<T>) -> tarn_bucket::Result<T> {
        if let Err(error) = &result
            && !matches!(error, tarn_bucket::Error::NotFound(_))
        {
            self.read_errors.fetch_add(1, Relaxed);
        }
        result
    }

    pub async fn get(&self, key: &str, range: Range<u64>) -> tarn_bucket::Result<Bytes> {
        self.read(self.bucket.get(key, range).await)
    }

    pub async fn get_start(&self, key: &str, len: u64) -> tarn_bucket::Result<Bytes> {
        self.read(self.bucket.get_start(key, len).await)
    }

    pub async fn get_tail(&self, key: &str, len: u64) -> tarn_bucket::Result<(Bytes, u64)> {
        self.read(self.bucket.get_tail(key, len).await)
    }

    pub async fn head(&self, key: &str) -> tarn_bucket::Result<ObjectInfo> {
        self.read(self.bucket.head(key).await)
    }

    pub async fn list(&self, prefix: &str) -> tarn_bucket::Result<Vec<ObjectInfo>> {
        self.read(self.bucket.list(prefix).await)
    }

    /// The whole object.
    pub async fn get_whole(&self, key: &str) -> tarn_bucket::Result<Bytes> {
        self.read(get_whole(&*self.bucket, key).await)
    }

    /// Writes an object that is durable after the next [`Vdev::sync`].
    pub async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let bytes = crate::codec::body_len(&body);
        self.device.reserve(bytes);
        self.wrote(self.bucket.put(key, body).await)
    }

    /// Writes an object durably.
    pub async fn put_durable(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let bytes = crate::codec::body_len(&body);
        self.device.reserve(bytes);
        self.wrote(self.bucket.put(key, body).await)?;
        self.sync().await
    }

    /// Writes an object durably if there is none of that key.
    pub async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let bytes = crate::codec::body_len(&body);
        self.device.reserve(bytes);
        self.wrote(self.bucket.create(key, body).await)
    }

    pub async fn delete(&self, keys: &[String]) -> Result<()> {
        self.wrote(self.bucket.delete(keys).await)
    }

    /// Makes every put and delete that was answered before the call durable.
    pub async fn sync(&self) -> Result<()> {
        let written = self.written.load(SeqCst);
        if written <= self.synced.load(SeqCst) {
            return Ok(());
        }
        if let Err(error) = self.bucket.sync().await {
            self.write_errors.fetch_add(1, Relaxed);
            return Err(error.into());
        }
        self.synced.fetch_max(written, SeqCst);
        Ok(())
    }
}

/// The whole object, in one request where it is small.
pub(crate) async fn get_whole(bucket: &dyn Bucket, key: &str) -> tarn_bucket::Result<Bytes> {
    let (tail, size) = bucket.get_tail(key, WHOLE).await?;
    if tail.len() as u64 == size {
        return Ok(tail);
    }
    if size > WHOLE_MAX {
        return Err(tarn_bucket::Error::Config(format!(
            "{}: {key} has {size} bytes and is nothing of Tarn's: move it away",
            bucket.url()
        )));
    }
    bucket.get(key, 0..size).await
}
