//! A store of records in memory: slow, reordering, bounded and unreliable as a test asks.

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tarn_base::{BlockPtr, Checksum, Compression, RecordOwner, SegmentId, Txg, VdevId};
use tarn_client::{Records, Storing};
use tarn_pool::{Caching, Error, Space};

/// How the store behaves. Times in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    pub read_us: (u64, u64),
    pub write_us: (u64, u64),
    /// Chance that a write fails, half of the time after it was applied.
    pub write_fails: f64,
    pub segment_size: u64,
    pub vdevs: u16,
    /// Records that memory keeps.
    pub cache: usize,
    /// Bytes that fit.
    pub capacity: u64,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            read_us: (0, 3000),
            write_us: (0, 20_000),
            write_fails: 0.0,
            segment_size: 64 << 10,
            vdevs: 3,
            cache: 40,
            capacity: u64::MAX,
        }
    }
}

/// Why nothing can be read.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    Away,
    Lost,
}

type Place = (SegmentId, u32);

#[derive(Default)]
struct Inner {
    records: HashMap<Place, Bytes>,
    used: HashSet<SegmentId>,
    cache: BTreeMap<Place, Bytes>,
    stored: u64,
    next_vdev: u16,
}

pub struct Store {
    pub behaviour: Mutex<Behaviour>,
    /// Writes that begin with this record take so long, and fail or not.
    pub scripts: Mutex<BTreeMap<u64, (Duration, bool)>>,
    pub refusal: Mutex<Option<Refusal>>,
    inner: Mutex<Inner>,
    rng: Mutex<SmallRng>,
    pub gets: AtomicU64,
    pub puts: AtomicU64,
    pub writing: AtomicU64,
    pub most_writing: AtomicU64,
    pub most_records: AtomicU64,
}

impl Store {
    pub fn new(seed: u64, behaviour: Behaviour) -> Arc<Store> {
        Arc::new(Store {
            behaviour: Mutex::new(behaviour),
            scripts: Mutex::default(),
            refusal: Mutex::default(),
            inner: Mutex::default(),
            rng: Mutex::new(SmallRng::seed_from_u64(seed)),
            gets: AtomicU64::new(0),
            puts: AtomicU64::new(0),
            writing: AtomicU64::new(0),
            most_writing: AtomicU64::new(0),
            most_records: AtomicU64::new(0),
        })
    }

    fn pause(&self, (low, high): (u64, u64)) -> Duration {
        Duration::from_micros(self.rng.lock().random_range(low..=high))
    }

    /// Forgets a record that nobody points at any more.
    pub fn free(&self, ptr: &BlockPtr) {
        let mut inner = self.inner.lock();
        if inner.records.remove(&(ptr.segment, ptr.offset)).is_some() {
            inner.stored -= u64::from(ptr.stored);
        }
    }

    pub fn drop_cache(&self) {
        self.inner.lock().cache.clear();
    }

    /// Bytes of records that memory has.
    pub fn cached_bytes(&self) -> usize {
        self.inner.lock().cache.values().map(Bytes::len).sum()
    }

    /// Bytes of records that are stored.
    pub fn stored(&self) -> u64 {
        self.inner.lock().stored
    }

    fn keep(&self, place: Place, content: Bytes) {
        let limit = self.behaviour.lock().cache;
        let mut inner = self.inner.lock();
        while inner.cache.len() >= limit.max(1) {
            let Some(victim) = inner.cache.keys().nth(3).or(inner.cache.keys().next()).copied() else {
                break;
            };
            inner.cache.remove(&victim);
        }
        if limit > 0 {
            inner.cache.insert(place, content);
        }
    }

    fn store(&self, id: SegmentId, records: &[(RecordOwner, Bytes)]) -> Result<Vec<BlockPtr>, Error> {
        let capacity = self.behaviour.lock().capacity;
        let mut inner = self.inner.lock();
        assert!(inner.used.insert(id), "segment {id} was written twice");
        self.most_records.fetch_max(records.len() as u64, Ordering::Relaxed);
        let bytes: u64 = records.iter().map(|(_, content)| content.len() as u64).sum();
        if inner.stored + bytes > capacity {
            return Err(Error::NoSpace);
        }
        let mut ptrs = Vec::new();
        let mut offset = 0;
        for (_, content) in records {
            let len = content.len() as u32;
            // A copy: the client's buffer is free when it has landed.
            inner.records.insert((id, offset), Bytes::copy_from_slice(content));
            inner.stored += u64::from(len);
            ptrs.push(BlockPtr {
                segment: id,
                offset,
                stored: len,
                logical: len,
                compression: Compression::Off,
                checksum: Checksum::Xxh3(0),
                birth: Txg(0),
                flags: 0,
            });
            offset += len;
        }
        Ok(ptrs)
    }
}

