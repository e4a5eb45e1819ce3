//! Reads that take unusually long, and are asked for once more.
//!
//! Stores answer most requests soon and a few late: a machine there is busy, a packet was lost. A stream waits for the
//! latest of its parts, so those few are what it feels. A read that takes longer than nearly all of its size have taken
//! lately is sent again, and the first answer counts.
//!
//! What is usual is learned by size, as a mean and a mean deviation, by the same rule by which TCP knows when a segment
//! is late (RFC 6298). One request in [`ONE_IN`] may be a repeated one, so that a store that has become slow as a whole
//! has next to no more to do.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Reads of each repeated one.
const ONE_IN: i64 = 20;
/// So many repeated ones may follow each other.
const SAVED_UP: i64 = 8;
/// Before so many reads of a size nothing is known of it.
const LEARNED: u32 = 32;
/// What comes within this time is not late, whatever is usual.
const LEAST: Duration = Duration::from_millis(50);
/// How much a new time counts in the mean, and in the deviation from it.
const MEAN: f64 = 1.0 / 16.0;
const DEVIATION: f64 = 1.0 / 8.0;
/// Reads are told apart by size in steps of four, from this many bytes on.
const SMALLEST: u64 = 64 << 10;
const CLASSES: usize = 6;

#[derive(Default)]
pub(super) struct Hedge {
    usual: [Mutex<Usual>; CLASSES],
    /// A repeated read takes [`ONE_IN`] of it.
    saved: AtomicI64,
    sent: AtomicU64,
    won: AtomicU64,
}

/// Times of reads of about one size, in seconds.
#[derive(Default)]
struct Usual {
    reads: u32,
    mean: f64,
    deviation: f64,
}

fn class(bytes: u64) -> usize {
    let steps = bytes.div_ceil(SMALLEST).max(1).next_power_of_two().trailing_zeros();
    (steps.div_ceil(2) as usize).min(CLASSES - 1)
}

impl Hedge {
    /// How long to wait for a read of so many bytes before it is late; `None` while that is not known.
    pub fn patience(&self, bytes: u64) -> Option<Duration> {
        let usual = self.usual[class(bytes)].lock();
        let late = (usual.mean + 4.0 * usual.deviation).max(2.0 * usual.mean);
        (usual.reads >= LEARNED).then(|| Duration::from_secs_f64(late).max(LEAST))
    }

    /// A read of so many bytes was answered after this time.
    pub fn learn(&self, bytes: u64, took: Duration) {
        let mut usual = self.usual[class(bytes)].lock();
        let took = took.as_secs_f64();
        let off = (took - usual.mean).abs();
        if usual.reads == 0 {
            (usual.mean, usual.deviation) = (took, took / 2.0);
        } else {
            usual.deviation += DEVIATION * (off - usual.deviation);
            usual.mean += MEAN * (took - usual.mean);
        }
        usual.reads = usual.reads.saturating_add(1);
        drop(usual);
        let more = |saved: i64| (saved < ONE_IN * SAVED_UP).then_some(saved + 1);
        let _ = self.saved.fetch_update(Relaxed, Relaxed, more);
    }

    /// Whether a late read may be sent again. If so it is counted as sent.
    pub fn spend(&self) -> bool {
        let less = |saved: i64| (saved >= ONE_IN).then_some(saved - ONE_IN);
        let may = self.saved.fetch_update(Relaxed, Relaxed, less).is_ok();
        self.sent.fetch_add(u64::from(may), Relaxed);
        may
    }

    /// A repeated read was answered first.
    pub fn won(&self) {
        self.won.fetch_add(1, Relaxed);
    }

    /// Repeated reads, and those of them that were answered first.
    pub fn counts(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.won.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn sizes_are_told_apart() {
        let classes = [0, 1, 64 << 10, 100 << 10, 256 << 10, 1 << 20, 4 << 20, 5 << 20, 1 << 40];
        assert_eq!(classes.map(class), [0, 0, 0, 1, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_is_late_follows_from_what_is_usual() {
        let hedge = Hedge::default();
        for n in 1..LEARNED {
            hedge.learn(1 << 20, (100 + n % 10) * MS);
        }
        assert_eq!(hedge.patience(1 << 20), None);
        hedge.learn(1 << 20, 100 * MS);
        let late = hedge.patience(1 << 20).unwrap();
        assert!(late >= 200 * MS && late < 230 * MS, "{late:?}");
        assert_eq!(hedge.patience(64 << 10), None, "nothing is known of other sizes");
        // The store has become slow as a whole: that is usual now.
        (0..100).for_each(|_| hedge.learn(1 << 20, 1000 * MS));
        assert!(hedge.patience(1 << 20).unwrap() > 1900 * MS);
        (0..100).for_each(|_| hedge.learn(1, MS));
        assert_eq!(hedge.patience(1), Some(LEAST));
    }

    #[test]
    fn few_are_sent_again() {
        let hedge = Hedge::default();
        assert!(!hedge.spend());
        (0..1000).for_each(|_| hedge.learn(1, MS));
        assert_eq!((0..100).filter(|_| hedge.spend()).count() as i64, SAVED_UP);
        let sent = (0..1000).filter(|_| {
            hedge.learn(1, MS);
            hedge.spend()
        });
        assert_eq!(sent.count() as i64, 1000 / ONE_IN);
        assert_eq!(hedge.counts(), (58, 0));
    }
}
