//! Inodes without a name: kept while somebody has them open, freed after that.
//!
//! An inode that loses its last name gets an orphan row in the same transaction, so that after a crash it is
//! found and freed. Those that lose it within a moment are freed together: waking a task for each would cost as much as
//! removing its name, and the segments that they share are then changed once. Small files are freed in one transaction;
//! large ones, and those with attributes, in bounded steps, with a flag on the inode that lets nothing be added meanwhile.

use crate::key::{self, Key};
use crate::ops::{XattrPages, free_records};
use crate::phys::{CHUNK_RECORDS, InodePhys, inode_flag};
use crate::tx::Tx;
use crate::{Mdt, Outcome};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::point::{self, Point};
use tarn_base::posix::Attr;
use tarn_base::{Answer, FsError, Ino};
use tokio::sync::Notify;

/// How long an orphan waits for others.
const GATHER: Duration = Duration::from_millis(10);
/// Orphans of one transaction, which holds up everybody else's.
const TOGETHER: usize = 16;

#[derive(Default)]
pub struct Reaper {
    queue: Mutex<VecDeque<Ino>>,
    wake: Notify,
}

/// An inode that somebody has open.
#[derive(Clone, Copy, Default)]
pub struct OpenInode {
    pub count: u32,
    /// It has no name any more.
    pub orphan: bool,
}

impl Reaper {
    pub fn push(&self, ino: Ino) {
        self.queue.lock().push_back(ino);
        self.wake.notify_one();
    }

    fn next(&self) -> Vec<Ino> {
        let mut queue = self.queue.lock();
        let count = queue.len().min(TOGETHER);
        queue.drain(..count).collect()
    }
}

impl Mdt {
    /// Notes that somebody has the inode open; every call wants a [`Mdt::close`].
    pub fn open_inode(self: &Arc<Self>, ino: Ino) -> Answer<Attr> {
        let mdt = self.clone();
        self.getattr(ino).map(move |attr| {
            mdt.hold(ino, attr.nlink == 0);
            attr
        })
    }

    pub(crate) fn hold(&self, ino: Ino, orphan: bool) {
        let mut open = self.open_inodes.lock();
        let entry = open.entry(ino).or_default();
        entry.count += 1;
        entry.orphan |= orphan;
    }

    /// Whether somebody has the inode open: then it is freed at its last close.
    fn is_held(&self, ino: Ino) -> bool {
        match self.open_inodes.lock().get_mut(&ino) {
            Some(entry) => {
                entry.orphan = true;
                true
            }
            None => false,
        }
    }

    /// An inode without names has one again: its last close is no reason to free it.
    pub(crate) fn named(&self, ino: Ino) {
        if let Some(entry) = self.open_inodes.lock().get_mut(&ino) {
            entry.orphan = false;
        }
    }

    pub fn close_inode(&self, ino: Ino) {
        let mut open = self.open_inodes.lock();
        let Some(entry) = open.get_mut(&ino) else { return };
        entry.count -= 1;
        if entry.count > 0 {
            return;
        }
        let orphan = entry.orphan;
        open.remove(&ino);
        drop(open);
        if orphan {
            self.reaper.push(ino);
        }
    }

