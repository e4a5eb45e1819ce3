//! Deleting segments that nothing points to.
//!
//! A segment that loses its last live byte gets a reclaim row in the same transaction. Its object is deleted only
//! when three things hold: that txg is durable (before, a crash would bring the pointers back), the rewind window
//! has passed, and nobody holds an older txg. A later txg drops the row; if a crash comes between, the object is
//! deleted once more, which does no harm because segment ids are never used again.

use crate::tx::Tx;
use crate::{Mdt, key, pool_error};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::point::{self, Point};
use tarn_base::{FsError, SegmentId, Txg};
use tokio::sync::Notify;

/// Most segments deleted between two looks at the clock.
const BATCH: usize = 1000;
/// Pause between two batches, and after a failure.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Reclaimer {
    /// By the time of freeing, in milliseconds.
    queue: Mutex<BTreeMap<(u64, SegmentId), Waiting>>,
    wake: Notify,
}

struct Waiting {
    /// The txg that freed it.
    txg: Txg,
    /// Bytes of its records.
    size: u64,
}

/// A segment whose time has come.
struct Due {
    freed_ms: u64,
    segment: SegmentId,
    size: u64,
}

impl Reclaimer {
    pub fn add(&self, freed_ms: u64, segment: SegmentId, size: u64, txg: Txg) {
        self.queue.lock().insert((freed_ms, segment), Waiting { txg, size });
        self.wake.notify_one();
    }

    pub fn contains(&self, segment: SegmentId) -> bool {
        self.queue.lock().keys().any(|(_, id)| *id == segment)
    }

    /// Segments that wait.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    fn due(&self, freed_before_ms: u64, durable: Txg) -> Vec<Due> {
        let queue = self.queue.lock();
        let old = queue.iter().take_while(|((freed_ms, _), _)| *freed_ms <= freed_before_ms);
        let due = old.filter(|(_, waiting)| waiting.txg <= durable).take(BATCH);
        due.map(|(&(freed_ms, segment), waiting)| Due { freed_ms, segment, size: waiting.size }).collect()
    }
}

impl Mdt {
    fn rewind(&self) -> Duration {
        self.pool.rewind()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let now = self.clock.now();
        now.sec.max(0) as u64 * 1000 + u64::from(now.nsec) / 1_000_000
    }

    pub(crate) async fn run_reclaim(self: Arc<Self>) {
        loop {
            if self.reclaimer.len() == 0 {
                tokio::select! {
                    _ = self.reclaimer.wake.notified() => {}
                    _ = self.stop.cancelled() => return,
                }
            }
            tokio::select! {
                _ = tokio::time::sleep(PAUSE) => {}
                _ = self.stop.cancelled() => return,
            }
            match self.reclaim_due().await {
                Ok(()) => {}
                Err(FsError::Fenced) => return,
                Err(error) => tracing::warn!(%error, "cannot delete freed segments yet"),
            }
        }
    }

    async fn reclaim_due(self: &Arc<Self>) -> Result<(), FsError> {
        let before = self.now_ms().saturating_sub(self.rewind().as_millis() as u64);
        let mut due = self.reclaimer.due(before, self.engine.durable());
        due.retain(|due| !self.carrier.contains(due.segment));
        if due.is_empty() {
            return Ok(());
        }
        let ids: Vec<SegmentId> = due.iter().map(|due| due.segment).collect();
        point::pass(Point::ReclaimDue);
        self.pool.delete_segments(&ids).await.map_err(pool_error)?;
        point::pass(Point::ReclaimDeleted);
        for Due { segment, size, .. } in &due {
            self.pool.book(segment.grant.dataset, segment.grant.vdev, -(*size as i64));
        }
        self.counters.segments_deleted.fetch_add(ids.len() as u64, Ordering::Relaxed);
        let drop_rows = |tx: &mut Tx| {
            for Due { freed_ms, segment, .. } in &due {
                tx.delete(key::reclaim(*freed_ms, *segment));
            }
            Ok(())
        };
        self.change_slowly(&drop_rows).await?;
        point::pass(Point::ReclaimDropped);
        let mut queue = self.reclaimer.queue.lock();
        for Due { freed_ms, segment, .. } in &due {
            queue.remove(&(*freed_ms, *segment));
        }
        Ok(())
    }
}
