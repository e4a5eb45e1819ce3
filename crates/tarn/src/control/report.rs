//! What a node tells of its pool: plain values that both ends share.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use tarn_base::profile::ProfileStats;
use tarn_pool::DatasetConfig;

/// A pool as `pool list`, `pool status`, `pool iostat` and `pool get` show it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolReport {
    pub name: String,
    pub guid: u64,
    /// `ONLINE`, `DEGRADED`, `FAULTED`, `SUSPENDED`.
    pub state: String,
    /// What is wrong, and what to do, when something is.
    pub status: Option<String>,
    pub action: Option<String>,
    /// Bytes.
    pub size: u64,
    pub allocated: u64,
    pub free: u64,
    pub properties: Vec<PropertyReport>,
    /// Milliseconds since the node opened the pool: counters count from there.
    pub open_ms: u64,
    pub vdevs: Vec<VdevReport>,
    /// This host's cache vdevs: reads are records that they had, writes those that were written to them.
    #[serde(default)]
    pub caches: Vec<VdevReport>,
    /// Files or objects with damage that no copy could heal.
    pub errors: Vec<String>,
    /// What was damaged and was replaced from another copy.
    pub repaired: Vec<String>,
}

/// A property of a pool. Sizes are in bytes, `capacity` in percent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropertyReport {
    pub name: String,
    pub value: String,
    /// `-`, `default` or `local`.
    pub source: String,
}

/// One vdev. Counters are since the node opened the pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VdevReport {
    /// Path or URL without its query.
    pub name: String,
    pub guid: u64,
    pub url: String,
    pub state: String,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// Bytes.
    pub size: Option<u64>,
    pub allocated: u64,
    pub free: Option<u64>,
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    pub read: IoReport,
    pub write: IoReport,
    /// Requests by class: get, put, delete, list, sync.
    pub queues: [QueueReport; 5],
}

/// Requests of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueReport {
    /// Made since the node opened the pool, retries among them.
    pub requests: u64,
    /// Calls that wait for their turn now.
    pub pending: u64,
    /// Requests under way now.
    pub active: u64,
}

/// One direction of I/O.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct IoReport {
    pub operations: u64,
    pub bytes: u64,
    /// Latencies in nanoseconds.
    pub mean_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
}

/// A dataset and, where it was asked for, what it uses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetReport {
    pub config: DatasetConfig,
    pub usage: Option<Usage>,
    /// Where it is mounted.
    pub mounted: Option<PathBuf>,
}

/// What one dataset uses, without its children.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes.
    pub used: u64,
    pub referenced: u64,
    /// Bytes that the pool has free.
    pub pool_free: u64,
    pub inodes: u64,
}

/// One line of a pool's history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub time_ms: i64,
    pub command: String,
    pub user: String,
    pub host: String,
    /// Written by Tarn itself, not by a command.
    pub internal: bool,
}

/// A mounted dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountReport {
    pub dataset: String,
    pub dir: PathBuf,
}

/// What `tarn check` found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckReport {
    /// Vdevs whose labels were wrong and were written anew; where the whole pool was checked.
    #[serde(default)]
    pub labels_repaired: Vec<String>,
    /// Vdevs whose labels are wrong and could not be written.
    #[serde(default)]
    pub labels_wrong: Vec<String>,
    pub datasets: Vec<CheckedDataset>,
}

/// What was found in one dataset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckedDataset {
    pub name: String,
    pub inodes: u64,
    pub names: u64,
    pub records: u64,
    pub segments: u64,
    /// Bytes of records that were read and found right.
    pub bytes_verified: u64,
    /// One line each: what is missing, leaked or wrong.
    pub problems: Vec<String>,
    /// Copies of metadata that were damaged or lost, and were made anew; they are not among the problems.
    pub repaired: Vec<String>,
    /// Leaked segments that were freed; they are not among the problems.
    pub freed: u64,
}

/// What requests spent their time on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProfileReport {
    /// How long it was looked at.
    pub took_ms: u64,
    /// Requests that had no answer yet at the end.
    pub waiting: u64,
    /// Those that came meanwhile and were answered.
    pub found: ProfileStats,
}

/// Where datasets are served to clients on other hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DoorReport {
    pub at: SocketAddr,
    pub tls: bool,
    pub visitors: Vec<VisitorReport>,
}

/// A client on another host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VisitorReport {
    pub dataset: String,
    pub connected: bool,
}
