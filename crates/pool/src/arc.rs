//! The ARC: verified, decompressed records in memory, and the fetches under way.
//!
//! # Memory
//! The limit is on what the cache keeps alive. A record that was cut out of a longer fetch would keep the whole
//! fetch alive while counting only its own bytes, so a record that is kept for long gets memory of its own
//! ([`own`]). Records of a stream stay slices, because they came together and go together: they have a part of the
//! memory to themselves, which they leave in the order in which they came, or when the reader has passed them. So a
//! stream throws nothing else out, and its buffers are used again while they are warm. The cache is sharded by key; a shard is at least [`SHARD_MIN`] bytes and takes no record longer than
//! a third of it, so that one large record cannot throw everything else out.
//!
//! # One fetch for several waiters
//! Whoever wants a record that is not there enters a [`Flight`] under its key and fetches it; whoever finds a
//! flight waits for it. The one who fetches holds a [`Landing`], which tells the waiters the outcome, also when it
//! is dropped half-way (the caller went away): they then fetch for themselves.

use crate::{Caching, Error};
use bytes::Bytes;
use foyer::{Cache, CacheBuilder, CacheProperties, Hint, LruConfig};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tarn_base::{BlockPtr, Checksum, SegmentId};
use tarn_bucket::buffer::Buffer;
use tokio::sync::watch;

/// A shard is at least this many bytes.
const SHARD_MIN: usize = 64 << 20;
const SHARDS_MAX: usize = 16;
/// What an entry costs beside its bytes.
const ENTRY: usize = 256;
/// Part of the cache for records that are kept as long as they are used; neighbours share the rest with what falls out
/// of it.
const KEEP_PART: f64 = 0.75;
/// Streams have this part of the memory, and no more than so many bytes.
const STREAMS_PART: usize = 4;
const STREAMS_MAX: usize = 512 << 20;

/// Where a record is. Segment ids are never used again, so what is found under a key is the record.
pub(crate) type Key = (SegmentId, u32);

/// What became of a fetch; `None` while it lasts.
type Outcome = Option<Result<Bytes, FlightError>>;

#[derive(Clone)]
pub(crate) enum FlightError {
    Failed(Error),
    /// The one who fetched went away.
    Abandoned,
}

pub(crate) type Flight = watch::Receiver<Outcome>;

type Flights = Arc<Mutex<HashMap<Key, Flight>>>;

pub(crate) struct RecordCache {
    cache: Cache<Key, Arc<Cached>>,
    streams: Mutex<Streams>,
    flights: Flights,
    limit: usize,
    shard: usize,
    streams_limit: usize,
    /// Bytes that came in as neighbours and were wanted afterwards.
    neighbours_used: AtomicU64,
}

/// Records of streams, in the order in which they came.
#[derive(Default)]
struct Streams {
    records: HashMap<Key, Arc<Cached>>,
    order: VecDeque<Key>,
    bytes: usize,
}

impl Streams {
    fn insert(&mut self, key: Key, cached: Arc<Cached>, limit: usize) {
        self.bytes += cached.bytes.len() + ENTRY;
        if let Some(before) = self.records.insert(key, cached) {
            self.bytes -= before.bytes.len() + ENTRY;
        } else {
            self.order.push_back(key);
        }
        while self.bytes > limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.drop_record(&oldest);
        }
        // Records that were let go leave their keys behind.
        if self.order.len() > 2 * self.records.len() + 1024 {
            self.order.retain(|key| self.records.contains_key(key));
        }
    }

    fn drop_record(&mut self, key: &Key) {
        if let Some(gone) = self.records.remove(key) {
            self.bytes -= gone.bytes.len() + ENTRY;
        }
    }
}

struct Cached {
    bytes: Bytes,
    /// Of the stored form: what a reader's pointer must agree with.
    checksum: Checksum,
    /// Came in as a neighbour, and nobody has asked for it yet.
    unasked: AtomicBool,
}

/// What the cache says to a reader.
pub(crate) enum Lookup {
    Hit(Bytes),
    /// Somebody fetches it already.
    Joined(Flight),
    /// The caller is to fetch it.
    Mine(Landing),
}

impl Cached {
    fn new(ptr: &BlockPtr, bytes: Bytes, unasked: bool) -> Arc<Cached> {
        Arc::new(Cached { bytes, checksum: ptr.checksum, unasked: AtomicBool::new(unasked) })
    }
}

