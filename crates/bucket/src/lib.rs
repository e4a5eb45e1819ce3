//! A bucket: the leaf of every pool. One store trait and its backends, and the wrapper that gives each vdev its
//! concurrency limit, retries, deadline, counters and histograms.
//!
//! - [`store`]: the [`Bucket`] trait, what every backend promises; [`error`]: how they fail; [`key`]: which keys
//!   are allowed.
//! - [`url`]: how an administrator names a bucket, parsed; [`environment`]: where credentials are looked for.
//! - [`memory`], [`local`], [`s3`], [`gcs`], [`azure`]: the backends. They do one attempt of what they are asked and know no
//!   retries.
//!   `web` is what those on the network have in common.
//! - [`guard`]: the wrapper that every vdev uses; [`open`] gives one from a name.
//! - [`fault`]: a wrapper that fails on purpose, for tests.
//! - [`buffer`]: memory for object bodies, used again and again because the first touch of fresh memory is slow.
//! - [`inspect`]: whether a bucket does what Tarn needs.
//! - [`raw`]: how fast the buckets are without anything above them.

pub mod azure;
pub mod buffer;
pub mod environment;
pub mod error;
pub mod fault;
pub mod gcs;
pub mod guard;
pub mod inspect;
pub mod key;
pub mod local;
pub mod memory;
#[doc(hidden)]
pub mod parsers;
pub mod raw;
pub mod s3;
mod slab;
pub mod store;
pub mod url;
mod web;

pub use error::{Error, Result};
pub use guard::{Guarded, OpenOptions, StatsSnapshot, open};
pub use store::{Bucket, Capacity, ListPage, ObjectInfo, Operation, Source, UnfinishedUpload};
pub use url::Location;
