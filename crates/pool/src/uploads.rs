//! Ending uploads in parts that a crash left: they are in no listing of objects, and are paid for.
//!
//! Whoever opens a pool is its only writer, so what is unfinished at that moment is nobody's: it is ended at once. One
//! that is found later (a writer who was cut off by a takeover may have begun it) is ended when it is found a second
//! time, an hour after the first; this process knows its own and leaves them alone. Should an upload be ended that
//! somebody still wants, its PUT fails and is made anew.

use crate::Pool;
use crate::create::PREFIXES;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tarn_base::VdevId;
use tarn_bucket::UnfinishedUpload;

const EVERY: Duration = Duration::from_secs(3600);

/// Whether it is Tarn that writes objects of such a key.
fn ours(upload: &UnfinishedUpload) -> bool {
    upload.key.starts_with("tarn/") || PREFIXES.iter().any(|prefix| upload.key.starts_with(prefix))
}

impl Pool {
    /// Looks for such uploads now and every hour, in the background, for as long as the pool is open.
    pub(crate) fn watch_uploads(self: &Arc<Self>) {
        tokio::spawn(watch(Arc::downgrade(self)));
    }

    /// Ends what is unfinished, and was at the last look unless it is the first. Gives what is left for the next.
    async fn end_uploads(&self, seen: Option<HashSet<(VdevId, String)>>) -> HashSet<(VdevId, String)> {
        let mut left = HashSet::new();
        for vdev in self.vdevs().iter() {
            let found = match vdev.bucket.uploads().await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!("{}: {error}", vdev.url());
                    continue;
                }
            };
            let mut ended = 0;
            for upload in found.into_iter().filter(ours) {
                let id = (vdev.id, upload.id.clone());
                let abandoned = seen.as_ref().is_none_or(|seen| seen.contains(&id));
                if abandoned && self.gate.pass().is_ok() && vdev.bucket.end_upload(&upload).await.is_ok() {
                    ended += 1;
                } else {
                    left.insert(id);
                }
            }
            if ended > 0 {
                tracing::info!("{}: ended {ended} uploads in parts that a crash left unfinished", vdev.url());
            }
        }
        left
    }
}

async fn watch(pool: Weak<Pool>) {
    let mut seen = None;
    loop {
        let Some(open) = pool.upgrade() else { return };
        if open.gate.pass().is_err() {
            return;
        }
        seen = Some(open.end_uploads(seen).await);
        drop(open);
        tokio::time::sleep(EVERY).await;
    }
}
