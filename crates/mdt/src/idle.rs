//! The database's polls, made less and less often while nothing changes.
//!
//! SlateDB looks for work at fixed intervals: manifests, jobs for the compactor, files to collect. All of them ask the
//! bucket, and an idle dataset would pay for it day and night. Whatever there is to find begins with a change of the
//! database's objects by this process, and this process knows of each. So a poll is put off by [`STRETCH`] times as long
//! as nothing has changed: of one a minute the next come after five and 25 minutes, then every [`SLOWEST`]; and the
//! first change ends the wait. Compaction under way is not slowed: it writes.
//!
//! *What another host changes is not found by this.* It need not be: whoever takes a dataset over makes the next object
//! of the log, which the old owner's next write then finds taken. The pool's authority is asked beside this.

use crate::forward::Forward;
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A poll waits for this many times as long as nothing has changed.
const STRETCH: u32 = 4;
/// A poll comes at least this often.
const SLOWEST: Duration = Duration::from_secs(1800);

type Sleep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A clock whose tickers slow down while nothing changes.
#[derive(Debug)]
pub(crate) struct IdleClock {
    real: DefaultSystemClock,
    forward: Arc<Forward>,
    polls: Polls,
}

struct Polls {
    real: DefaultSystemClock,
    /// When the last change was made.
    changed: watch::Receiver<Instant>,
}

impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Polls(changed {:?} ago)", self.changed.borrow().elapsed())
    }
}

impl IdleClock {
    pub fn new(changed: watch::Receiver<Instant>, forward: Arc<Forward>) -> IdleClock {
        let polls = Polls { real: DefaultSystemClock::default(), changed };
        IdleClock { real: DefaultSystemClock::default(), forward, polls }
    }
}

impl SystemClock for IdleClock {
    fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.forward.time(self.real.now())
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Sleep<'a> {
        self.real.sleep(duration)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(&self.polls, duration)
    }
}

impl SystemClock for Polls {
    fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.real.now()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Sleep<'a> {
        Box::pin(async move {
            let mut changed = self.changed.clone();
            let start = Instant::now();
            let quiet = start.saturating_duration_since(*changed.borrow_and_update());
            tokio::time::sleep(duration).await;
            // At the first tick there is nothing to wait for.
            let until = start + if duration.is_zero() { duration } else { (quiet * STRETCH).min(SLOWEST) };
            tokio::select! {
                _ = tokio::time::sleep_until(until) => {}
                _ = changed.changed() => {}
            }
        })
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds from the start at which a ticker of 10 s ticks.
    async fn ticks(clock: &IdleClock, count: usize) -> Vec<u64> {
        let (start, mut ticker) = (Instant::now(), clock.ticker(Duration::from_secs(10)));
        let mut at = Vec::new();
        for _ in 0..count {
            ticker.tick().await;
            at.push((start.elapsed().as_millis() as u64 + 500) / 1000);
        }
        at
    }

    #[tokio::test(start_paused = true)]
    async fn polls_come_less_often_while_nothing_changes_and_at_once_after_a_change() {
        let (tell, changed) = watch::channel(Instant::now());
        let clock = IdleClock::new(changed, Arc::default());
        assert_eq!(ticks(&clock, 6).await, [0, 10, 50, 250, 1250, 3050]);
        let mut ticker = clock.ticker(Duration::from_secs(10));
        ticker.tick().await;
        let start = Instant::now();
        let write = async {
            tokio::time::sleep(Duration::from_secs(25)).await;
            tell.send_replace(Instant::now());
        };
        tokio::join!(ticker.tick(), write);
        assert_eq!(start.elapsed().as_secs(), 25);
        ticker.tick().await;
        assert_eq!(start.elapsed().as_secs(), 35);
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_comes_twice_an_hour_at_least() {
        let (_tell, changed) = watch::channel(Instant::now());
        let clock = IdleClock::new(changed, Arc::default());
        tokio::time::sleep(Duration::from_secs(86_400)).await;
        assert_eq!(ticks(&clock, 3).await, [0, 1800, 3600]);
    }
}
