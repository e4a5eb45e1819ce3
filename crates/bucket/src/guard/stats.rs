//! What a vdev did: counters and histograms by kind of request.
//!
//! A request pays a few atomic additions.

use crate::{Error, Operation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tarn_base::{Histogram, HistogramStats, Provider, TallyStats};
use tokio::time::Instant;

/// Counters of one kind of request.
#[derive(Default)]
pub(super) struct Counters {
    requests: AtomicU64,
    errors: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
    bytes: AtomicU64,
    in_flight: AtomicU64,
    waiting: AtomicU64,
    latency: Histogram,
    queue: Histogram,
}

impl Counters {
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
        OperationStats {
            requests: self.requests.load(Relaxed),
            errors: self.errors.load(Relaxed),
            retries: self.retries.load(Relaxed),
            failures: self.failures.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            latency: self.latency.snapshot(),
            queue: self.queue.snapshot(),
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
        self.counters.latency.record(self.started.elapsed());
        self.counters.queue.record(self.queued);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Counters of every kind.
#[derive(Default)]
pub(super) struct Stats {
    operations: [Counters; Operation::ALL.len()],
    errors: [AtomicU64; Error::KINDS.len()],
}

impl Stats {
    pub fn of(&self, operation: Operation) -> &Counters {
        &self.operations[operation as usize]
    }

    /// A request failed.
    pub fn failed(&self, error: &Error) {
        let at = Error::KINDS.iter().position(|kind| *kind == error.kind());
        at.map(|at| self.errors[at].fetch_add(1, Relaxed));
    }

    pub fn errors(&self) -> BTreeMap<String, u64> {
        let count = |(kind, errors): (&&str, &AtomicU64)| (kind.to_string(), errors.load(Relaxed));
        Error::KINDS.iter().zip(&self.errors).map(count).collect()
    }

    pub fn snapshot(&self) -> BTreeMap<Operation, OperationStats> {
        Operation::ALL.into_iter().map(|operation| (operation, self.of(operation).snapshot())).collect()
    }
}

/// What a vdev did since it was opened. Plain data.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// Reads that were sent again because they were late, and those of them that were answered first.
    #[serde(default)]
    pub hedged: u64,
    #[serde(default)]
    pub hedges_won: u64,
    /// Requests that failed, by the kind of error.
    pub errors: BTreeMap<String, u64>,
    pub provider: Provider,
    /// What the store charges for: the requests that went out for the operations.
    pub charged: TallyStats,
}

/// One kind of request. All numbers count from when the vdev was opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
