//! The database's polls, made less and less often while nothing changes.
//!
//! SlateDB looks for work at fixed intervals: manifests, jobs for the compactor, files to collect. All of them ask the
//! bucket, and an idle dataset would pay for it day and night. Whatever there is to find begins with a change of the
//! database's objects by this process, and this process knows of each. So a poll is put off by [`STRETCH`] times as long
//! as nothing has changed: of one a minute the next come after five and 25 minutes, then every [`SLOWEST`]; and the
//! first change ends the wait. Compaction under way is not slowed: it writes.
//!
//! While tables are written the polls for tables and for their lists are made more often than at their intervals, [`SOON`]
//! after the last: writers stop where too many tables wait for compaction, and go on when they hear that it is done.
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
use tarn_pool::Changed;
use tokio::sync::watch;
use tokio::time::Instant;

/// A poll waits for this many times as long as nothing has changed.
const STRETCH: u32 = 4;
/// So soon after a table, or a list of tables, was written it is looked for, but not more often than that: each look costs
/// requests. Polls of longer intervals look for what has time.
const SOON: Duration = Duration::from_millis(250);
const OFTEN: Duration = Duration::from_secs(1);
const FOR_TABLES: Duration = Duration::from_secs(30);
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
    changed: watch::Receiver<Changed>,
}

impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Polls(changed {:?} ago)", self.changed.borrow().at.elapsed())
    }
}

impl IdleClock {
    pub fn new(changed: watch::Receiver<Changed>, forward: Arc<Forward>) -> IdleClock {
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
            let (mut changed, start) = (self.changed.clone(), Instant::now());
            let before = *changed.borrow_and_update();
            let quiet = start.saturating_duration_since(before.at);
            // At the first tick there is nothing to wait for.
            let until = start + if duration.is_zero() { duration } else { (quiet * STRETCH).min(SLOWEST) };
            let whole = async {
                tokio::time::sleep(duration).await;
                tokio::select! {
                    _ = tokio::time::sleep_until(until) => {}
                    _ = changed.changed() => {}
                }
            };
            tokio::select! {
                _ = whole => {}
                _ = self.tables(before.tables, start + OFTEN), if duration <= FOR_TABLES => {}
            }
        })
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}

impl Polls {
    /// Returns [`SOON`] after tables were written that are more than `known`, and not before `earliest`.
    async fn tables(&self, known: u64, earliest: Instant) {
        let mut changed = self.changed.clone();
        if changed.wait_for(|now| now.tables > known).await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep_until(earliest.max(Instant::now() + SOON)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tables: u64) -> Changed {
        Changed { at: Instant::now(), tables }
    }

    #[tokio::test(start_paused = true)]
    async fn tables_are_looked_for_soon_and_what_has_time_is_not() {
        let (tell, changed) = watch::channel(written(0));
        let clock = IdleClock::new(changed, Arc::default());
        for (interval, looked) in [(10, 3), (30, 3), (60, 60)] {
            let mut ticker = clock.ticker(Duration::from_secs(interval));
            ticker.tick().await;
            let start = Instant::now();
            let write = async {
                tokio::time::sleep(Duration::from_secs(3)).await;
                let tables = tell.borrow().tables;
                tell.send_replace(written(tables + 1));
            };
            tokio::join!(ticker.tick(), write);
            assert_eq!(start.elapsed().as_secs(), looked, "at an interval of {interval} s");
        }
    }

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
        let (tell, changed) = watch::channel(written(0));
        let clock = IdleClock::new(changed, Arc::default());
        assert_eq!(ticks(&clock, 6).await, [0, 10, 50, 250, 1250, 3050]);
        let mut ticker = clock.ticker(Duration::from_secs(10));
        ticker.tick().await;
        let start = Instant::now();
        let write = async {
            tokio::time::sleep(Duration::from_secs(25)).await;
            tell.send_replace(written(0));
        };
        tokio::join!(ticker.tick(), write);
        assert_eq!(start.elapsed().as_secs(), 25);
        ticker.tick().await;
        assert_eq!(start.elapsed().as_secs(), 35);
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_comes_twice_an_hour_at_least() {
        let (_tell, changed) = watch::channel(written(0));
        let clock = IdleClock::new(changed, Arc::default());
        tokio::time::sleep(Duration::from_secs(86_400)).await;
        assert_eq!(ticks(&clock, 3).await, [0, 1800, 3600]);
    }
}
