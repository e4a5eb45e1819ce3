//! Extended attributes, ACLs among them.
//!
//! An inode has as many as [`XATTR_LIST_MAX`] and [`XATTR_SUM_MAX`] allow. It only counts them: what they take is added up
//! when one more might be too much, which none of the first few can be.

use crate::acl::{self, Acl};
use crate::key::{self, Key, table};
use crate::phys::{InodePhys, Value, inode_flag};
use crate::tx::Tx;
use crate::{Mdt, Outcome, Stop};
use std::sync::Arc;
use tarn_base::posix::{FileKind, XATTR_LIST_MAX, XATTR_NAME_MAX, XATTR_SIZE_MAX, XATTR_SUM_MAX, XattrMode};
use tarn_base::{Answer, FsError, Ino};

/// So many fit however large they are.
const FEW: usize = XATTR_SUM_MAX / XATTR_SIZE_MAX;
const _: () = assert!(FEW * (XATTR_NAME_MAX + 1) <= XATTR_LIST_MAX);

/// Attributes of one page, at first and at most; there are more on the next one while a page has less than so many bytes.
const PAGE: (usize, usize) = (16, 128);
const PAGE_BYTES: usize = 256 << 10;

/// The attributes of an inode, one page of bounded size after the other.
pub(crate) struct XattrPages {
    from: Key,
    end: Key,
    page: usize,
}

impl XattrPages {
    /// Of an inode of which no more than `count` are expected.
    pub(crate) fn new(ino: Ino, count: u32) -> XattrPages {
        let (from, end) = key::of_inode(table::XATTR, ino);
        // One more: that there is none says that these were all.
        XattrPages { from, end, page: (count as usize).saturating_add(1).min(PAGE.0) }
    }

    /// Whether there is no other page.
    pub(crate) fn over(&self) -> bool {
        self.from == self.end
    }

    /// The next page's rows, in the order of their names.
    pub(crate) async fn next(&mut self, mdt: &Mdt) -> Result<Vec<(Key, Value)>, FsError> {
        let rows = mdt.scan(&self.from, &self.end, self.page).await?;
        match rows.last() {
            Some((last, _)) if rows.len() == self.page => {
                self.from = last.clone();
                self.from.push(0);
            }
            _ => self.from = self.end.clone(),
        }
        let bytes: usize = rows.iter().map(|(_, value)| value.len()).sum();
        self.page = if bytes < PAGE_BYTES { (2 * self.page).clamp(PAGE.0, PAGE.1) } else { PAGE.0 };
        Ok(rows)
    }
}

/// The name in a key of [`table::XATTR`].
fn name_of(key: &Key) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// An attribute to set.
struct NewXattr {
    ino: Ino,
    name: Vec<u8>,
    value: Value,
    mode: XattrMode,
}

/// Bytes that an inode's attributes take: of their names in a list, and of their values.
#[derive(Clone, Copy, Default)]
struct Held {
    names: usize,
    values: usize,
}

impl Held {
    fn fits(&self) -> bool {
        self.names <= XATTR_LIST_MAX && self.values <= XATTR_SUM_MAX
    }
}

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

    /// [`FsError::NoSpace`] where the inode would have more than it may.
    pub fn setxattr(self: &Arc<Self>, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        if name.is_empty() || name.len() > XATTR_NAME_MAX {
            return Answer::err(FsError::Range);
        }
        if value.len() > XATTR_SIZE_MAX {
            return Answer::err(FsError::TooBig);
        }
        let new = Arc::new(NewXattr { ino, name: name.to_vec(), value: value.into(), mode });
        let first = {
            let new = new.clone();
            self.change(move |tx| set(tx, &new, None))
        };
        match first {
            Answer::Ready(Err(FsError::NoSpace)) | Answer::Pending(_) => {}
            done => return done,
        }
        let mdt = self.clone();
        Answer::pending(async move {
            match first.wait().await {
                Err(FsError::NoSpace) => mdt.set_measured(&new).await,
                done => done,
            }
        })
    }

    /// Sets an attribute of an inode that has more than a few. One at a time, so that what was added up holds.
    async fn set_measured(self: &Arc<Self>, new: &NewXattr) -> Result<(), FsError> {
        let _alone = self.measuring.lock().await;
        let (mut pages, mut held) = (XattrPages::new(new.ino, u32::MAX), Held::default());
        while !pages.over() && held.fits() {
            for (key, value) in pages.next(self).await? {
                held.names += name_of(&key).len() + 1;
                held.values += value.len();
            }
        }
        self.changeable()?;
        self.change_slowly(&|tx: &mut Tx| set(tx, new, Some(held))).await
    }

    /// [`FsError::TooBig`] where the names are more than can be listed, as an older Tarn allowed.
    pub fn listxattr(self: &Arc<Self>, ino: Ino) -> Answer<Vec<Vec<u8>>> {
        let first = self.look(move |tx| Ok(tx.inode(ino)?.xattrs));
        if let Answer::Ready(Ok(0)) = first {
            return Answer::ok(Vec::new());
        }
        let mdt = self.clone();
        self.begun(async move {
            let mut pages = XattrPages::new(ino, first.wait().await?);
            let (mut names, mut bytes) = (Vec::new(), 0);
            while !pages.over() {
                for (key, _) in pages.next(&mdt).await? {
                    bytes += name_of(&key).len() + 1;
                    names.push(name_of(&key).to_vec());
                }
                if bytes > XATTR_LIST_MAX {
                    return Err(FsError::TooBig);
                }
            }
            Ok(names)
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

/// `held` is what the inode has, if that was added up: without it only few are known to fit.
fn set(tx: &mut Tx, new: &NewXattr, held: Option<Held>) -> Outcome<()> {
    let NewXattr { ino, ref name, ref value, mode } = *new;
    let mut inode = tx.inode(ino)?;
    if inode.has(inode_flag::REAPING) {
        return Err(FsError::Stale.into());
    }
    let key = key::xattr(ino, name);
    let old = if inode.xattrs > 0 { tx.get(&key)? } else { None };
    let exists = old.is_some();
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
    if !fits(new, old.as_ref(), &inode, held) {
        return Err(FsError::NoSpace.into());
    }
    if !exists {
        inode.xattrs += 1;
    }
    tx.put(key, value.clone());
    tx.put_inode(ino, &inode);
    Ok(())
}

fn fits(new: &NewXattr, old: Option<&Value>, inode: &InodePhys, held: Option<Held>) -> bool {
    let more = new.value.len().saturating_sub(old.map_or(0, |old| old.len()));
    let (names, count) = match old {
        // It takes no more than before.
        Some(_) if more == 0 => return true,
        Some(_) => (0, inode.xattrs as usize),
        None => (new.name.len() + 1, inode.xattrs as usize + 1),
    };
    let after = |held: Held| Held { names: held.names + names, values: held.values + more };
    count <= FEW || held.is_some_and(|held| after(held).fits())
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
