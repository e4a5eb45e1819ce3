//! How many requests at once a store is worth.
//!
//! Too few leave a line idle that is far; too many only wait for each other within the store, and whatever is urgent
//! waits behind them. What is right follows from latency and bandwidth, which nobody has to know. Answers are looked at in
//! windows. Where calls had to wait for their turn, half as many again may be under way: that stays if more came of it
//! by a tenth, and is taken back if not. Where that brought nothing, a quarter fewer are tried, and stay as long as no
//! less comes of it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long answers are counted before it is decided, and how many there must be at least.
const WINDOW: Duration = Duration::from_millis(500);
const ANSWERS: u64 = 16;
/// Windows for which a limit that was found right is not questioned.
const REST: u32 = 32;
/// More must be more by this factor, and fewer may bring less by this one.
const FASTER: f64 = 1.1;
const AS_FAST: f64 = 0.95;
/// A request counts as much as so many bytes.
const REQUEST: u64 = 64 << 10;

/// Limits between which it climbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub least: usize,
    pub first: usize,
    pub most: usize,
}

impl Bounds {
    /// It does not climb.
    pub fn fixed(limit: usize) -> Bounds {
        Bounds { least: limit, first: limit, most: limit }
    }

    /// From a quarter of what it begins with to four times that.
    pub fn around(first: usize) -> Bounds {
        Bounds { least: (first / 4).max(1), first, most: first * 4 }
    }
}

pub(super) struct Climb {
    bytes: AtomicU64,
    answers: AtomicU64,
    /// A call had to wait for its turn.
    starved: AtomicBool,
    state: Mutex<State>,
}

struct State {
    bounds: Bounds,
    limit: usize,
    /// When the window began.
    since: Option<Duration>,
    trial: Trial,
}

#[derive(Clone, Copy)]
enum Trial {
    Resting(u32),
    /// The limit was changed; the first window after that is half of the old one. Before it, so much came by a limit.
    Settling(Before),
    Measuring(Before),
}

#[derive(Clone, Copy)]
struct Before {
    rate: f64,
    limit: usize,
}

impl Climb {
    pub fn new(bounds: Bounds) -> Climb {
        let (trial, since) = (Trial::Resting(0), None);
        let state = State { bounds, limit: bounds.first, since, trial };
        let [bytes, answers] = [const { AtomicU64::new(0) }; 2];
        Climb { bytes, answers, starved: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// From now on within other bounds.
    pub fn set_bounds(&self, bounds: Bounds) {
        let mut state = self.state.lock();
        (state.bounds, state.limit, state.trial) = (bounds, bounds.first, Trial::Resting(0));
    }

    pub fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub fn starved(&self) {
        self.starved.store(true, Relaxed);
    }

    /// A request was answered, at `now`. Gives a new limit now and then.
    pub fn answered(&self, now: Duration) -> Option<usize> {
        if self.answers.fetch_add(1, Relaxed) + 1 < ANSWERS {
            return None;
        }
        let mut state = self.state.try_lock()?;
        let time = now.saturating_sub(*state.since.get_or_insert(now));
        if time < WINDOW || state.bounds.least == state.bounds.most {
            return None;
        }
        let answers = self.answers.swap(0, Relaxed);
        let bytes = self.bytes.swap(0, Relaxed) + answers * REQUEST;
        let starved = self.starved.swap(false, Relaxed);
        state.since = Some(now);
        // After a pause the window says nothing.
        let old = state.limit;
        if time < 4 * WINDOW {
            state.step(bytes as f64 / time.as_secs_f64(), starved);
        } else if let Trial::Settling(before) | Trial::Measuring(before) = state.trial {
            (state.limit, state.trial) = (before.limit, Trial::Resting(REST));
        }
        (state.limit != old).then_some(state.limit)
    }
}

impl State {
    fn step(&mut self, rate: f64, starved: bool) {
        let Bounds { least, most, .. } = self.bounds;
        let fewer = (self.limit * 3 / 4).max(least);
        self.trial = match self.trial {
            Trial::Settling(before) => Trial::Measuring(before),
            Trial::Measuring(before) if self.limit > before.limit && rate < before.rate * FASTER => {
                self.limit = before.limit;
                self.try_limit(before.rate, (self.limit * 3 / 4).max(least))
            }
            Trial::Measuring(before) if self.limit < before.limit && rate < before.rate * AS_FAST => {
                self.limit = before.limit;
                Trial::Resting(REST)
            }
            // Fewer did no harm: fewer still, measured by what came at first.
            Trial::Measuring(before) if self.limit < before.limit => self.try_limit(before.rate, fewer),
            Trial::Resting(left) if left > 0 => Trial::Resting(left - 1),
            _ if starved => self.try_limit(rate, (self.limit * 3 / 2).min(most)),
            _ => Trial::Resting(0),
        };
    }

    fn try_limit(&mut self, rate: f64, limit: usize) -> Trial {
        let before = Before { rate, limit: self.limit };
        match limit == self.limit {
            true => Trial::Resting(REST),
            false => {
                self.limit = limit;
                Trial::Settling(before)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that serves `at_once` requests in 20 ms each, and lets others wait. Gives the limit after some minutes.
    fn after(at_once: usize, asked: usize) -> usize {
        let climb = Climb::new(Bounds { least: 16, first: 64, most: 256 });
        let (mut limit, mut now) = (64, Duration::from_secs(1));
        for _ in 0..1_000_000 {
            let flying = limit.min(asked);
            now += Duration::from_millis(20) / flying.min(at_once) as u32;
            if asked > limit {
                climb.starved();
            }
            climb.moved(1 << 20);
            limit = climb.answered(now).unwrap_or(limit);
        }
        limit
    }

    #[test]
    fn it_climbs_as_far_as_that_helps() {
        assert_eq!(after(1000, 1000), 256, "a store that can do anything");
        assert_eq!(after(1000, 60), 64, "nobody waits for a turn");
        let found = after(128, 1000);
        assert!((96..=216).contains(&found), "{found}");
    }

    #[test]
    fn it_lets_go_what_only_waits_within_the_store() {
        let found = after(8, 1000);
        assert!((16..=48).contains(&found), "{found}");
    }

    #[test]
    fn a_limit_that_was_set_stays() {
        let climb = Climb::new(Bounds::fixed(4));
        for n in 0..1000 {
            climb.starved();
            assert_eq!(climb.answered(Duration::from_millis(100 * n)), None);
        }
    }
}
