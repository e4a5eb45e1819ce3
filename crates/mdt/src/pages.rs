//! Pages of listings: who lists a directory that is too large to have all of its names in memory is given what another
//! has read just before, for as long as no name of it changes.
//!
//! Those who want the same page wait for the first of them ([`Pages::turn`]). Whoever reads a page says so before ([`Pages::begin`]), and whoever changes a name says so afterwards
//! ([`Pages::changed`]): what was read meanwhile is kept by nobody.

use crate::changes::Rows;
use crate::directories;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tarn_base::Ino;
use tarn_base::posix::NameEntry;

/// Pages that may be waited for, and for how long: who reads one may wait for a bucket that does not answer.
const TURNS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(1);
/// Directories that are remembered, and pages.
const DIRECTORIES: usize = 1024;
const PAGES: usize = 4096;
/// What a name takes beside its bytes, and a page beside its names.
const NAME: u64 = size_of::<NameEntry>() as u64 + 16;
const PAGE: u64 = 256;

/// Names that follow one another.
pub(crate) struct Page {
    pub names: Vec<NameEntry>,
    /// None follows after these.
    pub end: bool,
}

impl Page {
    /// The names after `cookie`.
    pub fn after(&self, cookie: u64) -> &[NameEntry] {
        &self.names[self.names.partition_point(|name| name.cookie <= cookie)..]
    }

    fn size(&self) -> u64 {
        PAGE + self.names.iter().map(|name| NAME + name.name.capacity() as u64).sum::<u64>()
    }

    /// Whether it says what comes after `cookie`, if it begins before that.
    fn covers(&self, cookie: u64) -> bool {
        self.end || self.names.last().is_some_and(|last| cookie < last.cookie)
    }
}

/// A directory's pages as it has been since `since`, by the cookies after which they begin.
struct Directory {
    since: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

#[derive(Default)]
struct Kept {
    directories: HashMap<Ino, Directory, FixedState>,
    /// All pages, the oldest first; some are gone already.
    order: VecDeque<(Ino, u64, u64)>,
    bytes: u64,
    begun: u64,
}

/// What was said before a page was read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    dir: Ino,
    since: u64,
}

pub(crate) struct Pages {
    kept: Mutex<Kept>,
    /// Some directory has been listed so.
    any: AtomicBool,
    turns: Box<[tokio::sync::Mutex<()>]>,
    most: u64,
}

impl Kept {
    fn forget(&mut self, dir: Ino) {
        if let Some(gone) = self.directories.remove(&dir) {
            self.bytes -= gone.pages.values().map(|page| page.size()).sum::<u64>();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((dir, since, start)) = self.order.pop_front() else { return };
        let Some(directory) = self.directories.get_mut(&dir).filter(|known| known.since == since) else {
            return;
        };
        if let Some(page) = directory.pages.remove(&start) {
            self.bytes -= page.size();
        }
    }
}

impl Pages {
    /// For pages of so many bytes.
    pub fn new(most: u64) -> Pages {
        let turns = (0..TURNS).map(|_| tokio::sync::Mutex::default()).collect();
        Pages { kept: Mutex::default(), any: AtomicBool::new(false), turns, most }
    }

    pub fn bytes(&self) -> u64 {
        self.kept.lock().bytes
    }

    /// A page that says what comes after `cookie`.
    pub fn get(&self, dir: Ino, cookie: u64) -> Option<Arc<Page>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let kept = self.kept.lock();
        let (_, page) = kept.directories.get(&dir)?.pages.range(..=cookie).next_back()?;
        page.covers(cookie).then(|| page.clone())
    }

