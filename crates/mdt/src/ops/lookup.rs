//! Finding and listing names.

use crate::key::{self, table};
use crate::pages::{Page, Reading};
use crate::phys::{DirentPhys, Value};
use crate::{Mdt, Outcome, Stop, directories, names, phys};
use futures::stream::{self, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_base::posix::{Attr, DirEntry, FileKind, NameEntry};
use tarn_base::{Answer, FsError, Ino};

/// Inodes of a listing that are looked up at once: each may have to come from a bucket.
const ATTRIBUTES_AT_ONCE: usize = 16;

/// Most rows that are read of directories at once.
const LEARNED: usize = 1024;

/// Rows that are read at once of a directory of which not all names are in memory.
const PAGE: usize = 1024;

/// Most entries that one call gives: how many are asked for is the client's word.
const ENTRIES: usize = 1 << 16;

/// Ends of listings that are remembered.
const ENDS: usize = 32;

/// After `cookie` there was no name in `dir` when so many changes had been made.
#[derive(PartialEq, Eq)]
pub(crate) struct End {
    dir: Ino,
    cookie: u64,
    change: u64,
}

impl Mdt {
    pub fn lookup(self: &Arc<Self>, parent: Ino, name: &[u8]) -> Answer<Attr> {
        if let Err(error) = names::check(name) {
            return Answer::err(error);
        }
        let (name, hashing) = (name.to_vec(), self.hashing);
        self.look(move |tx| {
            let place = names::place(tx, hashing, parent, &name)?;
            let entry = place.found()?;
            let inode = tx.find_inode(entry.ino)?.ok_or(Stop::Fail(FsError::NotFound))?;
            Ok(inode.attr(entry.ino))
        })
    }

    pub fn getattr(self: &Arc<Self>, ino: Ino) -> Answer<Attr> {
        self.look(move |tx| Ok(tx.inode(ino)?.attr(ino)))
    }

    pub fn readlink(self: &Arc<Self>, ino: Ino) -> Answer<Vec<u8>> {
        self.look(move |tx| {
            let inode = tx.inode(ino)?;
            if inode.kind != FileKind::Symlink {
                return Err(FsError::invalid("not a symbolic link").into());
            }
            Ok(inode.target)
        })
    }

    /// The directory that holds this directory; the root's is itself.
    pub fn parent(self: &Arc<Self>, dir: Ino) -> Answer<Ino> {
        self.look(move |tx| Ok(tx.inode(dir)?.parent))
    }

    /// Up to `max` entries after `cookie` (0: from the start), in cookie order. None mean the end; fewer do only if `max` is
    /// not above 65536.
    pub fn readdir(self: &Arc<Self>, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<DirEntry>> {
        if self.ends_at(dir, cookie) {
            return self.ready(Ok(Vec::new()));
        }
        let mdt = self.clone();
        self.begun(async move {
            let mut after = cookie;
            loop {
                let names = mdt.list(dir, after, max).await?;
                let Some(last) = names.last() else { return Ok(Vec::new()) };
                after = last.cookie;
                let entries = mdt.with_attributes(names).await?;
                // Nothing would mean the end; all of these are gone, but there may be more.
                if !entries.is_empty() {
                    return Ok(entries);
                }
            }
        })
    }

    async fn with_attributes(self: &Arc<Self>, names: Vec<NameEntry>) -> Result<Vec<DirEntry>, FsError> {
        let attributes = stream::iter(names).map(|entry| {
            let mdt = self.clone();
            async move { (mdt.getattr(entry.ino).wait().await, entry) }
        });
        let mut attributes = attributes.buffered(ATTRIBUTES_AT_ONCE);
        let mut out = Vec::new();
        while let Some((attr, entry)) = attributes.next().await {
            match attr {
                Ok(attr) => out.push(DirEntry { name: entry.name, cookie: entry.cookie, attr }),
                // Removed since the scan.
                Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(out)
    }

    /// Whether a listing of a moment ago has shown that nothing comes after `cookie`, and nothing has changed since: whoever
    /// lists asks once more than there is.
    fn ends_at(&self, dir: Ino, cookie: u64) -> bool {
        let end = End { dir, cookie, change: self.op.lock().changes };
        self.ends.lock().contains(&end)
    }

    /// As [`Mdt::readdir`], without attributes: only the directory's own rows are read.
    pub fn names(self: &Arc<Self>, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<NameEntry>> {
        if self.ends_at(dir, cookie) {
            return self.ready(Ok(Vec::new()));
        }
        let mdt = self.clone();
        self.begun(async move { mdt.list(dir, cookie, max).await })
    }

    async fn list(&self, dir: Ino, cookie: u64, max: usize) -> Result<Vec<NameEntry>, FsError> {
        let max = max.min(ENTRIES);
        let change = self.op.lock().changes;
        let (mut out, mut after) = (Vec::new(), cookie);
        loop {
            let page = match self.pages.get(dir, after) {
                Some(page) => page,
                None => self.page(dir, after, max - out.len()).await?,
            };
            let names = page.after(after);
            let taken = names.len().min(max - out.len());
            out.extend_from_slice(&names[..taken]);
            after = out.last().map_or(after, |last| last.cookie);
            if taken == names.len() && (page.end || names.is_empty()) {
                let mut ends = self.ends.lock();
                ends.truncate(ENDS - 1);
                ends.push_front(End { dir, cookie: after, change });
                return Ok(out);
            }
            if out.len() == max {
                return Ok(out);
            }
        }
    }

    /// A page is about to be read: not in the midst of a change, which has asked whether there are any.
    fn begin_page(&self, dir: Ino) -> Reading {
        let _op = self.op.lock();
        self.pages.begin(dir)
    }

    /// At least `max` names after `cookie`, or all that there are.
    async fn page(&self, dir: Ino, cookie: u64, max: usize) -> Result<Arc<Page>, FsError> {
        let hash = names::of_cookie(cookie).0;
        let (first, end) = key::of_inode(table::DIRENT, dir);
        let start = if cookie == 0 { first } else { key::dirent(dir, hash) };
        // One row more than asked for: the first may hold nothing but names already given.
        let limit = (max + 1).max(PAGE);
        let known = |limit| {
            let rows = self.rows.listed(&start, limit)?;
            Some(page_of(rows, cookie, limit).map(Arc::new))
        };
        if self.rows.knows_more(dir, PAGE) {
            // Put together once for all who list it.
            let reading = self.begin_page(dir);
            if let Some(page) = known(limit).transpose()? {
                self.pages.add(reading, cookie, &page);
                return Ok(page);
            }
        } else if let Some(page) = known(max + 1) {
            return page;
        }
        let _turn = self.pages.turn(dir, cookie).await;
        if let Some(page) = self.pages.get(dir, cookie) {
            return Ok(page);
        }
        if cookie == 0 && !self.rows.is_known(dir) {
            self.learn(dir).await?;
        }
        if let Some(page) = known(limit) {
            return page;
        }
        let reading = self.begin_page(dir);
        let page = Arc::new(page_of(self.scan(&start, &end, limit).await?, cookie, limit)?);
        self.pages.add(reading, cookie, &page);
        Ok(page)
    }
}

/// The names after `cookie` in rows of one directory, of which there may be more if they are `limit`.
fn page_of(rows: Vec<(key::Key, Value)>, cookie: u64, limit: usize) -> Result<Page, FsError> {
    let (hash, slot) = names::of_cookie(cookie);
    let end = rows.len() < limit;
    let mut out = Vec::with_capacity(rows.len());
    for (key, row) in rows {
        let Some((_, at)) = directories::place(&key) else {
            return Err(FsError::Io("directory row has a short key".into()));
        };
        let names: DirentPhys = match phys::decode("directory", &row) {
            Ok(names) => names,
            Err(Stop::Fail(error)) => return Err(error),
            Err(Stop::Missing(_)) => continue,
        };
        let fresh = names.entries.into_iter().filter(|e| cookie == 0 || at > hash || e.slot > slot);
        out.extend(fresh.map(|e| NameEntry {
            name: e.name,
            cookie: names::cookie(at, e.slot),
            ino: e.ino,
            kind: e.kind,
        }));
    }
    Ok(Page { names: out, end })
}

impl Mdt {
    /// Reads the names of a directory, and of those that are likely to be listed next, unless they are many.
    async fn learn(&self, dir: Ino) -> Result<(), FsError> {
        let before = self.rows.all_retirements();
        let (start, end) = self.near.names(dir);
        let rows = self.db.scan(&start, &end, LEARNED).await?;
        // Of the directory of the last row there may be more.
        let last = rows.last().filter(|_| rows.len() == LEARNED).and_then(|(key, _)| key::ino_of(key));
        let mut known = BTreeMap::from([(dir, BTreeSet::new())]);
        for (key, row) in rows {
            if let Some((dir, hash)) = directories::place(&key).filter(|(dir, _)| Some(*dir) != last) {
                self.near.found(&key);
                self.rows.insert_near(key, row, &before);
                known.entry(dir).or_default().insert(hash);
            }
        }
        for (dir, hashes) in known.into_iter().filter(|(dir, _)| Some(*dir) != last) {
            self.rows.learn(dir, hashes, &before);
        }
        Ok(())
    }
}

/// The inode of a directory that names may be added to.
pub(super) fn directory(tx: &crate::tx::Tx, dir: Ino) -> Outcome<phys::InodePhys> {
    let inode = tx.find_inode(dir)?.ok_or(Stop::Fail(FsError::NotFound))?;
    if inode.kind != FileKind::Directory {
        return Err(FsError::NotDirectory.into());
    }
    if inode.nlink == 0 {
        return Err(FsError::NotFound.into());
    }
    Ok(inode)
}
