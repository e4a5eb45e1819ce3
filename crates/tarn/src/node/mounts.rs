//! Mounting and unmounting.
//!
//! A mount goes away in two ways. By request: the data is flushed first (`flush`), so that a bucket that fails
//! leaves it mounted; then the kernel unmounts it; then the little that came between is flushed, and the dataset is
//! closed. From outside (umount(8), fusermount3): the kernel says that it is gone, and the same happens afterwards.

use super::place::{can_mount, place};
use super::{Node, takeover};
use crate::control::report::MountReport;
use crate::control::{MountRequest, Reply, Unmount};
use crate::mounts_table;
use crate::names::is_within;
use crate::progress::{Silent, Sink};
use crate::properties;
use crate::wiring::{self, Dataset, FuseMount, Leave};
use anyhow::{Context, Result, anyhow, bail};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tarn_pool::DatasetConfig;

/// Beyond the buckets' deadline, for what is under way.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// A mount that is out of the tree ends within this time, unless something in it is open. Flushing counts.
const ENDING: Duration = Duration::from_secs(60);

/// A mounted dataset.
pub struct Mount {
    pub dataset: String,
    pub dir: PathBuf,
    /// As it was asked for, to mount it again elsewhere.
    pub options: MountRequest,
    pub fuse: Arc<FuseMount>,
}

impl Node {
    /// Where a dataset is mounted.
    pub(super) fn mounted_at(&self, name: &str) -> Option<PathBuf> {
        self.mounts.lock().iter().find(|m| m.dataset == name).map(|m| m.dir.clone())
    }

    pub(super) fn mount_reports(&self) -> Vec<MountReport> {
        let report = |m: &Mount| MountReport { dataset: m.dataset.clone(), dir: m.dir.clone() };
        self.mounts.lock().iter().map(report).collect()
    }

    /// Mounts one dataset at `dir`, and below it those that follow it.
    pub(super) async fn mount_at(
        self: &Arc<Self>,
        name: &str,
        dir: PathBuf,
        options: MountRequest,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        self.let_mounts_end().await?;
        let _admin = self.turn(sink).await?;
        let row = self.row(name)?;
        if let Some(at) = self.mounted_at(name) {
            bail!("'{name}' is already mounted at {}", at.display());
        }
        let followers = self
            .rows()
            .into_iter()
            .filter(|d| d.name != name && is_within(&d.name, name) && self.follows(d, name));
        let mut plan = vec![(row, dir.clone())];
        plan.extend(followers.map(|d| {
            let below = dir.join(&d.name[name.len() + 1..]);
            (d, below)
        }));
        self.mount_plan(plan, options).await
    }

    /// The dataset has no mountpoint of its own between itself and `ancestor`, and can be mounted with others.
    fn follows(&self, row: &DatasetConfig, ancestor: &str) -> bool {
        let rows = self.rows();
        let free = |d: &DatasetConfig| !d.properties.contains_key("mountpoint");
        let between = rows
            .iter()
            .filter(|d| d.name != ancestor && is_within(&d.name, ancestor) && is_within(&row.name, &d.name));
        between.into_iter().all(free)
            && can_mount(&rows, &row.name, true)
            && self.mounted_at(&row.name).is_none()
    }

    /// Mounts datasets where they belong: one, or all that can be.
    pub(super) async fn mount_own(
        self: &Arc<Self>,
        name: Option<&str>,
        options: MountRequest,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        self.let_mounts_end().await?;
        let _admin = self.turn(sink).await?;
        let mut plan = Vec::new();
        for row in self.chosen(name)? {
            let planned = |n: &str| {
                let ahead = plan.iter().find(|(d, _): &&(DatasetConfig, PathBuf)| d.name == n);
                ahead.map(|(_, dir)| dir.clone()).or_else(|| self.mounted_at(n))
            };
            match place(&self.rows(), planned, &row.name) {
                Some(dir) => plan.push((row, dir)),
                None if name.is_none() => {}
                None => bail!("'{}' has no mountpoint: set one, or use 'tarn mount {0} DIR'", row.name),
            }
        }
        if plan.is_empty() && self.mounts.lock().is_empty() {
            bail!("nothing in pool '{}' is to be mounted", self.name);
        }
        self.mount_plan(plan, options).await
    }

    /// The datasets that [`Node::mount_own`] is to mount, parents before children.
    fn chosen(&self, name: Option<&str>) -> Result<Vec<DatasetConfig>> {
        let rows = self.rows();
        let Some(name) = name else {
            let free =
                |d: &DatasetConfig| can_mount(&rows, &d.name, true) && self.mounted_at(&d.name).is_none();
            return Ok(rows.iter().filter(|d| free(d)).cloned().collect());
        };
        let row = self.row(name)?;
        if let Some(at) = self.mounted_at(name) {
            bail!("'{name}' is already mounted at {}", at.display());
        }
        if !can_mount(&rows, name, false) {
            bail!("'{name}' cannot be mounted: its property canmount is off");
        }
        Ok(vec![row])
    }

