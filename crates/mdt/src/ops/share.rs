//! Sharing records between files: the copy that copies nothing.
//!
//! A shared record is flagged in every pointer to it, and a reference-count row says how many pointers there are
//! beyond the first. A pointer that carries the flag may have lost its siblings since: then there is no row.

use super::data::{replace, touch};
use crate::phys::{CHUNK_RECORDS, RefcountPhys};
use crate::tx::Tx;
use crate::{Mdt, Outcome, key, phys};
use std::sync::Arc;
use tarn_base::block::flag;
use tarn_base::{Answer, BlockPtr, FsError, Ino};

/// Records that one transaction shares.
const STEP: u64 = 256;

/// Records of one file that another (or the same, elsewhere) shall point at too.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub from: Ino,
    pub from_record: u64,
    pub to: Ino,
    pub to_record: u64,
    pub count: u64,
    /// The target's size is at least this afterwards, in bytes.
    pub size_at_least: u64,
}

impl Mdt {
    /// Both files must have the same record size. Steps of bounded size are transactions of their own, and the size
    /// grows with each: no record ever lies behind it.
    pub fn share(self: &Arc<Self>, share: Share) -> Answer<()> {
        let mdt = self.clone();
        Answer::pending(async move {
            mdt.changeable()?;
            mdt.finish_before(mdt.truncations.of_share(&share)).await?;
            let mut done = 0;
            loop {
                let count = STEP.min(share.count - done);
                let last = done + count == share.count;
                let step = Share {
                    from_record: share.from_record + done,
                    to_record: share.to_record + done,
                    count,
                    ..share
                };
                let op = move |tx: &mut Tx| {
                    tx.unfinished = !last;
                    share_records(tx, &step)
                };
                mdt.change_slowly(&op).await?;
                done += count;
                if last {
                    return Ok(());
                }
            }
        })
    }
}

fn share_records(tx: &mut Tx, share: &Share) -> Outcome<()> {
    let source = tx.inode(share.from)?;
    let target = tx.inode(share.to)?;
    if source.record_shift != target.record_shift {
        return Err(FsError::invalid("files of different record sizes share nothing").into());
    }
    let record_size = 1 << source.record_shift;
    for i in 0..share.count {
        let ptr = lend(tx, share.from, share.from_record + i, record_size)?;
        let at = share.to_record + i;
        let mut inode = tx.inode(share.to)?;
        let mut map = tx.chunk(share.to, at / CHUNK_RECORDS, record_size)?;
        replace(tx, &mut inode, &mut map, (at % CHUNK_RECORDS) as usize, ptr)?;
        tx.put_chunk(share.to, at / CHUNK_RECORDS, &map, record_size);
        tx.put_inode(share.to, &inode);
    }
    let mut inode = tx.inode(share.to)?;
    let end = (share.to_record + share.count) * u64::from(record_size);
    inode.size = inode.size.max(share.size_at_least.min(end));
    touch(tx, &mut inode);
    tx.put_inode(share.to, &inode);
    Ok(())
}

/// Counts one more pointer to a record, flags the one that there is, and gives the new one.
fn lend(tx: &mut Tx, ino: Ino, record: u64, record_size: u32) -> Outcome<Option<BlockPtr>> {
    let chunk = record / CHUNK_RECORDS;
    let mut map = tx.chunk(ino, chunk, record_size)?;
    let Some(ptr) = &mut map.ptrs[(record % CHUNK_RECORDS) as usize] else { return Ok(None) };
    let key = key::refcount(ptr.segment, ptr.offset);
    let count = match tx.get(&key)? {
        Some(row) => phys::decode("reference count", &row)?,
        None => RefcountPhys { extra: 0 },
    };
    tx.put(key, phys::encode(&RefcountPhys { extra: count.extra + 1 }));
    ptr.flags |= flag::SHARED;
    let lent = *ptr;
    tx.put_chunk(ino, chunk, &map, record_size);
    Ok(Some(lent))
}
