//! One moment of a node. Counters count from when the node opened the pool, or the dataset.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_access::fuse::FuseStats;
use tarn_base::JobStats;
use tarn_client::ClientStats;
use tarn_pool::PoolStatus;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// Milliseconds since the pool was opened.
    pub open_ms: u64,
    pub pool: PoolStatus,
    /// Records in memory.
    pub arc: tarn_pool::MemoryUse,
    pub memory: MemorySample,
    /// Those that are open.
    pub datasets: BTreeMap<String, DatasetSample>,
    /// Whom work was done for, the busiest first.
    pub jobs: Vec<JobStats>,
}

/// An open dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetSample {
    pub client: ClientStats,
    /// Its metadata target, if that is here.
    #[serde(flatten)]
    pub target: Option<TargetSample>,
    /// The link to the host that serves it, if it is another's.
    pub link: Option<LinkSample>,
    /// Most bytes of dirty data.
    pub dirty_max: u64,
    /// What the kernel asked, where it is mounted.
    pub fuse: Option<FuseStats>,
}

/// A dataset's metadata target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetSample {
    pub mdt: tarn_mdt::Stats,
    pub usage: tarn_mdt::Usage,
}

/// The link to the host that serves a dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkSample {
    /// How often a connection was made.
    pub connections: u64,
    /// Why there is none.
    pub lost: Option<String>,
    /// Changes that the server had lost and that could not be made again.
    pub unmade: u64,
}

/// Memory of the whole process, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySample {
    pub limit: u64,
    pub used: u64,
    /// What the kernel says of the process.
    pub resident: Option<u64>,
    pub resident_peak: Option<u64>,
    pub parts: BTreeMap<String, PartSample>,
}

/// What one part of the memory has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSample {
    /// `None`: it is bounded, and does not say how much it has.
    pub used: Option<u64>,
    pub limit: u64,
}
