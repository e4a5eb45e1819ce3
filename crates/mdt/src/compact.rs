//! Moving what lives in mostly dead segments into new ones.
//!
//! A segment's own directory says whose records it holds; the block maps say which of those are still meant. Those
//! are read as they are stored, packed into new segments, and the pointers follow in one transaction, each only if
//! it still points to the old place. The old segment then has no live byte and goes the way of every such segment.
//!
//! A segment is worth the work when half of it is dead, or, once writers have been quiet for a while and more
//! than a small share of the dataset's stored bytes is dead, when a twentieth of it is. A record that several
//! files share is not moved: nothing says who points to it.

use crate::key;
use crate::ops::{account_new, replace};
use crate::phys::{CHUNK_RECORDS, SegmentPhys};
use crate::tx::Tx;
use crate::{Mdt, Outcome, pool_error};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::block::flag;
use tarn_base::point::{self, Point};
use tarn_base::{BlockPtr, FsError, Grant, RecordOwner, SegmentId, VdevId};
use tarn_pool::{Pool, SegmentBuilder};
use tokio::sync::Notify;

/// Time between two looks for work.
const PERIOD: Duration = Duration::from_secs(5);
/// Live bytes moved in one round.
const ROUND_BYTES: u64 = 64 << 20;
/// Bytes of records in a segment that compaction writes.
const SEGMENT_BYTES: usize = 4 << 20;

#[derive(Default)]
pub struct Compactor {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// Segments with dead bytes.
    thin: HashMap<SegmentId, SegmentPhys>,
    /// Those with records that cannot move.
    pinned: HashSet<SegmentId>,
    /// Those that had their turn since all were looked at: what did not move them then will not at once either.
    tried: HashSet<SegmentId>,
    /// Something was freed since the last look.
    busy: bool,
    grants: HashMap<VdevId, (Grant, u32)>,
}

/// A record that moves.
struct Move {
    owner: RecordOwner,
    old: BlockPtr,
    new: BlockPtr,
}

impl Compactor {
    pub fn note(&self, id: SegmentId, row: SegmentPhys) {
        let mut state = self.state.lock();
        state.busy = true;
        if state.thin.insert(id, row).is_none() && state.thin.len() == 1 {
            self.wake.notify_one();
        }
    }

    pub fn forget(&self, id: SegmentId) {
        let mut state = self.state.lock();
        state.thin.remove(&id);
        state.pinned.remove(&id);
    }

    /// The segments worth moving now, the deadest first. They have their turn with that; when none is left, all may have
    /// one again.
    fn victims(&self, live: u64, stored: u64) -> Vec<SegmentId> {
        let mut state = self.state.lock();
        let quiet = !std::mem::take(&mut state.busy);
        let many_dead = stored.saturating_sub(live) * 50 > stored;
        let share = if quiet && many_dead { 20 } else { 2 };
        let worth = |row: &SegmentPhys| (row.size - row.live.min(row.size)) * share >= row.size;
        let waits = |id| !state.pinned.contains(id) && !state.tried.contains(id);
        let candidates = state.thin.iter().filter(|(id, row)| worth(row) && waits(id));
        let mut order: Vec<_> =
            candidates.map(|(id, row)| (row.live as f64 / row.size.max(1) as f64, *id, row.live)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut bytes = 0;
        let fits = order.into_iter().take_while(|(_, _, live)| {
            bytes += live;
            bytes <= ROUND_BYTES
        });
        let victims: Vec<SegmentId> = fits.map(|(_, id, _)| id).collect();
        match victims.is_empty() {
            true => state.tried.clear(),
            false => state.tried.extend(&victims),
        }
        victims
    }
}

/// A segment that is being written. The close of the dataset may cut that off at any point, and must know where to look
/// for what then lies in a bucket, or arrives there later.
struct Written<'a> {
    pool: &'a Pool,
    grant: Grant,
    committed: bool,
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.pool.note_stray(self.grant);
        }
    }
}

