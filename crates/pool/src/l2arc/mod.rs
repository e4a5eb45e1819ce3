//! The second level of the ARC: `cache` vdevs, directories of fast local file systems that keep what GETs brought, over
//! restarts too.
//!
//! # What goes in
//! Each body that a GET brought, record by record, in the stored form, after it was verified: so what lies there takes
//! no more room than in the bucket, and is verified by the pointer of whoever reads it. `secondarycache` decides whether
//! streams are among it. Not what was written: it is kept when somebody reads it. Writing is nobody's business to
//! wait for. What is offered is taken while there is room for it in a short queue, and dropped otherwise; a cache is
//! written to at `l2arc_write_max` bytes a second at most.
//!
//! # What comes out
//! A record that is not in the ARC, and that a cache has, is read from there, at the same time as a GET brings what no
//! cache has. There is never more than one GET where there would be one without caches: it reaches from the first record
//! that is in no cache to the last. Whatever a cache cannot give, or gives wrongly, is fetched from its bucket.
//!
//! Segment ids are never used again, so nothing has to be thrown out when it is freed: it ages until its turn comes.
//!
//! # Where
//! A cache belongs to one host, and only that host's process uses it; the pool's configuration names the host. A segment's
//! records go to one cache, by a hash over their sizes; they are looked for in all.

mod admin;
mod device;
mod place;

pub use device::{CacheState, CacheStatus};

use crate::config::PoolConfig;
use crate::label::HostId;
use crate::read::{Form, run_range, unpack_here};
use crate::{Caching, Pool, Result};
use bytes::Bytes;
use device::{Cache, Slot};
use futures::future::join_all;
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use tarn_base::{BlockPtr, SegmentId};

/// Part of the memory for bodies on their way that may wait to be written to one cache, and its bounds in bytes.
const WAITING_PART: u64 = 4;
const WAITING_MIN: u64 = 1 << 20;
const WAITING_MAX: u64 = 32 << 20;

/// Which records go into caches: the property `secondarycache`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Takes {
    None,
    /// All but those of streams.
    NoStreams,
    All,
}

type Caches = Arc<Vec<Arc<Cache>>>;

/// This host's cache vdevs.
pub(crate) struct L2arc {
    caches: RwLock<Caches>,
    /// Whether there are any: what a pool without caches pays for them.
    any: AtomicBool,
    takes: AtomicU8,
    rate: Arc<AtomicU64>,
    /// Bytes that may wait for one cache.
    waiting: u64,
    /// Records that were in neither level.
    misses: AtomicU64,
    /// They are in use, and so are those that are added.
    started: AtomicBool,
}

impl Drop for L2arc {
    fn drop(&mut self) {
        self.caches.read().iter().for_each(|cache| cache.ask_to_close());
    }
}

impl L2arc {
    /// The caches that `host` has of the pool, not open yet. `reading`: bytes of memory for bodies on their way.
    pub fn new(host: &HostId, config: &PoolConfig, reading: u64) -> L2arc {
        let level = L2arc {
            caches: RwLock::default(),
            any: AtomicBool::new(false),
            takes: AtomicU8::new(Takes::NoStreams as u8),
            rate: Arc::new(AtomicU64::new(u64::MAX)),
            waiting: (reading / WAITING_PART).clamp(WAITING_MIN, WAITING_MAX),
            misses: AtomicU64::new(0),
            started: AtomicBool::new(false),
        };
        let own = config.caches.iter().filter(|cache| cache.host.id == host.id);
        level.set(own.map(|cache| level.cache(cache.clone(), config.guid)).collect());
        level
    }

    fn cache(&self, config: crate::config::CacheConfig, pool: tarn_base::PoolGuid) -> Arc<Cache> {
        Cache::new(config, pool, self.waiting, self.rate.clone())
    }

    fn set(&self, caches: Vec<Arc<Cache>>) {
        self.any.store(!caches.is_empty(), Relaxed);
        *self.caches.write() = Arc::new(caches);
    }

    fn all(&self) -> Caches {
        self.caches.read().clone()
    }

