//! Reads here and there in a file: a database, an index, samples of a training set in one file.
//!
//! Nobody can tell where the next of them will be, so each waits for a bucket, and while it waits the network has nothing
//! to do. Where such waits are long, whole segments of the file are fetched meanwhile: the one that a read falls into,
//! and others, because a file that is read in many places is soon read everywhere. So many as [`TRUST`] says may be in
//! vain; each read that finds what it wants in one of them earns [`EARNED`] more. So a file that is read all over is in
//! memory soon, and of one that is too large for its readers to come by the same place twice, not much is fetched.
//!
//! Near stores answer sooner than a segment could be of use: there, nothing is fetched.

use crate::client::Client;
use crate::inode::Inode;
use crate::stats::add;
use crate::zfetch::{LetGo, Limits};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;
use tarn_base::{Ino, job};
use tarn_pool::Caching;

/// Bytes of a file that may be fetched for nobody.
const TRUST: u64 = 64 << 20;
/// Segments more for each read that found what it wanted in one.
const EARNED: u64 = 8;
/// So many reads of a file have to wait before anything is fetched for others.
const BELIEVED: u64 = 4;
/// A wait from which on the network could have brought a segment.
const LONG: Duration = Duration::from_millis(5);
/// Segments on their way, for each vdev: more than a stream has, because each that is, is one that readers wait for rather
/// than ask for a record of their own.
const ON_VDEV: u64 = 5;
/// Of the memory for records, such a file may take so many fifths.
const FIFTHS: u64 = 4;
/// A file that was not read so for so long is forgotten; and how many are remembered.
const IDLE: Duration = Duration::from_secs(30);
const FILES: usize = 64;

struct Segment {
    there: bool,
    touched: bool,
}

/// How a file is read.
#[derive(Default)]
struct File {
    waits: u64,
    /// Reads that found what they wanted in a segment that was fetched, and that no longer found it.
    hits: u64,
    lost: u64,
    segments: HashMap<u64, Segment>,
    /// Where to look for the next segment that was not fetched.
    cursor: u64,
    last: Duration,
}

#[derive(Default)]
pub(crate) struct Scattered {
    files: Mutex<HashMap<Ino, File>>,
    /// There are any.
    any: AtomicBool,
    flying: AtomicU64,
    /// How long a read waits, in microseconds, by the last ones.
    wait_us: AtomicU64,
}

impl File {
    /// A read in a segment; whether it had to wait.
    fn note(&mut self, segment: u64, waits: bool, now: Duration) {
        self.last = now;
        self.waits += u64::from(waits);
        let Some(known) = self.segments.get_mut(&segment) else { return };
        known.touched = true;
        match waits && known.there {
            // Thrown out again.
            true => {
                self.lost += 1;
                self.segments.remove(&segment);
            }
            false => self.hits += 1,
        }
    }

    /// The next segment to fetch when `at` was read, of `count` that the file has.
    fn next(&mut self, at: u64, count: u64, unit: u64) -> Option<u64> {
        let allowed = TRUST / unit.max(1) + EARNED * self.hits;
        if self.waits < BELIEVED || self.lost > self.hits || self.segments.len() as u64 >= allowed.min(count)
        {
            return None;
        }
        if !self.segments.contains_key(&at) {
            return Some(at);
        }
        // All before the cursor were fetched, or thrown out since.
        let next = (self.cursor..count).chain(0..self.cursor).find(|n| !self.segments.contains_key(n))?;
        self.cursor = next + 1;
        Some(next)
    }

    fn outcome(&self, unit: u64) -> LetGo {
        let touched = self.segments.values().filter(|segment| segment.touched).count() as u64;
        LetGo::of(touched * unit, (self.segments.len() as u64 - touched) * unit)
    }
}

impl Scattered {
    /// A read waited for so long.
    pub fn waited(&self, took: Duration) {
        let took = took.as_micros().min(1 << 40) as u64;
        let before = self.wait_us.load(Relaxed);
        self.wait_us.store(if before == 0 { took } else { (before * 7 + took) / 8 }, Relaxed);
    }

    fn waits_are_long(&self) -> bool {
        self.wait_us.load(Relaxed) >= LONG.as_micros() as u64
    }

    /// Takes note of a read at `offset`; gives the segments to fetch, and what became of those of forgotten files.
    fn note(&self, ino: Ino, offset: u64, waits: bool, limits: Limits<'_>) -> (Vec<u64>, Vec<LetGo>) {
        let Limits { size, unit, stripes, kept, now, ahead } = limits;
        let mut files = self.files.lock();
        let mut gone = Vec::new();
        if files.len() >= FILES && !files.contains_key(&ino) {
            let oldest = files.values().map(|file| file.last).min();
            files.retain(|_, file| {
                let stays = file.last + IDLE > now && Some(file.last) != oldest;
                if !stays {
                    gone.push(file.outcome(unit));
                }
                stays
            });
        }
        let file = match waits {
            true => files.entry(ino).or_default(),
            false => match files.get_mut(&ino) {
                Some(file) => file,
                None => return (Vec::new(), gone),
            },
        };
        if file.last + IDLE < now && file.waits > 0 {
            gone.push(std::mem::take(file).outcome(unit));
        }
        let at = offset / unit;
        file.note(at, waits, now);
        let mut wanted = Vec::new();
        while self.waits_are_long()
            && size <= kept / 5 * FIFTHS
            && self.flying.load(Acquire) < ON_VDEV * stripes.max(1)
            && ahead.room() >= unit
            && let Some(segment) = file.next(at, size.div_ceil(unit), unit)
        {
            file.segments.insert(segment, Segment { there: false, touched: segment == at });
            self.flying.fetch_add(1, AcqRel);
            ahead.begin(unit);
            wanted.push(segment);
        }
        self.any.store(!files.is_empty(), Relaxed);
        (wanted, gone)
    }

