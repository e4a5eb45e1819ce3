//! Block maps and the space behind them.
//!
//! Every byte of a record is counted in its segment's row for as long as something points to it. A record that
//! loses its last pointer thins its segment; a segment without live bytes goes to reclaim.

use crate::phys::{CHUNK_RECORDS, CarriedPhys, Chunk, InodePhys, RefcountPhys, inode_flag};
use crate::tx::{Effect, Tx};
use crate::{Mdt, Outcome, Stop, key, phys};
use std::sync::Arc;
use tarn_base::block::{Sealed, flag};
use tarn_base::point::{self, Point};
use tarn_base::{Answer, BlockPtr, FsError, Ino, Timespec};

/// Most chunks that one operation changes; what is larger goes in steps.
pub(crate) const STEP_CHUNKS: u64 = 64;

/// Most pointers that one call gives: how many are asked for is the client's word.
const POINTERS: u32 = 1 << 16;

/// New contents of one record: its index in the file, and where it lies (`None`: a hole).
pub type RecordChange = (u64, Option<BlockPtr>);

/// What one file gains in a [`Mdt::commit`].
#[derive(Clone, Debug)]
pub struct FileChange {
    pub ino: Ino,
    pub records: Vec<RecordChange>,
    /// The file's size is at least this from now on, in bytes.
    pub size_at_least: u64,
    pub mtime: Option<Timespec>,
}

impl Mdt {
    /// Pointers of up to `count` records from `first`; at least one, fewer when the rest is not in memory or they
    /// are very many.
    pub fn map(self: &Arc<Self>, ino: Ino, first: u64, count: u32) -> Answer<Vec<Option<BlockPtr>>> {
        let count = count.min(POINTERS);
        self.look(move |tx| {
            let record_size = 1 << tx.inode(ino)?.record_shift;
            let mut ptrs = Vec::with_capacity(count as usize);
            let end = first.saturating_add(u64::from(count));
            let mut at = first;
            while at < end {
                let map = match tx.map(ino, at / CHUNK_RECORDS, record_size) {
                    Err(Stop::Missing(_)) if at > first => break,
                    map => map?,
                };
                let stop = end.min((at / CHUNK_RECORDS + 1) * CHUNK_RECORDS);
                let slots = (at % CHUNK_RECORDS) as usize..((stop - 1) % CHUNK_RECORDS + 1) as usize;
                ptrs.extend_from_slice(&map.ptrs[slots]);
                at = stop;
            }
            Ok(ptrs)
        })
    }

    /// Makes written records part of their files, all in one transaction. All records of one segment must come in
    /// one call. An inode that is gone is passed over and its records are counted as dead.
    ///
    /// With a segment, its records need not be in a bucket yet: it is of at most [`Mdt::carries`] bytes, and is brought
    /// there in the background.
    pub fn commit(self: &Arc<Self>, files: Vec<FileChange>, carried: Option<Sealed>) -> Answer<()> {
        let cut = self.truncations.of_commit(&files);
        if cut.is_empty() {
            return self.commit_now(files, carried);
        }
        let mdt = self.clone();
        Answer::pending(async move {
            mdt.finish_before(cut).await?;
            mdt.commit_now(files, carried).wait().await
        })
    }

    fn commit_now(self: &Arc<Self>, files: Vec<FileChange>, carried: Option<Sealed>) -> Answer<()> {
        // Before anybody can be told of it.
        let offered = carried.as_ref().map(|segment| self.offer(segment));
        let answer = self.change(move |tx| {
            tx.want(files.iter().map(|file| key::inode(file.ino)))?;
            tx.want(files.iter().flat_map(|file| {
                let chunks =
                    file.records.iter().map(|(record, _)| key::chunk(file.ino, record / CHUNK_RECORDS));
                let ptrs = file.records.iter().filter_map(|(_, ptr)| *ptr);
                chunks.chain(ptrs.map(|ptr| key::segment(ptr.segment)))
            }))?;
            files.iter().try_for_each(|file| commit_file(tx, file))?;
            if let Some(segment) = &carried {
                let Sealed { id, payload, object } = segment.clone();
                tx.put(key::carried(id), phys::encode(&CarriedPhys { payload, object }));
                tx.effects.push(Effect::Carried(segment.clone()));
            }
            Ok(())
        });
        answer.map(move |()| drop(offered))
    }

