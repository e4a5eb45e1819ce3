//! Attributes: what the metadata server has committed, with what is dirty here laid over it.
//!
//! The overlay is always taken before the committed attributes are asked for. The other way round, a flush that
//! ends in between would take its part out of the overlay after the committed attributes were read without it,
//! and a file would seem to shrink. Where the inode is not known beforehand (lookup, readdir), a count of ended
//! flights tells whether that can have happened.

use crate::client::Client;
use crate::inode::Overlay;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_base::posix::{Attr, DirEntry, FileKind, NameEntry, SetAttr, SetCtime, SetTime};
use tarn_base::{Answer, FsError, Ino, Timespec};

impl Client {
    /// Attributes of an entry of a directory, with what is dirty here.
    pub fn lookup(self: &Arc<Self>, parent: Ino, name: &[u8]) -> Answer<Attr> {
        let before = self.settled.load(Ordering::Acquire);
        match self.mds.lookup(parent, name) {
            Answer::Ready(Ok(attr)) => {
                self.siblings.found(parent, &attr);
                self.merged(attr, before)
            }
            Answer::Ready(Err(e)) => Answer::err(self.noted(e)),
            Answer::Pending(future) => {
                let client = self.clone();
                Answer::pending(async move {
                    let attr = future.await.map_err(|e| client.noted(e))?;
                    client.siblings.found(parent, &attr);
                    client.merged(attr, before).wait().await
                })
            }
        }
    }

    /// Attributes with what is dirty here: visible size, times, data version.
    pub fn getattr(self: &Arc<Self>, ino: Ino) -> Answer<Attr> {
        let overlay = self.table.overlay(ino);
        overlaid(self.mds.getattr(ino), overlay)
    }

    /// Lays the overlay over attributes that were read when `before` flights had ended.
    pub(crate) fn merged(self: &Arc<Self>, mut attr: Attr, before: u64) -> Answer<Attr> {
        if attr.kind != FileKind::Regular {
            return Answer::ok(attr);
        }
        let overlay = self.table.overlay(attr.ino);
        if self.settled.load(Ordering::Acquire) != before {
            return self.getattr(attr.ino);
        }
        if let Some(overlay) = overlay {
            overlay.apply(&mut attr);
        }
        Answer::ok(attr)
    }

    /// Up to `max` entries after `cookie`, with attributes as [`Client::getattr`] gives them.
    pub fn readdir(self: &Arc<Self>, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<DirEntry>> {
        let before = self.settled.load(Ordering::Acquire);
        match self.mds.readdir(dir, cookie, max) {
            Answer::Ready(Ok(entries)) if self.table.is_empty() && self.unsettled(before) => {
                self.siblings.listed(dir, &entries);
                Answer::ok(entries)
            }
            Answer::Ready(Err(e)) => Answer::err(self.noted(e)),
            other => {
                let client = self.clone();
                self.answer(async move {
                    let mut entries = other.wait().await?;
                    client.siblings.listed(dir, &entries);
                    for entry in &mut entries {
                        match client.merged(entry.attr, before).wait().await {
                            Ok(attr) => entry.attr = attr,
                            // Removed meanwhile: a listing may still show it.
                            Err(FsError::NotFound | FsError::Stale) => {}
                            Err(e) => return Err(e),
                        }
                    }
                    Ok(entries)
                })
            }
        }
    }

    /// The same names without attributes.
    pub fn names(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<NameEntry>> {
        match self.mds.names(dir, cookie, max) {
            Answer::Ready(Err(e)) => Answer::err(self.noted(e)),
            other => other,
        }
    }

    fn unsettled(&self, before: u64) -> bool {
        self.settled.load(Ordering::Acquire) == before
    }

    /// Sets attributes; a size is a truncation or an extension.
    pub fn setattr(
        self: &Arc<Self>,
        _cred: tarn_base::posix::Cred,
        ino: Ino,
        set: SetAttr,
        handle: Option<crate::Handle>,
    ) -> Answer<Attr> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        if let Some(size) = set.size {
            // Through a handle it works on a file without names as well.
            let ino = handle.and_then(|h| self.handles.get(h).ok()).map_or(ino, |file| file.inode.ino);
            let client = self.clone();
            return self.answer_to_the_end(async move { client.set_size(ino, set, size).await });
        }
        let Some(pinned) = self.table.pin_known(ino) else {
            return self.mds.setattr(ino, set);
        };
        let client = self.clone();
        self.answer_to_the_end(async move { client.set_known(&pinned, set).await })
    }

    /// Sets attributes but the size of a file that has an overlay: what was set must not be overlaid, nor be
    /// overwritten by a commit under way.
    async fn set_known(
        self: &Arc<Self>,
        inode: &Arc<crate::inode::Inode>,
        set: SetAttr,
    ) -> Result<Attr, FsError> {
        let mut old_mtime = None;
        loop {
            let changed = inode.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = inode.state.lock();
                if set.mtime.is_none() || state.committing == 0 {
                    if set.mtime.is_some() {
                        old_mtime = state.mtime.take();
                    }
                    if set.atime.is_some() {
                        state.atime = None;
                    }
                    break;
                }
            }
            changed.await;
        }
        let overlay = inode.overlay();
        let answer = overlaid(self.mds.setattr(inode.ino, set), overlay).wait().await;
        let mut state = inode.state.lock();
        match &answer {
            Ok(attr) => {
                state.seen_atime = attr.atime;
                state.seen_mtime = attr.mtime;
            }
            // Nothing was set: what waits still waits.
            Err(_) => state.mtime = state.mtime.or(old_mtime),
        }
        answer
    }

