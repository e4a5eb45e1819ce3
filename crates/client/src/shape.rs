//! What changes a file's shape: truncation, extension, allocation, punching, zeroing. And what asks for it: seek.
//!
//! All of it runs with the file held exclusively: no write, no flight, no commit of it is under way.
//!
//! # Truncation and crashes
//! Committed records never hold bytes behind the committed size: whoever extends the file later would see them.
//! So a file that shrinks into the middle of a committed record has that record rewritten, cut, before the
//! size is set. What is dirty in front of the new size is committed first, so that the size never covers a
//! hole that nobody made. A file whose new size is not below its committed size has nothing to take back: it
//! shrinks in memory alone.

use crate::Handle;
use crate::buffer::SharedBuf;
use crate::client::Client;
use crate::inode::Inode;
use crate::write::Fresh;
use bytes::Bytes;
use std::sync::Arc;
use tarn_base::point::{self, Point};
use tarn_base::posix::{Attr, FILE_SIZE_MAX, FileKind, SetAttr, SetTime};
use tarn_base::{Answer, FsError, Ino};
use tarn_proto::{FileCommit, Seek};

/// What `fallocate(2)` shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocMode {
    /// Extend the file to hold the range. Nothing is reserved: copy-on-write needs new space for every write.
    Allocate,
    AllocateKeepSize,
    /// Make a hole; the size stays.
    PunchHole,
    /// Zeros, extending the file if the range does.
    ZeroRange,
    ZeroRangeKeepSize,
}

