//! Advisory locks and extended attributes: the metadata server keeps both, the client passes them on.

use crate::client::Client;
use std::sync::Arc;
use tarn_base::posix::XattrMode;
use tarn_base::{Answer, Ino};
use tarn_proto::{HeldLock, LockMode, LockOwner, LockRange};

impl Client {
    /// Takes a lock; see [`tarn_proto::Mds::lock`].
    pub fn lock(
        self: &Arc<Self>,
        ino: Ino,
        owner: LockOwner,
        range: LockRange,
        mode: LockMode,
        wait: bool,
    ) -> Answer<()> {
        self.mds.lock(ino, owner, range, mode, wait)
    }

    pub fn unlock(self: &Arc<Self>, ino: Ino, owner: LockOwner, range: LockRange) -> Answer<()> {
        self.mds.unlock(ino, owner, range)
    }

    /// The first lock that stands in the way of one asked for.
    pub fn lock_test(
        self: &Arc<Self>,
        ino: Ino,
        owner: LockOwner,
        range: LockRange,
        mode: LockMode,
    ) -> Answer<Option<HeldLock>> {
        self.mds.lock_test(ino, owner, range, mode)
    }

    pub fn getxattr(self: &Arc<Self>, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        self.mds.getxattr(ino, name)
    }

    pub fn setxattr(self: &Arc<Self>, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        self.mds.setxattr(ino, name, value, mode)
    }

    pub fn listxattr(self: &Arc<Self>, ino: Ino) -> Answer<Vec<Vec<u8>>> {
        self.mds.listxattr(ino)
    }

    pub fn removexattr(self: &Arc<Self>, ino: Ino, name: &[u8]) -> Answer<()> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        self.mds.removexattr(ino, name)
    }
}