    /// `takes` and `rate` as the properties have them.
    pub fn heed(&self, takes: &str, rate: Option<u64>) {
        let takes = match takes {
            "none" => Takes::None,
            "all" => Takes::All,
            _ => Takes::NoStreams,
        };
        self.takes.store(takes as u8, Relaxed);
        self.rate.store(rate.unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether a read like this one has to do with caches.
    pub fn concerns(&self, caching: Caching) -> bool {
        self.any.load(Relaxed) && caching != Caching::Bypass
    }

    fn takes(&self, caching: Caching) -> bool {
        let takes = self.takes.load(Relaxed);
        match caching {
            Caching::Keep | Caching::Together => takes >= Takes::NoStreams as u8,
            Caching::Stream => takes >= Takes::All as u8,
            Caching::Bypass => false,
        }
    }

    /// Offers records of one segment, verified, to a cache. `body` has the segment's bytes from `start` on.
    pub fn offer(&self, caching: Caching, segment: SegmentId, body: &Bytes, start: u32, ptrs: &[BlockPtr]) {
        if !self.any.load(Relaxed) || !self.takes(caching) {
            return;
        }
        let caches = self.all();
        let Some(cache) = choose(&caches, segment) else { return };
        let stored = |ptr: &BlockPtr| {
            let slot = Slot::of(ptr);
            let (from, to) =
                (ptr.offset.checked_sub(start)? as usize, ptr.end().checked_sub(start)? as usize);
            let wanted = to <= body.len() && cache.fits(ptr.stored) && !caches.iter().any(|c| c.has(&slot));
            wanted.then(|| (slot, body.slice(from..to)))
        };
        let records: Vec<_> = ptrs.iter().filter_map(stored).collect();
        if !records.is_empty() {
            cache.offer(records, body.len() as u64);
        }
    }

    /// Records that were in neither level.
    pub fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }

    pub fn status(&self) -> Vec<CacheStatus> {
        self.all().iter().map(|cache| cache.status()).collect()
    }

    pub fn clear_errors(&self) {
        self.all().iter().for_each(|cache| cache.clear_errors());
    }
}

/// The cache for a segment's records, of those that work: each gets a part as large as it is.
fn choose(caches: &[Arc<Cache>], segment: SegmentId) -> Option<&Arc<Cache>> {
    let online = || caches.iter().filter(|cache| cache.online());
    let total: u64 = online().map(|cache| cache.config.size).sum();
    let mut at = twox_hash::XxHash3_64::oneshot(&segment.to_bytes()) % total.max(1);
    online().find(|cache| {
        let here = at < cache.config.size;
        at = at.saturating_sub(cache.config.size);
        here
    })
}

/// From the first of the records that nobody has to the last.
fn gap(has: impl Iterator<Item = bool>) -> Range<usize> {
    let mut gap = 0..0;
    for (i, has) in has.enumerate() {
        if !has {
            gap = if gap.is_empty() { i..i + 1 } else { gap.start..i + 1 };
        }
    }
    gap
}

impl Pool {
    /// Records that lie together, in the order of their offsets: from caches, and by one GET what they do not have.
    pub(crate) async fn fetch_with_caches(
        self: &Arc<Self>,
        segment: SegmentId,
        members: &[BlockPtr],
        caching: Caching,
    ) -> Vec<Result<Bytes>> {
        let caches = self.l2arc.all();
        let holders: Vec<Option<&Arc<Cache>>> =
            members.iter().map(|ptr| caches.iter().find(|cache| cache.has(&Slot::of(ptr)))).collect();
        if caches.iter().any(|cache| cache.online()) {
            let absent = holders.iter().filter(|holder| holder.is_none()).count();
            self.l2arc.misses.fetch_add(absent as u64, Relaxed);
        }
        let gap = gap(holders.iter().map(Option::is_some));
        if gap.len() == members.len() {
            return self.fetch_by_get(segment, run_range(members), members, caching).await;
        }
        let fetch = async {
            let wanted = &members[gap.clone()];
            match wanted.is_empty() {
                true => Vec::new(),
                false => self.fetch_by_get(segment, run_range(wanted), wanted, caching).await,
            }
        };
        let read = async {
            let places = || (0..members.len()).filter(|i| !gap.contains(i));
            let bytes = places().map(|i| u64::from(members[i].stored) + u64::from(members[i].logical)).sum();
            let _room = self.reading.room(bytes).await;
            let keep = self.l2arc.takes(caching);
            let reads = places().filter_map(|i| Some((i, holders[i]?)));
            join_all(
                reads.map(|(i, cache)| async move { (i, self.read_cached(cache, &members[i], keep).await) }),
            )
            .await
        };
        let (fetched, read) = futures::join!(fetch, read);
        let mut results: Vec<Option<Result<Bytes>>> = members.iter().map(|_| None).collect();
        for (i, result) in gap.zip(fetched) {
            results[i] = Some(result);
        }
        for (i, bytes) in read {
            if let Some(bytes) = &bytes {
                self.arc.insert(&members[i], bytes, caching, true);
            }
            results[i] = bytes.map(Ok);
        }
        // What did not come after all.
        let lost: Vec<usize> = (0..members.len()).filter(|&i| results[i].is_none()).collect();
        if !lost.is_empty() {
            let wanted: Vec<BlockPtr> = lost.iter().map(|&i| members[i]).collect();
            let fetched = self.fetch_by_get(segment, run_range(&wanted), &wanted, caching).await;
            for (i, result) in lost.into_iter().zip(fetched) {
                results[i] = Some(result);
            }
        }
        results.into_iter().flatten().collect()
    }

    /// One record from a cache, verified and unpacked.
    async fn read_cached(&self, cache: &Arc<Cache>, ptr: &BlockPtr, keep: bool) -> Option<Bytes> {
        let stored = cache.read(Slot::of(ptr), keep).await?;
        let unpacked = unpack_here(ptr, stored, Form::Logical).await;
        cache.judged(ptr.stored, unpacked.is_some());
        unpacked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_get_reaches_from_the_first_absent_record_to_the_last() {
        let gap = |has: &[u8]| gap(has.iter().map(|has| *has == 1));
        assert_eq!(gap(&[1, 1, 1]), 0..0);
        assert_eq!(gap(&[0, 0]), 0..2);
        assert_eq!(gap(&[1, 0, 1, 0, 1]), 1..4);
        assert_eq!(gap(&[1, 1, 0]), 2..3);
        assert_eq!(gap(&[0, 1, 1]), 0..1);
    }
}