impl Mdt {
    pub(crate) async fn run_compaction(self: Arc<Self>) {
        loop {
            if self.compactor.state.lock().thin.is_empty() {
                tokio::select! {
                    _ = self.compactor.wake.notified() => {}
                    _ = self.stop.cancelled() => return,
                }
            }
            tokio::select! {
                _ = tokio::time::sleep(PERIOD) => {}
                _ = self.stop.cancelled() => return,
            }
            loop {
                let usage = self.usage();
                let victims = self.compactor.victims(usage.live, usage.stored);
                if victims.is_empty() || self.stop.is_cancelled() {
                    break;
                }
                match self.compact(&victims).await {
                    Ok(()) => {}
                    Err(FsError::Fenced) => return,
                    Err(error) => {
                        tracing::warn!(%error, "cannot compact segments now");
                        break;
                    }
                }
            }
        }
    }

    async fn compact(self: &Arc<Self>, victims: &[SegmentId]) -> Result<(), FsError> {
        let mut live = Vec::new();
        for &id in victims {
            match self.live_records(id).await {
                Ok(Some(records)) => live.extend(records),
                Ok(None) => {
                    self.compactor.state.lock().pinned.insert(id);
                }
                Err(FsError::Fenced) => return Err(FsError::Fenced),
                // It is not in the way of the others.
                Err(error) => tracing::warn!(%id, %error, "cannot compact the segment now"),
            }
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        for record in live {
            bytes += record.1.stored as usize;
            batch.push(record);
            if bytes >= SEGMENT_BYTES {
                self.move_records(std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
        }
        if !batch.is_empty() {
            self.move_records(batch).await?;
        }
        self.counters.segments_compacted.fetch_add(victims.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The records of a segment that something points to; `None` when one of them is shared. A segment in which
    /// nothing lives any more has no row: it is forgotten here, as it may have been noted after it was freed.
    async fn live_records(
        self: &Arc<Self>,
        id: SegmentId,
    ) -> Result<Option<Vec<(RecordOwner, BlockPtr)>>, FsError> {
        if self.segment_row(id).await?.is_none() {
            self.compactor.forget(id);
            return Ok(Some(Vec::new()));
        }
        let entries = self.pool.segment_directory(id).await.map_err(pool_error)?;
        let mut live = Vec::new();
        for entry in entries.into_iter().filter(|entry| entry.owner.dataset == self.dataset) {
            let found = match self.map(entry.owner.ino, entry.owner.record, 1).wait().await {
                Ok(ptrs) => ptrs.into_iter().next().flatten(),
                Err(FsError::Stale) => None,
                Err(error) => return Err(error),
            };
            if let Some(ptr) = found.filter(|ptr| ptr.segment == id && ptr.offset == entry.ptr.offset) {
                if ptr.flags & flag::SHARED != 0 {
                    return Ok(None);
                }
                live.push((entry.owner, ptr));
            }
        }
        let expected = self.compactor.state.lock().thin.get(&id).map(|row| row.live);
        let found: u64 = live.iter().map(|(_, ptr)| u64::from(ptr.stored)).sum();
        // Records that live by way of a file that is not their first owner.
        let hidden = expected.is_some_and(|expected| found < expected) && self.still_thin(id, found).await?;
        Ok((!hidden).then_some(live))
    }

    /// Whether the segment's row still counts more live bytes than were found.
    async fn still_thin(self: &Arc<Self>, id: SegmentId, found: u64) -> Result<bool, FsError> {
        Ok(self.segment_row(id).await?.is_some_and(|row| row.live > found))
    }

    async fn segment_row(self: &Arc<Self>, id: SegmentId) -> Result<Option<SegmentPhys>, FsError> {
        let row = self.look(move |tx| tx.get(&key::segment(id))).wait().await?;
        match row.map(|row| crate::phys::decode("segment", &row)).transpose() {
            Ok(row) => Ok(row),
            Err(_) => Err(FsError::Io("segment row does not decode".into())),
        }
    }

    async fn move_records(self: &Arc<Self>, records: Vec<(RecordOwner, BlockPtr)>) -> Result<(), FsError> {
        let ptrs: Vec<BlockPtr> = records.iter().map(|(_, ptr)| *ptr).collect();
        let stored = self.pool.read_stored(&ptrs).await.map_err(pool_error)?;
        point::pass(Point::CompactRead);
        let bytes: u64 = ptrs.iter().map(|ptr| u64::from(ptr.stored)).sum();
        let id = self.next_segment(bytes).await?;
        let mut written = Written { pool: &self.pool, grant: id.grant, committed: false };
        let mut builder = SegmentBuilder::new(id);
        let moves: Vec<Move> = records
            .into_iter()
            .zip(stored)
            .map(|((owner, old), stored)| Move { owner, old, new: builder.add_stored(owner, &old, stored) })
            .collect();
        self.pool.put_segment(builder.finish()).await.map_err(pool_error)?;
        point::pass(Point::CompactWritten);
        self.counters.bytes_compacted.fetch_add(bytes, Ordering::Relaxed);
        self.change_slowly(&|tx: &mut Tx| moves.iter().try_for_each(|m| repoint(tx, m))).await?;
        written.committed = true;
        point::pass(Point::CompactMoved);
        Ok(())
    }

    /// A fresh segment id on the vdev that is next in turn.
    async fn next_segment(self: &Arc<Self>, bytes: u64) -> Result<SegmentId, FsError> {
        let vdev = self.pool.place(bytes).map_err(pool_error)?;
        if let Some((grant, next)) = self.compactor.state.lock().grants.get_mut(&vdev)
            && *next < Grant::SEGMENTS
        {
            *next += 1;
            return Ok(SegmentId { grant: *grant, seq: *next - 1 });
        }
        let granted = self.grants(vec![vdev]).wait().await?;
        let grant = *granted.first().ok_or(FsError::Io("no grant was given".into()))?;
        self.compactor.state.lock().grants.insert(vdev, (grant, 1));
        Ok(SegmentId { grant, seq: 0 })
    }
}

/// Lets a pointer follow its record, if it still points to the old place.
fn repoint(tx: &mut Tx, m: &Move) -> Outcome<()> {
    let (ino, chunk) = (m.owner.ino, m.owner.record / CHUNK_RECORDS);
    let slot = (m.owner.record % CHUNK_RECORDS) as usize;
    let Some(mut inode) = tx.find_inode(ino)? else { return account_new(tx, &m.new, false) };
    let record_size = 1 << inode.record_shift;
    let mut map = tx.chunk(ino, chunk, record_size)?;
    let stands = map.ptrs[slot].is_some_and(|ptr| ptr == m.old);
    account_new(tx, &m.new, stands)?;
    if stands {
        replace(tx, &mut inode, &mut map, slot, Some(m.new))?;
        tx.put_chunk(ino, chunk, &map, record_size);
        tx.put_inode(ino, &inode);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::World;
    use tarn_base::Ino;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_segment_that_was_noted_after_its_end_does_not_hold_up_the_others() {
        const RECORD: usize = 4096;
        let mut w = World::new().await;
        let gone = w.segment().await;
        w.mdt.compactor.note(gone, SegmentPhys { size: 100, live: 1 });
        w.mdt.set_properties(crate::Properties { record_size: RECORD as u32, ..w.mdt.properties() });
        let file = w.file(Ino::ROOT, "file").await;
        w.write(&[(file, 0, 1), (file, 1, 1), (file, 2, 1)], RECORD).await;
        w.truncate(file, RECORD as u64).await;
        w.until("only live bytes are left", async |w| {
            w.mdt.sync().await.expect("sync");
            w.mdt.usage().stored == RECORD as u64
        })
        .await;
        w.until("nothing is to be done", async |w| w.mdt.compactor.state.lock().thin.is_empty()).await;
        w.assert_clean().await;
    }
}
