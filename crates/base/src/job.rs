//! Whom work is done for: a job is whatever an administrator wants to tell apart, a program of a user, say.
//!
//! A door makes a job current on its thread while it works on a request. What goes on elsewhere takes its job along with
//! [`carried`]: from wherever a future is polled, the bucket's counters find the job that they charge. The stopwatch of a
//! request that is profiled goes the same way.

use crate::stopwatch::Stopwatch;
use crate::tally::{Counts, Provider, TallyStats};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

thread_local! {
    static CURRENT: RefCell<Errand> = const { RefCell::new(Errand { job: None, stopwatch: None }) };
}

/// What a thread is at: whom it works for, and the stopwatch of the request, if that is profiled.
#[derive(Clone, Default)]
pub struct Errand {
    pub job: Option<Arc<Job>>,
    pub stopwatch: Option<Arc<Stopwatch>>,
}

impl Errand {
    fn is_some(&self) -> bool {
        self.job.is_some() || self.stopwatch.is_some()
    }
}

/// What one job did.
#[derive(Default)]
pub struct Job {
    name: String,
    operations: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    /// When it last did something, in milliseconds of whatever clock its owner goes by.
    used_ms: AtomicU64,
    tallies: [Counts; Provider::ALL.len()],
}

/// A job at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStats {
    pub name: String,
    /// All that it asked of the file system, reads and writes among it.
    pub operations: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    /// The requests to stores that it caused, as in [`Provider::ALL`].
    pub tallies: [TallyStats; Provider::ALL.len()],
}

impl JobStats {
    /// The requests to all stores together.
    pub fn requests(&self) -> TallyStats {
        self.tallies.iter().fold(TallyStats::default(), |sum, tally| sum.and(tally))
    }

    fn with(&self, other: &JobStats, join: impl Fn(u64, u64) -> u64) -> JobStats {
        JobStats {
            name: self.name.clone(),
            operations: join(self.operations, other.operations),
            reads: join(self.reads, other.reads),
            read_bytes: join(self.read_bytes, other.read_bytes),
            writes: join(self.writes, other.writes),
            write_bytes: join(self.write_bytes, other.write_bytes),
            tallies: std::array::from_fn(|i| self.tallies[i].with(&other.tallies[i], &join)),
        }
    }

    pub fn and(&self, other: &JobStats) -> JobStats {
        self.with(other, |a, b| a + b)
    }

    pub fn since(&self, before: &JobStats) -> JobStats {
        self.with(before, u64::saturating_sub)
    }
}

