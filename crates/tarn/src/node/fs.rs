//! Creating, destroying, renaming datasets, and setting their properties.

use super::Node;
use super::place::{can_mount, place};
use crate::control::report::MountReport;
use crate::control::{MountRequest, Reply};
use crate::names::is_within;
use crate::progress::{Progress, Sink, Unit};
use crate::wiring;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_pool::{DatasetConfig, PoolConfig};

/// How to destroy.
pub struct Destroy {
    pub recursive: bool,
    pub force: bool,
    pub dry_run: bool,
}

fn parent_of(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(parent, _)| parent)
}

/// Adds a dataset's row.
fn add_row(config: &mut PoolConfig, name: &str, properties: BTreeMap<String, String>) {
    let id = tarn_base::DatasetId(config.next_dataset);
    config.next_dataset += 1;
    config.datasets.push(DatasetConfig {
        id,
        name: name.into(),
        guid: rand::random::<u64>().max(1),
        created_ms: wiring::now_ms(),
        properties,
        metadata_vdevs: config.vdevs.iter().map(|v| v.guid).collect(),
        stored: BTreeMap::new(),
        destroying: false,
    });
}

impl Node {
    /// Names of the datasets above `name` that do not exist yet, topmost first.
    fn missing_above(&self, name: &str) -> Vec<String> {
        let rows = self.rows();
        let mut missing = Vec::new();
        let mut above = parent_of(name);
        while !rows.iter().any(|d| d.name == above) && above.contains('/') {
            missing.push(above.to_string());
            above = parent_of(above);
        }
        missing.reverse();
        missing
    }

    /// Makes a dataset, and mounts it if its parent is mounted.
    pub(super) async fn create(
        self: &Arc<Self>,
        name: &str,
        parents: bool,
        properties: BTreeMap<String, String>,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        if self.row(name).is_ok() {
            if parents {
                return Ok(Reply::Ok);
            }
            bail!("cannot create '{name}': it exists");
        }
        let mut new = self.missing_above(name);
        if !new.is_empty() && !parents {
            bail!("cannot create '{name}': there is no '{}'; use -p to make it too", parent_of(name));
        }
        new.push(name.to_string());
        let rows: Vec<_> = new
            .iter()
            .map(|n| (n.clone(), if n == name { properties.clone() } else { BTreeMap::new() }))
            .collect();
        self.pool
            .update_config(move |config| {
                rows.into_iter().for_each(|(name, properties)| add_row(config, &name, properties));
                Ok(())
            })
            .await
            .with_context(|| format!("cannot create '{name}'"))?;
        self.mount_new(&new).await.with_context(|| format!("'{name}' was made, but is not mounted"))?;
        Ok(Reply::Ok)
    }

    /// Mounts new datasets of which an ancestor is mounted.
    async fn mount_new(self: &Arc<Self>, names: &[String]) -> Result<()> {
        for name in names {
            let rows = self.rows();
            let Some(options) = self.options_above(name) else { continue };
            if let Some(dir) = place(&rows, |n| self.mounted_at(n), name)
                && can_mount(&rows, name, true)
            {
                let row = self.row(name)?;
                self.mount_plan(vec![(row, dir)], options).await?;
            }
        }
        Ok(())
    }

    /// The options of the nearest mounted ancestor.
    fn options_above(&self, name: &str) -> Option<MountRequest> {
        let mounts = self.mounts.lock();
        let above = mounts.iter().filter(|m| is_within(name, &m.dataset));
        above.max_by_key(|m| m.dataset.len()).map(|m| m.options.clone())
    }

    pub(super) async fn destroy(
        self: &Arc<Self>,
        name: &str,
        how: Destroy,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        self.row(name)?;
        let mut doomed: Vec<String> =
            self.rows().into_iter().map(|d| d.name).filter(|n| is_within(n, name)).collect();
        if doomed.len() > 1 && !how.recursive {
            bail!("cannot destroy '{name}': there are {} datasets below it; use -r", doomed.len() - 1);
        }
        doomed.sort_by_key(|n| std::cmp::Reverse(n.clone()));
        if how.dry_run {
            return Ok(Reply::Destroyed(doomed));
        }
        for name in &doomed {
            self.refuse_claimed(&self.row(name)?, how.force, sink).await?;
        }
        for name in &doomed {
            let row = self.row(name)?;
            if let Some(dir) = self.mounted_at(name) {
                let mount = vec![MountReport { dataset: name.clone(), dir }];
                self.unmount_all(mount, how.force, sink).await?;
            }
            self.close_unmounted(&row, sink).await?;
            self.pool
                .update_config(|config| {
                    config.datasets.iter_mut().filter(|d| d.id == row.id).for_each(|d| d.destroying = true);
                    Ok(())
                })
                .await?;
            self.finish_destroy(&row, sink).await?;
        }
        self.close_if_idle();
        Ok(Reply::Destroyed(doomed))
    }

