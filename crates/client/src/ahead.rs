//! What all streams of a client together may have fetched ahead of their readers, and how many share it.
//!
//! The bound is on memory: what is fetched and not yet read must stay there until it is read. If streams had more than
//! fits, each would throw out what another reads next, and fetch it again. So it is divided by the number of streams
//! that read at the time. A handle may stay open long after its stream has come to its end, so time is cut into turns,
//! and those that read in this turn or the last, and are not closed, are counted.
//!
//! How fast a new stream may grow depends on how that went before: where what was fetched ahead was read, streams are
//! believed early, and the more the further they have come, so that buckets have all that they can do within moments; where
//! readers stop half-way, they must show first that they come far.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// Seconds of a turn.
const TURN: u64 = 2;
/// How much to have on its way at most, measured by how far a stream has come: where readers read on, where many do not,
/// and where most do not.
const OF_COME: [u64; 3] = [16, 4, 1];
/// Where readers read on, each step that a stream has come counts as much again.
const STEP: u64 = 1 << 20;
/// So many bytes may be fetched in vain before anything follows from it.
const FORGIVEN: u64 = 64 << 20;
/// Outcomes count half after so many bytes.
const REMEMBERED: u64 = 4 << 30;

pub(crate) struct Ahead {
    /// Bytes, of all streams together.
    max: AtomicU64,
    /// Bytes that are being fetched.
    flying: AtomicU64,
    crowd: Mutex<Crowd>,
    outcome: Mutex<Outcome>,
}

/// Bytes that were fetched ahead lately.
#[derive(Default)]
struct Outcome {
    used: u64,
    unused: u64,
}

/// Streams that read in a turn and in the one before it.
#[derive(Default)]
struct Crowd {
    turn: u64,
    now: u64,
    before: u64,
}

/// When a stream was counted: the last turn, and whether in the one before it too.
pub(crate) type Counted = Option<(u64, bool)>;

impl Ahead {
    pub fn new(max: u64) -> Ahead {
        Ahead {
            max: AtomicU64::new(max),
            flying: AtomicU64::new(0),
            crowd: Mutex::default(),
            outcome: Mutex::default(),
        }
    }

    /// A stream reads now: how many do, itself among them.
    pub fn streams(&self, counted: &mut Counted, now: Duration) -> u64 {
        let turn = now.as_secs() / TURN;
        let mut crowd = self.crowd.lock();
        if turn > crowd.turn {
            let follows = turn == crowd.turn + 1;
            *crowd = Crowd { turn, now: 0, before: if follows { crowd.now } else { 0 } };
        }
        if counted.is_none_or(|(last, _)| last != turn) {
            *counted = Some((turn, counted.is_some_and(|(last, _)| last + 1 == turn)));
            crowd.now += 1;
        }
        crowd.now.max(crowd.before).max(1)
    }

    /// A stream is closed: it shares no more.
    pub fn leave(&self, counted: &mut Counted) {
        let Some((last, and_before)) = counted.take() else { return };
        let mut crowd = self.crowd.lock();
        if last == crowd.turn {
            crowd.now = crowd.now.saturating_sub(1);
            crowd.before = crowd.before.saturating_sub(u64::from(and_before));
        } else if last + 1 == crowd.turn {
            crowd.before = crowd.before.saturating_sub(1);
        }
    }

    /// What became of bytes that were fetched ahead.
    pub fn let_go(&self, used: u64, unused: u64) {
        if used + unused == 0 {
            return;
        }
        let mut outcome = self.outcome.lock();
        outcome.used += used;
        outcome.unused += unused;
        if outcome.used + outcome.unused > REMEMBERED {
            outcome.used /= 2;
            outcome.unused /= 2;
        }
    }

    /// How many bytes a stream may have on their way for each that it has come.
    pub fn of_come(&self) -> u64 {
        let Outcome { used, unused } = *self.outcome.lock();
        let lost = unused.saturating_sub(FORGIVEN);
        OF_COME[usize::from(lost * 8 > used) + usize::from(lost > used)]
    }

