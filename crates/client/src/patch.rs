//! Small writes into records whose committed content is not in memory.
//!
//! Such a write does not wait for a bucket: what was written is kept beside the record, as a *patch*, and laid over the
//! committed content when that has come. It is fetched after a while, in which more may be written there; at once
//! when patches take much memory, or when somebody needs the whole record: a reader, an `fsync`, a change of the file's
//! shape. A record that is written all over in pieces needs no content at all.
//!
//! A record is dirty or has a patch, never both. Patches lie within the committed size: behind it records
//! commit in order, and each must be whole for that.
//!
//! A record whose committed content turns out to be lost for good cannot be completed, and zeros in place of what is
//! missing would be wrong data: the patch is given up, and the next `fsync` or `close` of the file is told.

use crate::buffer::{FreeList, Patched, RecordBuf};
use crate::client::{Client, Unread};
use crate::inode::{Inode, State};
use crate::write::{Fresh, Loads};
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::FsError;
use tokio::sync::Semaphore;

/// Records fetched at once for patches that have waited long enough.
const AT_ONCE: usize = 64;
/// A patch waits for this part of the time for which dirty data does.
const SHARE_OF_AGE: u32 = 4;
/// Patches take at most this part of the memory for written data, and half of that before they are brought to an end.
const SHARE_OF_MEMORY: u64 = 4;
/// Between two attempts to fetch what could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// What was written into a record since it was committed.
pub(crate) struct Patch {
    /// The oldest change in it.
    pub since: u64,
    /// Pieces by their place in the record, in bytes; they do not touch.
    pieces: BTreeMap<usize, RecordBuf>,
    /// Its part of the accounts.
    taken: Patched,
}

impl Patch {
    fn new(home: &Arc<FreeList>, since: u64, len: u64) -> Patch {
        Patch { since, pieces: BTreeMap::new(), taken: Patched::new(home, len) }
    }

    /// Bytes by which the file counts as dirty for it: those of the whole record.
    pub fn len(&self) -> u64 {
        self.taken.len()
    }

    /// Lays `data` at `at` over what is there.
    fn write(&mut self, home: &Arc<FreeList>, at: usize, data: &[u8], record_size: usize) {
        let end = at + data.len();
        let before = self.pieces.range(..=at).next_back();
        let start = match before {
            Some((start, piece)) if start + piece.len() >= at => *start,
            _ => at,
        };
        let old = self.pieces.remove(&start);
        let mut cost = self.taken.bytes() - old.as_ref().map_or(0, RecordBuf::cost);
        let mut piece = old.unwrap_or_else(|| RecordBuf::new(home));
        piece.write(at - start, data, record_size);
        // Those that it now reaches become part of it.
        while let Some((&next, _)) = self.pieces.range(start..=end).next() {
            let Some(other) = self.pieces.remove(&next) else { break };
            cost -= other.cost();
            let known = end.saturating_sub(next).min(other.len());
            let behind = start + piece.len();
            if next + other.len() > behind {
                piece.write(behind - start, &other.bytes()[known..], record_size);
            }
        }
        self.taken.set(cost + piece.cost());
        self.pieces.insert(start, piece);
    }

    /// Whether nothing of the record's first `len` bytes is as it was.
    fn covers(&self, len: u64) -> bool {
        self.pieces.get(&0).is_some_and(|piece| piece.len() as u64 >= len)
    }
}

/// Patches that wait to be brought to an end.
pub(crate) struct Patches {
    waiting: Mutex<VecDeque<Waiting>>,
    permits: Arc<Semaphore>,
}

struct Waiting {
    inode: Arc<Inode>,
    record: u64,
    /// Monotonic time at which it is to be fetched.
    due: Duration,
}

