//! Renaming: one operation, atomic, in three modes.

use super::lookup::directory;
use super::remove::drop_link;
use crate::names::{Hashing, Place};
use crate::phys::{InodePhys, NamePhys};
use crate::tx::Tx;
use crate::{Mdt, Outcome, names};
use std::sync::Arc;
use tarn_base::posix::{FileKind, RenameMode};
use tarn_base::{Answer, FsError, Ino};

/// One end of a rename: a directory and a name in it.
#[derive(Clone, Copy)]
struct End<'a> {
    dir: Ino,
    name: &'a [u8],
}

impl Mdt {
    /// Renames. An inode that has lost its last name is answered, and counts as open until [`Mdt::close_inode`].
    pub fn rename(
        self: &Arc<Self>,
        from: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Answer<Option<Ino>> {
        if let Err(error) = names::check(name).and_then(|()| names::check(new_name)) {
            return Answer::err(error);
        }
        let (name, new_name, hashing) = (name.to_vec(), new_name.to_vec(), self.hashing);
        self.change(move |tx| {
            let (old, new) = (End { dir: from, name: &name }, End { dir: to, name: &new_name });
            rename(tx, hashing, old, new, mode)
        })
    }
}

fn rename(tx: &mut Tx, hashing: Hashing, old: End, new: End, mode: RenameMode) -> Outcome<Option<Ino>> {
    directory(tx, old.dir)?;
    if new.dir != old.dir {
        directory(tx, new.dir)?;
    }
    let source = names::place(tx, hashing, old.dir, old.name)?.found()?.clone();
    let place = names::place(tx, hashing, new.dir, new.name)?;
    let target = place.entry().cloned();
    if source.kind == FileKind::Directory && old.dir != new.dir {
        refuse_loop(tx, source.ino, new.dir)?;
    }
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => Err(FsError::Exists.into()),
        (RenameMode::Exchange, None) => Err(FsError::NotFound.into()),
        // Two names of one inode: POSIX wants nothing done.
        (RenameMode::Replace, Some(target)) if target.ino == source.ino => Ok(None),
        (RenameMode::Exchange, Some(target)) => {
            exchange(tx, hashing, old, new, &source, &target).map(|()| None)
        }
        (_, target) => replace(tx, hashing, old, (new, place), &source, target),
    }
}

/// A directory may not move below itself.
fn refuse_loop(tx: &Tx, moved: Ino, into: Ino) -> Outcome<()> {
    let mut at = into;
    while at != Ino::ROOT {
        if at == moved {
            return Err(FsError::invalid("a directory cannot move below itself").into());
        }
        at = tx.inode(at)?.parent;
    }
    Ok(())
}

fn replace(
    tx: &mut Tx,
    hashing: Hashing,
    old: End,
    (new, place): (End, Place),
    source: &NamePhys,
    target: Option<NamePhys>,
) -> Outcome<Option<Ino>> {
    let moves_dir = source.kind == FileKind::Directory;
    let gone = match &target {
        Some(target) => {
            let mut gone = tx.inode(target.ino)?;
            match (moves_dir, gone.kind == FileKind::Directory) {
                (true, false) => return Err(FsError::NotDirectory.into()),
                (false, true) => return Err(FsError::IsDirectory.into()),
                (true, true) if gone.size > 0 => return Err(FsError::NotEmpty.into()),
                _ => {}
            }
            place.point(tx, source.ino, source.kind);
            drop_link(tx, target.ino, &mut gone)
        }
        None => {
            place.add(tx, source.ino, source.kind)?;
            None
        }
    };
    names::place(tx, hashing, old.dir, old.name)?.remove(tx);
    let gained = i64::from(target.is_none());
    // A directory that goes takes its `..` with it; one that comes brings its own.
    let replaced_dir = i64::from(moves_dir && target.is_some());
    let brings = i64::from(moves_dir);
    if old.dir == new.dir {
        adjust(tx, old.dir, gained - 1, -replaced_dir)?;
    } else {
        adjust(tx, old.dir, -1, -brings)?;
        adjust(tx, new.dir, gained, brings - replaced_dir)?;
    }
    moved(tx, source.ino, new.dir)?;
    Ok(gone)
}

fn exchange(
    tx: &mut Tx,
    hashing: Hashing,
    old: End,
    new: End,
    source: &NamePhys,
    target: &NamePhys,
) -> Outcome<()> {
    if target.kind == FileKind::Directory && old.dir != new.dir {
        refuse_loop(tx, target.ino, old.dir)?;
    }
    names::place(tx, hashing, new.dir, new.name)?.point(tx, source.ino, source.kind);
    names::place(tx, hashing, old.dir, old.name)?.point(tx, target.ino, target.kind);
    let brings = |entry: &NamePhys| i64::from(entry.kind == FileKind::Directory);
    adjust(tx, old.dir, 0, brings(target) - brings(source))?;
    adjust(tx, new.dir, 0, brings(source) - brings(target))?;
    moved(tx, source.ino, new.dir)?;
    moved(tx, target.ino, old.dir)
}

/// A directory's entries, links and times after names came or went.
fn adjust(tx: &mut Tx, ino: Ino, entries: i64, links: i64) -> Outcome<()> {
    let mut dir: InodePhys = tx.inode(ino)?;
    dir.size = dir.size.saturating_add_signed(entries);
    dir.nlink = dir.nlink.saturating_add_signed(links as i32);
    dir.mtime = tx.now;
    dir.ctime = tx.now;
    tx.put_inode(ino, &dir);
    Ok(())
}

fn moved(tx: &mut Tx, ino: Ino, into: Ino) -> Outcome<()> {
    let mut inode = tx.inode(ino)?;
    if inode.kind == FileKind::Directory {
        inode.parent = into;
    }
    inode.ctime = tx.now;
    tx.put_inode(ino, &inode);
    Ok(())
}
