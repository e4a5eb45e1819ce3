//! A pool: vdevs as one store. Labels, authority, allocation, segments, checksums, compression, the ARC, and the
//! object-store facade through which metadata goes with two copies.
//!
//! This crate knows of records and their owners' numbers, never of files.
//!
//! - [`pool`](crate::Pool): an open pool; [`create`], [`import`]: how one comes to be open; `label`, `config`: what
//!   every vdev carries of it; `authority`: who may write.
//! - `guest`: the pool as a client of its host sees it.
//! - `vdev`, `outage`, `space`, `alloc`: the buckets in use, what happens when one fails, their room, and which takes
//!   the next segment.
//! - [`segment`]: how records are packed; `compress`, [`checksum`]: how each is stored; `read`, `arc`, `l2arc`: how it
//!   comes back.
//! - `metadata`: two copies of every metadata object behind `object_store`'s interface.
//! - `uploads`: ending what a crash left half uploaded.
//! - `props`, `history`, `status`, `damage`: what the administrator sees.
//!
//! What lies in a bucket, byte by byte: docs/FORMAT.md.

mod alloc;
mod arc;
mod authority;
pub mod checksum;
mod codec;
mod compress;
mod config;
mod create;
mod damage;
mod error;
mod guest;
mod history;
mod import;
mod l2arc;
mod label;
mod memory;
mod metadata;
mod neighbours;
mod offload;
mod open;
mod outage;
#[doc(hidden)]
pub mod parsers;
mod pool;
mod props;
mod read;
mod segment;
mod space;
mod status;
mod text;
mod uploads;
mod vdev;

#[cfg(test)]
mod tests;

pub use config::{CacheConfig, DatasetConfig, PoolConfig, VdevConfig, name_problem};
pub use create::CreateSpec;
pub use damage::DamageRecord;
pub(crate) use error::usage;
pub use error::{Error, Result};
pub use guest::{Far, FarError, Reach};
pub use history::HistoryEntry;
pub use import::{FoundPool, ImportOptions};
pub use l2arc::{CacheState, CacheStatus};
pub use label::{HostId, LABEL_VERSION};
pub use memory::MemoryUse;
pub use metadata::{Changed, ScrubbedMetadata};
pub use offload::{offload, offload_heavy};
pub use pool::{Caching, Pool, Space};
pub use props::{Editable, PROPERTIES, PropertyInfo, PropertyValue, check_property, property_info};
pub use segment::{ALIGN, SegmentBody, SegmentBuilder, SegmentEntry, SegmentTrailer};
pub use space::UNLIMITED;
pub use status::{OutageStatus, PoolState, PoolStatus, VdevStatus};
pub use tarn_bucket::{Capacity, Error as BucketError};
pub use text::{format_time, parse_duration, parse_size};
pub use vdev::VdevState;
