//! Making nodes and links.

use super::lookup::directory;
use crate::acl::{self, Acl};
use crate::phys::{InodePhys, Value, inode_flag};
use crate::tx::{Effect, Tx};
use crate::{Mdt, Outcome, Stop, key, names};
use std::sync::Arc;
use tarn_base::posix::{Attr, Cred, FileKind, LINK_MAX, NewNode, SYMLINK_MAX, mode};
use tarn_base::{Answer, FsError, Ino};

impl Mdt {
    pub fn create(self: &Arc<Self>, cred: Cred, parent: Ino, name: &[u8], node: NewNode) -> Answer<Attr> {
        if let Err(error) = names::check(name) {
            return Answer::err(error);
        }
        if node.target.len() > SYMLINK_MAX {
            return Answer::err(FsError::NameTooLong);
        }
        let (name, hashing, shift) = (name.to_vec(), self.hashing, self.record_shift());
        self.change(move |tx| {
            let mut dir = directory(tx, parent)?;
            let place = names::place(tx, hashing, parent, &name)?;
            if place.entry().is_some() {
                return Err(FsError::Exists.into());
            }
            let (ino, mut inode) = new_inode(tx, cred, parent, &dir, &node, shift)?;
            if node.kind == FileKind::Directory {
                if dir.nlink >= LINK_MAX {
                    return Err(FsError::TooManyLinks.into());
                }
                inode.nlink = 2;
                inode.parent = parent;
                tx.made_directory = tx.again.is_none().then_some(ino);
                dir.nlink += 1;
            }
            tx.put_inode(ino, &inode);
            place.add(tx, ino, node.kind)?;
            entry_added(tx, parent, dir);
            Ok(inode.attr(ino))
        })
    }

    /// A regular file without a name, open; it goes when it is closed unless [`Mdt::link`] names it.
    pub fn create_unnamed(self: &Arc<Self>, cred: Cred, parent: Ino, mode: u32) -> Answer<Attr> {
        let shift = self.record_shift();
        let node = NewNode { kind: FileKind::Regular, mode, umask: 0, rdev: 0, target: Vec::new() };
        let mdt = self.clone();
        let made = self.change(move |tx| {
            let dir = directory(tx, parent)?;
            let (ino, mut inode) = new_inode(tx, cred, parent, &dir, &node, shift)?;
            inode.nlink = 0;
            tx.put_inode(ino, &inode);
            tx.put(key::orphan(ino), Value::default());
            Ok(inode.attr(ino))
        });
        made.map(move |attr| {
            mdt.hold(attr.ino, true);
            attr
        })
    }

    pub fn link(self: &Arc<Self>, ino: Ino, parent: Ino, name: &[u8]) -> Answer<Attr> {
        if let Err(error) = names::check(name) {
            return Answer::err(error);
        }
        let (name, hashing) = (name.to_vec(), self.hashing);
        self.change(move |tx| {
            let dir = directory(tx, parent)?;
            let place = names::place(tx, hashing, parent, &name)?;
            if place.entry().is_some() {
                return Err(FsError::Exists.into());
            }
            let mut inode = tx.inode(ino)?;
            if inode.kind == FileKind::Directory {
                return Err(FsError::NotPermitted.into());
            }
            if inode.has(inode_flag::REAPING) {
                return Err(FsError::NotFound.into());
            }
            if inode.nlink >= LINK_MAX {
                return Err(FsError::TooManyLinks.into());
            }
            if inode.nlink == 0 {
                tx.delete(key::orphan(ino));
                tx.effects.push(Effect::Named(ino));
            }
            inode.nlink += 1;
            inode.ctime = tx.now;
            tx.put_inode(ino, &inode);
            place.add(tx, ino, inode.kind)?;
            entry_added(tx, parent, dir);
            Ok(inode.attr(ino))
        })
    }

    fn record_shift(&self) -> u8 {
        self.properties.read().record_size.trailing_zeros() as u8
    }
}

/// The directory has one entry more.
pub(super) fn entry_added(tx: &mut Tx, ino: Ino, mut dir: InodePhys) {
    dir.size += 1;
    dir.mtime = tx.now;
    dir.ctime = tx.now;
    tx.put_inode(ino, &dir);
}

/// A new inode with what it inherits from its directory: group and setgid, ACLs in place of the umask.
fn new_inode(
    tx: &mut Tx,
    cred: Cred,
    parent: Ino,
    dir: &InodePhys,
    node: &NewNode,
    record_shift: u8,
) -> Outcome<(Ino, InodePhys)> {
    let inherited = if dir.has(inode_flag::DEFAULT_ACL) && node.kind != FileKind::Symlink {
        tx.get(&key::xattr(parent, acl::DEFAULT))?
    } else {
        None
    };
    let ino = tx.new_ino()?;
    let mut bits = node.mode & mode::PERMISSIONS;
    let mut inode = InodePhys {
        kind: node.kind,
        mode: 0,
        nlink: 1,
        uid: cred.uid,
        gid: cred.gid,
        rdev: node.rdev,
        size: node.target.len() as u64,
        allocated: 0,
        atime: tx.now,
        mtime: tx.now,
        ctime: tx.now,
        crtime: tx.now,
        record_shift,
        data_version: 1,
        parent: Ino(0),
        flags: 0,
        xattrs: 0,
        target: node.target.clone(),
        project: 0,
    };
    match inherited {
        Some(default) => bits = inherit(tx, ino, &mut inode, &default, bits)?,
        None if node.kind != FileKind::Symlink => bits &= !node.umask,
        None => {}
    }
    if dir.mode & mode::SETGID != 0 {
        inode.gid = dir.gid;
        if node.kind == FileKind::Directory {
            bits |= mode::SETGID;
        }
    }
    inode.mode = bits;
    Ok((ino, inode))
}

fn inherit(tx: &mut Tx, ino: Ino, inode: &mut InodePhys, default: &Value, bits: u32) -> Outcome<u32> {
    let acl = Acl::parse(default).map_err(|_| Stop::damaged("default ACL does not decode".into()))?;
    let (access, permissions) = acl.inherit(bits & 0o777);
    if !access.is_just_mode() {
        tx.put(key::xattr(ino, acl::ACCESS), access.to_bytes().into());
        inode.xattrs += 1;
        inode.set(inode_flag::ACL, true);
    }
    if inode.kind == FileKind::Directory {
        tx.put(key::xattr(ino, acl::DEFAULT), default.clone());
        inode.xattrs += 1;
        inode.set(inode_flag::DEFAULT_ACL, true);
    }
    Ok(bits & !0o777 | permissions)
}