    /// Makes holes of `count` whole records from `first`; the size stays.
    pub fn punch(self: &Arc<Self>, ino: Ino, first: u64, count: u64) -> Answer<()> {
        let end = first.saturating_add(count);
        if end.div_ceil(CHUNK_RECORDS) - first / CHUNK_RECORDS <= STEP_CHUNKS {
            return self.change(move |tx| {
                let mut inode = tx.inode(ino)?;
                free_records(
                    tx,
                    ino,
                    &mut inode,
                    first / CHUNK_RECORDS..end.div_ceil(CHUNK_RECORDS),
                    first..end,
                )?;
                touch(tx, &mut inode);
                tx.put_inode(ino, &inode);
                Ok(())
            });
        }
        let mdt = self.clone();
        Answer::pending(async move {
            mdt.free_in_steps(ino, first..end).await?;
            let op = move |tx: &mut Tx| {
                let mut inode = tx.inode(ino)?;
                touch(tx, &mut inode);
                tx.put_inode(ino, &inode);
                Ok(())
            };
            mdt.change_slowly(&op).await
        })
    }

    /// Frees the records of a range in bounded steps, each a transaction.
    pub(crate) async fn free_in_steps(
        self: &Arc<Self>,
        ino: Ino,
        records: std::ops::Range<u64>,
    ) -> Result<(), FsError> {
        let end = key::chunk(ino, records.end.div_ceil(CHUNK_RECORDS));
        let mut from = key::chunk(ino, records.start / CHUNK_RECORDS);
        loop {
            let rows = self.scan(&from, &end, STEP_CHUNKS as usize).await?;
            let chunks: Vec<u64> = rows.iter().filter_map(|(key, _)| key::chunk_of(key)).collect();
            let Some(last) = chunks.last().copied() else { return Ok(()) };
            let op = |tx: &mut Tx| {
                tx.unfinished = true;
                let mut inode = tx.inode(ino)?;
                for &chunk in &chunks {
                    free_records(tx, ino, &mut inode, chunk..chunk + 1, records.clone())?;
                }
                tx.put_inode(ino, &inode);
                Ok(())
            };
            self.change_slowly(&op).await?;
            point::pass(Point::FreeStep);
            from = key::chunk(ino, last + 1);
        }
    }
}

/// The file's data changed just now.
pub(super) fn touch(tx: &Tx, inode: &mut InodePhys) {
    inode.mtime = tx.now;
    inode.ctime = tx.now;
    inode.data_version += 1;
}

fn commit_file(tx: &mut Tx, file: &FileChange) -> Outcome<()> {
    let inode = tx.find_inode(file.ino)?.filter(|inode| !inode.has(inode_flag::REAPING));
    let Some(mut inode) = inode else {
        for ptr in file.records.iter().filter_map(|(_, ptr)| ptr.as_ref()) {
            account_new(tx, ptr, false)?;
        }
        return Ok(());
    };
    let record_size = 1 << inode.record_shift;
    let mut records = file.records.clone();
    records.sort_by_key(|(record, _)| *record);
    for group in records.chunk_by(|a, b| a.0 / CHUNK_RECORDS == b.0 / CHUNK_RECORDS) {
        let chunk = group[0].0 / CHUNK_RECORDS;
        let mut map = tx.chunk(file.ino, chunk, record_size)?;
        let old = group.iter().filter_map(|(record, _)| map.ptrs[(record % CHUNK_RECORDS) as usize]);
        tx.want(old.map(|ptr| key::segment(ptr.segment)))?;
        for (record, new) in group {
            let new = new.map(|ptr| BlockPtr { birth: tx.txg, ..ptr });
            if let Some(ptr) = &new {
                account_new(tx, ptr, true)?;
            }
            replace(tx, &mut inode, &mut map, (record % CHUNK_RECORDS) as usize, new)?;
        }
        tx.put_chunk(file.ino, chunk, &map, record_size);
    }
    if !file.records.is_empty() {
        inode.data_version += 1;
    }
    inode.size = inode.size.max(file.size_at_least);
    if let Some(mtime) = file.mtime {
        inode.mtime = mtime;
        inode.ctime = inode.ctime.max(mtime);
    }
    tx.put_inode(file.ino, &inode);
    Ok(())
}