    fn landed(&self, ino: Ino, segment: u64) {
        self.flying.fetch_sub(1, AcqRel);
        let mut files = self.files.lock();
        if let Some(known) = files.get_mut(&ino).and_then(|file| file.segments.get_mut(&segment)) {
            known.there = true;
        }
    }
}

impl Client {
    /// A read that belongs to no sequence; whether it has to wait.
    pub(crate) fn note_scattered(self: &Arc<Self>, inode: &Arc<Inode>, offset: u64, waits: bool) {
        if !waits && !self.scattered.any.load(Relaxed) || self.ahead.max() == 0 {
            return;
        }
        let limits = self.limits(inode);
        let (wanted, gone) = self.scattered.note(inode.ino, offset, waits, limits);
        gone.iter().for_each(|gone| self.let_go(gone));
        let record_size = inode.state.lock().record_size;
        for segment in wanted {
            let (client, inode, unit) = (self.clone(), inode.clone(), limits.unit);
            let (first, end) = (segment * unit / record_size, ((segment + 1) * unit).div_ceil(record_size));
            let end = end.min(limits.size.div_ceil(record_size));
            self.options.runtime.spawn(job::for_job(job::current(), async move {
                // A failure is found again by whoever really reads there.
                if let Ok(ptrs) = client.map_all(inode.ino, first, end.saturating_sub(first) as u32).await {
                    let absent = client.not_in_memory(&inode, first, &ptrs);
                    let bytes = absent.iter().map(|ptr| u64::from(ptr.logical)).sum();
                    add(&client.stats.prefetch_issued_bytes, bytes);
                    if !absent.is_empty() {
                        let _ = client.records.clone().read(absent, Caching::Keep).await;
                    }
                }
                client.ahead.end(unit);
                client.scattered.landed(inode.ino, segment);
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ahead::Ahead;

    const UNIT: u64 = 4 << 20;

    fn limits(ahead: &Ahead, segments: u64) -> Limits<'_> {
        Limits { size: segments * UNIT, unit: UNIT, stripes: 12, kept: 1 << 30, now: Duration::ZERO, ahead }
    }

    /// Reads in these segments one after the other, all that was asked for having come; gives how many were fetched.
    fn fetched(scattered: &Scattered, ahead: &Ahead, count: u64, reads: impl Iterator<Item = u64>) -> usize {
        for segment in reads {
            let there =
                scattered.files.lock().get(&Ino(7)).is_some_and(|f| f.segments.contains_key(&segment));
            let (wanted, _) = scattered.note(Ino(7), segment * UNIT, !there, limits(ahead, count));
            for segment in wanted {
                scattered.landed(Ino(7), segment);
                ahead.end(UNIT);
            }
        }
        scattered.files.lock()[&Ino(7)].segments.len()
    }

    #[test]
    fn a_file_that_is_read_all_over_comes_whole_and_others_do_not() {
        let ahead = Ahead::new(1 << 30);
        let slow = || {
            let scattered = Scattered::default();
            scattered.waited(Duration::from_millis(20));
            scattered
        };
        let places = |count: u64| (0..200u64).map(move |n| n * 7919 % count);
        assert_eq!(fetched(&slow(), &ahead, 64, places(64).take(3)), 0, "three reads tell nothing");
        assert_eq!(fetched(&slow(), &ahead, 64, places(64).take(4)), 16);
        assert_eq!(fetched(&slow(), &ahead, 64, places(64)), 64);
        // The readers never come by the same place.
        let spread = (0..100).map(|n| n + 17);
        assert_eq!(fetched(&slow(), &ahead, 120, spread.filter(|n| n % 16 == 1)), 16);
        // Larger than memory.
        assert_eq!(fetched(&slow(), &ahead, 210, places(210)), 0);
        // A store that answers at once.
        let near = Scattered::default();
        near.waited(Duration::from_micros(700));
        assert_eq!(fetched(&near, &ahead, 64, places(64)), 0);
    }

    #[test]
    fn what_is_thrown_out_again_is_not_fetched_on_and_on() {
        let ahead = Ahead::new(1 << 30);
        let scattered = Scattered::default();
        scattered.waited(Duration::from_millis(20));
        for n in 0..1000u64 {
            let (wanted, _) = scattered.note(Ino(7), n * 7919 % 64 * UNIT, true, limits(&ahead, 64));
            for segment in wanted {
                scattered.landed(Ino(7), segment);
                ahead.end(UNIT);
            }
        }
        let files = scattered.files.lock();
        assert!(files[&Ino(7)].lost < 20, "{}", files[&Ino(7)].lost);
    }
}
