//! Changing a file's size.
//!
//! A small truncation is one transaction. A large one is an intent: the first transaction sets the size and notes
//! what must be freed, bounded steps free it, the last one drops the note. If the dataset is opened while a note
//! stands, or the connection was lost of a client that waited for it, the steps go on before anybody is served. If they
//! fail, they are tried again in the background, and whoever would change the size of that file again, or would bring
//! something behind its end, finishes them first: nothing behind the end can come back, and nothing that is written there
//! later is taken for it.

use super::attr::set_attributes;
use super::data::{FileChange, STEP_CHUNKS, free_records, touch};
use super::share::Share;
use crate::phys::{CHUNK_RECORDS, TruncatePhys, encode};
use crate::tx::Tx;
use crate::{Mdt, key};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tarn_base::point::{self, Point};
use tarn_base::posix::{Attr, FILE_SIZE_MAX, FileKind, SetAttr};
use tarn_base::{Answer, FsError, Ino};
use tokio::sync::Notify;

/// Pause before steps that failed are tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// The files whose truncation still has steps to go.
#[derive(Default)]
pub(crate) struct Truncations {
    notes: Mutex<BTreeMap<Ino, Arc<Note>>>,
    /// How many there are: nearly always none, and no lock is taken to see that.
    count: AtomicUsize,
    failed: Notify,
}

struct Note {
    /// The first record to free.
    from_record: u64,
    /// Bytes that are left of the file.
    size: u64,
    /// Whose turn it is: two who free side by side would free what was written after the first had come to its end.
    turn: tokio::sync::Mutex<()>,
}

impl Truncations {
    pub fn add(&self, ino: Ino, from_record: u64, size: u64) {
        let mut notes = self.notes.lock();
        let (from_record, size) = match notes.get(&ino) {
            Some(old) => (from_record.min(old.from_record), size.min(old.size)),
            None => (from_record, size),
        };
        notes.insert(ino, Arc::new(Note { from_record, size, turn: tokio::sync::Mutex::default() }));
        self.count.store(notes.len(), Ordering::SeqCst);
    }

    fn get(&self, ino: Ino) -> Option<Arc<Note>> {
        self.notes.lock().get(&ino).cloned()
    }

    fn is_noted(&self, ino: Ino, note: &Arc<Note>) -> bool {
        self.get(ino).is_some_and(|noted| Arc::ptr_eq(&noted, note))
    }

    fn remove(&self, ino: Ino, note: &Arc<Note>) {
        let mut notes = self.notes.lock();
        if notes.get(&ino).is_some_and(|noted| Arc::ptr_eq(noted, note)) {
            notes.remove(&ino);
        }
        self.count.store(notes.len(), Ordering::SeqCst);
    }

    /// Those of the files that something would be brought into behind the cut: each with the end of what is brought, in
    /// records and in bytes.
    fn behind(&self, files: impl Iterator<Item = (Ino, u64, u64)>) -> Vec<Ino> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let notes = self.notes.lock();
        let behind = files.filter(|(ino, records, size)| {
            notes.get(ino).is_some_and(|note| *records > note.from_record || *size > note.size)
        });
        behind.map(|(ino, ..)| ino).collect()
    }

    /// The files of a commit that it would change behind a cut.
    pub(super) fn of_commit(&self, files: &[FileChange]) -> Vec<Ino> {
        self.behind(files.iter().map(|file| {
            let records = file.records.iter().map(|(record, _)| record.saturating_add(1)).max();
            (file.ino, records.unwrap_or(0), file.size_at_least)
        }))
    }

    /// As [`Truncations::of_commit`], for records that are shared.
    pub(super) fn of_share(&self, share: &Share) -> Vec<Ino> {
        let end = |from: u64| from.saturating_add(share.count);
        let (source, target) = (end(share.from_record), end(share.to_record));
        self.behind([(share.from, source, 0), (share.to, target, share.size_at_least)].into_iter())
    }
}

impl Mdt {
    pub(super) fn truncate(self: &Arc<Self>, ino: Ino, size: u64, set: SetAttr) -> Answer<Attr> {
        let left = self.truncations.behind([(ino, u64::MAX, u64::MAX)].into_iter());
        if left.is_empty() {
            return self.cut(ino, size, set);
        }
        let mdt = self.clone();
        Answer::pending(async move {
            mdt.finish_before(left).await?;
            mdt.cut(ino, size, set).wait().await
        })
    }

    fn cut(self: &Arc<Self>, ino: Ino, size: u64, set: SetAttr) -> Answer<Attr> {
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
                rest = Some(keep);
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
            if let Some(from) = rest {
                mdt.truncations.add(ino, from, size);
            }
            (attr, rest.is_some())
        });
        match noted {
            Answer::Ready(Ok((attr, false))) => Answer::ok(attr),
            noted => {
                let mdt = self.clone();
                Answer::pending(async move {
                    match noted.wait().await? {
                        (attr, false) => Ok(attr),
                        (_, true) => {
                            point::pass(Point::TruncateNoted);
                            mdt.finish_truncate(ino, false).await?;
                            mdt.getattr(ino).wait().await
                        }
                    }
                })
            }
        }
    }

    /// The steps of an intent, and its end, which is that of the request too unless it has more to do.
    /// [`FsError::Stale`] where the file has gone meanwhile, with all its records.
    async fn finish_truncate(self: &Arc<Self>, ino: Ino, more: bool) -> Result<(), FsError> {
        let Some(note) = self.truncations.get(ino) else { return Ok(()) };
        let _turn = note.turn.lock().await;
        if !self.truncations.is_noted(ino, &note) {
            return Ok(());
        }
        let done = self.free_cut(ino, &note, more).await;
        match &done {
            Ok(()) | Err(FsError::Stale) => {}
            Err(_) => self.truncations.failed.notify_one(),
        }
        done
    }

    async fn free_cut(self: &Arc<Self>, ino: Ino, note: &Arc<Note>, more: bool) -> Result<(), FsError> {
        let freed = match self.free_in_steps(ino, note.from_record..u64::MAX).await {
            freed @ (Ok(()) | Err(FsError::Stale)) => freed,
            Err(error) => return Err(error),
        };
        point::pass(Point::TruncateFreed);
        let op = move |tx: &mut Tx| {
            tx.unfinished = more;
            tx.delete(key::truncate(ino));
            Ok(())
        };
        self.change_slowly(&op).await?;
        self.truncations.remove(ino, note);
        freed
    }

    /// Finishes what stands in the way of a request. Files that are gone do not.
    pub(super) async fn finish_before(self: &Arc<Self>, files: Vec<Ino>) -> Result<(), FsError> {
        for ino in files {
            match self.finish_truncate(ino, true).await {
                Ok(()) | Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Finishes every intent for which nobody waits any more.
    pub(crate) async fn finish_truncations(self: &Arc<Self>) -> Result<(), FsError> {
        let left = self.truncations.notes.lock().keys().copied().collect();
        self.finish_before(left).await
    }

    /// The background task: goes on with those that failed.
    pub(crate) async fn run_truncations(self: Arc<Self>) {
        let work = async {
            loop {
                self.truncations.failed.notified().await;
                tokio::time::sleep(PAUSE).await;
                match self.finish_truncations().await {
                    Ok(()) => {}
                    Err(FsError::Fenced) => return,
                    Err(error) => tracing::warn!(%error, "cannot free yet what truncations have cut off"),
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = self.stop.cancelled() => {}
        }
    }
}
