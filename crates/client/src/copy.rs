//! Copying a range between files of the dataset: whole records are shared, the ends are copied.

use crate::Handle;
use crate::client::Client;
use crate::inode::Inode;
use crate::write::Target;
use std::sync::Arc;
use tarn_base::posix::FILE_SIZE_MAX;
use tarn_base::{Answer, FsError};
use tarn_pool::Caching;
use tarn_proto::ShareRange;

/// Bytes copied at a time where records cannot be shared.
const CHUNK: u64 = 1 << 20;

/// A copy of `len` bytes.
#[derive(Clone, Copy)]
struct Range {
    from: u64,
    to: u64,
    len: u64,
}

impl Client {
    /// Copies up to `len` bytes between files, or within one where the ranges do not touch; fewer at the
    /// source's end. Answers the bytes copied.
    pub fn copy_range(
        self: &Arc<Self>,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Answer<u64> {
        let files = self.check_writable().and_then(|()| Ok((self.handles.get(from)?, self.handles.get(to)?)));
        let (from, to) = match files {
            Ok(files) => files,
            Err(e) => return Answer::err(e),
        };
        if !from.inode.state.lock().is_regular() || !to.inode.state.lock().is_regular() {
            return Answer::err(FsError::invalid("only regular files can be copied"));
        }
        let size = from.inode.state.lock().size;
        let len = len.min(size.saturating_sub(from_offset));
        if len == 0 {
            return Answer::ok(0);
        }
        if to_offset.checked_add(len).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Answer::err(FsError::FileTooLarge);
        }
        let apart = from_offset + len <= to_offset || to_offset + len <= from_offset;
        if from.inode.ino == to.inode.ino && !apart {
            return Answer::err(FsError::invalid("the ranges overlap"));
        }
        let client = self.clone();
        let range = Range { from: from_offset, to: to_offset, len };
        self.answer_to_the_end(async move {
            client.touch(&from.inode);
            let mut done = 0;
            match client.copy(&from.inode, &to.inode, range, &mut done).await {
                Err(e) if done == 0 => Err(e),
                _ => Ok(done),
            }
        })
    }

    /// Counts in `done` what was copied: less than the range where the source is cut meanwhile, or on an error.
    async fn copy(
        self: &Arc<Self>,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        range: Range,
        done: &mut u64,
    ) -> Result<(), FsError> {
        let record_size = from.state.lock().record_size;
        let alike = record_size == to.state.lock().record_size;
        let head = (record_size - range.from % record_size) % record_size;
        let whole = range.len.saturating_sub(head) / record_size;
        if !alike || range.from % record_size != range.to % record_size || whole == 0 {
            return self.copy_bytes(from, to, range, done).await;
        }
        self.copy_bytes(from, to, Range { len: head, ..range }, done).await?;
        if *done < head {
            return Ok(());
        }
        let middle = Range { from: range.from + head, to: range.to + head, len: whole * record_size };
        *done += self.share(from, to, middle, record_size).await?;
        if *done < head + middle.len {
            return Ok(());
        }
        let tail = Range { from: range.from + *done, to: range.to + *done, len: range.len - *done };
        self.copy_bytes(from, to, tail, done).await
    }

    /// Adds to `done` what the source had.
    async fn copy_bytes(
        self: &Arc<Self>,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        range: Range,
        done: &mut u64,
    ) -> Result<(), FsError> {
        let mut at = 0;
        while at < range.len {
            let len = CHUNK.min(range.len - at);
            self.admit(len)?;
            let read = self.read_waiting(from, range.from + at, len, Caching::Keep).await?.to_vec();
            if read.is_empty() {
                break;
            }
            self.write_waiting(to, Target::At(range.to + at), &read).await?;
            at += read.len() as u64;
            *done += read.len() as u64;
            if (read.len() as u64) < len {
                break;
            }
        }
        Ok(())
    }

    /// Lets `to` point at the whole records of `from`. Gives the bytes of those that it had.
    async fn share(
        self: &Arc<Self>,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        range: Range,
        record_size: u64,
    ) -> Result<u64, FsError> {
        // Most of what is dirty goes before the files are held.
        self.flush_inode(from).await?;
        let settled = self.settle(to, 0..u64::MAX, true).await;
        let (low, high) = if from.ino < to.ino { (from, to) } else { (to, from) };
        let _low = self.exclusive_after(settled.clone(), low, u64::MAX).await?;
        let _high = match from.ino == to.ino {
            true => None,
            false => Some(self.exclusive_after(settled, high, u64::MAX).await?),
        };
        // It may have been cut meanwhile.
        let there = from.state.lock().size.saturating_sub(range.from);
        let count = range.len.min(there) / record_size;
        if count == 0 {
            return Ok(0);
        }
        let (source, target) = (range.from / record_size, range.to / record_size);
        self.flush_exclusive(from, source + count).await?;
        // The target's size may be committed up to the shared range: what is dirty in front of it goes first.
        self.flush_exclusive(to, target).await?;
        let end = range.to + count * record_size;
        let share = ShareRange {
            from: from.ino,
            from_record: source,
            to: to.ino,
            to_record: target,
            count,
            size_at_least: end,
        };
        let shared = self.mds.share(share).wait().await.map_err(|e| self.noted(e));
        // What failed may have come part of the way, and the size with it.
        let end = match &shared {
            Ok(()) => end,
            Err(_) => self.mds.getattr(to.ino).wait().await.map_or(0, |attr| attr.size),
        };
        let dropped = {
            let mut state = to.state.lock();
            state.next_seq();
            state.size = state.size.max(end);
            state.committed_size = state.committed_size.max(end);
            state.mtime = Some(self.options.clock.now());
            if shared.is_ok() { state.drop_dirty(target, target + count) } else { 0 }
        };
        self.less_dirty(dropped);
        shared?;
        self.commit_rest(to).await?;
        Ok(count * record_size)
    }
}
