//! The metadata service: one dataset's metadata target and its lock engine, as `proto` wants them called.

use std::sync::Arc;
use tarn_base::block::Sealed;
use tarn_base::posix::{Attr, Cred, DirEntry, NameEntry, NewNode, RenameMode, SetAttr, StatFs, XattrMode};
use tarn_base::{Answer, FsError, Grant, Ino, VdevId};
use tarn_ldlm::{self as ldlm, LockError, Locked, RangeLocks};
use tarn_mdt::{FileChange, Mdt, Share};
use tarn_proto::{
    DatasetInfo, FileCommit, FileMap, HeldLock, LockKind, LockMode, LockOwner, LockRange, Mds, Seek,
    ShareRange,
};

/// Serves one open dataset to clients of this process: a direct call, nothing encoded.
pub struct LocalMds {
    mdt: Arc<Mdt>,
    locks: RangeLocks,
}

impl LocalMds {
    pub fn new(mdt: Arc<Mdt>) -> Arc<LocalMds> {
        Arc::new(LocalMds { mdt, locks: RangeLocks::new() })
    }
}

fn owner(owner: LockOwner) -> ldlm::Owner {
    let kind = match owner.kind {
        LockKind::Posix => ldlm::Kind::Posix,
        LockKind::Bsd => ldlm::Kind::Bsd,
    };
    ldlm::Owner { kind, token: owner.token, pid: owner.pid }
}

fn mode(mode: LockMode) -> ldlm::Mode {
    match mode {
        LockMode::Shared => ldlm::Mode::Shared,
        LockMode::Exclusive => ldlm::Mode::Exclusive,
    }
}

fn range(range: LockRange) -> ldlm::Range {
    ldlm::Range { start: range.start, end: range.end }
}

fn held(lock: ldlm::Held) -> HeldLock {
    HeldLock {
        range: LockRange { start: lock.range.start, end: lock.range.end },
        mode: match lock.mode {
            ldlm::Mode::Shared => LockMode::Shared,
            ldlm::Mode::Exclusive => LockMode::Exclusive,
        },
        pid: lock.owner.pid,
    }
}

fn changes(files: Vec<FileCommit>) -> Vec<FileChange> {
    let change = |file: FileCommit| FileChange {
        ino: file.ino,
        records: file.records.into_iter().map(|write| (write.record, write.ptr)).collect(),
        size_at_least: file.size_at_least,
        mtime: file.mtime,
    };
    files.into_iter().map(change).collect()
}

impl Mds for LocalMds {
    fn info(&self) -> DatasetInfo {
        let properties = self.mdt.properties();
        DatasetInfo {
            id: self.mdt.dataset(),
            compression: properties.compression,
            checksum: properties.checksum,
            read_only: properties.read_only,
            atime: properties.atime,
            relatime: properties.relatime,
        }
    }

    fn statfs(&self) -> Answer<StatFs> {
        self.mdt.statfs()
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Attr> {
        self.mdt.lookup(parent, name)
    }

    fn create(&self, cred: Cred, parent: Ino, name: &[u8], node: NewNode) -> Answer<Attr> {
        self.mdt.create(cred, parent, name, node)
    }

    fn create_unnamed(&self, cred: Cred, parent: Ino, mode: u32) -> Answer<Attr> {
        self.mdt.create_unnamed(cred, parent, mode)
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Answer<Attr> {
        self.mdt.link(ino, parent, name)
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        self.mdt.unlink(parent, name)
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        self.mdt.rmdir(parent, name)
    }

    fn rename(
        &self,
        from: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Answer<Option<Ino>> {
        self.mdt.rename(from, name, to, new_name, mode)
    }

    fn readlink(&self, ino: Ino) -> Answer<Vec<u8>> {
        self.mdt.readlink(ino)
    }

    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<DirEntry>> {
        self.mdt.readdir(dir, cookie, max)
    }

    fn names(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<NameEntry>> {
        self.mdt.names(dir, cookie, max)
    }

    fn parent(&self, dir: Ino) -> Answer<Ino> {
        self.mdt.parent(dir)
    }

    fn getattr(&self, ino: Ino) -> Answer<Attr> {
        self.mdt.getattr(ino)
    }

    fn setattr(&self, ino: Ino, set: SetAttr) -> Answer<Attr> {
        self.mdt.setattr(ino, set)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        self.mdt.getxattr(ino, name)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        self.mdt.setxattr(ino, name, value, mode)
    }

    fn listxattr(&self, ino: Ino) -> Answer<Vec<Vec<u8>>> {
        self.mdt.listxattr(ino)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Answer<()> {
        self.mdt.removexattr(ino, name)
    }

    fn open(&self, ino: Ino) -> Answer<Attr> {
        self.mdt.open_inode(ino)
    }

    fn close(&self, ino: Ino) {
        self.mdt.close_inode(ino);
    }

    fn map(&self, ino: Ino, first: u64, count: u32) -> Answer<FileMap> {
        self.mdt.map(ino, first, count).map(|ptrs| FileMap { ptrs })
    }

    fn commit(&self, files: Vec<FileCommit>) -> Answer<()> {
        self.mdt.commit(changes(files), None)
    }

    fn carries(&self) -> u64 {
        self.mdt.carries()
    }

    fn commit_carried(&self, files: Vec<FileCommit>, segment: Sealed) -> Answer<()> {
        self.mdt.commit(changes(files), Some(segment))
    }

    fn punch(&self, ino: Ino, first: u64, count: u64) -> Answer<()> {
        self.mdt.punch(ino, first, count)
    }

    fn share(&self, share: ShareRange) -> Answer<()> {
        self.mdt.share(Share {
            from: share.from,
            from_record: share.from_record,
            to: share.to,
            to_record: share.to_record,
            count: share.count,
            size_at_least: share.size_at_least,
        })
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Answer<u64> {
        match what {
            Seek::Data => self.mdt.seek_data(ino, offset),
            Seek::Hole => self.mdt.seek_hole(ino, offset),
        }
    }

    fn grants(&self, vdevs: Vec<VdevId>) -> Answer<Vec<Grant>> {
        self.mdt.grants(vdevs)
    }

    fn sync(&self) -> Answer<()> {
        let mdt = self.mdt.clone();
        Answer::pending(async move { mdt.sync().await })
    }

    fn lock(&self, ino: Ino, who: LockOwner, at: LockRange, how: LockMode, wait: bool) -> Answer<()> {
        match self.locks.lock(ino.0, owner(who), range(at), mode(how), wait) {
            Ok(Locked::Granted) => Answer::ok(()),
            Ok(Locked::Wait(granted)) => Answer::pending(async move {
                granted.await;
                Ok(())
            }),
            Err(LockError::WouldBlock) => Answer::err(FsError::WouldBlock),
            Err(LockError::Deadlock) => Answer::err(FsError::Deadlock),
        }
    }

    fn unlock(&self, ino: Ino, who: LockOwner, at: LockRange) -> Answer<()> {
        self.locks.unlock(ino.0, owner(who), range(at));
        Answer::ok(())
    }

    fn lock_test(&self, ino: Ino, who: LockOwner, at: LockRange, how: LockMode) -> Answer<Option<HeldLock>> {
        Answer::ok(self.locks.test(ino.0, owner(who), range(at), mode(how)).map(held))
    }
}
