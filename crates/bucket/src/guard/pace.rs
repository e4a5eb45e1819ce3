//! How fast a store is asked that says that it is asked too much.
//!
//! Its answers are looked at in windows of a moment. Where many of a window's were [`Error::Busy`](crate::Error::Busy),
//! half as many requests may be under way from then on; where next to none were, a few more, until there are as many as
//! before. A store that says so now and then, as S3 does while it splits a bucket, is not slowed.

use super::limit::Limit;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// How long answers are counted before it is decided.
const WINDOW: Duration = Duration::from_millis(200);
/// One busy answer among so many is too much.
const MANY: u32 = 8;
/// Steps in which the limit goes back from nothing to all.
const STEPS: usize = 16;

pub(super) struct Pace {
    /// Requests at once where the store does not mind.
    most: AtomicUsize,
    /// Whether answers are counted.
    watching: AtomicBool,
    window: Mutex<Option<Window>>,
}

/// Answers since `begun`, of a store that was first too busy at `since`.
struct Window {
    since: Instant,
    begun: Instant,
    answers: u32,
    busy: u32,
}

impl Pace {
    pub fn new(most: usize) -> Pace {
        let (watching, window) = (AtomicBool::new(false), Mutex::new(None));
        Pace { most: AtomicUsize::new(most), watching, window }
    }

    pub fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Sets how many requests there may be at once where the store does not mind.
    pub fn set_most(&self, most: usize, limit: &Limit) {
        self.most.store(most.max(1), Relaxed);
        if !self.watching.load(Relaxed) || limit.get() > most {
            limit.set(most);
        }
    }

    /// Since when fewer requests are made than might be.
    pub fn slowed(&self, limit: &Limit) -> Option<Instant> {
        let window = self.window.lock();
        window.as_ref().filter(|_| limit.get() < self.most()).map(|window| window.since)
    }

    /// The store has answered. Gives the new limit where it is lowered for the first time.
    pub fn answered(&self, busy: bool, limit: &Limit) -> Option<usize> {
        if !busy && !self.watching.load(Relaxed) {
            return None;
        }
        let mut watched = self.window.lock();
        let now = Instant::now();
        let window = watched.get_or_insert(Window { since: now, begun: now, answers: 0, busy: 0 });
        self.watching.store(true, Relaxed);
        window.answers += 1;
        window.busy += u32::from(busy);
        if window.begun.elapsed() < WINDOW {
            return None;
        }
        let (most, old) = (self.most(), limit.get());
        let much = window.busy * MANY > window.answers;
        (window.begun, window.answers, window.busy) = (now, 0, 0);
        if much {
            limit.set(old / 2);
            return (old >= most).then(|| limit.get());
        }
        let more = old.saturating_add(most.div_ceil(STEPS)).min(most);
        limit.set(more);
        if more == most {
            *watched = None;
            self.watching.store(false, Relaxed);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many answers, one of so many busy, over the time of some windows.
    async fn answers(pace: &Pace, limit: &Limit, windows: u32, one_of: Option<u32>) {
        for n in 0..windows * 20 {
            tokio::time::advance(WINDOW / 20).await;
            pace.answered(one_of.is_some_and(|every| n % every == 0), limit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_slows_and_its_end_lets_go() {
        let (pace, limit) = (Pace::new(64), Limit::new(64));
        answers(&pace, &limit, 3, None).await;
        assert_eq!((limit.get(), pace.slowed(&limit)), (64, None));
        let before = Instant::now();
        answers(&pace, &limit, 2, Some(1)).await;
        assert!(limit.get() <= 32, "{}", limit.get());
        answers(&pace, &limit, 10, Some(1)).await;
        assert_eq!(limit.get(), 1);
        assert!(pace.slowed(&limit).unwrap() - before < WINDOW);
        answers(&pace, &limit, 30, None).await;
        assert_eq!((limit.get(), pace.slowed(&limit)), (64, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_answer_now_and_then_slows_nothing() {
        let (pace, limit) = (Pace::new(64), Limit::new(64));
        answers(&pace, &limit, 30, Some(15)).await;
        assert_eq!(limit.get(), 64);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_set_meanwhile_holds_afterwards() {
        let (pace, limit) = (Pace::new(64), Limit::new(64));
        answers(&pace, &limit, 4, Some(1)).await;
        pace.set_most(128, &limit);
        assert!(limit.get() < 64);
        pace.set_most(2, &limit);
        assert!(limit.get() <= 2);
        answers(&pace, &limit, 30, None).await;
        assert_eq!(limit.get(), 2);
    }
}
