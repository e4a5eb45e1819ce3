//! What the kernel asked of a mount, and how long each answer took.
//!
//! The thread that reads a request notes when it came ([`Counters::received`]). Whoever answers takes the note along as a
//! [`Timer`]; a request that nobody takes it for (there is no reply to it, or always the same) ends with its method.

use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tarn_base::{Clock, Histogram, HistogramStats, SystemClock};

/// Operations by their numbers in the kernel's protocol; what is not here has no name of its own.
const NAMES: [&str; 53] = [
    "other",
    "lookup",
    "forget",
    "getattr",
    "setattr",
    "readlink",
    "symlink",
    "",
    "mknod",
    "mkdir",
    "unlink",
    "rmdir",
    "rename",
    "link",
    "open",
    "read",
    "write",
    "statfs",
    "release",
    "",
    "fsync",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "flush",
    "init",
    "opendir",
    "readdir",
    "releasedir",
    "fsyncdir",
    "getlk",
    "setlk",
    "setlkw",
    "access",
    "create",
    "interrupt",
    "bmap",
    "destroy",
    "ioctl",
    "poll",
    "",
    "batch_forget",
    "fallocate",
    "readdirplus",
    "rename2",
    "lseek",
    "copy_file_range",
    "",
    "",
    "syncfs",
    "tmpfile",
    "statx",
];

thread_local! {
    /// What this thread has received and nobody has taken: the operation, and when it came.
    static RECEIVED: Cell<Option<(usize, Duration)>> = const { Cell::new(None) };
}

#[derive(Default)]
struct Operation {
    times: Histogram,
    refused: AtomicU64,
}

/// Counts one mount's requests.
pub(super) struct Counters {
    operations: [Operation; NAMES.len()],
    waiting: AtomicU64,
    clock: SystemClock,
}

impl Default for Counters {
    fn default() -> Counters {
        let operations = std::array::from_fn(|_| Operation::default());
        Counters { operations, waiting: AtomicU64::new(0), clock: SystemClock::default() }
    }
}

/// One kind of request of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationStats {
    /// From the request's coming until it was answered.
    pub times: HistogramStats,
    /// How many were answered with an error.
    pub refused: u64,
}

/// What a mount was asked so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FuseStats {
    /// Operations that were asked for, by their names in the kernel's protocol.
    pub operations: BTreeMap<String, OperationStats>,
    /// Requests that wait now for what memory does not have.
    pub waiting: u64,
}

impl Counters {
    /// A request came, on this thread. Gives the time.
    pub fn received(&self, opcode: u32) -> Duration {
        let now = self.clock.monotonic();
        let at = Some(opcode as usize).filter(|at| NAMES.get(*at).is_some_and(|name| !name.is_empty()));
        RECEIVED.set(Some((at.unwrap_or(0), now)));
        now
    }

    /// Whoever answers the request that this thread has received ends the timer.
    pub fn timer(self: &Arc<Self>) -> Option<Timer> {
        let (operation, came) = RECEIVED.take()?;
        Some(Timer { counters: self.clone(), operation, came, waits: false })
    }

    /// The request's method has ended.
    pub fn handled(self: &Arc<Self>) {
        if let Some(timer) = self.timer() {
            timer.end(false);
        }
    }

    pub fn snapshot(&self) -> FuseStats {
        let named = NAMES.iter().zip(&self.operations);
        let operations = named.filter_map(|(name, operation)| {
            let times = operation.times.snapshot();
            let stats = OperationStats { refused: operation.refused.load(Relaxed), times };
            (stats.times.count > 0).then(|| (name.to_string(), stats))
        });
        FuseStats { operations: operations.collect(), waiting: self.waiting.load(Relaxed) }
    }
}

/// One request until it is answered.
pub(super) struct Timer {
    counters: Arc<Counters>,
    operation: usize,
    came: Duration,
    waits: bool,
}

impl Timer {
    /// The request must wait.
    pub fn waits(mut self) -> Timer {
        self.waits = true;
        self.counters.waiting.fetch_add(1, Relaxed);
        self
    }

    /// The request is answered.
    pub fn end(self, refused: bool) {
        let operation = &self.counters.operations[self.operation];
        operation.times.record(self.counters.clock.monotonic().saturating_sub(self.came));
        operation.refused.fetch_add(u64::from(refused), Relaxed);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.waits {
            self.counters.waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_counts_once() {
        let counters = Arc::new(Counters::default());
        counters.received(15);
        let timer = counters.timer().unwrap().waits();
        assert!(counters.timer().is_none());
        counters.handled();
        counters.received(2);
        counters.handled();
        counters.received(4000);
        counters.timer().unwrap().end(true);
        assert_eq!(counters.snapshot().waiting, 1);
        timer.end(false);
        let shown = counters.snapshot();
        let counts: Vec<_> =
            shown.operations.iter().map(|(name, o)| (name.as_str(), o.times.count, o.refused)).collect();
        assert_eq!((counts, shown.waiting), (vec![("forget", 1, 0), ("other", 1, 1), ("read", 1, 0)], 0));
    }
}
