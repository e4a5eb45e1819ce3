//! What a vdev did: counters and histograms by kind of request.
//!
//! The hot path pays a few atomic additions and one short lock per request. Times are in microseconds, kept to
//! two significant digits.

use crate::Operation;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Longest time that a histogram tells from a longer one, in microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// Counters of one kind of request.
pub(super) struct Counters {
    requests: AtomicU64,
    errors: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
    bytes: AtomicU64,
    in_flight: AtomicU64,
    waiting: AtomicU64,
    times: Mutex<Times>,
}

struct Times {
    latency: Histogram<u64>,
    queue: Histogram<u64>,
}

fn histogram() -> Histogram<u64> {
    // The bounds are constants that the constructor accepts.
    Histogram::new_with_bounds(1, LONGEST_US, 2).unwrap_or_else(|e| unreachable!("{e}"))
}

impl Counters {
    fn new() -> Counters {
        Counters {
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            times: Mutex::new(Times { latency: histogram(), queue: histogram() }),
        }
    }

    /// A request goes out after `queued` in the queue. It counts as under way until the return is dropped.
    pub fn begin(&self, queued: Duration, retry: bool) -> InFlight<'_> {
        self.requests.fetch_add(1, Relaxed);
        self.retries.fetch_add(u64::from(retry), Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
        InFlight { counters: self, queued, started: Instant::now() }
    }

    /// A call waits for its turn until the return is dropped.
    pub fn queue(&self) -> Queued<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Queued(&self.waiting)
    }

    /// The whole call failed.
    pub fn give_up(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    pub fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn snapshot(&self) -> OperationStats {
        let times = self.times.lock();
        OperationStats {
            requests: self.requests.load(Relaxed),
            errors: self.errors.load(Relaxed),
            retries: self.retries.load(Relaxed),
            failures: self.failures.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            latency: HistogramStats::of(&times.latency),
            queue: HistogramStats::of(&times.queue),
        }
    }
}

/// A call that waits for its turn.
pub(super) struct Queued<'a>(&'a AtomicU64);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A request under way.
pub(super) struct InFlight<'a> {
    counters: &'a Counters,
    queued: Duration,
    started: Instant,
}

impl InFlight<'_> {
    /// The store has answered, or has not.
    pub fn end(self, failed: bool) {
        self.counters.errors.fetch_add(u64::from(failed), Relaxed);
        let microseconds = |time: Duration| (time.as_micros() as u64).clamp(1, LONGEST_US);
        let mut times = self.counters.times.lock();
        times.latency.saturating_record(microseconds(self.started.elapsed()));
        times.queue.saturating_record(microseconds(self.queued));
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Counters of every kind.
pub(super) struct Stats([Counters; Operation::ALL.len()]);

impl Stats {
    pub fn new() -> Stats {
        Stats(Operation::ALL.map(|_| Counters::new()))
    }

    pub fn of(&self, operation: Operation) -> &Counters {
        &self.0[operation as usize]
    }

    pub fn snapshot(&self) -> BTreeMap<Operation, OperationStats> {
        Operation::ALL.into_iter().map(|operation| (operation, self.of(operation).snapshot())).collect()
    }
}

/// What a vdev did since it was opened. Plain data.
#[derive(Debug, Clone, Serialize)]
pub struct StatsSnapshot {
    pub url: String,
    /// Requests that may be under way at once.
    pub concurrency: usize,
    /// How many that would be if the store did not ask to be asked less, and for how long it has (milliseconds).
    pub concurrency_most: usize,
    pub slowed_ms: Option<u64>,
    /// Requests under way.
    pub busy: u64,
    /// Requests that could be under way besides: `concurrency - busy`.
    pub idle: u64,
    /// Calls that wait for their turn.
    pub queued: u64,
    /// Calls in a row that failed, up to now.
    pub failures_in_a_row: u64,
    /// The last error of a request, and how many milliseconds ago.
    pub last_error: Option<(String, u64)>,
    pub operations: BTreeMap<Operation, OperationStats>,
}

/// One kind of request. All numbers count from when the vdev was opened.
#[derive(Debug, Clone, Serialize)]
pub struct OperationStats {
    /// Requests sent to the store, repeated ones too.
    pub requests: u64,
    /// Requests that failed. To hear that an object is not there, or is there already, is no failure.
    pub errors: u64,
    /// Requests that repeated one that failed.
    pub retries: u64,
    /// Calls that failed in the end.
    pub failures: u64,
    /// Bytes of bodies, of calls that succeeded.
    pub bytes: u64,
    /// Requests under way now.
    pub in_flight: u64,
    /// Calls that wait for their turn now.
    pub waiting: u64,
    /// From a request's sending to its answer, failed ones too.
    pub latency: HistogramStats,
    /// How long requests waited for their turn.
    pub queue: HistogramStats,
}

/// A distribution of times, in microseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HistogramStats {
    pub count: u64,
    pub mean: f64,
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
    /// Longest time in the bucket and how many fell into it; each bucket's bound is twice the one before. Empty
    /// ones are left out.
    pub buckets: Vec<(u64, u64)>,
}

impl HistogramStats {
    fn of(histogram: &Histogram<u64>) -> HistogramStats {
        if histogram.is_empty() {
            return HistogramStats::default();
        }
        let buckets = histogram.iter_log(1, 2.0).filter(|step| step.count_since_last_iteration() > 0);
        HistogramStats {
            count: histogram.len(),
            mean: histogram.mean(),
            min: histogram.min(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
            buckets: buckets
                .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
                .collect(),
        }
    }
}
