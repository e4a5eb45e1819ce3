//! The FUSE door: the kernel's requests in, the client's operations out.
//!
//! # Threads
//! The kernel's requests are read by a few threads of the session. What the client can answer from memory is
//! answered on that very thread; only what must wait is handed to the runtime and answered from there
//! (`answer`). So a cached lookup, getattr or read touches no scheduler, and a slow bucket never occupies a
//! thread that reads requests. No request is answered under a lock.
//!
//! # Caches in the kernel
//! One client serves a dataset, and all that changes it through the mount goes through this kernel: so names,
//! their absence and attributes are cached for long ([`MountOptions::entry_ttl`], [`MountOptions::attr_ttl`]).
//! What the daemon changes by itself is the number of blocks that a file occupies, some seconds after it was
//! written: files changed lately, and not empty, keep their attributes only for [`YOUNG_TTL`], and others no longer than
//! they have been as they are. Cached pages stand while the client says that the data version does; the kernel itself
//! drops those that truncation, punching and copying make wrong. There is no write-back cache in the kernel: it would own size and times.
//!
//! # Processors
//! While requests come fast, processors are kept from sleeping between them, where the kernel can be told so (`awake`).
//!
//! # Counting
//! Each request is counted by its operation, with the time until it was answered (`counters`), and with the job
//! that it belongs to (`jobs`). While somebody profiles the mount, each request has a stopwatch too, which says in which
//! layer its time went ([`tarn_base::stopwatch`]).
//!
//! # Signals
//! A process that waits in the kernel for an answer cannot be killed. The kernel tells of signals
//! (`FUSE_INTERRUPT`): a wait for a lock ends at any signal, other waits end when the process is dying
//! (`interrupt`). Its call goes on, and the kernel is told what came of it (`late`); a write does not, or it would come
//! over what others have written meanwhile.
//!
//! # What never arrives
//! The kernel sends no `FUSE_SYNCFS` to a file system that an ordinary process serves: `syncfs` and `sync` write
//! out pages of shared mappings and return. To make everything durable from inside the mount, fsync any directory.

mod answer;
mod around;
mod awake;
mod convert;
mod counters;
mod device;
mod door;
mod errno;
mod hybrid;
mod interrupt;
mod jobs;
mod late;
mod listing;
mod locks;
mod mount;
mod mounts;
mod reply;
#[cfg(test)]
mod tests;

pub use awake::{Awake, Wakefulness};
pub use convert::YOUNG_TTL;
pub use counters::{FuseStats, OperationStats};
pub use jobs::JobId;
pub use mount::{AWAKE_PATIENCE, KEPT, MountError, MountOptions, Mounted, Wanted, mount, negotiate};
pub use mounts::take_over;