    /// Mounts all of `plan`, or nothing of it. Directories that are missing are made.
    pub(super) async fn mount_plan(
        self: &Arc<Self>,
        plan: Vec<(DatasetConfig, PathBuf)>,
        options: MountRequest,
    ) -> Result<Reply> {
        let new_metrics = match options.metrics {
            Some(address) => self.serve_metrics(address).await?,
            None => false,
        };
        let mut done = Vec::new();
        for (row, dir) in plan {
            match self.mount_one(&row, &dir, &options).await {
                Ok(()) => done.push(MountReport { dataset: row.name, dir }),
                Err(e) => {
                    for mount in done.iter().rev() {
                        let undone = self.unmount_one(&mount.dataset, false, &Silent).await;
                        undone.unwrap_or_else(|e| tracing::warn!("{e:#}"));
                    }
                    self.close_unmounted(&row, &Silent).await.unwrap_or_else(|e| tracing::warn!("{e:#}"));
                    if new_metrics {
                        *self.metrics.lock() = None;
                    }
                    self.close_if_idle();
                    return Err(e);
                }
            }
        }
        Ok(Reply::Mounts(done))
    }

    async fn mount_one(
        self: &Arc<Self>,
        row: &DatasetConfig,
        dir: &Path,
        options: &MountRequest,
    ) -> Result<()> {
        let at = dir.to_path_buf();
        // It may lie in a file system that is slow, or in one of our own.
        tokio::task::spawn_blocking(move || takeover::make_dir(&at)).await??;
        let dataset = self.dataset(row).await?;
        self.refuse_taken(row)?;
        let mut values = properties::effective_all(&self.rows(), &row.name);
        options.lay_over(&mut values);
        dataset.set_properties(&values)?;
        let door =
            wiring::DoorSettings { requests: self.settings.memory.requests(), jobs: self.jobs.clone() };
        let fuse = wiring::mount(&dataset, &row.name, dir, options, &values, door).await;
        let fuse =
            Arc::new(fuse.with_context(|| format!("cannot mount '{}' at {}", row.name, dir.display()))?);
        tracing::info!("mounted '{}' at {}", row.name, dir.display());
        self.mounts.lock().push(Mount {
            dataset: row.name.clone(),
            dir: dir.into(),
            options: options.clone(),
            fuse: fuse.clone(),
        });
        let node = self.clone();
        tokio::spawn(async move {
            fuse.ended().await;
            node.gone(&fuse).await;
        });
        Ok(())
    }

