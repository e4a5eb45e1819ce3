//! Writing out what is dirty: how long to try, and when to give up.
//!
//! Nothing here is done with `admin` held, so that a bucket that does not answer holds up nobody else, and least of
//! all the `umount -f` of an administrator who has had enough.

use super::Node;
use crate::control::report::MountReport;
use crate::progress::Sink;
use crate::wiring::Dataset;
use anyhow::{Context, Result};
use std::sync::Arc;
use std::time::Duration;
use tarn_base::FsError;

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(2);
/// Beyond the buckets' own deadline, for what is under way.
const GRACE: Duration = Duration::from_secs(5);

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
                let limited = tokio::time::timeout(self.pool.deadline() + GRACE, dataset.flush(sink)).await;
                if !matches!(limited, Ok(Ok(()))) {
                    tracing::warn!("'{}' could not be written out before it is unmounted", mount.dataset);
                }
            } else {
                let flushed = dataset.flush(sink).await;
                flushed.with_context(|| format!("the data of '{}' cannot be written", mount.dataset))?;
            }
        }
        Ok(())
    }

    /// Flushes until it succeeds, or cannot any more: because another host has the pool, or because the pool's
    /// `failmode` is not to wait.
    pub(super) async fn flush_to_end(&self, dataset: &Arc<Dataset>, sink: &dyn Sink) -> Result<()> {
        let mut told = false;
        loop {
            let Err(error) = dataset.flush(sink).await else { return Ok(()) };
            let fenced = matches!(error.downcast_ref::<FsError>(), Some(FsError::Fenced));
            let wait = self.pool.property("failmode").is_none_or(|v| v == "wait");
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
