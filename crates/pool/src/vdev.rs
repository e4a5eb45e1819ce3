//! One top-level vdev as the pool uses it: its bucket, with counters, health and the books of what must be synced.
//!
//! # Health
//! The bucket's own wrapper retries until its deadline; an error that arrives here is one that the administrator
//! should know of. What follows from it, for this call and for others, is [`crate::outage`]'s to say. A vdev with an
//! outage is FAULTED: nothing new is placed on it while another vdev can take it. So is one whose sync has failed,
//! until the pool is opened anew: what it had not made durable by then may be lost.
//!
//! # Durability
//! Every put and delete that was answered raises `written`; a sync first notes that number, then syncs, then
//! raises `synced` to it. So what was answered before a sync began is covered by it, what came later makes the
//! next sync necessary, and a vdev that nobody wrote to is not bothered.

use crate::memory::{Reading, Room};
use crate::outage::{Outages, Side, failed};
use crate::space::Device;
use crate::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use tarn_base::{VdevGuid, VdevId};
use tarn_bucket::{Bucket, ObjectInfo};

/// Small objects are fetched whole in one request when they are no longer than this, in bytes.
const WHOLE: u64 = 1 << 20;
/// Labels, epochs and the like are never longer, in bytes: what a bucket has in their place is not read into memory
/// whatever its size. Nor does a client's server send more at once.
const WHOLE_MAX: u64 = 64 << 20;

/// An object that was asked for whole.
pub(crate) enum Whole {
    All(Bytes),
    /// It has so many bytes, more than [`WHOLE_MAX`].
    Longer(u64),
}

/// How a vdev does, in zpool's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum VdevState {
    Online,
    /// It failed lately, and works or may work again.
    Degraded,
    /// It does not answer, or refuses writes; nothing new is placed on it for now.
    Faulted,
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
    pub outages: Arc<Outages>,
    /// Calls in a row that failed.
    failures: AtomicU64,
    /// Why a sync failed.
    sync_failed: Mutex<Option<String>>,
}

impl Vdev {
    pub fn new(id: VdevId, guid: VdevGuid, opened: crate::open::Opened, device: Arc<Device>) -> Vdev {
        Vdev {
            id,
            guid,
            outages: Outages::new(opened.bucket.clone()),
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
            failures: AtomicU64::new(0),
            sync_failed: Mutex::default(),
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
        if self.outages.now().is_some() || self.sync_failed.lock().is_some() {
            VdevState::Faulted
        } else if self.failures.load(Relaxed) > 0 {
            VdevState::Degraded
        } else {
            VdevState::Online
        }
    }

    /// Whether new data should go to another vdev, if there is one.
    pub fn shunned(&self) -> bool {
        self.outages.shuns_writes() || self.state() == VdevState::Faulted
    }

    /// Why a sync failed, if one did.
    pub fn sync_failed(&self) -> Option<String> {
        self.sync_failed.lock().clone()
    }

    pub fn clear_errors(&self) {
        for count in [&self.read_errors, &self.write_errors, &self.checksum_errors, &self.failures] {
            count.store(0, Relaxed);
        }
    }

    /// Counts the outcome of one try of a write.
    fn wrote<T>(&self, result: tarn_bucket::Result<T>) -> tarn_bucket::Result<T> {
        match &result {
            Ok(_) => {
                self.failures.store(0, Relaxed);
                self.written.fetch_add(1, SeqCst);
            }
            Err(tarn_bucket::Error::NoSpace(text)) => {
                tracing::warn!("{text}: no space left");
                self.device.mark_full();
            }
            // An object that is there already is an answer, not a failure.
            Err(tarn_bucket::Error::Exists(_)) => {}
            Err(_) => {
                self.write_errors.fetch_add(1, Relaxed);
                self.failures.fetch_add(1, Relaxed);
                // The request may still take effect.
                self.written.fetch_add(1, SeqCst);
            }
        }
        result
    }

    /// Counts the outcome of one try of a read. An absent object is the caller's to judge.
    fn read<T>(&self, result: tarn_bucket::Result<T>) -> tarn_bucket::Result<T> {
        match &result {
            Err(error) if failed(error) => {
                self.read_errors.fetch_add(1, Relaxed);
                self.failures.fetch_add(1, Relaxed);
            }
            _ => self.failures.store(0, Relaxed),
        }
        result
    }

    async fn reading<T, F>(&self, hasty: bool, make: impl Fn() -> F) -> tarn_bucket::Result<T>
    where
        F: Future<Output = tarn_bucket::Result<T>>,
    {
        self.outages.call(Side::Read, hasty, || async { self.read(make().await) }).await
    }

    /// A read of what may be much: `bytes` are taken out of `reading` while it is under way, and given with the body.
    /// A call that waits for a bucket that fails takes none of it.
    pub async fn reading_in<T, F>(
        &self,
        reading: &Reading,
        bytes: u64,
        make: impl Fn() -> F,
    ) -> tarn_bucket::Result<(T, Room)>
    where
        F: Future<Output = tarn_bucket::Result<T>>,
    {
        let attempt = || async {
            let room = reading.room(bytes).await;
            self.read(make().await).map(|body| (body, room))
        };
        self.outages.call(Side::Read, false, attempt).await
    }

    async fn writing<F>(&self, hasty: bool, make: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = tarn_bucket::Result<()>>,
    {
        let written = self.outages.call(Side::Write, hasty, || async { self.wrote(make().await) }).await;
        written.map_err(|error| match error {
            tarn_bucket::Error::NoSpace(_) => Error::NoSpace,
            other => other.into(),
        })
    }

    pub async fn get(&self, key: &str, range: Range<u64>) -> tarn_bucket::Result<Bytes> {
        self.reading(false, || self.bucket.get(key, range.clone())).await
    }

    pub async fn get_tail(&self, key: &str, len: u64) -> tarn_bucket::Result<(Bytes, u64)> {
        self.reading(false, || self.bucket.get_tail(key, len)).await
    }

    pub async fn head(&self, key: &str) -> tarn_bucket::Result<ObjectInfo> {
        self.reading(false, || self.bucket.head(key)).await
    }

    pub async fn list(&self, prefix: &str) -> tarn_bucket::Result<Vec<ObjectInfo>> {
        self.reading(false, || self.bucket.list(prefix)).await
    }

    /// The whole object. That it is too long is no failure of the vdev.
    pub async fn get_whole(&self, key: &str) -> tarn_bucket::Result<Bytes> {
        expected(&*self.bucket, key, self.reading(false, || fetch_whole(&*self.bucket, key)).await?)
    }

    /// As [`Vdev::get`], for who has another copy to turn to.
    pub async fn get_hasty(&self, key: &str, range: Range<u64>) -> tarn_bucket::Result<Bytes> {
        self.reading(true, || self.bucket.get(key, range.clone())).await
    }

    /// As [`Vdev::get_tail`], for who has another copy to turn to.
    pub async fn get_tail_hasty(&self, key: &str, len: u64) -> tarn_bucket::Result<(Bytes, u64)> {
        self.reading(true, || self.bucket.get_tail(key, len)).await
    }

    /// As [`Vdev::head`], for who only wants to know how the vdev does.
    pub async fn head_hasty(&self, key: &str) -> tarn_bucket::Result<ObjectInfo> {
        self.reading(true, || self.bucket.head(key)).await
    }

    /// As [`Vdev::list`], for who can do without this vdev.
    pub async fn list_hasty(&self, prefix: &str) -> tarn_bucket::Result<Vec<ObjectInfo>> {
        self.reading(true, || self.bucket.list(prefix)).await
    }

    fn reserve(&self, body: &[Bytes]) {
        self.device.reserve(crate::codec::body_len(body));
    }

    /// Writes an object that is durable after the next [`Vdev::sync`].
    pub async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        self.reserve(&body);
        self.writing(false, || self.bucket.put(key, body.clone())).await
    }

    /// As [`Vdev::put`], for who can write elsewhere.
    pub async fn put_hasty(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        self.reserve(&body);
        self.writing(true, || self.bucket.put(key, body.clone())).await
    }

    /// Writes an object durably.
    pub async fn put_durable(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        self.put(key, body).await?;
        self.sync().await
    }

    /// As [`Vdev::put_durable`], for who can do without this vdev.
    pub async fn put_durable_hasty(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        self.put_hasty(key, body).await?;
        self.sync().await
    }

    /// Writes an object durably if there is none of that key. After a failure that was waited out, `Exists` may mean
    /// the caller's own object: bodies of two creators must differ, and the caller looks.
    pub async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        self.reserve(&body);
        self.writing(false, || self.bucket.create(key, body.clone())).await
    }