impl Client {
    /// Truncates or extends, and sets the other attributes in `set`.
    pub(crate) async fn set_size(
        self: &Arc<Self>,
        ino: Ino,
        set: SetAttr,
        new: u64,
    ) -> Result<Attr, FsError> {
        self.check_writable()?;
        if new > FILE_SIZE_MAX {
            return Err(FsError::FileTooLarge);
        }
        let inode = self.pin_loaded(ino).await?;
        match inode.state.lock().kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::invalid("only a regular file has a size to set")),
        }
        // What lies behind the new end need not be read for it to go.
        let whole = new.div_ceil(inode.state.lock().record_size);
        let _exclusive = self.exclusive(&inode, whole).await?;
        let (old, committed) = {
            let state = inode.state.lock();
            (state.size, state.committed_size)
        };
        if new < old {
            if new < committed {
                self.cut_committed(&inode, new).await?;
                point::pass(Point::TruncateCut);
            } else {
                self.cut_dirty(&inode, new);
            }
        }
        let lazily = new >= committed && !inode.state.lock().dirty.is_empty();
        let attr = if lazily {
            self.resize_lazily(&inode, set, new).await?
        } else {
            let mtime = Some(set.mtime.unwrap_or(SetTime::Now));
            let set = SetAttr { size: Some(new), mtime, ..set };
            let attr = self.mds.setattr(ino, set).wait().await.map_err(|e| self.noted(e))?;
            let mut state = inode.state.lock();
            let first_gone = new.div_ceil(state.record_size);
            let dropped = state.drop_dirty(first_gone, u64::MAX);
            state.size = new;
            state.committed_size = new;
            state.mtime = None;
            state.seen_mtime = attr.mtime;
            state.revoke_loads(|_| true);
            drop(state);
            self.less_dirty(dropped);
            attr
        };
        let mut attr = attr;
        if let Some(overlay) = inode.overlay() {
            overlay.apply(&mut attr);
        }
        Ok(attr)
    }

    /// The size changes in memory and is committed with the last dirty record.
    async fn resize_lazily(&self, inode: &Arc<Inode>, set: SetAttr, new: u64) -> Result<Attr, FsError> {
        let rest = SetAttr { size: None, ..set };
        let attr = if rest == SetAttr::default() {
            self.mds.getattr(inode.ino).wait().await?
        } else {
            self.mds.setattr(inode.ino, rest).wait().await?
        };
        let now = self.options.clock.now();
        let mut state = inode.state.lock();
        state.next_seq();
        state.size = new;
        state.mtime = if set.mtime.is_none() { Some(now) } else { None };
        Ok(attr)
    }

    /// Cuts dirty records to `new`, in memory.
    fn cut_dirty(&self, inode: &Arc<Inode>, new: u64) {
        let mut fresh = Fresh::default();
        let mut state = inode.state.lock();
        let record_size = state.record_size;
        let dropped = state.drop_dirty(new.div_ceil(record_size), u64::MAX);
        let (record, inside) = (new / record_size, (new % record_size) as usize);
        if inside > 0 && state.dirty.contains_key(&record) {
            let seq = state.next_seq();
            self.change_record(&mut state, record, seq, &mut fresh, None, |buf| {
                buf.make_mut(record_size as usize).truncate(inside);
            });
        }
        state.size = new;
        drop(state);
        self.less_dirty(dropped);
        self.queue_fresh(inode, fresh);
    }

    /// Before a file shrinks to `new`, below its committed size: rewrites the record that is cut, and commits
    /// what is dirty in front of it.
    async fn cut_committed(self: &Arc<Self>, inode: &Arc<Inode>, new: u64) -> Result<(), FsError> {
        let record_size = inode.state.lock().record_size;
        let (record, inside) = (new / record_size, (new % record_size) as usize);
        // First what can fail without a trace, then the cut.
        self.flush_exclusive(inode, record).await?;
        let before = inode.state.lock().dirty_content(record);
        if inside > 0 {
            self.change_part(
                inode,
                record,
                |content| content.len() > inside,
                |buf| {
                    buf.make_mut(record_size as usize).truncate(inside);
                },
            )
            .await?;
        }
        let flushed = self.flush_exclusive(inode, new.div_ceil(record_size)).await;
        if flushed.is_err() && inside > 0 {
            self.uncut(inode, record, before);
        }
        flushed
    }

    /// A truncation failed before anything was set: the record is again what it was.
    fn uncut(&self, inode: &Arc<Inode>, record: u64, before: Option<Bytes>) {
        let mut fresh = Fresh::default();
        let mut state = inode.state.lock();
        let dropped = match before {
            // It was committed; only its cut copy is dirty.
            None => state.drop_dirty(record, record + 1),
            Some(content) => {
                let record_size = state.record_size as usize;
                let seq = state.next_seq();
                self.change_record(&mut state, record, seq, &mut fresh, None, |buf| {
                    buf.make_mut(record_size).write(0, &content, record_size);
                });
                0
            }
        };
        drop(state);
        self.less_dirty(dropped);
        self.queue_fresh(inode, fresh);
    }

    /// Changes a part of one record that is dirty or committed; leaves a hole a hole, and a record alone for
    /// which `needed` says no.
    async fn change_part(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        record: u64,
        needed: impl Fn(&Bytes) -> bool,
        change: impl FnOnce(&mut SharedBuf),
    ) -> Result<(), FsError> {
        let (dirty, committed) = {
            let state = inode.state.lock();
            (state.dirty_content(record), state.maybe_committed(record))
        };
        let is_dirty = dirty.is_some();
        let content = match dirty {
            None if committed => self.load_record(inode.ino, record).await?,
            other => other,
        };
        let Some(content) = content.filter(needed) else { return Ok(()) };
        let base = if is_dirty { None } else { Some(content) };
        let mut fresh = Fresh::default();
        {
            let mut state = inode.state.lock();
            let seq = state.next_seq();
            self.change_record(&mut state, record, seq, &mut fresh, base, change);
        }
        self.queue_fresh(inode, fresh);
        Ok(())
    }

    /// Allocates, punches or zeroes a range of bytes.
    pub fn fallocate(
        self: &Arc<Self>,
        handle: Handle,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Answer<()> {
        let file = match self.check_writable().and_then(|()| self.handles.get(handle)) {
            Ok(file) => file,
            Err(e) => return Answer::err(e),
        };
        let Some(end) = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX) else {
            return Answer::err(FsError::FileTooLarge);
        };
        if len == 0 {
            return Answer::err(FsError::invalid("a length of zero"));
        }
        let client = self.clone();
        self.answer_to_the_end(async move {
            let inode = &file.inode;
            if !inode.state.lock().is_regular() {
                return Err(FsError::NotSupported);
            }
            match mode {
                FallocMode::Allocate => {
                    client.check_free(len).await?;
                    client.extend(inode, end).await
                }
                FallocMode::AllocateKeepSize => client.check_free(len).await,
                FallocMode::PunchHole | FallocMode::ZeroRangeKeepSize => {
                    client.zero(inode, offset, end).await
                }
                FallocMode::ZeroRange => {
                    client.zero(inode, offset, end).await?;
                    client.extend(inode, end).await
                }
            }
        })
    }

    async fn check_free(self: &Arc<Self>, len: u64) -> Result<(), FsError> {
        let stat = self.statfs().wait().await?;
        if stat.free < len { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// The file is at least `end` bytes from now on.
    async fn extend(self: &Arc<Self>, inode: &Arc<Inode>, end: u64) -> Result<(), FsError> {
        if inode.state.lock().size >= end {
            return Ok(());
        }
        let _exclusive = self.exclusive(inode, u64::MAX).await?;
        let lazily = {
            let mut state = inode.state.lock();
            let lazily = !state.dirty.is_empty();
            if state.size >= end {
                return Ok(());
            }
            if lazily {
                state.next_seq();
                state.size = end;
                state.mtime = Some(self.options.clock.now());
            }
            lazily
        };
        if !lazily {
            let set = SetAttr { size: Some(end), mtime: Some(SetTime::Now), ..SetAttr::default() };
            self.mds.setattr(inode.ino, set).wait().await.map_err(|e| self.noted(e))?;
            let mut state = inode.state.lock();
            state.size = end;
            state.committed_size = end;
            state.mtime = None;
        }
        Ok(())
    }

    /// Makes `offset..end` read as zeros, as far as the file goes: holes where whole records are covered.
    async fn zero(self: &Arc<Self>, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<(), FsError> {
        let _exclusive = self.exclusive(inode, u64::MAX).await?;
        let (size, record_size) = {
            let state = inode.state.lock();
            (state.size, state.record_size)
        };
        let end = end.min(size);
        if offset >= end {
            return Ok(());
        }
        let first = offset.div_ceil(record_size);
        // What lies behind the end of the file is zeros already.
        let last = if end == size { end.div_ceil(record_size) } else { end / record_size };
        if first > last {
            self.zero_part(inode, last, offset, end).await?;
        } else {
            if offset < first * record_size {
                self.zero_part(inode, first - 1, offset, first * record_size).await?;
            }
            if end > last * record_size {
                self.zero_part(inode, last, last * record_size, end).await?;
            }
            if first < last {
                self.punch_records(inode, first, last).await?;
            }
        }
        inode.state.lock().mtime = Some(self.options.clock.now());
        self.commit_rest(inode).await
    }

    async fn zero_part(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        record: u64,
        from: u64,
        to: u64,
    ) -> Result<(), FsError> {
        let record_size = inode.state.lock().record_size;
        let (from, to) = ((from - record * record_size) as usize, (to - record * record_size) as usize);
        self.change_part(
            inode,
            record,
            |content| content.len() > from,
            |buf| {
                buf.make_mut(record_size as usize).zero(from, to);
            },
        )
        .await
    }

    /// Makes the records from `first` to before `last` holes.
    async fn punch_records(&self, inode: &Arc<Inode>, first: u64, last: u64) -> Result<(), FsError> {
        let committed = inode.state.lock().maybe_committed(first);
        if committed {
            self.mds.punch(inode.ino, first, last - first).wait().await.map_err(|e| self.noted(e))?;
        }
        let dropped = {
            let mut state = inode.state.lock();
            state.next_seq();
            state.drop_dirty(first, last)
        };
        self.less_dirty(dropped);
        Ok(())
    }

    /// Commits size and time of a file that has them waiting but nothing dirty that would take them along. For
    /// whoever holds the file exclusively.
    pub(crate) async fn commit_rest(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<(), FsError> {
        let size = {
            let state = inode.state.lock();
            if !state.has_no_data() || state.is_clean() {
                return Ok(());
            }
            state.size
        };
        self.commit_meta(inode, size).await
    }

    /// Commits a size, not above the visible one, and the time that waits. No change of shape may be under way
    /// but the caller's own.
    pub(crate) async fn commit_meta(self: &Arc<Self>, inode: &Arc<Inode>, size: u64) -> Result<(), FsError> {
        let mtime = {
            let mut state = inode.state.lock();
            state.committing += 1;
            state.mtime
        };
        let commit = FileCommit { ino: inode.ino, records: Vec::new(), size_at_least: size, mtime };
        let outcome = self.mds.commit(vec![commit]).wait().await.map_err(|e| self.noted(e));
        let mut state = inode.state.lock();
        state.committing -= 1;
        if outcome.is_ok() {
            state.committed_size = state.committed_size.max(size);
            if state.mtime == mtime {
                state.mtime = None;
            }
        }
        let clean = state.is_clean();
        drop(state);
        self.settled.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        inode.changed.notify_waiters();
        if clean {
            self.remember_version(inode.ino);
        }
        outcome
    }

    /// Where data or a hole begins at or after `offset`, dirty data counting as data.
    pub fn seek(self: &Arc<Self>, handle: Handle, offset: u64, what: Seek) -> Answer<u64> {
        let file = match self.check_fenced().and_then(|()| self.handles.get(handle)) {
            Ok(file) => file,
            Err(e) => return Answer::err(e),
        };
        let client = self.clone();
        self.answer(async move {
            match what {
                Seek::Data => client.seek_data(&file.inode, offset).await,
                Seek::Hole => client.seek_hole(&file.inode, offset).await,
            }
        })
    }

    async fn seek_data(&self, inode: &Arc<Inode>, offset: u64) -> Result<u64, FsError> {
        let (size, dirty) = {
            let state = inode.state.lock();
            let first = offset / state.record_size;
            let dirty = state.dirty.range(first..).next().map(|(record, _)| *record);
            let patched = state.patches.range(first..).next().map(|(record, _)| *record);
            let first = [dirty, patched].into_iter().flatten().min();
            (state.size, first.map(|record| (record * state.record_size).max(offset)))
        };
        if offset >= size {
            return Err(FsError::NoData);
        }
        let committed = match self.mds.seek(inode.ino, offset, Seek::Data).wait().await {
            Ok(at) => Some(at),
            Err(FsError::NoData) => None,
            Err(e) => return Err(e),
        };
        let found = [dirty, committed].into_iter().flatten().min();
        found.filter(|at| *at < size).ok_or(FsError::NoData)
    }

    async fn seek_hole(&self, inode: &Arc<Inode>, offset: u64) -> Result<u64, FsError> {
        let mut at = offset;
        loop {
            let (size, dirty_until) = {
                let state = inode.state.lock();
                let record = at / state.record_size;
                let dirty = state.dirty.contains_key(&record) || state.patches.contains_key(&record);
                (state.size, dirty.then(|| (record + 1) * state.record_size))
            };
            if offset >= size {
                return Err(FsError::NoData);
            }
            if at >= size {
                return Ok(size);
            }
            if let Some(end) = dirty_until {
                at = end;
                continue;
            }
            match self.mds.seek(inode.ino, at, Seek::Hole).wait().await {
                Ok(hole) if hole > at => at = hole,
                Ok(_) | Err(FsError::NoData) => return Ok(at),
                Err(e) => return Err(e),
            }
        }
    }
}
