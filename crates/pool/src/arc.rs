//! The ARC: verified, decompressed records in memory, and the fetches under way.
//!
//! # Memory
//! The limit is on what the cache keeps alive. A record that was cut out of a longer fetch would keep the whole
//! fetch alive while counting only its own bytes, so a record that is kept for long gets memory of its own
//! ([`own`]). Records of a stream stay slices, because they came together and go together: they have a part of the
//! memory to themselves, which they leave in the order in which they came, or when the reader has passed them. So a
//! stream throws nothing else out, and its buffers are used again while they are warm. A record counts as much as the
//! buffer that it is in. The cache is sharded by key; a shard is at least [`SHARD_MIN`] bytes and takes no record
//! longer than a third of it, so that one large record cannot throw everything else out.
//!
//! # One fetch for several waiters
//! Whoever wants a record that is not there enters a [`Flight`] under its key and fetches it; whoever finds a
//! flight waits for its end, and looks again. The one who fetches holds a [`Landing`] for all that it wants of one
//! segment; when that is dropped, at the end or half-way (the caller went away), the waiters are told.

use crate::Caching;
use bytes::Bytes;
use foyer::{Cache, CacheBuilder, CacheProperties, Hint, LruConfig};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use tarn_base::{BlockPtr, Checksum, SegmentId};
use tarn_bucket::buffer::{Buffer, footprint};
use tokio::sync::watch;

/// A shard is at least this many bytes.
const SHARD_MIN: usize = 64 << 20;
const SHARDS_MAX: usize = 16;
/// What an entry costs beside its bytes.
const ENTRY: usize = 256;
/// Part of the cache for records that are kept as long as they are used; neighbours share the rest with what falls out
/// of it.
const KEEP_PART: f64 = 0.75;
/// Streams have a quarter of the memory, but more of little memory: so many bytes if that is no more than half, with which
/// a dozen buckets are kept busy. And no more than so many.
const STREAMS_FEW: usize = 256 << 20;
const STREAMS_MAX: usize = 512 << 20;

/// Where a record is. Segment ids are never used again, so what is found under a key is the record.
pub(crate) type Key = (SegmentId, u32);

/// A fetch under way: it has ended when the other end of this is gone.
pub(crate) type Flight = watch::Receiver<()>;

type Flights = Arc<Mutex<HashMap<Key, Flight>>>;

pub(crate) struct RecordCache {
    cache: Cache<Key, Arc<Cached>>,
    streams: Mutex<Streams>,
    flights: Flights,
    /// Counts fetches that ended.
    landed: Arc<AtomicU64>,
    /// The most that it was made for.
    most: u64,
    shards: usize,
    limit: AtomicUsize,
    streams_limit: AtomicUsize,
    /// Bytes that came in as neighbours and were wanted afterwards.
    neighbours_used: AtomicU64,
}

/// Records of streams, in the order in which they came.
#[derive(Default)]
struct Streams {
    records: HashMap<Key, Streamed>,
    /// Records that were let go leave their entries behind; so an entry counts only if its record is of the same arrival.
    order: VecDeque<(Key, u64)>,
    arrivals: u64,
    bytes: usize,
}

struct Streamed {
    cached: Arc<Cached>,
    arrival: u64,
}

impl Streams {
    fn get(&self, key: &Key) -> Option<&Arc<Cached>> {
        self.records.get(key).map(|streamed| &streamed.cached)
    }

    fn insert(&mut self, key: Key, cached: Arc<Cached>, limit: usize) {
        self.bytes += cached.bytes.len() + ENTRY;
        if let Some(streamed) = self.records.get_mut(&key) {
            self.bytes -= streamed.cached.bytes.len() + ENTRY;
            streamed.cached = cached;
        } else {
            self.arrivals += 1;
            self.records.insert(key, Streamed { cached, arrival: self.arrivals });
            self.order.push_back((key, self.arrivals));
        }
        self.trim(limit);
        // At least half of the entries go, so the effort is that of making them.
        if self.order.len() > 2 * self.records.len() + 1024 {
            self.order.retain(|(key, arrival)| is_there(&self.records, key, *arrival));
        }
    }

