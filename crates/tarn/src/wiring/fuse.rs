//! Mounting a dataset through FUSE.

use super::Dataset;
use crate::control::MountRequest;
use crate::error::usage;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tarn_access::fuse::{FuseStats, JobId, MountError, MountOptions, Mounted};
use tarn_base::job::Jobs;
use tarn_base::profile::{Profile, Profiling};

/// After the kernel has unmounted, the last requests come within this time, unless something is still open.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// How a mount is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Only if nobody uses it.
    Idle,
    /// Even while it is in use.
    InUse,
    /// Even while calls on it wait: they fail.
    Waiting,
}

/// A dataset while it is mounted.
pub struct FuseMount {
    mounted: Arc<Mounted>,
}

/// What a mount has of the node.
pub struct DoorSettings {
    /// Requests that the kernel may send without anybody waiting for them.
    pub requests: u16,
    /// Where jobs are counted.
    pub jobs: Arc<Jobs>,
}

/// Mounts a dataset at `dir`. `values` are the properties that hold for it, what was asked for laid over them.
pub async fn mount(
    dataset: &Arc<Dataset>,
    name: &str,
    dir: &Path,
    request: &MountRequest,
    values: &BTreeMap<String, String>,
    door: DoorSettings,
) -> Result<FuseMount> {
    let on = |property: &str| values.get(property).is_none_or(|v| v == "on");
    let mut options = MountOptions::new(dir, name);
    options.allow_other |= request.allow_other;
    options.read_only = request.read_only;
    options.nonempty = request.overlay;
    options.max_background = door.requests;
    options.jobs = door.jobs;
    if let Some(how) = &request.job_id {
        options.job_id = how.parse::<JobId>().map_err(usage)?;
    }
    options.dev = on("devices");
    options.suid = on("setuid");
    options.exec = on("exec");
    if let Some(bytes) = request.read_ahead {
        options.read_ahead_kb = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
    }
    if let Some(bytes) = request.hybrid_io {
        options.hybrid_io = bytes;
    }
    options.awake = request.awake.unwrap_or_default();
    let client = dataset.client().clone();
    dataset.limit_caches(request);
    let runtime = tokio::runtime::Handle::current();
    // The system calls of mounting wait for the kernel, and for fusermount3 where root does not mount.
    let mounted =
        tokio::task::spawn_blocking(move || tarn_access::fuse::mount(client, options, runtime)).await??;
    dataset.warm_up();
    Ok(FuseMount { mounted: Arc::new(mounted) })
}

impl FuseMount {
    /// What the kernel asked so far.
    pub fn stats(&self) -> FuseStats {
        self.mounted.stats()
    }

    /// Enters what the kernel asks from now on into `profile`, until what this gives is dropped.
    pub fn profile(&self, profile: &Arc<Profile>) -> Profiling {
        self.mounted.profile(profile)
    }

    /// Returns when the kernel has let go of the mount, whoever unmounted it.
    pub async fn ended(&self) {
        self.mounted.ended().await;
    }

    /// Unmounts, and waits for the last requests.
    pub async fn unmount(&self, dir: &Path, how: Leave) -> Result<()> {
        let mounted = self.mounted.clone();
        let unmounted = tokio::task::spawn_blocking(move || match how {
            Leave::Idle => mounted.unmount(),
            Leave::InUse => mounted.unmount_lazily(),
            Leave::Waiting => mounted.abort(),
        });
        match unmounted.await? {
            Ok(()) => {}
            Err(MountError::Busy(_)) => bail!("{} is in use: leave it, or use -f", dir.display()),
            Err(e) => return Err(e.into()),
        }
        if tokio::time::timeout(LAST_REQUESTS, self.ended()).await.is_err() {
            tracing::warn!("{} is unmounted, but files in it are still open", dir.display());
        }
        Ok(())
    }
}
