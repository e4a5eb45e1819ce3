//! The namespace: the metadata server's business, but for what a change of names means for dirty data.

use crate::client::Client;
use crate::inode::Inode;
use crate::table::Pinned;
use std::sync::Arc;
use tarn_base::point::{self, Point};
use tarn_base::posix::{Attr, Cred, FileKind, NewNode, RenameMode};
use tarn_base::{Answer, Ino};

impl Client {
    /// Creates any kind of node.
    pub fn create(self: &Arc<Self>, cred: Cred, parent: Ino, name: &[u8], node: NewNode) -> Answer<Attr> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        self.mds.create(cred, parent, name, node)
    }

    /// Gives a file one more name; its dirty data goes first, so that the name never shows less.
    pub fn link(self: &Arc<Self>, ino: Ino, parent: Ino, name: &[u8]) -> Answer<Attr> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        let Some(pinned) = self.table.pin_known(ino) else {
            return self.mds.link(ino, parent, name);
        };
        let client = self.clone();
        let name = name.to_vec();
        self.answer_to_the_end(async move {
            client.flush_inode(&pinned).await?;
            client.mds.link(ino, parent, &name).wait().await?;
            pinned.state.lock().unlinked = false;
            client.getattr(ino).wait().await
        })
    }

    /// Removes a name; gives the inode that has lost its last one. Data of a file without names that nobody has open is not
    /// written any more.
    pub fn unlink(self: &Arc<Self>, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        self.forgotten_later(self.mds.unlink(parent, name))
    }

    /// Removes an empty directory, and answers as [`Client::unlink`] does.
    pub fn rmdir(self: &Arc<Self>, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        self.forgotten_later(self.mds.rmdir(parent, name))
    }

    /// Renames, and answers as [`Client::unlink`] does. Over an existing file, the renamed file's dirty data goes first:
    /// after a crash the name shows the old file or the whole new one.
    pub fn rename(
        self: &Arc<Self>,
        from: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Answer<Option<Ino>> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        if self.table.is_empty() {
            return self.forgotten_later(self.mds.rename(from, name, to, new_name, mode));
        }
        let client = self.clone();
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        self.answer_to_the_end(async move {
            if mode != RenameMode::NoReplace
                && client.mds.lookup(to, &new_name).wait().await.is_ok()
                && let Some(source) = client.known_entry(from, &name).await
            {
                client.flush_inode(&source).await?;
                point::pass(Point::RenameFlushed);
            }
            let gone = client.mds.rename(from, &name, to, &new_name, mode).wait().await?;
            point::pass(Point::RenameDone);
            Ok(client.lost_its_name(gone))
        })
    }

    pub fn readlink(self: &Arc<Self>, ino: Ino) -> Answer<Vec<u8>> {
        self.mds.readlink(ino)
    }

    /// The directory that holds this directory; the root's is itself.
    pub fn parent(self: &Arc<Self>, dir: Ino) -> Answer<Ino> {
        self.mds.parent(dir)
    }

    /// The file behind a name, if it is known here.
    async fn known_entry(&self, parent: Ino, name: &[u8]) -> Option<Pinned> {
        let attr = self.mds.lookup(parent, name).wait().await.ok()?;
        if attr.kind != FileKind::Regular { None } else { self.table.pin_known(attr.ino) }
    }

    fn forgotten_later(self: &Arc<Self>, answer: Answer<Option<Ino>>) -> Answer<Option<Ino>> {
        let client = self.clone();
        match answer {
            Answer::Ready(result) => Answer::Ready(result.map(|gone| client.lost_its_name(gone))),
            waits => self.answer_to_the_end(async move { Ok(client.lost_its_name(waits.wait().await?)) }),
        }
    }

    /// What has become of an inode that a change of names took the last name of, which is given. It stays until whoever uses this
    /// client forgets it: somebody may sit in a directory, or hold a file, without having it open here.
    fn lost_its_name(&self, gone: Option<Ino>) -> Option<Ino> {
        let ino = gone?;
        let known = self.table.pin_known(ino);
        if let Some(inode) = &known {
            let mut state = inode.state.lock();
            state.unlinked = true;
            state.opens += 1;
        }
        if self.options.told_of_forgetting {
            self.nameless.lock().insert(ino, known);
        } else {
            self.forgotten(ino, known);
        }
        gone
    }

    /// Whoever uses this client knows nothing of the inode any more.
    pub fn forget(&self, ino: Ino) {
        let held = self.nameless.lock().remove(&ino);
        if let Some(known) = held {
            self.forgotten(ino, known);
        }
    }

    /// Nobody uses this client any more.
    pub(crate) fn forget_all(&self) {
        let held = std::mem::take(&mut *self.nameless.lock());
        held.into_iter().for_each(|(ino, known)| self.forgotten(ino, known));
    }

    fn forgotten(&self, ino: Ino, known: Option<Pinned>) {
        if let Some(inode) = known {
            inode.state.lock().opens -= 1;
            self.drop_if_gone(&inode);
        }
        self.mds.close(ino);
    }

    /// Gives up the dirty data of a file that nobody can reach any more.
    pub(crate) fn drop_if_gone(&self, inode: &Arc<Inode>) {
        let dropped = {
            let mut state = inode.state.lock();
            if !state.unlinked || state.opens > 0 {
                return;
            }
            let dropped = state.drop_dirty(0, u64::MAX);
            state.size = state.committed_size;
            state.mtime = None;
            state.atime = None;
            dropped
        };
        self.less_dirty(dropped);
        inode.changed.notify_waiters();
        self.table.forget_if_clean(inode.ino);
    }
}