impl Job {
    pub fn new(name: String) -> Job {
        Job { name, ..Job::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn tally(&self, provider: Provider) -> &Counts {
        &self.tallies[provider as usize]
    }

    pub fn operation(&self, now_ms: u64) {
        self.operations.fetch_add(1, Relaxed);
        self.used_ms.store(now_ms, Relaxed);
    }

    pub fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn wrote(&self, bytes: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.write_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn used_ms(&self) -> u64 {
        self.used_ms.load(Relaxed)
    }

    pub fn snapshot(&self) -> JobStats {
        self.each(|counter| counter.load(Relaxed), Counts::snapshot)
    }

    /// What was counted, which is counted here no more.
    pub fn take(&self) -> JobStats {
        self.each(|counter| counter.swap(0, Relaxed), Counts::take)
    }

    fn each(&self, value: impl Fn(&AtomicU64) -> u64, tally: impl Fn(&Counts) -> TallyStats) -> JobStats {
        JobStats {
            name: self.name.clone(),
            operations: value(&self.operations),
            reads: value(&self.reads),
            read_bytes: value(&self.read_bytes),
            writes: value(&self.writes),
            write_bytes: value(&self.write_bytes),
            tallies: std::array::from_fn(|i| tally(&self.tallies[i])),
        }
    }
}

/// Jobs that are told apart; what others did is added up as [`OTHER`].
const JOBS_MAX: usize = 256;
/// Name of the sum of jobs that were used least recently.
pub const OTHER: &str = "(other)";
/// Characters of a name that are kept, its last ones.
const NAME_MAX: usize = 64;

/// The jobs of a process, a bounded number.
#[derive(Default)]
pub struct Jobs {
    table: Mutex<Table>,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs").field("known", &self.table.lock().known.len()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Table {
    known: HashMap<String, Arc<Job>>,
    /// No longer told apart. Work for them may be under way, so what they count goes on to be collected.
    leaving: Vec<Arc<Job>>,
    other: JobStats,
}

impl Table {
    /// Adds up what jobs that are leaving have counted.
    fn collect(&mut self) {
        let other = &mut self.other;
        self.leaving.retain(|job| {
            // Before it is emptied: whoever lets go of it later counts no more.
            let held = Arc::strong_count(job) > 1;
            *other = other.and(&job.take());
            held
        });
    }
}

impl Jobs {
    /// The job of that name, made if it is new.
    pub fn named(&self, name: &str, now_ms: u64) -> Arc<Job> {
        let table = &mut *self.table.lock();
        let name = clean(name);
        if let Some(job) = table.known.get(&name) {
            return job.clone();
        }
        if table.known.len() >= JOBS_MAX {
            let oldest =
                table.known.iter().min_by_key(|(_, job)| job.used_ms()).map(|(name, _)| name.clone());
            table.leaving.extend(oldest.and_then(|oldest| table.known.remove(&oldest)));
            table.collect();
        }
        let job = Arc::new(Job::new(name.clone()));
        job.used_ms.store(now_ms, Relaxed);
        table.known.insert(name, job.clone());
        job
    }

    /// What each did; the busiest first, the others last.
    pub fn snapshot(&self) -> Vec<JobStats> {
        let table = &mut *self.table.lock();
        table.collect();
        let mut jobs: Vec<JobStats> = table.known.values().map(|job| job.snapshot()).collect();
        jobs.sort_by(|a, b| b.operations.cmp(&a.operations).then_with(|| a.name.cmp(&b.name)));
        if table.other != JobStats::default() {
            jobs.push(JobStats { name: OTHER.into(), ..table.other.clone() });
        }
        jobs
    }
}

/// A name fit for a table: not long, and of one line.
fn clean(name: &str) -> String {
    let skip = name.chars().count().saturating_sub(NAME_MAX);
    name.chars().skip(skip).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The job that this thread works for now.
pub fn current() -> Option<Arc<Job>> {
    CURRENT.with_borrow(|errand| errand.job.clone())
}

/// The stopwatch of the request that this thread works for now.
pub fn stopwatch() -> Option<Arc<Stopwatch>> {
    CURRENT.with_borrow(|errand| errand.stopwatch.clone())
}

/// Makes an errand this thread's.
pub fn set_current(errand: Errand) {
    CURRENT.set(errand);
}

/// Makes an errand this thread's, and gives the one before in its place.
fn exchange(errand: &mut Errand) {
    CURRENT.with_borrow_mut(|current| std::mem::swap(current, errand));
}

/// Lets the current job, if there is one, know what was done for it.
pub fn charged(charge: impl FnOnce(&Job)) {
    CURRENT.with_borrow(|errand| errand.job.as_deref().map(charge));
}

pin_project! {
    /// A future that has its errand wherever it is polled.
    pub struct Carried<F> {
        errand: Errand,
        #[pin]
        inner: F,
    }
}

/// Has `future` go on with the errand that is this thread's now.
pub fn carried<F: Future>(future: F) -> Carried<F> {
    Carried { errand: CURRENT.with_borrow(Clone::clone), inner: future }
}

/// Has `future` work for `job`, while no request waits for it.
pub fn for_job<F: Future>(job: Option<Arc<Job>>, future: F) -> Carried<F> {
    Carried { errand: Errand { job, stopwatch: None }, inner: future }
}

impl<F: Future> Future for Carried<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _lent = if this.errand.is_some() { Some(Lent::new(this.errand)) } else { None };
        this.inner.poll(context)
    }
}

/// An errand that is lent to the thread; both have their own back afterwards, even if what was polled panics.
struct Lent<'a>(&'a mut Errand);

impl<'a> Lent<'a> {
    fn new(errand: &'a mut Errand) -> Lent<'a> {
        exchange(errand);
        Lent(errand)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        exchange(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::{Charge, Tally};
    use futures::FutureExt;

    fn work_for(job: Option<Arc<Job>>) {
        set_current(Errand { job, stopwatch: None });
    }

    #[test]
    fn a_future_charges_its_job_wherever_it_is_polled() {
        let (one, two) = (Arc::new(Job::new("one".into())), Arc::new(Job::new("two".into())));
        let tally = Tally::new(Provider::Gcs);
        work_for(Some(one.clone()));
        let mut later = Box::pin(carried(async {
            futures::pending!();
            tally.sent(Charge::Get, 0);
            tally.received(7);
        }));
        assert!(later.as_mut().now_or_never().is_none());
        work_for(Some(two.clone()));
        tally.sent(Charge::Put, 5);
        assert!(later.as_mut().now_or_never().is_some());
        assert_eq!(current().unwrap().name(), "two");
        work_for(None);
        tally.sent(Charge::Delete, 0);
        let (one, two, all) = (one.take(), two.snapshot(), tally.snapshot());
        assert_eq!((one.requests().get, one.requests().received_bytes, one.requests().requests()), (1, 7, 1));
        assert_eq!((two.tallies[1].put, two.tallies[1].sent_bytes, two.requests().requests()), (1, 5, 1));
        assert_eq!((all.requests(), all.since(&one.requests()).get), (3, 0));
    }

    #[test]
    fn the_least_recent_go_into_other_and_nothing_is_lost() {
        let jobs = Jobs::default();
        let held = jobs.named("held", 0);
        held.read(5);
        for n in 1..=2 * JOBS_MAX as u64 {
            let job = jobs.named(&format!("job {n}"), n);
            job.operation(n);
            job.read(1);
        }
        // It has left the table, and still works.
        held.read(7);
        let shown = jobs.snapshot();
        assert_eq!(shown.len(), JOBS_MAX + 1);
        assert_eq!(shown.iter().map(|job| job.read_bytes).sum::<u64>(), 12 + 2 * JOBS_MAX as u64);
        assert_eq!(
            shown.last().map(|job| (job.name.as_str(), job.reads)),
            Some((OTHER, 2 + JOBS_MAX as u64))
        );
        drop(held);
        jobs.snapshot();
        assert!(jobs.table.lock().leaving.is_empty());
        assert_eq!(jobs.named("a\tb\nc", 0).name(), "a?b?c");
        assert_eq!(jobs.named(&"x".repeat(100), 0).name().len(), NAME_MAX);
    }

    #[test]
    fn what_is_taken_is_gone() {
        let job = Job::new("a".into());
        job.read(10);
        job.operation(3);
        assert_eq!(job.take().read_bytes, 10);
        assert_eq!(
            (job.snapshot(), job.used_ms()),
            (JobStats { name: "a".into(), ..JobStats::default() }, 3)
        );
    }
}
