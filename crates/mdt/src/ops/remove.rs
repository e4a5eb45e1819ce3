//! Removing names.

use super::lookup::directory;
use crate::phys::{InodePhys, Value};
use crate::tx::{Effect, Tx};
use crate::{Mdt, key, names};
use std::sync::Arc;
use tarn_base::posix::FileKind;
use tarn_base::{Answer, FsError, Ino};

impl Mdt {
    /// Removes a name that is not a directory's. An inode that has lost its last name is answered, and counts as
    /// open until [`Mdt::close_inode`].
    pub fn unlink(self: &Arc<Self>, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        self.remove(parent, name, false)
    }

    /// Removes an empty directory, and answers as [`Mdt::unlink`] does.
    pub fn rmdir(self: &Arc<Self>, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        self.remove(parent, name, true)
    }

    fn remove(self: &Arc<Self>, parent: Ino, name: &[u8], directories: bool) -> Answer<Option<Ino>> {
        if let Err(error) = names::check(name) {
            return Answer::err(error);
        }
        let (name, hashing) = (name.to_vec(), self.hashing);
        self.change(move |tx| {
            let mut dir = directory(tx, parent)?;
            let place = names::place(tx, hashing, parent, &name)?;
            let ino = place.found()?.ino;
            let mut inode = tx.inode(ino)?;
            match (directories, inode.kind == FileKind::Directory) {
                (true, false) => return Err(FsError::NotDirectory.into()),
                (false, true) => return Err(FsError::IsDirectory.into()),
                (true, true) if inode.size > 0 => return Err(FsError::NotEmpty.into()),
                _ => {}
            }
            place.remove(tx);
            let gone = drop_link(tx, ino, &mut inode);
            if directories {
                dir.nlink = dir.nlink.saturating_sub(1);
            }
            dir.size -= 1;
            dir.mtime = tx.now;
            dir.ctime = tx.now;
            tx.put_inode(parent, &dir);
            Ok(gone)
        })
    }
}

/// Takes one name from an inode; with its last one it becomes an orphan, and is answered. A directory loses both of
/// its links.
pub(super) fn drop_link(tx: &mut Tx, ino: Ino, inode: &mut InodePhys) -> Option<Ino> {
    inode.nlink = if inode.kind == FileKind::Directory { 0 } else { inode.nlink.saturating_sub(1) };
    inode.ctime = tx.now;
    tx.put_inode(ino, inode);
    if inode.nlink == 0 {
        tx.put(key::orphan(ino), Value::default());
        tx.effects.push(Effect::Orphaned(ino));
    }
    (inode.nlink == 0).then_some(ino)
}