    pub async fn delete(&self, keys: &[String]) -> Result<()> {
        self.writing(false, || self.bucket.delete(keys)).await
    }

    /// Makes every put and delete that was answered before the call durable.
    pub async fn sync(&self) -> Result<()> {
        let written = self.written.load(SeqCst);
        if written <= self.synced.load(SeqCst) {
            return Ok(());
        }
        if let Err(error) = self.bucket.sync().await {
            self.write_errors.fetch_add(1, Relaxed);
            self.failures.fetch_add(1, Relaxed);
            if !matches!(error, tarn_bucket::Error::Timeout(_)) {
                tracing::error!("{}: a sync failed: {error}", self.url());
                *self.sync_failed.lock() = Some(error.to_string());
            }
            return Err(error.into());
        }
        self.synced.fetch_max(written, SeqCst);
        Ok(())
    }
}

/// The whole object, in one request where it is small.
pub(crate) async fn fetch_whole(bucket: &dyn Bucket, key: &str) -> tarn_bucket::Result<Whole> {
    let (tail, size) = bucket.get_tail(key, WHOLE).await?;
    if tail.len() as u64 == size {
        return Ok(Whole::All(tail));
    }
    if size > WHOLE_MAX {
        return Ok(Whole::Longer(size));
    }
    bucket.get(key, 0..size).await.map(Whole::All)
}

/// The whole object, which is one of those that are short.
pub(crate) async fn get_whole(bucket: &dyn Bucket, key: &str) -> tarn_bucket::Result<Bytes> {
    expected(bucket, key, fetch_whole(bucket, key).await?)
}

/// What was fetched, where an object that is too long is none of Tarn's.
fn expected(bucket: &dyn Bucket, key: &str, found: Whole) -> tarn_bucket::Result<Bytes> {
    match found {
        Whole::All(body) => Ok(body),
        Whole::Longer(size) => Err(tarn_bucket::Error::Config(format!(
            "{}: {key} has {size} bytes and is nothing of Tarn's: move it away",
            bucket.url()
        ))),
    }
}