    /// Moves the access time of a file that is read, in memory alone.
    pub(crate) fn touch(&self, inode: &crate::inode::Inode) {
        let info = self.mds.info();
        if !info.atime || info.read_only {
            return;
        }
        let now = self.options.clock.now();
        let mut state = inode.state.lock();
        let seen = state.atime.unwrap_or(state.seen_atime);
        let modified = state.mtime.unwrap_or(state.seen_mtime);
        if !info.relatime || seen <= modified || now.sec - seen.sec >= DAY {
            state.atime = Some(now);
        }
    }

    /// Tells the metadata server an access time that waits here.
    pub(crate) fn flush_atime(self: &Arc<Self>, inode: &Arc<crate::inode::Inode>) {
        let Some(atime) = inode.state.lock().atime else { return };
        let client = self.clone();
        let inode = inode.clone();
        let sent = self.answer(async move { client.send_atime(&inode, atime).await });
        self.detach(sent);
    }

    pub(crate) async fn send_atime(
        &self,
        inode: &Arc<crate::inode::Inode>,
        atime: Timespec,
    ) -> Result<(), FsError> {
        // Reading a file is no change of it.
        let set = SetAttr { atime: Some(SetTime::To(atime)), ctime: SetCtime::Leave, ..SetAttr::default() };
        self.mds.setattr(inode.ino, set).wait().await?;
        let mut state = inode.state.lock();
        state.seen_atime = state.seen_atime.max(atime);
        if state.atime == Some(atime) {
            state.atime = None;
        }
        Ok(())
    }

    /// The file is clean: the kernel's cache of it holds what is committed now.
    pub(crate) fn remember_version(self: &Arc<Self>, ino: Ino) {
        match self.mds.getattr(ino) {
            Answer::Ready(Ok(attr)) => self.versions.insert(ino, attr.data_version),
            Answer::Ready(Err(_)) => {}
            Answer::Pending(future) => {
                let client = self.clone();
                self.options.runtime.spawn(async move {
                    if let Ok(attr) = future.await {
                        client.versions.insert(ino, attr.data_version);
                    }
                });
            }
        }
    }
}

/// Seconds after which a relative access time moves in any case.
const DAY: i64 = 24 * 60 * 60;

fn overlaid(answer: Answer<Attr>, overlay: Option<Overlay>) -> Answer<Attr> {
    match overlay {
        None => answer,
        Some(overlay) => answer.map(move |mut attr| {
            overlay.apply(&mut attr);
            attr
        }),
    }
}