    /// To be held while the page after `cookie` is read; whoever had it before may have read it.
    pub async fn turn(&self, dir: Ino, cookie: u64) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let place = FixedState::default().hash_one((dir, cookie)) as usize % TURNS;
        tokio::time::timeout(PATIENCE, self.turns[place].lock()).await.ok()
    }

    /// A page of `dir` is about to be read.
    pub fn begin(&self, dir: Ino) -> Reading {
        let mut kept = self.kept.lock();
        if kept.directories.len() >= DIRECTORIES && !kept.directories.contains_key(&dir) {
            let begun = kept.begun;
            *kept = Kept { begun, ..Kept::default() };
        }
        kept.begun += 1;
        let since = kept.begun;
        let fresh = || Directory { since, pages: BTreeMap::new() };
        let since = kept.directories.entry(dir).or_insert_with(fresh).since;
        self.any.store(true, Ordering::Release);
        Reading { dir, since }
    }

    /// It was read: what comes after `start`. Kept unless a name has changed since it was begun.
    pub fn add(&self, reading: Reading, start: u64, page: &Arc<Page>) {
        let mut kept = self.kept.lock();
        let Reading { dir, since } = reading;
        let Some(directory) = kept.directories.get_mut(&dir).filter(|known| known.since == since) else {
            return;
        };
        let before = directory.pages.insert(start, page.clone());
        kept.bytes += page.size();
        kept.bytes -= before.map_or(0, |before| before.size());
        kept.order.push_back((dir, since, start));
        while kept.bytes > self.most || kept.order.len() > PAGES {
            kept.forget_oldest();
        }
    }

    /// Directories with names among these rows, if any are remembered.
    pub fn among(&self, rows: &Rows) -> Vec<Ino> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        rows.keys().filter_map(|key| directories::place(key)).map(|(dir, _)| dir).collect()
    }

    /// Names of these directories have changed.
    pub fn changed(&self, dirs: &[Ino]) {
        if dirs.is_empty() {
            return;
        }
        let mut kept = self.kept.lock();
        dirs.iter().for_each(|dir| kept.forget(*dir));
        self.any.store(!kept.directories.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;
    use tarn_base::posix::FileKind;

    fn page(cookies: std::ops::Range<u64>, end: bool) -> Arc<Page> {
        let name = |cookie: u64| NameEntry {
            name: cookie.to_string().into_bytes(),
            cookie,
            ino: Ino(cookie),
            kind: FileKind::Regular,
        };
        Arc::new(Page { names: cookies.map(name).collect(), end })
    }

    fn first(pages: &Pages, dir: Ino, cookie: u64) -> Option<u64> {
        pages.get(dir, cookie)?.after(cookie).first().map(|name| name.cookie)
    }

    #[test]
    fn what_one_has_read_another_is_given_wherever_it_is() {
        let (pages, dir) = (Pages::new(1 << 20), Ino(7));
        let reading = pages.begin(dir);
        pages.add(reading, 0, &page(10..20, false));
        pages.add(reading, 19, &page(20..30, true));
        for (cookie, next) in
            [(0, Some(10)), (3, Some(10)), (12, Some(13)), (19, Some(20)), (28, Some(29)), (29, None)]
        {
            assert_eq!(first(&pages, dir, cookie), next, "{cookie}");
        }
        assert!(pages.get(dir, 40).is_some_and(|page| page.end && page.after(40).is_empty()));
        assert!(pages.get(Ino(8), 0).is_none());
    }

    #[test]
    fn what_was_read_while_a_name_changed_is_not_kept() {
        let (pages, dir) = (Pages::new(1 << 20), Ino(7));
        let rows = Rows::from_iter([(key::dirent(dir, 5), None), (key::inode(Ino(9)), None)]);
        assert!(pages.among(&rows).is_empty());
        let before = pages.begin(dir);
        pages.add(before, 0, &page(10..20, true));
        assert_eq!(pages.among(&rows), [dir]);
        pages.changed(&pages.among(&rows));
        pages.add(before, 0, &page(10..20, true));
        assert!(pages.get(dir, 0).is_none());
        let after = pages.begin(dir);
        pages.add(before, 0, &page(10..20, true));
        assert!(pages.get(dir, 0).is_none());
        pages.add(after, 0, &page(11..20, true));
        assert_eq!(first(&pages, dir, 0), Some(11));
        assert_eq!(pages.bytes(), page(11..20, true).size());
    }

    #[test]
    fn they_take_no_more_memory_than_they_may() {
        let pages = Pages::new(20 << 10);
        for dir in 0..5000 {
            let reading = pages.begin(Ino(dir % 3000));
            pages.add(reading, 0, &page(10..30, true));
            assert!(pages.bytes() <= 20 << 10);
        }
        assert_eq!(first(&pages, Ino(4999 % 3000), 0), Some(10));
        (0..3000).for_each(|dir| pages.changed(&[Ino(dir)]));
        assert_eq!(pages.bytes(), 0);
    }
}