    /// Waits for mounts that are out of the tree already, but whose end has not come to us yet: whoever unmounts
    /// with umount(8) may mount again at once.
    async fn let_mounts_end(&self) -> Result<()> {
        let in_tree = mounts_table::mounted()?;
        let gone = |m: &&Mount| !in_tree.iter().any(|k| k.dir == m.dir && k.dataset == m.dataset);
        let ending: Vec<_> =
            self.mounts.lock().iter().filter(gone).map(|m| (m.dir.clone(), m.fuse.clone())).collect();
        for (dir, fuse) in ending {
            let ended = async {
                fuse.ended().await;
                while self.mounts.lock().iter().any(|m| Arc::ptr_eq(&m.fuse, &fuse)) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            if tokio::time::timeout(ENDING, ended).await.is_err() {
                bail!(
                    "files below {} are still open, although it was unmounted: close them first",
                    dir.display()
                );
            }
        }
        Ok(())
    }

    /// The kernel has let go of a mount. If that was not our doing, flush and close what was mounted.
    async fn gone(self: &Arc<Self>, fuse: &Arc<FuseMount>) {
        let mount = {
            let _admin = self.admin.lock().await;
            let mut mounts = self.mounts.lock();
            let at = mounts.iter().position(|m| Arc::ptr_eq(&m.fuse, fuse));
            at.map(|at| {
                let mount = mounts.remove(at);
                let row = self.row(&mount.dataset).ok();
                // Nobody on another host may have it before all is written that was written here.
                self.ending.lock().extend(row.as_ref().map(|row| row.id));
                (mount, row)
            })
        };
        let Some((mount, ending)) = mount else { return };
        tracing::info!("'{}' was unmounted from {}", mount.dataset, mount.dir.display());
        if let Some(dataset) = self.open_dataset(&mount.dataset)
            && let Err(e) = self.flush_to_end(&dataset, &self.closing).await
        {
            tracing::error!("{e:#}");
        }
        let _admin = self.admin.lock().await;
        if let Some(row) = ending {
            let mut ending = self.ending.lock();
            let at = ending.iter().position(|id| *id == row.id);
            at.map(|at| ending.swap_remove(at));
        }
        // It may be mounted again by now, and stays open then.
        if let Ok(row) = self.row(&mount.dataset)
            && let Err(e) = self.close_unmounted(&row, &self.closing).await
        {
            tracing::error!("{e:#}");
        }
        self.close_if_idle();
    }

    pub(super) async fn unmount(
        self: &Arc<Self>,
        what: Unmount,
        force: bool,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        let chosen = self.mounts_of(&what)?;
        let waits = self.pool.suspended().is_some() || self.server_is_away();
        if force && chosen.len() == self.mounts.lock().len() && waits {
            // Nobody is left for whom it would be worth waiting.
            self.give_up();
        }
        let flushed = self.flush_mounts(&chosen, force, sink).await;
        flushed.context("nothing was unmounted: try again, or use -f to drop what cannot be written")?;
        let _admin = self.admin.lock().await;
        let result = match self.mounts_of(&what) {
            Ok(chosen) => self.unmount_all(chosen, force, sink).await,
            // Somebody else was faster.
            Err(_) => Ok(()),
        };
        self.close_if_idle();
        result.map(|()| Reply::Ok)
    }

    /// The mounts that a request to unmount means: those below go too.
    fn mounts_of(&self, what: &Unmount) -> Result<Vec<MountReport>> {
        let all = self.mount_reports();
        let dir = match what {
            Unmount::All => return Ok(all),
            Unmount::Dir(dir) if all.iter().any(|m| m.dir == *dir) => dir.clone(),
            Unmount::Dir(dir) => bail!("nothing of pool '{}' is mounted at {}", self.name, dir.display()),
            Unmount::Dataset(name) => match self.mounted_at(name) {
                Some(dir) => dir,
                None => bail!("'{name}' is not mounted"),
            },
        };
        Ok(all.into_iter().filter(|m| m.dir.starts_with(&dir)).collect())
    }

    /// Unmounts these, the deepest first; called with `admin` held. By force all of them, whatever becomes of the
    /// others; the first error is reported then.
    pub(super) async fn unmount_all(
        &self,
        mut chosen: Vec<MountReport>,
        force: bool,
        sink: &dyn Sink,
    ) -> Result<()> {
        chosen.sort_by_key(|m| std::cmp::Reverse(m.dir.components().count()));
        let mut result = Ok(());
        for mount in chosen {
            result = result.and(self.unmount_one(&mount.dataset, force, sink).await);
            if result.is_err() && !force {
                break;
            }
        }
        result
    }

    async fn unmount_one(&self, name: &str, force: bool, sink: &dyn Sink) -> Result<()> {
        let row = self.row(name)?;
        let mount = {
            let mounts = self.mounts.lock();
            let found = mounts.iter().find(|m| m.dataset == name);
            found.map(|m| (m.dir.clone(), m.fuse.clone()))
        };
        let Some((dir, fuse)) = mount else { return Ok(()) };
        let how = match (force, self.pool.failing().is_some()) {
            (false, _) => Leave::Idle,
            (true, false) => Leave::InUse,
            (true, true) => Leave::Waiting,
        };
        fuse.unmount(&dir, how).await?;
        self.mounts.lock().retain(|m| !Arc::ptr_eq(&m.fuse, &fuse));
        tracing::info!("unmounted '{name}' from {}", dir.display());
        let open = self.open.lock().get(&row.id).cloned();
        let closed = if force {
            // Where calls wait there may be no end to it.
            let closed =
                tokio::time::timeout(self.pool.deadline() + GRACE, self.close_unless_failing(&row, sink));
            closed.await.unwrap_or_else(|_| Err(anyhow!("its buckets did not answer in time")))
        } else {
            self.close_unmounted(&row, sink).await
        };
        match closed {
            Err(e) if force => {
                self.drop_dataset(&row, open);
                Err(e.context(format!(
                    "'{name}' was unmounted by force, and what was not yet durable is lost"
                )))
            }
            // The node goes on to try before it ends.
            Err(e) => Err(e.context("unmounted, but not everything is written yet")),
            Ok(()) => Ok(()),
        }
    }

    /// Closes it, unless it would have to wait for a bucket.
    async fn close_unless_failing(&self, row: &DatasetConfig, sink: &dyn Sink) -> Result<()> {
        match self.pool.suspended() {
            Some(why) => Err(anyhow!(why)),
            None => self.close_unmounted(row, sink).await,
        }
    }

    /// Gives up on a dataset whose data cannot be written.
    fn drop_dataset(&self, row: &DatasetConfig, dataset: Option<Arc<Dataset>>) {
        self.open.lock().remove(&row.id);
        if let Some(dataset) = dataset {
            dataset.abandon();
            tracing::error!("'{}': {} bytes were not written and are lost", row.name, dataset.dirty_bytes());
        }
    }

    /// Unmounts everything at the node's end, even what is in use; called with `admin` held.
    pub(super) async fn unmount_everything(&self, sink: &dyn Sink) -> Result<()> {
        self.unmount_all(self.mount_reports(), true, sink).await
    }
}