/// Counts a record that was just written; one that nothing points to only adds to its segment's size.
pub(crate) fn account_new(tx: &mut Tx, ptr: &BlockPtr, live: bool) -> Outcome<()> {
    let stored = u64::from(ptr.stored);
    let segment = tx.segment(ptr.segment)?;
    segment.size += stored;
    segment.live += if live { stored } else { 0 };
    tx.count_stored(ptr.segment, stored as i64);
    tx.numbers.live += if live { stored } else { 0 };
    Ok(())
}

/// Lets a slot of a block map point elsewhere, and frees what it pointed to.
pub(crate) fn replace(
    tx: &mut Tx,
    inode: &mut InodePhys,
    map: &mut Chunk,
    slot: usize,
    new: Option<BlockPtr>,
) -> Outcome<()> {
    inode.allocated += new.map_or(0, |ptr| u64::from(ptr.stored));
    if let Some(old) = std::mem::replace(&mut map.ptrs[slot], new) {
        inode.allocated = inode.allocated.saturating_sub(u64::from(old.stored));
        free_ptr(tx, &old)?;
    }
    Ok(())
}

/// One pointer to a record is gone.
pub(crate) fn free_ptr(tx: &mut Tx, ptr: &BlockPtr) -> Outcome<()> {
    if ptr.flags & flag::SHARED != 0 {
        let key = key::refcount(ptr.segment, ptr.offset);
        if let Some(row) = tx.get(&key)? {
            let count: RefcountPhys = phys::decode("reference count", &row)?;
            match count.extra {
                0 | 1 => tx.delete(key),
                extra => tx.put(key, phys::encode(&RefcountPhys { extra: extra - 1 })),
            }
            if count.extra > 0 {
                return Ok(());
            }
        }
    }
    let stored = u64::from(ptr.stored);
    let segment = tx.segment(ptr.segment)?;
    segment.live = segment.live.saturating_sub(stored);
    tx.numbers.live = tx.numbers.live.saturating_sub(stored);
    Ok(())
}

/// Frees the records of `records` that lie in `chunks`.
pub(crate) fn free_records(
    tx: &mut Tx,
    ino: Ino,
    inode: &mut InodePhys,
    chunks: std::ops::Range<u64>,
    records: std::ops::Range<u64>,
) -> Outcome<()> {
    let record_size = 1 << inode.record_shift;
    tx.want(chunks.clone().map(|chunk| key::chunk(ino, chunk)))?;
    for chunk in chunks {
        let mut map = tx.chunk(ino, chunk, record_size)?;
        if map.is_empty() {
            continue;
        }
        let base = chunk * CHUNK_RECORDS;
        let slots = (0..CHUNK_RECORDS as usize).filter(|slot| records.contains(&(base + *slot as u64)));
        let slots: Vec<usize> = slots.collect();
        let old = slots.iter().filter_map(|slot| map.ptrs[*slot]);
        tx.want(old.map(|ptr| key::segment(ptr.segment)))?;
        for slot in slots {
            replace(tx, inode, &mut map, slot, None)?;
        }
        tx.put_chunk(ino, chunk, &map, record_size);
    }
    Ok(())
}
