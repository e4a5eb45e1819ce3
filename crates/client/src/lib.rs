//! A mounted file system below any door: POSIX operations, handles, dirty data, write-back, readahead.
//!
//! The client asks a metadata server for names, attributes and block maps ([`tarn_proto::Mds`]) and moves bytes
//! between its own memory and the buckets ([`tarn_pool::Pool`], behind [`Records`]). Every call gives an
//! [`tarn_base::Answer`]: ready from memory on the caller's thread, or a promise.
//!
//! Where what is:
//! - `client`: the [`Client`] itself, its options, and what all operations share.
//! - `attrs`, `names`, `open`: attributes, the namespace, handles.
//! - `read`, `zfetch`, `distance`: reading and prefetch. `write`: writing, appending, back-pressure. `patch`: what is
//!   written into records that are not in memory.
//! - `shape`: what changes a file's shape: truncation, punching, allocation. `copy`: sharing records.
//! - `flush`: from dirty records to segments to commits. `sync`: fsync, syncfs, shutdown.
//! - `remote`: a client whose server is elsewhere. `timed`: what takes the time of its calls.
//! - `inode`, `table`, `buffer`: the state behind it all. Read `inode` first.

mod ahead;
mod attrs;
mod buffer;
mod client;
mod copy;
mod distance;
mod flush;
mod inode;
mod locks;
mod names;
mod open;
mod patch;
mod read;
mod records;
mod remote;
mod scattered;
mod shape;
mod siblings;
mod space;
mod stats;
mod sync;
mod table;
mod timed;
mod write;
mod zfetch;

pub use client::{Client, ClientOptions};
pub use open::{Handle, OpenMode};
pub use read::ReadBuf;
pub use records::{Records, Storing};
pub use shape::FallocMode;
pub use stats::{ClientStats, MemoryUse};
pub use tarn_proto::{HeldLock, LockKind, LockMode, LockOwner, LockRange, Seek};
pub use write::Target;