    /// The background task.
    pub(crate) async fn run_reaper(self: Arc<Self>) {
        let work = async {
            loop {
                let orphans = self.reaper.next();
                if orphans.is_empty() {
                    self.reaper.wake.notified().await;
                    tokio::time::sleep(GATHER).await;
                } else if self.reap_all(&orphans).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Frees them; those that cannot be freed yet go to the end of the queue. The error is that the dataset is another
    /// owner's.
    async fn reap_all(self: &Arc<Self>, orphans: &[Ino]) -> Result<(), FsError> {
        let together = |tx: &mut Tx| {
            tx.want(orphans.iter().map(|ino| key::inode(*ino)))?;
            orphans.iter().map(|ino| self.begin(tx, *ino)).collect::<Outcome<Vec<_>>>()
        };
        let begun = self.change_slowly(&together).await;
        for (at, &ino) in orphans.iter().enumerate() {
            let reaped = match &begun {
                Ok(rests) => self.reap_rest(ino, rests[at]).await,
                // One of them is in the way of the others.
                Err(_) => self.reap(ino).await,
            };
            match reaped {
                Ok(()) => {
                    self.counters.reaped.fetch_add(1, Ordering::Relaxed);
                }
                Err(FsError::Fenced) => return Err(FsError::Fenced),
                Err(error) => {
                    tracing::warn!(%ino, %error, "cannot free the inode yet");
                    self.reaper.queue.lock().push_back(ino);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        Ok(())
    }

    /// Frees the inode if one transaction is enough, else flags it.
    fn begin(&self, tx: &mut Tx, ino: Ino) -> Outcome<Rest> {
        let Some(mut inode) = tx.find_inode(ino)? else {
            tx.delete(key::orphan(ino));
            return Ok(Rest::Nothing);
        };
        if inode.nlink > 0 {
            return Ok(Rest::Nothing);
        }
        // One that was closed may have been opened anew since, by a client that asks once more for an unnamed file.
        if self.is_held(ino) {
            return Ok(Rest::Nothing);
        }
        let records = records_of(&inode);
        if records <= CHUNK_RECORDS && inode.xattrs == 0 {
            if inode.allocated > 0 {
                free_records(tx, ino, &mut inode, 0..1, 0..CHUNK_RECORDS)?;
            }
            // A truncation may have its steps before it still: there is more than the size says.
            if inode.allocated == 0 {
                finish(tx, ino);
                return Ok(Rest::Nothing);
            }
        }
        inode.set(inode_flag::REAPING, true);
        tx.put_inode(ino, &inode);
        Ok(Rest::All)
    }

    async fn reap(self: &Arc<Self>, ino: Ino) -> Result<(), FsError> {
        let rest = self.change_slowly(&|tx: &mut Tx| self.begin(tx, ino)).await?;
        self.reap_rest(ino, rest).await
    }

    async fn reap_rest(self: &Arc<Self>, ino: Ino, rest: Rest) -> Result<(), FsError> {
        if rest == Rest::Nothing {
            return Ok(());
        }
        point::pass(Point::ReapFlagged);
        self.free_in_steps(ino, 0..u64::MAX).await?;
        point::pass(Point::ReapFreed);
        self.end_in_steps(ino).await
    }

    /// Drops the attributes of a flagged inode in bounded steps, and with the last of them the inode.
    async fn end_in_steps(self: &Arc<Self>, ino: Ino) -> Result<(), FsError> {
        let mut pages = XattrPages::new(ino, u32::MAX);
        loop {
            let keys: Vec<Key> = pages.next(self).await?.into_iter().map(|(key, _)| key).collect();
            let last = pages.over();
            let step = |tx: &mut Tx| {
                keys.iter().for_each(|key| tx.delete(key.clone()));
                if last {
                    finish(tx, ino);
                    return Ok(());
                }
                let mut inode = tx.inode(ino)?;
                inode.xattrs = inode.xattrs.saturating_sub(keys.len() as u32);
                tx.put_inode(ino, &inode);
                Ok(())
            };
            self.change_slowly(&step).await?;
            if last {
                return Ok(());
            }
            point::pass(Point::FreeStep);
        }
    }
}

/// What is left to free after the first transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    All,
}

fn records_of(inode: &InodePhys) -> u64 {
    if inode.kind == tarn_base::posix::FileKind::Regular {
        inode.size.div_ceil(1 << inode.record_shift)
    } else {
        0
    }
}

fn finish(tx: &mut Tx, ino: Ino) {
    tx.delete(key::inode(ino));
    tx.delete(key::orphan(ino));
    tx.numbers.inodes = tx.numbers.inodes.saturating_sub(1);
}
