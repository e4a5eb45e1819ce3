//! Authority by locks on this host's own disks.
//!
//! Each local vdev has a lock file beside its label, locked exclusively (flock) by the process that has the pool.
//! The kernel drops the locks when the process ends. Locks are tried in the order of the vdevs' directories, so
//! that of two who try at once one gets all.
//!
//! Where the same directory is seen by two hosts that do not share locks (some network file systems), the label
//! still keeps the second out, and force is noticed by the label's higher epoch.

use super::Authority;
use crate::config::PoolConfig;
use crate::label::{self, Found, HostId};
use crate::vdev::Vdev;
use crate::{Error, Result};
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tarn_base::{Epoch, PoolGuid};

/// The lock file, below the vdev's directory.
const LOCK: &str = "tarn/lock";

struct Lock {
    path: PathBuf,
    file: Flock<File>,
}

pub(crate) struct HostAuthority {
    pool: PoolGuid,
    epoch: Epoch,
    host: HostId,
    locks: Mutex<Vec<Lock>>,
    /// A vdev whose label tells of a takeover that the locks did not prevent.
    witness: Arc<Vdev>,
}

/// Locks every local vdev; [`Error::Held`] when another process has one.
pub(crate) fn acquire(
    config: &PoolConfig,
    vdevs: &[Arc<Vdev>],
    host: &HostId,
    epoch: Epoch,
) -> Result<HostAuthority> {
    let mut paths: Vec<&Path> = vdevs.iter().filter_map(|v| v.local.as_deref()).collect();
    paths.sort();
    let witness = vdevs.iter().find(|v| v.local.is_some()).cloned().ok_or_else(|| {
        Error::Usage("authority 'host' needs a local directory in the pool: use authority=bucket".into())
    })?;
    let locks = paths.into_iter().map(|path| lock(path, host)).collect::<Result<Vec<_>>>()?;
    Ok(HostAuthority { pool: config.guid, epoch, host: host.clone(), locks: Mutex::new(locks), witness })
}

fn lock(directory: &Path, host: &HostId) -> Result<Lock> {
    let path = directory.join(LOCK);
    let failed = |e: std::io::Error| {
        Error::Bucket(tarn_bucket::Error::Io(format!("{}: cannot be locked: {e}", path.display())))
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    let file =
        File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut file) => {
            // For the message that refuses another; the lock works without it.
            let who = format!("process {} of host {}\n", std::process::id(), host.name);
            let written =
                file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(who.as_bytes()));
            if let Err(error) = written {
                tracing::debug!("{}: {error}", path.display());
            }
            Ok(Lock { path, file })
        }
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            let mut who = String::new();
            let _ = file.read_to_string(&mut who);
            let who = who.lines().next().filter(|line| !line.is_empty()).unwrap_or("another process");
            Err(Error::Held(format!(
                "{} is in use by {who}: unmount and export its pool there first (force does not help while that \
                 runs)",
                directory.display()
            )))
        }
        Err((_, errno)) => Err(failed(errno.into())),
    }
}

#[async_trait::async_trait]
impl Authority for HostAuthority {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    async fn check(&self) -> Result<()> {
        for lock in self.locks.lock().iter() {
            // Another file in the lock's place is another's to lock: ours protects nothing any more.
            if let (Ok(here), Ok(ours)) = (std::fs::metadata(&lock.path), lock.file.metadata())
                && (here.ino(), here.dev()) != (ours.ino(), ours.dev())
            {
                return Err(Error::Fenced);
            }
        }
        match label::read(&*self.witness.bucket).await? {
            Found::Label(label) if label.pool.guid != self.pool || label.pool.epoch > self.epoch => {
                Err(Error::Fenced)
            }
            _ => Ok(()),
        }
    }

    async fn extend(&self, vdev: &Vdev) -> Result<()> {
        if let Some(path) = &vdev.local {
            let lock = lock(path, &self.host)?;
            self.locks.lock().push(lock);
        }
        Ok(())
    }

    fn shrink(&self, vdev: &Vdev) {
        if let Some(directory) = &vdev.local {
            self.locks.lock().retain(|lock| lock.path != directory.join(LOCK));
        }
    }

    async fn release(&self) -> Result<()> {
        self.locks.lock().clear();
        Ok(())
    }
}

/// Removes the lock files of a pool that is no more. Only by who holds the locks: a new file in the place of one
/// that is locked would let two have the pool.
pub(crate) fn forget(vdevs: &[Arc<Vdev>]) {
    for path in vdevs.iter().filter_map(|v| v.local.as_deref()) {
        let _ = std::fs::remove_file(path.join(LOCK));
        let _ = std::fs::remove_dir(path.join("tarn"));
    }
}
