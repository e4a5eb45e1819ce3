//! The words every other crate speaks: identifiers, block pointers, the POSIX value vocabulary, the answer
//! that either stands in memory or must be waited for, and the clock.
//!
//! This crate imports no other crate of the workspace and performs no I/O.

pub mod answer;
pub mod block;
pub mod clock;
pub mod id;
pub mod point;
pub mod posix;
pub mod sabotage;

pub use answer::Answer;
pub use block::{BlockPtr, Checksum, ChecksumKind, Compression, RecordOwner};
pub use clock::{Clock, SystemClock, Timespec};
pub use id::{DatasetId, Epoch, Grant, Ino, PoolGuid, SegmentId, Txg, VdevGuid, VdevId};
pub use posix::FsError;
