//! Changing attributes. A change of size goes by way of `truncate`.

use crate::acl::{self, Acl};
use crate::phys::{InodePhys, inode_flag};
use crate::tx::Tx;
use crate::{Mdt, Outcome, Stop, key};
use std::sync::Arc;
use tarn_base::posix::{Attr, FileKind, SetAttr, SetCtime, SetTime, StatFs, mode};
use tarn_base::{Answer, Ino, Timespec};

impl Mdt {
    pub fn setattr(self: &Arc<Self>, ino: Ino, set: SetAttr) -> Answer<Attr> {
        match set.size {
            Some(size) => self.truncate(ino, size, set),
            None => self.change(move |tx| {
                let mut inode = tx.inode(ino)?;
                set_attributes(tx, ino, &mut inode, &set)?;
                tx.put_inode(ino, &inode);
                Ok(inode.attr(ino))
            }),
        }
    }

    /// Size and use; asks the buckets where nobody did lately.
    pub fn statfs(self: &Arc<Self>) -> Answer<StatFs> {
        if !self.pool.space_is_old() {
            return Answer::ok(self.known_statfs());
        }
        let mdt = self.clone();
        Answer::pending(async move {
            mdt.pool.refresh_space().await;
            Ok(mdt.known_statfs())
        })
    }

    fn known_statfs(&self) -> StatFs {
        let space = self.pool.space();
        let usage = self.usage();
        let (total, free) = match self.properties.read().quota {
            Some(quota) => (quota, space.free.min(quota.saturating_sub(usage.live))),
            None => (space.free.saturating_add(usage.live), space.free),
        };
        StatFs { total, free, inodes: usage.inodes }
    }
}

/// Everything but the size.
pub(super) fn set_attributes(tx: &mut Tx, ino: Ino, inode: &mut InodePhys, set: &SetAttr) -> Outcome<()> {
    let time = |set: SetTime, now: Timespec| match set {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    let owner_changes = set.uid.is_some() || set.gid.is_some();
    if (owner_changes || set.kill_privileges) && inode.kind == FileKind::Regular {
        drop_privileges(inode);
    }
    if let Some(bits) = set.mode {
        inode.mode = bits & mode::PERMISSIONS;
        if inode.has(inode_flag::ACL) {
            chmod_acl(tx, ino, bits)?;
        }
    }
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    if let Some(atime) = set.atime {
        inode.atime = time(atime, tx.now);
    }
    if let Some(mtime) = set.mtime {
        inode.mtime = time(mtime, tx.now);
    }
    inode.ctime = match set.ctime {
        SetCtime::Leave => inode.ctime,
        SetCtime::To(ctime) => ctime,
        SetCtime::Now if *set == SetAttr::default() => inode.ctime,
        SetCtime::Now => tx.now,
    };
    Ok(())
}

/// What a write, a truncation or a change of owner takes from an executable.
fn drop_privileges(inode: &mut InodePhys) {
    inode.mode &= !mode::SETUID;
    if inode.mode & mode::GROUP_EXEC != 0 {
        inode.mode &= !mode::SETGID;
    }
}

fn chmod_acl(tx: &mut Tx, ino: Ino, bits: u32) -> Outcome<()> {
    let key = key::xattr(ino, acl::ACCESS);
    if let Some(row) = tx.get(&key)? {
        let mut acl = Acl::parse(&row).map_err(|_| Stop::damaged("access ACL does not decode".into()))?;
        acl.chmod(bits);
        tx.put(key, acl.to_bytes().into());
    }
    Ok(())
}
