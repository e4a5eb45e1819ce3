//! Changing a file's size.
//!
//! A small truncation is one transaction. A large one is an intent: the first transaction sets the size and notes
//! what must be freed, bounded steps free it, the last one drops the note. If the dataset is opened while a note
//! stands, or the connection was lost of a client that waited for it, the steps go on before anybody is served: nothing
//! behind the end can come back, and nothing that is written there later is taken for it.

use super::attr::set_attributes;
use super::data::{STEP_CHUNKS, free_records, touch};
use crate::phys::{CHUNK_RECORDS, TruncatePhys, encode};
use crate::tx::Tx;
use crate::{Mdt, key};
use std::sync::Arc;
use tarn_base::point::{self, Point};
use tarn_base::posix::{Attr, FILE_SIZE_MAX, FileKind, SetAttr};
use tarn_base::{Answer, FsError, Ino};

impl Mdt {
    pub(super) fn truncate(self: &Arc<Self>, ino: Ino, size: u64, set: SetAttr) -> Answer<Attr> {
        if size > FILE_SIZE_MAX {
            return Answer::err(FsError::FileTooLarge);
        }
        let first = self.change(move |tx| {
            let mut inode = tx.inode(ino)?;
            match inode.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(FsError::IsDirectory.into()),
                _ => return Err(FsError::invalid("not a regular file").into()),
            }
            set_attributes(tx, ino, &mut inode, &set)?;
            let record_size = 1u64 << inode.record_shift;
            let (keep, had) = (size.div_ceil(record_size), inode.size.div_ceil(record_size));
            let chunks = keep / CHUNK_RECORDS..had.div_ceil(CHUNK_RECORDS);
            let mut rest = None;
            if chunks.end.saturating_sub(chunks.start) > STEP_CHUNKS {
                tx.put(key::truncate(ino), encode(&TruncatePhys { from_record: keep }));
                tx.unfinished = true;
                rest = Some(keep..had);
            } else if had > keep {
                free_records(tx, ino, &mut inode, chunks, keep..had)?;
            }
            if inode.size != size || set.mtime.is_none() {
                let mtime = inode.mtime;
                touch(tx, &mut inode);
                if set.mtime.is_some() {
                    inode.mtime = mtime;
                }
            }
            inode.size = size;
            tx.put_inode(ino, &inode);
            Ok((inode.attr(ino), rest))
        });
        let mdt = self.clone();
        let noted = first.map(move |(attr, rest)| {
            mdt.truncations.lock().extend(rest.iter().map(|rest| (ino, rest.start)));
            (attr, rest)
        });
        match noted {
            Answer::Ready(Ok((attr, None))) => Answer::ok(attr),
            noted => {
                let mdt = self.clone();
                Answer::pending(async move {
                    match noted.wait().await? {
                        (attr, None) => Ok(attr),
                        (_, Some(rest)) => {
                            point::pass(Point::TruncateNoted);
                            mdt.finish_truncate(ino, rest).await?;
                            mdt.getattr(ino).wait().await
                        }
                    }
                })
            }
        }
    }

    /// The steps of an intent, and its end. [`FsError::Stale`] where the file has gone meanwhile, with all its records.
    async fn finish_truncate(
        self: &Arc<Self>,
        ino: Ino,
        records: std::ops::Range<u64>,
    ) -> Result<(), FsError> {
        let freed = match self.free_in_steps(ino, records).await {
            freed @ (Ok(()) | Err(FsError::Stale)) => freed,
            Err(error) => return Err(error),
        };
        point::pass(Point::TruncateFreed);
        let op = move |tx: &mut Tx| {
            tx.delete(key::truncate(ino));
            Ok(())
        };
        self.change_slowly(&op).await?;
        self.truncations.lock().remove(&ino);
        freed
    }

    /// Finishes every intent for which nobody waits any more.
    pub(crate) async fn finish_truncations(self: &Arc<Self>) -> Result<(), FsError> {
        let left = self.truncations.lock().clone();
        for (ino, from) in left {
            match self.finish_truncate(ino, from..u64::MAX).await {
                Ok(()) | Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