    fn trim(&mut self, limit: usize) {
        while self.bytes > limit
            && let Some((oldest, arrival)) = self.order.pop_front()
        {
            if is_there(&self.records, &oldest, arrival) {
                self.drop_record(&oldest);
            }
        }
    }

    fn drop_record(&mut self, key: &Key) {
        if let Some(gone) = self.records.remove(key) {
            self.bytes -= gone.cached.bytes.len() + ENTRY;
        }
    }
}

/// Whether the record is there that arrived under this key then.
fn is_there(records: &HashMap<Key, Streamed>, key: &Key, arrival: u64) -> bool {
    records.get(key).is_some_and(|streamed| streamed.arrival == arrival)
}

struct Cached {
    bytes: Bytes,
    /// Of the stored form: what a reader's pointer must agree with.
    checksum: Checksum,
    /// Came in as a neighbour, and nobody has asked for it yet.
    unasked: AtomicBool,
}

/// What the cache does not have of a reader's records.
#[derive(Default)]
pub(crate) struct Missing {
    /// The caller is to fetch these, by their places in the caller's list, of one segment after another; and to drop the
    /// landing when what is to be cached of them is in the cache.
    pub mine: Vec<(Landing, Vec<usize>)>,
    /// Somebody fetches the others already.
    pub others: Vec<Flight>,
}

impl Cached {
    fn new(ptr: &BlockPtr, bytes: Bytes, unasked: bool) -> Arc<Cached> {
        Arc::new(Cached { bytes, checksum: ptr.checksum, unasked: AtomicBool::new(unasked) })
    }
}

