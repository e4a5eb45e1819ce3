//! What a node runs for its clients: the metadata service of a dataset, for clients of the same process and those at the
//! other end of a wire, and for the latter the segments too.

mod export;
mod mds;
mod oss;

pub use export::{Exported, Moving};
pub use mds::LocalMds;
pub use oss::LocalOss;