impl Records for Store {
    fn place(&self, bytes: u64) -> Result<VdevId, Error> {
        let Behaviour { capacity, vdevs, .. } = *self.behaviour.lock();
        let mut inner = self.inner.lock();
        if inner.stored + bytes > capacity {
            return Err(Error::NoSpace);
        }
        inner.next_vdev = (inner.next_vdev + 1) % vdevs;
        Ok(VdevId(inner.next_vdev))
    }

    fn writable_vdevs(&self) -> Vec<VdevId> {
        (0..self.behaviour.lock().vdevs).map(VdevId).collect()
    }

    fn kept_max(&self) -> u64 {
        1 << 30
    }

    fn segment_size(&self) -> u64 {
        self.behaviour.lock().segment_size
    }

    fn write(
        self: Arc<Self>,
        id: SegmentId,
        records: Vec<(RecordOwner, Bytes)>,
        _storing: Storing,
    ) -> BoxFuture<'static, Result<Vec<BlockPtr>, Error>> {
        Box::pin(async move {
            let behaviour = *self.behaviour.lock();
            let script =
                records.first().and_then(|(owner, _)| self.scripts.lock().get(&owner.record).copied());
            let by_chance =
                || (self.pause(behaviour.write_us), self.rng.lock().random_bool(behaviour.write_fails));
            let (takes, fails) = script.unwrap_or_else(by_chance);
            let applied = self.rng.lock().random_bool(0.5);
            let writing = self.writing.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_writing.fetch_max(writing, Ordering::Relaxed);
            tokio::time::sleep(takes).await;
            self.writing.fetch_sub(1, Ordering::Relaxed);
            let stored = if fails && !applied { Ok(Vec::new()) } else { self.store(id, &records) };
            if fails {
                return Err(Error::Damaged("a write that fails on purpose".into()));
            }
            self.puts.fetch_add(1, Ordering::Relaxed);
            stored
        })
    }

    fn cached(&self, ptr: &BlockPtr) -> Option<Bytes> {
        self.inner.lock().cache.get(&(ptr.segment, ptr.offset)).cloned()
    }

    fn insert_cached(&self, ptr: &BlockPtr, logical: Bytes, _caching: Caching) {
        self.keep((ptr.segment, ptr.offset), logical);
    }

    fn passed(&self, ptrs: &[BlockPtr]) {
        let mut inner = self.inner.lock();
        ptrs.iter().for_each(|ptr| drop(inner.cache.remove(&(ptr.segment, ptr.offset))));
    }

    fn read(
        self: Arc<Self>,
        ptrs: Vec<BlockPtr>,
        _caching: Caching,
    ) -> BoxFuture<'static, Result<Vec<Bytes>, Error>> {
        Box::pin(async move {
            self.gets.fetch_add(1, Ordering::Relaxed);
            let range = self.behaviour.lock().read_us;
            tokio::time::sleep(self.pause(range)).await;
            match *self.refusal.lock() {
                Some(Refusal::Away) => {
                    return Err(Error::Usage("away on purpose".into()));
                }
                Some(Refusal::Lost) => return Err(Error::Damaged("lost on purpose".into())),
                None => {}
            }
            let mut contents = Vec::new();
            for ptr in &ptrs {
                let place = (ptr.segment, ptr.offset);
                let found = self.inner.lock().records.get(&place).cloned();
                let content = found.ok_or_else(|| Error::Missing(format!("{} is gone", ptr.segment)))?;
                assert_eq!(content.len(), ptr.logical as usize);
                self.keep(place, content.clone());
                contents.push(content);
            }
            Ok(contents)
        })
    }

    fn space(&self) -> Space {
        let capacity = self.behaviour.lock().capacity;
        Space { total: capacity, free: capacity.saturating_sub(self.stored()) }
    }
}
