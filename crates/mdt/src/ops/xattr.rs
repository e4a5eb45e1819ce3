//! Extended attributes, ACLs among them.

use crate::acl::{self, Acl};
use crate::key::{self, table};
use crate::phys::{InodePhys, Value, inode_flag};
use crate::tx::Tx;
use crate::{Mdt, Outcome, Stop};
use std::sync::Arc;
use tarn_base::posix::{FileKind, XATTR_NAME_MAX, XATTR_SIZE_MAX, XattrMode};
use tarn_base::{Answer, FsError, Ino};

impl Mdt {
    pub fn getxattr(self: &Arc<Self>, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        let name = name.to_vec();
        self.look(move |tx| {
            if tx.inode(ino)?.xattrs == 0 {
                return Err(FsError::NoAttribute.into());
            }
            let row = tx.get(&key::xattr(ino, &name))?;
            row.map(|value| value.to_vec()).ok_or(Stop::Fail(FsError::NoAttribute))
        })
    }

    pub fn setxattr(self: &Arc<Self>, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        if name.is_empty() || name.len() > XATTR_NAME_MAX {
            return Answer::err(FsError::Range);
        }
        if value.len() > XATTR_SIZE_MAX {
            return Answer::err(FsError::TooBig);
        }
        let (name, value) = (name.to_vec(), Value::from(value));
        self.change(move |tx| set(tx, ino, &name, &value, mode))
    }

    pub fn listxattr(self: &Arc<Self>, ino: Ino) -> Answer<Vec<Vec<u8>>> {
        let first = self.look(move |tx| Ok(tx.inode(ino)?.xattrs));
        if let Answer::Ready(Ok(0)) = first {
            return Answer::ok(Vec::new());
        }
        let mdt = self.clone();
        self.begun(async move {
            let count = first.wait().await?;
            let (start, end) = key::of_inode(table::XATTR, ino);
            let rows = mdt.scan(&start, &end, count as usize + 1).await?;
            Ok(rows.into_iter().map(|(key, _)| key[9..].to_vec()).collect())
        })
    }

    pub fn removexattr(self: &Arc<Self>, ino: Ino, name: &[u8]) -> Answer<()> {
        let name = name.to_vec();
        self.change(move |tx| {
            let mut inode = tx.inode(ino)?;
            inode.ctime = tx.now;
            let key = key::xattr(ino, &name);
            if inode.xattrs == 0 || tx.get(&key)?.is_none() {
                return Err(FsError::NoAttribute.into());
            }
            remove(tx, ino, &mut inode, &name);
            tx.put_inode(ino, &inode);
            Ok(())
        })
    }
}

fn set(tx: &mut Tx, ino: Ino, name: &[u8], value: &Value, mode: XattrMode) -> Outcome<()> {
    let mut inode = tx.inode(ino)?;
    if inode.has(inode_flag::REAPING) {
        return Err(FsError::Stale.into());
    }
    let key = key::xattr(ino, name);
    let exists = inode.xattrs > 0 && tx.get(&key)?.is_some();
    match (mode, exists) {
        (XattrMode::Create, true) => return Err(FsError::Exists.into()),
        (XattrMode::Replace, false) => return Err(FsError::NoAttribute.into()),
        _ => {}
    }
    inode.ctime = tx.now;
    if name == acl::ACCESS {
        let acl = Acl::parse(value)?;
        inode.mode = inode.mode & !0o777 | acl.mode();
        if acl.is_just_mode() {
            if exists {
                remove(tx, ino, &mut inode, name);
            }
            tx.put_inode(ino, &inode);
            return Ok(());
        }
        inode.set(inode_flag::ACL, true);
    } else if name == acl::DEFAULT {
        if inode.kind != FileKind::Directory {
            return Err(FsError::AccessDenied.into());
        }
        Acl::parse(value)?;
        inode.set(inode_flag::DEFAULT_ACL, true);
    }
    if !exists {
        inode.xattrs += 1;
    }
    tx.put(key, value.clone());
    tx.put_inode(ino, &inode);
    Ok(())
}

fn remove(tx: &mut Tx, ino: Ino, inode: &mut InodePhys, name: &[u8]) {
    tx.delete(key::xattr(ino, name));
    inode.xattrs = inode.xattrs.saturating_sub(1);
    if name == acl::ACCESS {
        inode.set(inode_flag::ACL, false);
    } else if name == acl::DEFAULT {
        inode.set(inode_flag::DEFAULT_ACL, false);
    }
}
