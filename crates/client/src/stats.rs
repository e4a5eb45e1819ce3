//! What the client counts.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// A moment's counters. Bytes unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStats {
    /// Written data that is not committed yet.
    pub dirty_bytes: u64,
    /// Segments on their way to a bucket now.
    pub segments_in_flight: u64,
    /// Read calls.
    pub reads: u64,
    pub read_bytes: u64,
    /// Write calls.
    pub writes: u64,
    pub write_bytes: u64,
    /// Read calls answered from memory, on the caller's own thread.
    pub reads_ready: u64,
    /// Read calls that had to wait.
    pub reads_pending: u64,
    pub writes_ready: u64,
    pub writes_pending: u64,
    /// Records that a read found in memory: dirty, or in the ARC.
    pub record_hits: u64,
    /// Records that a read had to fetch or wait for.
    pub record_misses: u64,
    pub prefetch_issued_bytes: u64,
    /// Of what was prefetched: ranges that a read touched.
    pub prefetch_used_bytes: u64,
    /// Of what was prefetched: ranges that were given up untouched.
    pub prefetch_unused_bytes: u64,
    /// Segments written.
    pub segments_written: u64,
    /// Logical bytes of the records in them.
    pub segment_bytes: u64,
    pub commits: u64,
    pub flush_failures: u64,
}

/// Memory in use for written data, and the most that there may be; in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Buffers of dirty records.
    pub dirty: u64,
    /// Buffers that wait for their next use.
    pub idle: u64,
    /// Of both together.
    pub dirty_max: u64,
    /// Segments on their way to buckets, if all were full.
    pub flights: u64,
    pub flights_max: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64),* }
        impl Counters {
            pub fn snapshot(&self) -> ClientStats {
                ClientStats { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}
counters!(
    dirty_bytes,
    segments_in_flight,
    reads,
    read_bytes,
    writes,
    write_bytes,
    reads_ready,
    reads_pending,
    writes_ready,
    writes_pending,
    record_hits,
    record_misses,
    prefetch_issued_bytes,
    prefetch_used_bytes,
    prefetch_unused_bytes,
    segments_written,
    segment_bytes,
    commits,
    flush_failures
);

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
