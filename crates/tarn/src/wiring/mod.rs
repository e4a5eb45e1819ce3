//! The only place that puts the pieces together: pool, metadata target, server, client and FUSE. The rest of the
//! binary speaks to what is here in its own words.

mod dataset;
pub mod far;
mod fuse;
mod pool;

pub use dataset::{Budget, Checking, Dataset, destroy_dataset};
pub use fuse::{DoorSettings, FuseMount, Leave, mount};
pub use pool::{
    Created, Found, Importable, add_caches, add_vdevs, create_pool, destroy_pool, export, history, import,
    log_history, open_pool, pool_memory, release, remove_caches, report, scan, set_property, urls,
};

use tarn_base::{Clock, SystemClock};

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let now = SystemClock::default().now();
    now.sec * 1000 + i64::from(now.nsec / 1_000_000)
}
