//! Changes that move mountpoints: what they touch is unmounted, and mounted again where it then belongs.

use super::Node;
use super::place::place;
use crate::control::MountRequest;
use crate::control::report::MountReport;
use crate::names::is_within;
use crate::progress::Sink;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tarn_pool::PoolConfig;

/// A mount that has to move.
struct Moving {
    report: MountReport,
    options: MountRequest,
    /// It was where its mountpoint says; otherwise somebody chose the directory, and it stays there.
    at_own_place: bool,
}

impl Node {
    /// Makes a change of the configuration that may move what is mounted of `names` and below them. `renamed` gives
    /// a dataset's name afterwards. Called with `admin` held.
    pub(super) async fn remounting(
        self: &Arc<Self>,
        names: &[String],
        renamed: impl Fn(&str) -> String,
        force: bool,
        sink: &dyn Sink,
        change: impl FnOnce(&mut PoolConfig) -> tarn_pool::Result<()> + Send,
    ) -> Result<()> {
        let moving = self.moving(names);
        let reports = moving.iter().map(|m| m.report.clone()).collect();
        let changed = match self.unmount_all(reports, force, sink).await {
            Ok(()) => self.pool.update_config(change).await.map_err(anyhow::Error::from),
            Err(e) => Err(e),
        };
        let succeeded = changed.is_ok();
        let back = self.mount_again(moving, |name| if succeeded { renamed(name) } else { name.into() }).await;
        self.close_if_idle();
        changed?;
        back.context("done, but not everything could be mounted again")
    }

    /// What is mounted of `names` and below, the topmost first.
    fn moving(&self, names: &[String]) -> Vec<Moving> {
        let rows = self.rows();
        let mounts = self.mounts.lock();
        let places: BTreeMap<String, PathBuf> =
            mounts.iter().map(|m| (m.dataset.clone(), m.dir.clone())).collect();
        let mut moving: Vec<Moving> = mounts
            .iter()
            .filter(|m| names.iter().any(|n| is_within(&m.dataset, n)))
            .map(|m| Moving {
                report: MountReport { dataset: m.dataset.clone(), dir: m.dir.clone() },
                options: m.options.clone(),
                at_own_place: place(&rows, |n| places.get(n).cloned(), &m.dataset).as_ref() == Some(&m.dir),
            })
            .collect();
        moving.sort_by(|a, b| a.report.dataset.cmp(&b.report.dataset));
        moving
    }

    async fn mount_again(
        self: &Arc<Self>,
        moving: Vec<Moving>,
        renamed: impl Fn(&str) -> String,
    ) -> Result<()> {
        let mut result = Ok(());
        for Moving { report, options, at_own_place } in moving {
            let name = renamed(&report.dataset);
            if self.mounted_at(&name).is_some() {
                continue;
            }
            let dir = match at_own_place {
                true => place(&self.rows(), |n| self.mounted_at(n), &name),
                false => Some(report.dir),
            };
            let Some(dir) = dir else { continue };
            let mounted = match self.row(&name) {
                Ok(row) => self.mount_plan(vec![(row, dir)], options).await.map(drop),
                Err(e) => Err(e),
            };
            result = result.and(mounted);
        }
        result
    }
}