impl Default for Patches {
    fn default() -> Patches {
        Patches { waiting: Mutex::default(), permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Client {
    /// Whether a write that ends at `end` may leave patches.
    pub(crate) fn may_patch(&self, state: &State, end: u64) -> bool {
        let most = self.options.dirty_max / SHARE_OF_MEMORY;
        end <= state.committed_size && state.record_size <= most && self.free.patched() < most
    }

    /// Writes `data` at `inside` of a record that has a patch, or gets one now.
    pub(crate) fn patch(
        &self,
        state: &mut State,
        record: u64,
        seq: u64,
        inside: usize,
        data: &[u8],
        fresh: &mut Fresh,
    ) {
        let record_size = state.record_size;
        let valid = state.committed_size.saturating_sub(record * record_size).min(record_size);
        let patch = state.patches.entry(record).or_insert_with(|| {
            fresh.patched.push(record);
            state.dirty_bytes += valid;
            self.more_dirty(valid);
            Patch::new(&self.free, seq, valid)
        });
        patch.write(&self.free, inside, data, record_size as usize);
        if patch.covers(valid) {
            self.complete(state, record, Bytes::new(), fresh);
        }
    }

    /// Makes a patched record a dirty one, over its committed content.
    pub(crate) fn complete(&self, state: &mut State, record: u64, base: Bytes, fresh: &mut Fresh) {
        let Some(patch) = self.take_patch(state, record) else { return };
        let record_size = state.record_size as usize;
        let ended = self.change_record(state, record, patch.since, fresh, Some(base), |buf| {
            let buf = buf.make_mut(record_size);
            for (at, piece) in &patch.pieces {
                buf.write(*at, piece.bytes(), record_size);
            }
            // One piece from end to end: somebody has written it in order.
            patch.pieces.get(&0).is_some_and(|piece| piece.len() == record_size)
        });
        if ended {
            state.note_finished(record);
            fresh.finished = true;
        }
    }

    /// Takes a record's patch out of the accounts.
    pub(crate) fn take_patch(&self, state: &mut State, record: u64) -> Option<Patch> {
        let patch = state.patches.remove(&record)?;
        state.dirty_bytes -= patch.len();
        self.less_dirty(patch.len());
        Some(patch)
    }

    pub(crate) fn queue_patched(&self, inode: &Arc<Inode>, records: Vec<u64>) {
        let due = self.options.clock.monotonic() + self.options.flush_age / SHARE_OF_AGE;
        let first = {
            let mut waiting = self.patches.waiting.lock();
            let first = waiting.is_empty();
            waiting.extend(records.into_iter().map(|record| Waiting { inode: inode.clone(), record, due }));
            first
        };
        if first || self.many_patches() {
            self.flush.kick.notify_one();
        }
    }

    fn many_patches(&self) -> bool {
        self.free.patched() > self.options.dirty_max / SHARE_OF_MEMORY / 2
    }

    /// Starts fetching for every patch whose time has come; gives how long nothing more can happen by itself.
    pub(crate) fn patch_round(self: &Arc<Self>, idle: Duration) -> Duration {
        loop {
            if self.check_fenced().is_err() {
                return idle;
            }
            let Ok(permit) = self.patches.permits.clone().try_acquire_owned() else { return idle };
            let now = self.options.clock.monotonic();
            let item = {
                let mut waiting = self.patches.waiting.lock();
                while waiting.front().is_some_and(|item| !item.is_meant()) {
                    waiting.pop_front();
                }
                match waiting.front() {
                    None => return idle,
                    Some(item) if item.due > now && !self.many_patches() => return item.due - now,
                    Some(_) => waiting.pop_front(),
                }
            };
            let Some(Waiting { inode, record, .. }) = item else { return idle };
            let client = self.clone();
            self.options.runtime.spawn(async move {
                if let Err(error) = client.settle_record(&inode, record, true).await {
                    tracing::warn!(%error, inode = inode.ino.0, "a write into a record waits: it cannot be read");
                    tokio::time::sleep(PAUSE).await;
                    let due = client.options.clock.monotonic();
                    client.patches.waiting.lock().push_back(Waiting { inode, record, due });
                }
                drop(permit);
                client.flush.kick.notify_one();
            });
        }
    }

    /// Makes all patched records of a file in `range` whole. Waits for `room` among the dirty bytes if that can come: not
    /// while the caller keeps the file from being flushed.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        range: Range<u64>,
        room: bool,
    ) -> Result<(), FsError> {
        let records: Vec<u64> = inode.state.lock().patches.range(range).map(|(record, _)| *record).collect();
        let settled = records.into_iter().map(|record| self.settle_record(inode, record, room));
        let mut settled = futures::stream::iter(settled).buffer_unordered(AT_ONCE);
        let mut all = Ok(());
        while let Some(one) = settled.next().await {
            all = all.and(one);
        }
        all
    }

    /// Makes a record whole, if it has a patch.
    async fn settle_record(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        record: u64,
        room: bool,
    ) -> Result<(), FsError> {
        loop {
            let mut loads = Loads::new(inode);
            let record_size = {
                let mut state = inode.state.lock();
                if !state.patches.contains_key(&record) {
                    return Ok(());
                }
                loads.begin(&mut state, [record]);
                state.record_size
            };
            let _room = if room { Some(self.room_for(record_size).await?) } else { None };
            let content = match self.read_committed(inode.ino, record).await {
                Ok(content) => content.unwrap_or_default(),
                Err(Unread::Lost(error)) if self.give_up(inode, &loads, record, &error) => return Err(error),
                Err(Unread::Lost(_)) => continue,
                Err(Unread::Failed(error)) => return Err(error),
            };
            let mut fresh = Fresh::default();
            {
                let mut state = inode.state.lock();
                if !loads.stands(&state, record) {
                    continue;
                }
                self.complete(&mut state, record, content, &mut fresh);
            }
            self.queue_fresh(inode, fresh);
            inode.changed.notify_waiters();
            return Ok(());
        }
    }

    /// Drops a record's patch because of what is lost, unless the record has changed since the load began.
    fn give_up(&self, inode: &Inode, loads: &Loads, record: u64, error: &FsError) -> bool {
        {
            let mut state = inode.state.lock();
            if !loads.stands(&state, record) {
                return false;
            }
            let Some(patch) = self.take_patch(&mut state, record) else { return false };
            state.lost = Some(error.clone());
            let bytes: usize = patch.pieces.values().map(RecordBuf::len).sum();
            let inode = inode.ino.0;
            tracing::error!(%error, inode, record, bytes, "written data is given up: the rest of its record is lost");
        }
        inode.changed.notify_waiters();
        self.table.forget_if_clean(inode.ino);
        true
    }
}

impl Waiting {
    /// Whether the record still has a patch; most have found their end otherwise when somebody needed them.
    fn is_meant(&self) -> bool {
        self.inode.state.lock().patches.contains_key(&self.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_over_each_other_as_they_were_written() {
        let home = Arc::new(FreeList::new(1 << 20));
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let mut patch = Patch::new(&home, 1, 100);
            let mut expected = [0u8; 100];
            for stamp in 1..30u8 {
                let at = next(100) as usize;
                let len = (1 + next(12) as usize).min(100 - at);
                patch.write(&home, at, &vec![stamp; len], 100);
                expected[at..at + len].fill(stamp);
                let mut found = [0u8; 100];
                let mut end = None;
                for (at, piece) in &patch.pieces {
                    assert!(end.is_none_or(|end| end < *at), "pieces touch: {:?} {at}", end);
                    found[*at..at + piece.len()].copy_from_slice(piece.bytes());
                    end = Some(at + piece.len());
                }
                assert_eq!(found, expected);
                assert_eq!(patch.covers(50), expected[..50].iter().all(|byte| *byte > 0));
                assert!(home.patched() > 0);
            }
        }
        assert_eq!((home.patched(), home.lent()), (0, 0));
    }
}
