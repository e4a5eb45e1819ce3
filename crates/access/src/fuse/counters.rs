//! What the kernel asked of a mount, and how long each answer took.
//!
//! The thread that reads a request notes when it came ([`Counters::received`]). Whoever answers takes the note along as a
//! [`Timer`]; a request that nobody takes it for (there is no reply to it, or always the same) ends with its method. If
//! anybody profiles the mount, the timer has the request's stopwatch too.

use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tarn_base::profile::Profiler;
use tarn_base::stopwatch::Stopwatch;
use tarn_base::{Clock, Histogram, HistogramStats, SystemClock, job};

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
    pub profiler: Arc<Profiler>,
}

impl Default for Counters {
    fn default() -> Counters {
        let operations = std::array::from_fn(|_| Operation::default());
        let (waiting, clock, profiler) = (AtomicU64::new(0), SystemClock::default(), Arc::default());
        Counters { operations, waiting, clock, profiler }
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

/// The place of an operation in [`NAMES`].
fn place(opcode: u32) -> usize {
    let at = Some(opcode as usize).filter(|at| NAMES.get(*at).is_some_and(|name| !name.is_empty()));
    at.unwrap_or(0)
}

impl Counters {
    /// A request came, on this thread. Gives the time.
    pub fn received(&self, opcode: u32) -> Duration {
        let now = self.clock.monotonic();
        RECEIVED.set(Some((place(opcode), now)));
        now
    }

    /// The stopwatch of a request that came, about the inode `ino`, if anybody profiles the mount. It is to be part of
    /// the thread's errand until the request's method has ended.
    pub fn stopwatch(&self, opcode: u32, ino: u64) -> Option<Arc<Stopwatch>> {
        self.profiler.begin(NAMES[place(opcode)], ino)
    }

    /// Whoever answers the request that this thread has received ends the timer.
    pub fn timer(self: &Arc<Self>) -> Option<Timer> {
        let (operation, came) = RECEIVED.take()?;
        Some(Timer { counters: self.clone(), operation, came, waits: false, stopwatch: job::stopwatch() })
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
    stopwatch: Option<Arc<Stopwatch>>,
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
        if let Some(stopwatch) = &self.stopwatch {
            self.counters.profiler.end(stopwatch);
        }
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
    use tarn_base::job::{Errand, set_current};
    use tarn_base::profile::Profile;

    #[test]
    fn a_request_is_in_the_profile_once_it_is_answered() {
        let (counters, profile) = (Arc::new(Counters::default()), Arc::new(Profile::default()));
        let receive = |opcode, ino| {
            counters.received(opcode);
            set_current(Errand { job: None, stopwatch: counters.stopwatch(opcode, ino) });
        };
        let handled = || {
            counters.handled();
            set_current(Errand::default());
        };
        let profiling = counters.profiler.profile(&profile);
        receive(15, 7);
        let read = counters.timer().unwrap().waits();
        handled();
        receive(2, 8);
        handled();
        assert_eq!(profile.stats().slowest.iter().map(|slow| slow.ino).collect::<Vec<_>>(), [8]);
        read.end(false);
        let mut found: Vec<_> =
            profile.stats().slowest.into_iter().map(|slow| (slow.operation, slow.ino)).collect();
        found.sort();
        assert_eq!(found, [("forget".to_string(), 8), ("read".to_string(), 7)]);
        drop(profiling);
        receive(15, 7);
        assert!(job::stopwatch().is_none());
        handled();
    }

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
