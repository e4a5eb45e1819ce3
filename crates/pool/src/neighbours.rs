//! Small files that were written together lie in one segment, and are mostly read together. So when several small
//! files of one segment are asked for within a short while, the whole segment is fetched by one GET, and its other
//! records wait in the ARC, first to leave it.
//!
//! A guess has a price, so it is checked: as long as less than a part of what was fetched on a guess was wanted
//! afterwards, it takes more evidence to guess again. Segments that are too long to be fetched whole (`segment_size` may be
//! 64 MiB) are left alone.

use crate::read::{Form, unpack};
use crate::segment::{SegmentTrailer, segment_key};
use crate::vdev::{Whole, fetch_whole};
use crate::{Caching, Pool};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tarn_base::block::MAX_RECORD;
use tarn_base::{BlockPtr, Compression, SegmentId};
use tokio::sync::watch;

/// Misses in one segment that make a guess: as long as guesses pay, and when they do not.
const EVIDENCE: u32 = 2;
const EVIDENCE_AFTER_LOSSES: u32 = 24;
/// Guesses pay while at least one byte in so many was wanted.
const WORTH: u64 = 4;
/// Of guesses in all, in bytes: below the first nothing is concluded, above the second old ones count less.
const JUDGED_FROM: u64 = 32 << 20;
const REMEMBERED: u64 = 256 << 20;
/// Misses that lie further back, counted in misses, are no evidence any more.
const RECENT: u64 = 1024;

#[derive(Default)]
pub(crate) struct Neighbours {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All misses so far: the clock here.
    misses: u64,
    segments: HashMap<SegmentId, Seen>,
    /// Stored bytes fetched on a guess, and the part of the used ones that is no longer counted.
    fetched: u64,
    used_before: u64,
}

enum Seen {
    Missed {
        times: u32,
        last: u64,
    },
    Coming(watch::Receiver<()>),
    /// It is too long to be fetched whole, as was found out at that time.
    Long(u64),
}

/// How to fetch a small record.
enum Turn {
    Alone,
    /// With its segment; the others wait until this is dropped.
    Whole(Fetching),
    /// Somebody fetches the segment.
    Wait(watch::Receiver<()>),
}

/// A segment is on its way.
struct Fetching {
    segment: SegmentId,
    neighbours: Arc<Neighbours>,
    _done: watch::Sender<()>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        let mut state = self.neighbours.state.lock();
        if let Some(Seen::Coming(_)) = state.segments.get(&self.segment) {
            state.segments.remove(&self.segment);
        }
    }
}

impl Neighbours {
    /// Takes note of a small record that was not in memory. `used` is what the ARC says of earlier guesses.
    fn turn(self: &Arc<Self>, segment: SegmentId, used: u64) -> Turn {
        let mut state = self.state.lock();
        state.misses += 1;
        let now = state.misses;
        if now.is_multiple_of(RECENT) {
            state.segments.retain(|_, seen| {
                !matches!(seen, Seen::Missed { last, .. } | Seen::Long(last) if *last + RECENT < now)
            });
        }
        let needed = state.evidence(used);
        let times = match state.segments.get(&segment) {
            Some(Seen::Coming(done)) => return Turn::Wait(done.clone()),
            Some(Seen::Long(_)) => return Turn::Alone,
            Some(Seen::Missed { times, last }) if last + RECENT >= now => times + 1,
            _ => 1,
        };
        if times < needed {
            state.segments.insert(segment, Seen::Missed { times, last: now });
            return Turn::Alone;
        }
        let (done, coming) = watch::channel(());
        state.segments.insert(segment, Seen::Coming(coming));
        Turn::Whole(Fetching { segment, neighbours: self.clone(), _done: done })
    }

    fn fetched(&self, bytes: u64) {
        self.state.lock().fetched += bytes;
    }

    fn too_long(&self, segment: SegmentId) {
        let mut state = self.state.lock();
        let now = state.misses;
        state.segments.insert(segment, Seen::Long(now));
    }
}

impl State {
    fn evidence(&mut self, used: u64) -> u32 {
        let recently = used.saturating_sub(self.used_before);
        let pays = self.fetched < JUDGED_FROM || recently >= self.fetched / WORTH;
        if self.fetched > REMEMBERED {
            self.fetched /= 2;
            self.used_before += recently / 2;
        }
        if pays { EVIDENCE } else { EVIDENCE_AFTER_LOSSES }
    }
}

impl Pool {
    /// Members of one segment by way of a guess, where there is evidence for one; `None` when the caller is to fetch
    /// them by themselves, be it because something was wrong.
    pub(crate) async fn guess(
        self: &Arc<Self>,
        segment: SegmentId,
        members: &[BlockPtr],
    ) -> Option<Vec<Bytes>> {
        let found: Vec<Option<Bytes>> = match self.neighbours.turn(segment, self.arc.neighbours_used()) {
            Turn::Alone => return None,
            Turn::Whole(_fetching) => self.fetch_with_neighbours(segment, members).await,
            Turn::Wait(mut coming) => {
                // The end is told by an error: the sender is gone.
                while coming.changed().await.is_ok() {}
                members.iter().map(|ptr| self.arc.get(ptr)).collect()
            }
        };
        found.into_iter().collect()
    }