impl RecordCache {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: u64) -> RecordCache {
        let streams_limit = (limit as usize / STREAMS_PART).min(STREAMS_MAX);
        let limit = limit as usize - streams_limit;
        let shards = (limit / SHARD_MIN).clamp(1, SHARDS_MAX);
        let cache = CacheBuilder::new(limit)
            .with_name("arc")
            .with_shards(shards)
            .with_eviction_config(LruConfig { high_priority_pool_ratio: KEEP_PART })
            .with_weighter(|_: &Key, value: &Arc<Cached>| value.bytes.len() + ENTRY)
            .build();
        RecordCache {
            cache,
            streams: Mutex::default(),
            streams_limit,
            flights: Flights::default(),
            limit,
            shard: limit / shards,
            neighbours_used: AtomicU64::new(0),
        }
    }

    pub fn get(&self, ptr: &BlockPtr) -> Option<Bytes> {
        let key = (ptr.segment, ptr.offset);
        let streamed = self.streams.lock().records.get(&key).cloned();
        let cached = match streamed {
            Some(cached) => cached,
            None => self.cache.get(&key)?.value().clone(),
        };
        if cached.bytes.len() != ptr.logical as usize || cached.checksum != ptr.checksum {
            return None;
        }
        if cached.unasked.load(Relaxed) && cached.unasked.swap(false, Relaxed) {
            self.neighbours_used.fetch_add(u64::from(ptr.stored), Relaxed);
        }
        Some(cached.bytes.clone())
    }

    /// Finds the record, or whoever fetches it, or makes it the caller's to fetch.
    pub fn lookup(&self, ptr: &BlockPtr) -> Lookup {
        if let Some(bytes) = self.get(ptr) {
            return Lookup::Hit(bytes);
        }
        let key = (ptr.segment, ptr.offset);
        match self.flights.lock().entry(key) {
            Entry::Occupied(flight) => Lookup::Joined(flight.get().clone()),
            Entry::Vacant(free) => {
                // A fetch may have ended between the two looks.
                if let Some(bytes) = self.get(ptr) {
                    return Lookup::Hit(bytes);
                }
                let (tell, flight) = watch::channel(None);
                free.insert(flight);
                Lookup::Mine(Landing { key, tell, flights: self.flights.clone() })
            }
        }
    }

    /// Puts a record into the cache. `alone` says that its memory holds nothing else.
    pub fn insert(&self, ptr: &BlockPtr, bytes: &Bytes, caching: Caching, alone: bool) {
        match caching {
            Caching::Bypass => {}
            Caching::Stream => {
                let cached = Cached::new(ptr, bytes.clone(), false);
                self.streams.lock().insert((ptr.segment, ptr.offset), cached, self.streams_limit);
            }
            Caching::Keep | Caching::Together => {
                let bytes = if alone { bytes.clone() } else { own(bytes) };
                self.put(ptr, bytes, Hint::Normal, false);
            }
        }
    }

    /// Forgets records of a stream that has passed them: their memory is warm, and the next ones want it.
    pub fn passed(&self, ptrs: &[BlockPtr]) {
        let mut streams = self.streams.lock();
        ptrs.iter().for_each(|ptr| streams.drop_record(&(ptr.segment, ptr.offset)));
    }

    /// Puts a record into the cache that nobody has asked for, unless it is there. It is first to leave.
    pub fn insert_neighbour(&self, ptr: &BlockPtr, bytes: &Bytes, alone: bool) {
        if !self.cache.contains(&(ptr.segment, ptr.offset)) {
            self.put(ptr, if alone { bytes.clone() } else { own(bytes) }, Hint::Low, true);
        }
    }

    fn put(&self, ptr: &BlockPtr, bytes: Bytes, hint: Hint, unasked: bool) {
        if bytes.len() + ENTRY > self.shard / 3 {
            return;
        }
        let properties = CacheProperties::default().with_hint(hint);
        let cached = Cached::new(ptr, bytes, unasked);
        self.cache.insert_with_properties((ptr.segment, ptr.offset), cached, properties);
    }

    /// Stored bytes that came in as neighbours and were wanted afterwards.
    pub fn neighbours_used(&self) -> u64 {
        self.neighbours_used.load(Relaxed)
    }

    /// Bytes kept now, and at most.
    pub fn usage(&self) -> (u64, u64) {
        let streams = self.streams.lock().bytes;
        ((self.cache.usage() + streams) as u64, (self.limit + self.streams_limit) as u64)
    }
}

