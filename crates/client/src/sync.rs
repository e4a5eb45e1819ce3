//! Durability: fsync, syncfs, and the end of a mount.

use crate::Handle;
use crate::client::Client;
use crate::inode::Inode;
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::point::{self, Point};
use tarn_base::{Answer, FsError, Ino};

/// How often a shutdown tells how far it is.
const PROGRESS: Duration = Duration::from_millis(100);
/// How often a shutdown looks whether the last segments are written.
const LANDING: Duration = Duration::from_millis(10);

impl Client {
    /// Answers when all that was written to the file before the call, and the names it has, are durable.
    /// `datasync` makes no difference: size and pointers are what a reader needs, and the rest is in the same
    /// transaction. For directories too.
    pub fn fsync(self: &Arc<Self>, ino: Ino, _datasync: bool) -> Answer<()> {
        if let Err(e) = self.check_fenced() {
            return Answer::err(e);
        }
        let Some(pinned) = self.table.pin_known(ino) else { return self.mds.sync() };
        if let Some(lost) = pinned.state.lock().lost.take() {
            return Answer::err(lost);
        }
        if pinned.is_clean() {
            return self.mds.sync();
        }
        let client = self.clone();
        self.answer(async move {
            // Who is told now need not be told once more.
            let told = |_: &FsError| drop(pinned.state.lock().lost.take());
            client.flush_inode(&pinned).await.inspect_err(told)?;
            point::pass(Point::FsyncCommitted);
            client.mds.sync().wait().await?;
            point::pass(Point::FsyncDurable);
            Ok(())
        })
    }

    /// As [`Client::fsync`]; a write error is then not reported once more through the same handle.
    pub fn fsync_handle(self: &Arc<Self>, handle: Handle, datasync: bool) -> Answer<()> {
        let file = match self.handles.get(handle) {
            Ok(file) => file,
            Err(e) => return Answer::err(e),
        };
        let answer = self.fsync(file.inode.ino, datasync);
        self.answer(async move {
            let outcome = answer.wait().await;
            if outcome.is_err() {
                let _ = file.unseen_error();
            }
            outcome
        })
    }

    /// Answers when all that was written to the file before the call is committed (visible to whoever asks the
    /// metadata server), durable or not.
    pub fn flush_data(self: &Arc<Self>, ino: Ino) -> Answer<()> {
        let Some(pinned) = self.table.pin_known(ino) else { return Answer::ok(()) };
        let client = self.clone();
        self.answer(async move { client.flush_inode(&pinned).await })
    }

    /// Answers when all that was written or changed before the call is durable.
    pub fn sync_all(self: &Arc<Self>) -> Answer<()> {
        if let Err(e) = self.check_fenced() {
            return Answer::err(e);
        }
        let dirty = self.table.unclean();
        let client = self.clone();
        self.answer(async move {
            let flushed = join_all(dirty.iter().map(|inode| client.flush_inode(inode))).await;
            // What could be flushed shall be durable even if something could not.
            let synced = client.mds.sync().wait().await.map_err(|e| client.noted(e));
            flushed.into_iter().collect::<Result<(), FsError>>()?;
            synced
        })
    }

    /// Waits until every change of the file up to now is committed, or its flush fails.
    pub(crate) async fn flush_inode(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<(), FsError> {
        let (upto, size, failures) = {
            let state = inode.state.lock();
            if state.is_clean() {
                return Ok(());
            }
            (state.seq, state.size, state.failures)
        };
        self.settle(inode, 0..u64::MAX, true).await?;
        loop {
            let changed = inode.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.check_fenced()?;
            let ask = {
                let mut state = inode.state.lock();
                if !state.dirty_since(upto) {
                    break;
                }
                if state.failures > failures {
                    let unknown = || FsError::Io("a flush failed".into());
                    return Err(state.error.clone().unwrap_or_else(unknown));
                }
                let ask = !state.urgent && !state.idle.is_empty();
                state.urgent |= ask;
                ask
            };
            if ask {
                self.queue_urgent(inode);
            }
            changed.await;
        }
        // All records are there; a size that ends in a hole, or a time alone, may still wait.
        let _order = inode.order.read().await;
        let rest = {
            let state = inode.state.lock();
            let size = size.min(state.size);
            let alone = state.has_no_data() && state.mtime.is_some();
            if size > state.committed_size || alone { Some(size) } else { None }
        };
        match rest {
            Some(size) => self.commit_meta(inode, size).await,
            None => Ok(()),
        }
    }

    /// Commits dirty records below the record `end` of a file that the caller holds exclusively.
    pub(crate) async fn flush_exclusive(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        end: u64,
    ) -> Result<(), FsError> {
        let flights = self.gather_exclusive(inode, end);
        let outcomes = join_all(flights.into_iter().map(|flight| self.fly(flight))).await;
        outcomes.into_iter().try_for_each(|outcome| outcome.map(drop))
    }

    /// Writes out everything, makes it durable and stops the background work. `progress` is told the dirty
    /// bytes that are left, ten times a second. On an error nothing is dropped: the client goes on as before and
    /// shutdown may be tried again.
    pub async fn shutdown(self: &Arc<Self>, progress: impl Fn(u64) + Send) -> Result<(), FsError> {
        for inode in self.table.all() {
            let atime = inode.state.lock().atime;
            if let Some(atime) = atime {
                // Of no consequence for data: an access time may be lost.
                let _ = self.send_atime(&inode, atime).await;
            }
        }
        loop {
            let client = self.clone();
            let mut all = self.options.runtime.spawn(async move { client.sync_all().wait().await });
            let outcome = loop {
                match tokio::time::timeout(PROGRESS, &mut all).await {
                    Ok(joined) => break joined.unwrap_or_else(|e| Err(FsError::Io(format!("sync: {e}")))),
                    Err(_) => progress(self.dirty_bytes()),
                }
            };
            progress(self.dirty_bytes());
            outcome?;
            // What was dropped meanwhile (its file was removed, say) may still be on its way to a bucket. It must not
            // arrive there when all that was written is thought to be known.
            while self.flush.flights() > 0 {
                tokio::time::sleep(LANDING).await;
            }
            // Writers that still run may have added something meanwhile.
            if self.table.unclean().is_empty() {
                self.stop_flusher();
                self.forget_all();
                return Ok(());
            }
        }
    }
}