impl RecordCache {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: u64) -> RecordCache {
        let most = limit;
        let (limit, streams_limit) = divided(limit);
        let shards = (limit / SHARD_MIN).clamp(1, SHARDS_MAX);
        let cache = CacheBuilder::new(limit)
            .with_name("arc")
            .with_shards(shards)
            .with_eviction_config(LruConfig { high_priority_pool_ratio: KEEP_PART })
            .with_weighter(|_: &Key, value: &Arc<Cached>| footprint(value.bytes.len()) + ENTRY)
            .build();
        RecordCache {
            cache,
            streams: Mutex::default(),
            streams_limit: AtomicUsize::new(streams_limit),
            flights: Flights::default(),
            landed: Arc::default(),
            most,
            shards,
            limit: AtomicUsize::new(limit),
            neighbours_used: AtomicU64::new(0),
        }
    }

    /// From now on it has at most so many bytes, and never more than it was made for; 0: it keeps nothing.
    pub fn limit_to(&self, bytes: u64) {
        let (limit, streams_limit) = divided(bytes.min(self.most));
        self.limit.store(limit, Relaxed);
        self.streams_limit.store(streams_limit, Relaxed);
        self.streams.lock().trim(streams_limit);
        if let Err(error) = self.cache.resize(limit) {
            tracing::warn!(%error, "the cache of records keeps its size");
        }
    }

    pub fn get(&self, ptr: &BlockPtr) -> Option<Bytes> {
        let key = (ptr.segment, ptr.offset);
        // All streams have one lock, and what is read most often is not theirs.
        let cached = match self.cache.get(&key) {
            Some(kept) => kept.value().clone(),
            None => self.streams.lock().get(&key)?.clone(),
        };
        if cached.bytes.len() != ptr.logical as usize || cached.checksum != ptr.checksum {
            return None;
        }
        if cached.unasked.load(Relaxed) && cached.unasked.swap(false, Relaxed) {
            self.neighbours_used.fetch_add(u64::from(ptr.stored), Relaxed);
        }
        Some(cached.bytes.clone())
    }

    /// Finds records, or whoever fetches them, or makes them the caller's to fetch.
    pub fn lookup(&self, ptrs: &[BlockPtr], found: &mut [Option<Bytes>]) -> Missing {
        let landed = self.landed.load(Acquire);
        let mut absent = Vec::new();
        for (i, (ptr, found)) in ptrs.iter().zip(found.iter_mut()).enumerate() {
            if found.is_none() {
                *found = self.get(ptr);
            }
            if found.is_none() {
                absent.push(i);
            }
        }
        let mut missing = Missing::default();
        if absent.is_empty() {
            return missing;
        }
        let mut flights = self.flights.lock();
        // A fetch may have ended between the two looks.
        let look_again = self.landed.load(Acquire) != landed;
        for i in absent {
            let ptr = &ptrs[i];
            let key = (ptr.segment, ptr.offset);
            if let Some(flight) = flights.get(&key) {
                let mine = |(landing, _): &(Landing, Vec<usize>)| flight.same_channel(&landing.told);
                if let Some((_, places)) = missing.mine.iter_mut().find(|landing| mine(landing)) {
                    // The same record once more.
                    places.push(i);
                } else if !missing.others.iter().any(|other| other.same_channel(flight)) {
                    missing.others.push(flight.clone());
                }
                continue;
            }
            if look_again {
                found[i] = self.get(ptr);
                if found[i].is_some() {
                    continue;
                }
            }
            let at = missing.mine.iter().position(|(landing, _)| landing.segment == ptr.segment);
            let at = at.unwrap_or_else(|| {
                missing.mine.push((Landing::new(ptr.segment, self), Vec::new()));
                missing.mine.len() - 1
            });
            let (landing, places) = &mut missing.mine[at];
            landing.offsets.push(ptr.offset);
            places.push(i);
            flights.insert(key, landing.told.clone());
        }
        missing
    }

    /// Puts a record into the cache. `alone` says that its memory holds nothing else.
    pub fn insert(&self, ptr: &BlockPtr, bytes: &Bytes, caching: Caching, alone: bool) {
        match caching {
            Caching::Bypass => {}
            Caching::Stream => {
                let cached = Cached::new(ptr, bytes.clone(), false);
                self.streams.lock().insert(
                    (ptr.segment, ptr.offset),
                    cached,
                    self.streams_limit.load(Relaxed),
                );
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
        if footprint(bytes.len()) + ENTRY > self.limit.load(Relaxed) / self.shards / 3 {
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

    pub fn for_kept(&self) -> u64 {
        self.limit.load(Relaxed) as u64
    }

    pub fn for_streams(&self) -> u64 {
        self.streams_limit.load(Relaxed) as u64
    }

    /// Bytes kept now for streams, and at most.
    pub fn streams(&self) -> (u64, u64) {
        (self.streams.lock().bytes as u64, self.for_streams())
    }

    /// Bytes kept now, and at most, those of streams among them.
    pub fn usage(&self) -> (u64, u64) {
        let streams = self.streams.lock().bytes;
        ((self.cache.usage() + streams) as u64, self.limit.load(Relaxed) as u64 + self.for_streams())
    }
}

/// Of so many bytes: those of records that are kept, and those of streams.
fn divided(bytes: u64) -> (usize, usize) {
    let bytes = bytes as usize;
    let streams = (bytes / 4).max(STREAMS_FEW.min(bytes / 2)).min(STREAMS_MAX);
    (bytes - streams, streams)
}

/// A copy in memory of its own.
fn own(bytes: &Bytes) -> Bytes {
    let mut buffer = Buffer::new(bytes.len());
    buffer.as_mut().copy_from_slice(bytes);
    buffer.freeze()
}

/// The duty to fetch records of one segment. Dropping it tells those who wait that it has ended, however it did: they
/// look again, and fetch for themselves what they do not find.
pub(crate) struct Landing {
    segment: SegmentId,
    offsets: Vec<u32>,
    told: Flight,
    flights: Flights,
    landed: Arc<AtomicU64>,
    _end: watch::Sender<()>,
}

impl Landing {
    fn new(segment: SegmentId, cache: &RecordCache) -> Landing {
        let (end, told) = watch::channel(());
        let (flights, landed) = (cache.flights.clone(), cache.landed.clone());
        Landing { segment, offsets: Vec::new(), told, flights, landed, _end: end }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        for offset in &self.offsets {
            flights.remove(&(self.segment, *offset));
        }
        self.landed.fetch_add(1, Release);
    }
}

/// Waits for the end of somebody else's fetch, which has a deadline.
pub(crate) async fn arrival(mut flight: Flight) {
    while flight.changed().await.is_ok() {}
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
        // Less of both from now on, and nothing of either.
        for bytes in [16 << 20, 0] {
            arc.limit_to(bytes);
            assert!(arc.usage().0 <= bytes && arc.usage().1 == bytes, "{:?}", arc.usage());
            for n in 0..500 {
                arc.insert(
                    &ptr(n, 128 << 10),
                    &record,
                    [Caching::Keep, Caching::Stream][n as usize % 2],
                    true,
                );
                assert!(arc.usage().0 <= bytes);
            }
            assert_eq!(
                (arc.get(&ptr(498, 128 << 10)).is_some(), arc.get(&ptr(499, 128 << 10)).is_some()),
                (bytes > 0, bytes > 0)
            );
        }
        arc.limit_to(u64::MAX);
        assert_eq!(arc.usage().1, 64 << 20);
        // A record that would throw much else out is not taken.
        arc.insert(&ptr(5000, 24 << 20), &Bytes::from(vec![0; 24 << 20]), Caching::Keep, true);
        assert!(arc.get(&ptr(5000, 24 << 20)).is_none());
        arc.insert(&ptr(6000, 128 << 10), &record, Caching::Bypass, true);
        assert!(arc.get(&ptr(6000, 128 << 10)).is_none());
    }

    #[test]
    fn a_record_that_comes_and_goes_leaves_nothing_behind_and_is_as_young_as_it_last_came() {
        let arc = RecordCache::new(64 << 20);
        let record = Bytes::from(vec![1; 128 << 10]);
        let insert = |n| arc.insert(&ptr(n, 128 << 10), &record, Caching::Stream, true);
        let kept = |n| arc.get(&ptr(n, 128 << 10)).is_some();
        for _ in 0..100 {
            insert(0);
            arc.passed(&[ptr(0, 128 << 10)]);
        }
        // Until something had to go, which must be the oldest.
        (1..10).for_each(insert);
        insert(0);
        let last = (10..).find(|n| {
            insert(*n);
            !kept(1)
        });
        assert!(kept(0) && kept(2) && kept(last.unwrap()));
        for _ in 0..10_000 {
            insert(0);
            arc.passed(&[ptr(0, 128 << 10)]);
        }
        let streams = arc.streams.lock();
        assert!(streams.order.len() <= 2 * streams.records.len() + 1026, "{}", streams.order.len());
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
    async fn waiters_are_told_of_the_end_even_if_the_fetch_was_abandoned() {
        let arc = RecordCache::new(64 << 20);
        let ptrs = [ptr(0, 3), ptr(64, 3), ptr(0, 3)];
        let mut found = vec![None; 3];
        let mut first = arc.lookup(&ptrs, &mut found);
        let (landing, places) = first.mine.pop().unwrap();
        assert_eq!((places, first.mine.len(), first.others.len()), (vec![0, 1, 2], 0, 0));
        let mut waits = arc.lookup(&ptrs, &mut found);
        assert!(waits.mine.is_empty() && waits.others.len() == 1);
        drop(landing);
        arrival(waits.others.pop().unwrap()).await;
        let mut again = arc.lookup(&ptrs, &mut found);
        let (landing, _) = again.mine.pop().unwrap();
        let bytes = Bytes::from_static(b"abc");
        arc.insert(&ptrs[0], &bytes, Caching::Keep, true);
        drop(landing);
        let rest = arc.lookup(&ptrs, &mut found);
        assert_eq!(rest.mine[0].1, [1]);
        assert_eq!((&found[0], &found[2]), (&Some(bytes.clone()), &Some(bytes)));
    }
}
