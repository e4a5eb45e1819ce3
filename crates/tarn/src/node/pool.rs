//! What concerns the pool as a whole.

use super::Node;
use crate::control::{Call, Reply};
use crate::progress::Sink;
use crate::state::KnownPool;
use crate::wiring;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long looking for the names of damaged files in one dataset may take.
const NAMING: Duration = Duration::from_secs(5);

impl Node {
    pub(super) async fn report(&self) -> Result<Reply> {
        let open_ms = self.opened.elapsed().as_millis() as u64;
        let open: Vec<_> = self.open.lock().values().cloned().collect();
        for dataset in open {
            // Names of damaged files: whoever asks how the pool does does not wait long for them.
            match tokio::time::timeout(NAMING, dataset.name_damage()).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::info!("damaged files cannot be named: {e:#}"),
                Err(_) => tracing::info!("damaged files cannot be named in time"),
            }
        }
        Ok(Reply::Pool(wiring::report(&self.pool, open_ms).await?))
    }

    pub(super) async fn history(&self) -> Result<Reply> {
        Ok(Reply::History(wiring::history(&self.pool).await?))
    }

    pub(super) async fn add_vdevs(&self, urls: Vec<String>, force: bool, sink: &dyn Sink) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        let added = wiring::add_vdevs(&self.pool, &urls, force).await;
        let cautions = added.with_context(|| format!("cannot add to '{}'", self.name))?;
        let known = KnownPool {
            name: self.name.clone(),
            guid: self.pool.guid().0,
            urls: wiring::urls(&self.pool),
            exported: false,
        };
        self.state.remember(known)?;
        Ok(Reply::Added { cautions })
    }

    pub(super) async fn add_caches(
        &self,
        dirs: Vec<String>,
        size: Option<u64>,
        force: bool,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        let added = wiring::add_caches(&self.pool, &dirs, size, force).await;
        added.with_context(|| format!("cannot add to '{}'", self.name))?;
        Ok(Reply::Ok)
    }

    pub(super) async fn remove_vdevs(&self, names: Vec<String>, sink: &dyn Sink) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        let removed = wiring::remove_caches(&self.pool, &names).await;
        removed.with_context(|| format!("cannot remove from '{}'", self.name))?;
        Ok(Reply::Ok)
    }

    pub(super) async fn set_pool(
        &self,
        properties: BTreeMap<String, String>,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        for (name, value) in properties {
            wiring::set_property(&self.pool, &name, &value).await?;
        }
        Ok(Reply::Ok)
    }

    pub(super) fn clear_errors(&self) -> Result<Reply> {
        self.pool.clear_errors();
        Ok(Reply::Ok)
    }

    pub(super) async fn export(
        self: &Arc<Self>,
        force: bool,
        call: &Call,
        uid: u32,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        self.refuse_mounted("export", force)?;
        self.flush_mounts(&self.mount_reports(), force, sink).await?;
        let _admin = self.turn(sink).await?;
        self.refuse_mounted("export", force)?;
        self.close_door().await;
        self.unmount_all(self.mount_reports(), force, sink).await?;
        self.close_datasets(sink).await?;
        self.log(call, uid).await;
        wiring::export(&self.pool).await.with_context(|| format!("cannot export '{}'", self.name))?;
        self.let_go();
        Ok(Reply::Ok)
    }

    pub(super) async fn destroy_pool(self: &Arc<Self>, force: bool, sink: &dyn Sink) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        self.refuse_mounted("destroy", force)?;
        self.close_door().await;
        self.unmount_all(self.mount_reports(), force, sink).await?;
        self.close_datasets(sink).await?;
        wiring::destroy_pool(&self.pool).await.with_context(|| format!("cannot destroy '{}'", self.name))?;
        self.let_go();
        Ok(Reply::Ok)
    }

    fn refuse_mounted(&self, what: &str, force: bool) -> Result<()> {
        if let Some(door) = self.door_report().filter(|_| !force) {
            bail!(
                "cannot {what} '{0}': it is served at {1}; use 'tarn serve --stop {0}', or -f",
                self.name,
                door.at
            );
        }
        match self.mount_reports().first() {
            Some(mount) if !force => bail!(
                "cannot {what} '{}': '{}' is mounted at {}; unmount it, or use -f",
                self.name,
                mount.dataset,
                mount.dir.display()
            ),
            _ => Ok(()),
        }
    }

    /// Flushes and closes every open dataset; called with `admin` held and nothing mounted.
    async fn close_datasets(&self, sink: &dyn Sink) -> Result<()> {
        for row in self.rows() {
            self.close_unmounted(&row, sink).await?;
        }
        Ok(())
    }
}
