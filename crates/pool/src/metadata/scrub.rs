//! Reading every copy of every object: reads ask for the second only where the primary fails, and would find out too late
//! that it is no good.

use super::copies::{self, CopyError, Want};
use super::object::Identity;
use super::store::{MetadataStore, Os};
use crate::text::now_ms;
use crate::vdev::Vdev;
use futures::StreamExt;
use object_store::GetRange;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Objects that are looked at at a time, and bytes of one that are fetched at once.
const AT_ONCE: usize = 8;
const PIECE: u64 = 4 << 20;

/// What a look at every copy found, a line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubbedMetadata {
    pub objects: u64,
    /// Copies that were damaged or lost, and were replaced from the other one.
    pub repaired: Vec<String>,
    /// Copies that could not be read, or not be replaced.
    pub bad: Vec<String>,
}

impl MetadataStore {
    /// Reads every copy of every object and verifies it; what is damaged or absent is replaced from a good one, as it is
    /// by a read. `progress` takes how many objects were looked at, and how many there are.
    pub(crate) async fn scrub(&self, progress: impl Fn(u64, u64)) -> Os<ScrubbedMetadata> {
        let listed = self.list_below("").await?;
        let settled = now_ms() - self.settled_ms.load(Relaxed);
        let total = listed.len() as u64;
        let looks = listed.into_iter().map(|object| async move {
            let old = object.last_modified.timestamp_millis() < settled;
            self.scrub_object(object.location.as_ref(), old).await
        });
        let mut looks = futures::stream::iter(looks).buffer_unordered(AT_ONCE);
        let mut found = ScrubbedMetadata::default();
        while let Some((repaired, bad)) = looks.next().await {
            found.objects += 1;
            found.repaired.extend(repaired);
            found.bad.extend(bad);
            progress(found.objects, total);
        }
        Ok(found)
    }

    /// What was wrong with an object's copies: what was repaired, and what was not. One that is not `old` may still be on
    /// its way to a vdev that lacks it.
    async fn scrub_object(&self, path: &str, old: bool) -> (Vec<String>, Vec<String>) {
        let holders = self.holders(path);
        let (mut good, mut wrong) = (None, Vec::new());
        for &vdev in &holders {
            match self.verify_copy(path, vdev).await {
                Ok(()) => good = good.or(Some(vdev)),
                Err(CopyError::Absent) if !old => {}
                Err(error) => wrong.push((vdev, error)),
            }
        }
        // It was deleted meanwhile.
        if good.is_none() && wrong.iter().all(|(_, error)| matches!(error, CopyError::Absent)) {
            return Default::default();
        }
        let (mut repaired, mut bad) = (Vec::new(), Vec::new());
        for (vdev, error) in wrong {
            let text = match &error {
                CopyError::Absent => "it is not there".to_string(),
                CopyError::Damaged(text) | CopyError::Range(text) => text.clone(),
                CopyError::Failed(error) => error.to_string(),
            };
            let line = format!("{}: {}: {text}", vdev.url(), self.key(path));
            let healed = match good {
                Some(good) => {
                    self.repair(path, vdev, good, error).await;
                    self.verify_copy(path, vdev).await
                }
                None => Err(error),
            };
            match healed {
                Ok(()) => repaired.push(line),
                // Deleted meanwhile.
                Err(CopyError::Absent) if self.books.lock().deleted.contains(path) => {}
                Err(_) => bad.push(line),
            }
        }
        (repaired, bad)
    }

    /// Reads one copy from its beginning to its end.
    async fn verify_copy(&self, path: &str, vdev: &Arc<Vdev>) -> Result<(), CopyError> {
        let key = self.key(path);
        let identity = Identity { pool: self.pool, key: &key };
        let footer = copies::read(vdev, &identity, &Want::Head, None).await?.footer;
        for start in (0..footer.payload).step_by(PIECE as usize) {
            let piece = Want::Range(GetRange::Bounded(start..(start + PIECE).min(footer.payload)));
            copies::read(vdev, &identity, &piece, Some(footer.clone())).await?;
        }
        Ok(())
    }
}