/// A copy in memory of its own.
fn own(bytes: &Bytes) -> Bytes {
    let mut buffer = Buffer::new(bytes.len());
    buffer.as_mut().copy_from_slice(bytes);
    buffer.freeze()
}

/// The duty to tell how a fetch ended.
pub(crate) struct Landing {
    key: Key,
    tell: watch::Sender<Outcome>,
    flights: Flights,
}

impl Landing {
    /// Tells the waiters. What is to be cached must be in the cache already.
    pub fn land(self, result: Result<Bytes, Error>) {
        self.flights.lock().remove(&self.key);
        self.tell.send_replace(Some(result.map_err(FlightError::Failed)));
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.tell.borrow().is_none() {
            self.flights.lock().remove(&self.key);
            self.tell.send_replace(Some(Err(FlightError::Abandoned)));
        }
    }
}

/// Waits for somebody else's fetch.
pub(crate) async fn arrival(mut flight: Flight) -> Result<Bytes, FlightError> {
    match flight.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Err(FlightError::Abandoned)),
        Err(_) => Err(FlightError::Abandoned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::{Checksum, Compression, DatasetId, Grant, Txg, VdevId};

    fn ptr(offset: u32, logical: u32) -> BlockPtr {
        let grant = Grant { vdev: VdevId(0), dataset: DatasetId(1), number: 1 };
        BlockPtr {
            segment: SegmentId { grant, seq: 0 },
            offset,
            stored: logical,
            logical,
            compression: Compression::Off,
            checksum: Checksum::Xxh3(0),
            birth: Txg(1),
            flags: 0,
        }
    }

    #[test]
    fn the_limit_holds_and_streams_go_first() {
        let arc = RecordCache::new(64 << 20);
        let record = Bytes::from(vec![1; 128 << 10]);
        let keep = ptr(0, 128 << 10);
        arc.insert(&keep, &record, Caching::Keep, true);
        for n in 1..2000 {
            arc.insert(&ptr(n, 128 << 10), &record, Caching::Stream, true);
            assert!(arc.usage().0 <= 64 << 20);
        }
        assert!(arc.get(&keep).is_some());
        assert!(arc.get(&ptr(1, 128 << 10)).is_none());
        assert!(arc.get(&ptr(1999, 128 << 10)).is_some());
        // A record that would throw much else out is not taken.
        arc.insert(&ptr(5000, 24 << 20), &Bytes::from(vec![0; 24 << 20]), Caching::Keep, true);
        assert!(arc.get(&ptr(5000, 24 << 20)).is_none());
        arc.insert(&ptr(6000, 128 << 10), &record, Caching::Bypass, true);
        assert!(arc.get(&ptr(6000, 128 << 10)).is_none());
    }

    #[test]
    fn what_is_kept_does_not_hold_a_longer_fetch() {
        let arc = RecordCache::new(64 << 20);
        let fetched = Bytes::from(vec![1; 1 << 20]);
        let slice = fetched.slice(0..4096);
        arc.insert(&ptr(0, 4096), &slice, Caching::Keep, false);
        assert_ne!(arc.get(&ptr(0, 4096)).unwrap().as_ptr(), slice.as_ptr());
    }

    #[tokio::test]
    async fn waiters_learn_how_the_fetch_ended_even_if_it_was_abandoned() {
        let arc = RecordCache::new(64 << 20);
        let p = ptr(0, 3);
        let Lookup::Mine(landing) = arc.lookup(&p) else { panic!() };
        let Lookup::Joined(flight) = arc.lookup(&p) else { panic!() };
        drop(landing);
        assert!(matches!(arrival(flight).await, Err(FlightError::Abandoned)));
        let Lookup::Mine(landing) = arc.lookup(&p) else { panic!() };
        let Lookup::Joined(flight) = arc.lookup(&p) else { panic!() };
        let bytes = Bytes::from_static(b"abc");
        arc.insert(&p, &bytes, Caching::Keep, true);
        landing.land(Ok(bytes.clone()));
        assert!(matches!(arrival(flight).await, Ok(b) if b == bytes));
        assert!(matches!(arc.lookup(&p), Lookup::Hit(_)));
    }
}
