//! The verbs, one file each: arguments, the request, and how the answer is shown.

pub mod bench;
pub mod bucket;
pub mod check;
pub mod completions;
pub mod cost;
pub mod fs;
pub mod interval;
pub mod man;
pub mod mount;
pub mod mounted;
pub mod node;
#[cfg(debug_assertions)]
pub mod points;
pub mod pool;
pub mod profile;
pub mod serve;
pub mod stats;
pub mod target;
pub mod umount;
pub mod version;
