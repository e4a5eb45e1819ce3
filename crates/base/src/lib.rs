//! The words every other crate speaks: identifiers, block pointers, the POSIX value vocabulary, the answer
//! that either stands in memory or must be waited for, who asked for it, what its time was spent on, and the clock.
//!
//! This crate imports no other crate of the workspace and performs no I/O.

pub mod answer;
pub mod block;
pub mod clock;
pub mod histogram;
pub mod id;
pub mod job;
pub mod point;
pub mod posix;
pub mod profile;
pub mod request;
pub mod sabotage;
pub mod stopwatch;
pub mod tally;

pub use answer::Answer;
pub use block::{BlockPtr, Checksum, ChecksumKind, Compression, RecordOwner};
pub use clock::{Clock, SystemClock, Timespec};
pub use histogram::{Histogram, HistogramStats};
pub use id::{DatasetId, Epoch, Grant, Ino, PoolGuid, SegmentId, Txg, VdevGuid, VdevId};
pub use job::{Job, JobStats};
pub use posix::FsError;
pub use request::{Done, Request, Trace};
pub use tally::{Charge, Provider, Tally, TallyStats};
