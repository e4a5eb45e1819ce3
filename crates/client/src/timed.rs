//! A metadata server whose calls are its layer's work for the request that makes them, wherever it is: see
//! [`tarn_base::stopwatch`].

use std::sync::Arc;
use tarn_base::block::Sealed;
use tarn_base::posix::{Attr, Cred, DirEntry, NameEntry, NewNode, RenameMode, SetAttr, StatFs, XattrMode};
use tarn_base::stopwatch::{Layer, during};
use tarn_base::{Answer, Grant, Ino, VdevId};
use tarn_proto::{
    DatasetInfo, FileCommit, FileMap, HeldLock, LockMode, LockOwner, LockRange, Mds, Seek, ShareRange,
};

/// Hands every call on.
pub(crate) struct Timed(pub Arc<dyn Mds>);

fn timed<T: Send + 'static>(call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    during(Layer::Mdt, call)
}

impl Mds for Timed {
    fn info(&self) -> DatasetInfo {
        self.0.info()
    }

    fn statfs(&self) -> Answer<StatFs> {
        timed(|| self.0.statfs())
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Attr> {
        timed(|| self.0.lookup(parent, name))
    }

    fn create(&self, cred: Cred, parent: Ino, name: &[u8], node: NewNode) -> Answer<Attr> {
        timed(|| self.0.create(cred, parent, name, node))
    }

    fn create_unnamed(&self, cred: Cred, parent: Ino, mode: u32) -> Answer<Attr> {
        timed(|| self.0.create_unnamed(cred, parent, mode))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Answer<Attr> {
        timed(|| self.0.link(ino, parent, name))
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        timed(|| self.0.unlink(parent, name))
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        timed(|| self.0.rmdir(parent, name))
    }

    fn rename(
        &self,
        from: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Answer<Option<Ino>> {
        timed(|| self.0.rename(from, name, to, new_name, mode))
    }

    fn readlink(&self, ino: Ino) -> Answer<Vec<u8>> {
        timed(|| self.0.readlink(ino))
    }

    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<DirEntry>> {
        timed(|| self.0.readdir(dir, cookie, max))
    }

    fn names(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<NameEntry>> {
        timed(|| self.0.names(dir, cookie, max))
    }

    fn parent(&self, dir: Ino) -> Answer<Ino> {
        timed(|| self.0.parent(dir))
    }

    fn getattr(&self, ino: Ino) -> Answer<Attr> {
        timed(|| self.0.getattr(ino))
    }

    fn setattr(&self, ino: Ino, set: SetAttr) -> Answer<Attr> {
        timed(|| self.0.setattr(ino, set))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        timed(|| self.0.getxattr(ino, name))
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        timed(|| self.0.setxattr(ino, name, value, mode))
    }

    fn listxattr(&self, ino: Ino) -> Answer<Vec<Vec<u8>>> {
        timed(|| self.0.listxattr(ino))
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Answer<()> {
        timed(|| self.0.removexattr(ino, name))
    }

    fn open(&self, ino: Ino) -> Answer<Attr> {
        timed(|| self.0.open(ino))
    }

    fn close(&self, ino: Ino) {
        self.0.close(ino);
    }

    fn map(&self, ino: Ino, first: u64, count: u32) -> Answer<FileMap> {
        timed(|| self.0.map(ino, first, count))
    }

    fn commit(&self, files: Vec<FileCommit>) -> Answer<()> {
        timed(|| self.0.commit(files))
    }

    fn carries(&self) -> u64 {
        self.0.carries()
    }

    fn commit_carried(&self, files: Vec<FileCommit>, segment: Sealed) -> Answer<()> {
        timed(|| self.0.commit_carried(files, segment))
    }

    fn punch(&self, ino: Ino, first: u64, count: u64) -> Answer<()> {
        timed(|| self.0.punch(ino, first, count))
    }

    fn share(&self, range: ShareRange) -> Answer<()> {
        timed(|| self.0.share(range))
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Answer<u64> {
        timed(|| self.0.seek(ino, offset, what))
    }

    fn grants(&self, vdevs: Vec<VdevId>) -> Answer<Vec<Grant>> {
        timed(|| self.0.grants(vdevs))
    }

    fn sync(&self) -> Answer<()> {
        timed(|| self.0.sync())
    }

    fn lock(&self, ino: Ino, owner: LockOwner, range: LockRange, mode: LockMode, wait: bool) -> Answer<()> {
        timed(|| self.0.lock(ino, owner, range, mode, wait))
    }

    fn unlock(&self, ino: Ino, owner: LockOwner, range: LockRange) -> Answer<()> {
        timed(|| self.0.unlock(ino, owner, range))
    }

    fn lock_test(
        &self,
        ino: Ino,
        owner: LockOwner,
        range: LockRange,
        mode: LockMode,
    ) -> Answer<Option<HeldLock>> {
        timed(|| self.0.lock_test(ino, owner, range, mode))
    }
}