    async fn finish_destroy(&self, row: &DatasetConfig, sink: &dyn Sink) -> Result<()> {
        sink.progress(Progress {
            what: format!("destroying {}", row.name),
            done: 0,
            total: 0,
            unit: Unit::Items,
        });
        wiring::destroy_dataset(&self.pool, row.id).await.with_context(|| {
            format!("'{}' is gone, but its space is not all freed yet; the next destroy goes on", row.name)
        })?;
        let id = row.id;
        self.pool
            .update_config(move |config| {
                config.datasets.retain(|d| d.id != id);
                Ok(())
            })
            .await?;
        Ok(())
    }

    /// Goes on with what a destroy that was cut off has left.
    pub(super) async fn resume_destroys(&self) {
        let left: Vec<_> = self.pool.config().datasets.iter().filter(|d| d.destroying).cloned().collect();
        for row in left {
            let _admin = self.admin.lock().await;
            if self.check_serving().is_err() {
                return;
            }
            if let Err(e) = self.finish_destroy(&row, &crate::progress::Silent).await {
                tracing::warn!("{e:#}");
            }
        }
    }

    pub(super) async fn rename(
        self: &Arc<Self>,
        from: &str,
        to: &str,
        parents: bool,
        force: bool,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        self.row(from)?;
        if self.row(to).is_ok() {
            bail!("cannot rename '{from}': '{to}' exists");
        }
        if is_within(to, from) {
            bail!("cannot rename '{from}': '{to}' lies below it");
        }
        for row in self.rows().iter().filter(|row| is_within(&row.name, from)) {
            self.refuse_taken(row)?;
        }
        let new = self.missing_above(to);
        if !new.is_empty() && !parents {
            bail!("cannot rename '{from}': there is no '{}'; use -p to make it", parent_of(to));
        }
        let (old_name, new_name) = (from.to_string(), to.to_string());
        let renamed = move |name: &str| match is_within(name, &old_name) {
            true => format!("{new_name}{}", &name[old_name.len()..]),
            false => name.to_string(),
        };
        let rename = renamed.clone();
        let change = move |config: &mut PoolConfig| {
            new.iter().for_each(|name| add_row(config, name, BTreeMap::new()));
            config.datasets.iter_mut().for_each(|d| d.name = rename(&d.name));
            Ok(())
        };
        self.remounting(&[from.to_string()], renamed, force, sink, change).await?;
        Ok(Reply::Ok)
    }

    pub(super) async fn set(
        self: &Arc<Self>,
        names: &[String],
        properties: BTreeMap<String, String>,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        if properties.contains_key("readonly") || properties.contains_key("mountpoint") {
            // A dataset that is read-only takes no commit any more: what is dirty goes out before.
            self.flush_mounts(&self.mount_reports(), false, sink).await?;
        }
        let _admin = self.turn(sink).await?;
        for name in names {
            self.row(name)?;
        }
        let moves = properties.contains_key("mountpoint");
        let chosen = names.to_vec();
        let change = move |config: &mut PoolConfig| {
            for row in config.datasets.iter_mut().filter(|d| chosen.contains(&d.name) && !d.destroying) {
                row.properties.extend(properties.clone());
            }
            Ok(())
        };
        self.change_properties(names, moves, sink, change).await
    }

    pub(super) async fn inherit(
        self: &Arc<Self>,
        names: &[String],
        property: &str,
        recursive: bool,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        if matches!(property, "readonly" | "mountpoint") {
            self.flush_mounts(&self.mount_reports(), false, sink).await?;
        }
        let _admin = self.turn(sink).await?;
        for name in names {
            self.row(name)?;
        }
        let (chosen, key) = (names.to_vec(), property.to_string());
        let change = move |config: &mut PoolConfig| {
            let hit = |name: &String| chosen.iter().any(|c| c == name || recursive && is_within(name, c));
            config.datasets.iter_mut().filter(|d| hit(&d.name)).for_each(|d| drop(d.properties.remove(&key)));
            Ok(())
        };
        self.change_properties(names, property == "mountpoint", sink, change).await
    }

    async fn change_properties(
        self: &Arc<Self>,
        names: &[String],
        moves: bool,
        sink: &dyn Sink,
        change: impl FnOnce(&mut PoolConfig) -> tarn_pool::Result<()> + Send,
    ) -> Result<Reply> {
        if moves {
            self.remounting(names, str::to_string, false, sink, change).await?;
        } else {
            self.pool.update_config(change).await?;
        }
        self.refresh_properties()?;
        Ok(Reply::Ok)
    }
}
