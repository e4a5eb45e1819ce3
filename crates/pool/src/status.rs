//! How the pool does, in zpool's words.

use crate::damage::DamageRecord;
use crate::pool::Space;
use crate::vdev::VdevState;
use crate::{Pool, Result};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;
use tarn_base::{PoolGuid, VdevGuid, VdevId};
use tarn_bucket::StatsSnapshot;

/// State of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PoolState {
    Online,
    /// A vdev is not ONLINE.
    Degraded,
    /// No vdev takes writes.
    Suspended,
    /// Another host has taken the pool over; this one writes no more.
    Fenced,
}

impl std::fmt::Display for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PoolState::Online => "ONLINE",
            PoolState::Degraded => "DEGRADED",
            PoolState::Suspended => "SUSPENDED",
            PoolState::Fenced => "FENCED",
        })
    }
}

/// One vdev in a [`PoolStatus`].
#[derive(Debug, Clone, Serialize)]
pub struct VdevStatus {
    pub id: VdevId,
    pub guid: VdevGuid,
    pub url: String,
    pub state: VdevState,
    /// Bytes stored, as far as the books know.
    pub allocated: u64,
    /// Bytes in all: this vdev's part of its file system. `None` for a store without a limit.
    pub capacity: Option<u64>,
    /// Bytes that new data may still take.
    pub free: Option<u64>,
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    /// What its bucket did since it was opened.
    pub stats: Option<StatsSnapshot>,
}

/// What `pool status` and `pool iostat` show.
#[derive(Debug, Clone, Serialize)]
pub struct PoolStatus {
    pub name: String,
    pub guid: PoolGuid,
    pub state: PoolState,
    /// What is wrong, if something is.
    pub status: Option<String>,
    /// What to do about it.
    pub action: Option<String>,
    pub epoch: u64,
    pub generation: u64,
    /// Bytes in all, and what new data may still take.
    pub total: u64,
    pub free: u64,
    pub allocated: u64,
    pub vdevs: Vec<VdevStatus>,
    /// What was found damaged, a line each.
    pub errors: Vec<String>,
}

fn error_line(record: &DamageRecord) -> String {
    let mut line = format!("{}: {}", record.vdev, record.object);
    if let Some(offset) = record.offset {
        line.push_str(&format!(" at {offset}"));
    }
    line.push_str(&format!(": {}", record.problem));
    if let Some(owner) = &record.owner {
        line.push_str(&format!(" (dataset {}, inode {}, record {})", owner.dataset, owner.ino, owner.record));
    }
    if record.repaired {
        line.push_str(", repaired");
    }
    line
}

impl Pool {
    pub(crate) fn state(&self) -> PoolState {
        if self.gate.fenced() {
            return PoolState::Fenced;
        }
        let vdevs = self.vdevs();
        let faulted = vdevs.iter().filter(|v| v.state() == VdevState::Faulted).count();
        if faulted == vdevs.len() {
            PoolState::Suspended
        } else if vdevs.iter().any(|v| v.state() != VdevState::Online) {
            PoolState::Degraded
        } else {
            PoolState::Online
        }
    }

    /// How the pool does now. Takes no request to any bucket.
    pub fn status(&self) -> PoolStatus {
        let (config, vdevs, space) = (self.config(), self.vdevs(), self.space());
        let damage = self.damage();
        let state = self.state();
        let (status, action) = explain(state, damage.iter().any(|d| !d.repaired));
        let vdev_status = |vdev: &std::sync::Arc<crate::vdev::Vdev>| {
            let sharing =
                vdevs.iter().filter(|v| std::sync::Arc::ptr_eq(&v.device, &vdev.device)).count() as u64;
            let Space { total, free } = vdev.device.space();
            let limited = !vdev.device.unlimited();
            VdevStatus {
                id: vdev.id,
                guid: vdev.guid,
                url: vdev.url().to_string(),
                state: vdev.state(),
                allocated: vdev.allocated(),
                capacity: limited.then_some(total / sharing.max(1)),
                free: limited.then_some(free / sharing.max(1)),
                read_errors: vdev.read_errors.load(Relaxed),
                write_errors: vdev.write_errors.load(Relaxed),
                checksum_errors: vdev.checksum_errors.load(Relaxed),
                stats: vdev.guarded.as_ref().map(|g| g.stats()),
            }
        };
        PoolStatus {
            name: config.name.clone(),
            guid: config.guid,
            state,
            status,
            action,
            epoch: self.epoch().0,
            generation: config.generation,
            total: space.total,
            free: space.free,
            allocated: vdevs.iter().map(|v| v.allocated()).sum(),
            vdevs: vdevs.iter().map(vdev_status).collect(),
            errors: damage.iter().map(error_line).collect(),
        }
    }

    /// Asks every vdev whether it answers, so that the status is of now.
    pub async fn probe(&self) -> Result<()> {
        let vdevs = self.vdevs();
        let heads = vdevs.iter().map(|vdev| vdev.head(crate::label::KEY));
        futures::future::join_all(heads).await.into_iter().try_for_each(|r| r.map(drop).map_err(Into::into))
    }
}

fn explain(state: PoolState, damaged: bool) -> (Option<String>, Option<String>) {
    let (status, action) = match state {
        PoolState::Fenced => (
            "another host has imported the pool; this one writes no more",
            "unmount here; what was not yet durable is lost",
        ),
        PoolState::Suspended => {
            ("no bucket takes writes", "make the buckets reachable again: the pool goes on by itself")
        }
        PoolState::Degraded => (
            "a bucket has failed requests past the deadline",
            "see its last error in 'pool status -v' and make it reachable; 'pool clear' forgets the errors",
        ),
        PoolState::Online if damaged => (
            "stored bytes were found that are not what was written",
            "restore the files that 'pool status -v' names from a copy",
        ),
        PoolState::Online => return (None, None),
    };
    (Some(status.into()), Some(action.into()))
}