    /// Fetches the segment whole and puts what it holds into the ARC. Gives the members that were right.
    async fn fetch_with_neighbours(
        self: &Arc<Self>,
        segment: SegmentId,
        members: &[BlockPtr],
    ) -> Vec<Option<Bytes>> {
        let none = || vec![None; members.len()];
        let Ok(vdev) = self.vdev(segment.grant.vdev) else { return none() };
        let key = segment_key(segment);
        let get = || fetch_whole(&*vdev.bucket, &key);
        let (body, _room) = match vdev.reading_in(&self.reading, self.segment_size(), get).await {
            Ok((Whole::All(body), room)) => (body, room),
            Ok((Whole::Longer(_), _)) => {
                self.neighbours.too_long(segment);
                return none();
            }
            Err(_) => return none(),
        };
        self.neighbours.fetched(body.len() as u64);
        let (pool, wanted) = (self.clone(), members.to_vec());
        let unpacked = crate::offload(move || {
            let mut right = pool.take_in(segment, &body, &wanted);
            let found: Vec<Option<Bytes>> = wanted.iter().map(|ptr| part(&body, ptr)).collect();
            right.extend(wanted.iter().zip(&found).filter(|(_, bytes)| bytes.is_some()).map(|(ptr, _)| *ptr));
            pool.l2arc.offer(Caching::Together, segment, &body, 0, &right);
            found
        });
        unpacked.await.unwrap_or_else(|_| none())
    }

    /// Gives the neighbours that were right.
    fn take_in(&self, segment: SegmentId, body: &Bytes, wanted: &[BlockPtr]) -> Vec<BlockPtr> {
        let entries = SegmentTrailer::of(segment, self.guid, body, body.len() as u64).and_then(|trailer| {
            let range = trailer.directory_range();
            trailer.directory(&body[range.start as usize..range.end as usize])
        });
        let entries = match entries {
            Ok(entries) => entries,
            // Whoever really wants a record of it reports what is wrong with that.
            Err(problem) => {
                tracing::warn!(%segment, problem, "cannot use the segment's directory");
                return Vec::new();
            }
        };
        let mut right = Vec::new();
        for entry in entries {
            let ptr = entry.ptr;
            // The directory is believed only so far: nobody's record is longer.
            if ptr.logical <= MAX_RECORD
                && !wanted.iter().any(|other| other.offset == ptr.offset)
                && let Some(bytes) = part(body, &ptr)
            {
                self.arc.insert_neighbour(&ptr, &bytes, ptr.compression != Compression::Off);
                right.push(ptr);
            }
        }
        right
    }
}

/// One record of the segment, verified and unpacked.
fn part(body: &Bytes, ptr: &BlockPtr) -> Option<Bytes> {
    let (from, to) = (ptr.offset as usize, ptr.end() as usize);
    unpack(ptr, (to <= body.len()).then(|| body.slice(from..to))?, Form::Logical)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::{DatasetId, Grant, VdevId};

    fn segment(seq: u32) -> SegmentId {
        SegmentId { grant: Grant { vdev: VdevId(0), dataset: DatasetId(1), number: 1 }, seq }
    }

    #[test]
    fn the_second_miss_fetches_the_segment_and_later_ones_wait() {
        let neighbours = Arc::new(Neighbours::default());
        assert!(matches!(neighbours.turn(segment(1), 0), Turn::Alone));
        assert!(matches!(neighbours.turn(segment(2), 0), Turn::Alone));
        let Turn::Whole(fetching) = neighbours.turn(segment(1), 0) else { panic!() };
        let Turn::Wait(coming) = neighbours.turn(segment(1), 0) else { panic!() };
        assert!(coming.has_changed().is_ok());
        drop(fetching);
        assert!(coming.has_changed().is_err());
        assert!(matches!(neighbours.turn(segment(1), 0), Turn::Alone));
    }

    #[test]
    fn a_segment_that_is_too_long_is_left_alone_for_a_while() {
        let neighbours = Arc::new(Neighbours::default());
        assert!(matches!(neighbours.turn(segment(1), 0), Turn::Alone));
        let Turn::Whole(fetching) = neighbours.turn(segment(1), 0) else { panic!() };
        neighbours.too_long(segment(1));
        drop(fetching);
        (0..RECENT).for_each(|_| assert!(matches!(neighbours.turn(segment(1), 0), Turn::Alone)));
        (0..2 * RECENT as u32).for_each(|other| drop(neighbours.turn(segment(10 + other), 0)));
        assert!(neighbours.state.lock().segments.len() <= 2 * RECENT as usize);
        assert!(!neighbours.state.lock().segments.contains_key(&segment(1)));
    }

    #[test]
    fn misses_far_apart_are_no_evidence_and_guesses_that_do_not_pay_end() {
        let neighbours = Arc::new(Neighbours::default());
        assert!(matches!(neighbours.turn(segment(1), 0), Turn::Alone));
        for other in 0..RECENT as u32 {
            neighbours.turn(segment(10 + other), 0);
        }
        assert!(matches!(neighbours.turn(segment(1), 0), Turn::Alone));
        neighbours.fetched(JUDGED_FROM);
        assert!(matches!(neighbours.turn(segment(1), 0), Turn::Alone));
        assert!(matches!(neighbours.turn(segment(1), JUDGED_FROM), Turn::Whole(_)));
    }
}