    /// How many bytes a stream that has come so far may have on their way.
    pub fn believed(&self, come: u64) -> u64 {
        let factor = self.of_come();
        let steps = if factor == OF_COME[0] { (come / STEP).max(1) } else { 1 };
        factor.saturating_mul(come).saturating_mul(steps)
    }

    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    pub fn set_max(&self, max: u64) {
        self.max.store(max, Relaxed);
    }

    /// Bytes that may be asked for now.
    pub fn room(&self) -> u64 {
        self.max().saturating_sub(self.flying.load(Acquire))
    }

    pub fn begin(&self, bytes: u64) {
        self.flying.fetch_add(bytes, AcqRel);
    }

    pub fn end(&self, bytes: u64) {
        self.flying.fetch_sub(bytes, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_grow_slower_where_much_is_fetched_in_vain() {
        let ahead = Ahead::new(0);
        assert_eq!(ahead.of_come(), 16);
        assert_eq!([1, 2, 3].map(|steps| ahead.believed(steps * STEP) / STEP), [16, 64, 144]);
        assert_eq!((ahead.believed(STEP / 2), ahead.believed(u64::MAX)), (8 * STEP, u64::MAX));
        ahead.let_go(0, FORGIVEN);
        assert_eq!(ahead.of_come(), 16);
        ahead.let_go(FORGIVEN, FORGIVEN / 2);
        assert_eq!(ahead.of_come(), 4);
        assert_eq!(ahead.believed(3 * STEP), 12 * STEP);
        ahead.let_go(0, FORGIVEN);
        assert_eq!(ahead.of_come(), 1);
        // What readers do now counts for more than what they once did.
        (0..40).for_each(|_| ahead.let_go(REMEMBERED / 8, 0));
        assert_eq!(ahead.of_come(), 16);
    }

    #[test]
    fn streams_that_read_share_and_those_that_stopped_do_not() {
        let ahead = Ahead::new(0);
        let at = Duration::from_secs;
        let mut counted: [Counted; 4] = Default::default();
        assert_eq!(ahead.streams(&mut counted[0], at(100)), 1);
        assert_eq!(ahead.streams(&mut counted[1], at(100)), 2);
        assert_eq!(ahead.streams(&mut counted[0], at(101)), 2);
        // In the next turn it is not known yet who goes on.
        assert_eq!(ahead.streams(&mut counted[2], at(102)), 2);
        for counted in &mut counted {
            ahead.streams(counted, at(103));
        }
        assert_eq!(ahead.streams(&mut counted[0], at(103)), 4);
        // Three of them have ended.
        assert_eq!(ahead.streams(&mut counted[0], at(104)), 4);
        assert_eq!(ahead.streams(&mut counted[0], at(106)), 1);
        assert_eq!(ahead.streams(&mut counted[0], at(1000)), 1);
    }

    #[test]
    fn closed_streams_do_not_share() {
        let ahead = Ahead::new(0);
        let at = Duration::from_secs;
        let mut counted: [Counted; 4] = Default::default();
        for (second, count) in [(100, 4), (102, 3)] {
            for counted in &mut counted[..count] {
                ahead.streams(counted, at(second));
            }
        }
        // One that read in both turns, one that read in the last, one that never read.
        ahead.leave(&mut counted[1]);
        assert_eq!(ahead.streams(&mut counted[0], at(103)), 3);
        ahead.leave(&mut counted[3]);
        assert_eq!(ahead.streams(&mut counted[0], at(103)), 2);
        ahead.leave(&mut counted[3]);
        ahead.leave(&mut None);
        assert_eq!(ahead.streams(&mut counted[0], at(103)), 2);
        ahead.leave(&mut counted[2]);
        assert_eq!(ahead.streams(&mut counted[0], at(103)), 1);
        ahead.leave(&mut counted[0]);
        assert_eq!(ahead.streams(&mut counted[1], at(103)), 1);
        // One reads the next file when it has closed the last, again and again.
        for second in 200..220 {
            let mut counted = None;
            assert_eq!(ahead.streams(&mut counted, at(second)), 1);
            ahead.leave(&mut counted);
        }
    }
}
