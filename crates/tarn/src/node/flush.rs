//! Writing out what is dirty: how long to try, and when to give up.
//!
//! Nothing here is done with `admin` held, so that a bucket that does not answer holds up nobody else, and least of
//! all the `umount -f` of an administrator who has had enough.

use super::Node;
use super::mounts::GRACE;
use crate::control::report::MountReport;
use crate::progress::Sink;
use crate::wiring::Dataset;
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use std::time::Duration;
use tarn_base::FsError;

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(2);
/// How often a flush looks whether it waits for a bucket, and how often it must find that in a row.
const LOOK: Duration = Duration::from_millis(500);
const LOOKS: u32 = 4;

impl Node {
    /// Flushes what is mounted there, once. With `force` only as long as the buckets' deadline, and a failure is no
    /// reason to stop.
    pub(super) async fn flush_mounts(
        &self,
        mounts: &[MountReport],
        force: bool,
        sink: &dyn Sink,
    ) -> Result<()> {
        for mount in mounts {
            let Some(dataset) = self.open_dataset(&mount.dataset) else { continue };
            if force {
                let flush = self.flush_unless_suspended(&dataset, sink);
                let limited = tokio::time::timeout(self.pool.deadline() + GRACE, flush).await;
                if !matches!(limited, Ok(Ok(()))) {
                    tracing::warn!("'{}' could not be written out before it is unmounted", mount.dataset);
                }
            } else {
                let flushed = self.flush_unless_suspended(&dataset, sink).await;
                flushed.with_context(|| format!("the data of '{}' cannot be written", mount.dataset))?;
            }
        }
        Ok(())
    }

    /// Flushes, but does not wait for a bucket that fails, or for a server that is away: who asked for it is told instead.
    async fn flush_unless_suspended(&self, dataset: &Arc<Dataset>, sink: &dyn Sink) -> Result<()> {
        let mut flush = std::pin::pin!(dataset.flush(sink));
        let mut looks = 0;
        loop {
            let flushed = tokio::time::timeout(LOOK, &mut flush).await;
            match (flushed, self.hindrance(dataset)) {
                (Ok(Err(error)), _) => return Err(error),
                (Ok(Ok(())), None) => return Ok(()),
                // Closing it would have to wait.
                (Ok(Ok(())), Some(why)) => bail!(why),
                (Err(_), None) => looks = 0,
                (Err(_), Some(_)) if looks < LOOKS => looks += 1,
                (Err(_), Some(why)) => bail!(why),
            }
        }
    }

    /// What a flush would have to wait for, beside the flush itself.
    fn hindrance(&self, dataset: &Dataset) -> Option<String> {
        let suspended = self.pool.suspended().map(|why| format!("the pool is suspended: {why}"));
        suspended.or_else(|| dataset.server_is_away().then(|| "the server does not answer".into()))
    }

    /// Flushes until it succeeds, or cannot any more: because another host has the pool, or because the pool's
    /// `failmode` is not to wait.
    pub(super) async fn flush_to_end(&self, dataset: &Arc<Dataset>, sink: &dyn Sink) -> Result<()> {
        let mut told = false;
        loop {
            let Err(error) = dataset.flush(sink).await else { return Ok(()) };
            let fenced = matches!(error.downcast_ref::<FsError>(), Some(FsError::Fenced));
            let wait = self.pool.waits();
            if fenced || !wait {
                let lost = dataset.dirty_bytes();
                return Err(error
                    .context(format!("'{}': {lost} bytes were not written and are lost", dataset.name())));
            }
            if !told {
                tracing::error!("'{}' cannot be written out: {error:#}; going on to try", dataset.name());
                told = true;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Flushes every open dataset before the node ends. The first error is reported when all has been tried.
    pub(super) async fn flush_all_to_end(&self, sink: &dyn Sink) -> Result<()> {
        let open: Vec<_> = self.open.lock().values().cloned().collect();
        let mut result = Ok(());
        for dataset in open {
            result = result.and(self.flush_to_end(&dataset, sink).await);
        }
        result
    }

    /// The dataset, if it is open.
    pub(super) fn open_dataset(&self, name: &str) -> Option<Arc<Dataset>> {
        let row = self.row(name).ok()?;
        self.open.lock().get(&row.id).cloned()
    }
}
