//! Rows that lie side by side are mostly wanted together: inodes are numbered in the order in which they are made, and what
//! was made together is looked through together. So when rows of one neighbourhood are missed again and again, they are
//! read by one scan, as far as it goes, instead of each by a search of its own.
//!
//! Names of a directory lie in the order of their hashes. Of a small one that is no matter: a few scans bring all of it. In
//! one of hundreds of thousands that is asked for names in any other order, each scan would bring rows that nobody wants,
//! and throw out rows that somebody does: so after some scans that did not go on where others ended, its names are read
//! one by one.

use crate::Mdt;
use crate::db::DbError;
use crate::directories;
use crate::key::{self, Key, table};
use crate::phys::Value;
use crate::rows::Loaded;
use parking_lot::Mutex;
use std::collections::HashMap;
use tarn_base::Ino;

/// Inodes whose rows are neighbours.
const BLOCK: u64 = 64;
/// Most rows of one scan.
const ROWS: usize = 256;
/// Neighbourhoods whose misses are remembered, and directories whose scans are.
const REMEMBERED: usize = 4096;
/// Scans of one directory's names that did not go on where others ended, after which there are no more.
const SCATTERED: u32 = 64;
/// A name is behind a scan if it is no further from its end than so many of its names are from each other.
const BEHIND: u64 = 8;

/// In which neighbourhoods rows were found lately that had not been in memory, by table and number, with the inode of the
/// last one.
#[derive(Default)]
pub(crate) struct Near {
    found: Mutex<HashMap<(u8, u64), Ino>>,
    /// How names of directories were scanned.
    walks: Mutex<HashMap<Ino, Walk>>,
}

/// Scans of one directory's names.
#[derive(Clone, Copy, Default)]
struct Walk {
    /// Those that did not go on where the last one ended.
    scattered: u32,
    /// Where the last one ended, and how far its names were from each other, in hashes.
    end: u64,
    gap: u64,
}

/// The table and number of a row's neighbourhood, and its inode.
fn place(key: &Key) -> Option<((u8, u64), Ino)> {
    let table = *key.first()?;
    if !matches!(table, table::INODE | table::CHUNK | table::DIRENT) {
        return None;
    }
    let ino = key::ino_of(key)?;
    Some(((table, ino.0 / BLOCK), ino))
}

impl Near {
    /// Takes note of a row that was not in memory, but in the database.
    pub fn found(&self, key: &Key) {
        let Some((place, ino)) = place(key) else { return };
        let mut found = self.found.lock();
        if found.len() >= REMEMBERED {
            found.clear();
        }
        found.insert(place, ino);
    }

    /// Takes note that a row was not there. Who makes new rows beside those of a neighbourhood would read it over and
    /// over, and what was deleted of it too, for nothing.
    fn absent(&self, key: &Key) {
        if let Some((place, _)) = place(key) {
            self.found.lock().remove(&place);
        }
    }

    /// The range to read instead of a row alone, where there is reason to.
    fn range(&self, key: &Key) -> Option<(Key, Key)> {
        let ((table, block), ino) = place(key)?;
        let before = *self.found.lock().get(&(table, block))?;
        if table == table::DIRENT && !self.worth_scanning(key) {
            return None;
        }
        let first = key::of_inode(table, Ino(block * BLOCK)).0;
        let end = key::of_inode(table, Ino(block.saturating_add(1).saturating_mul(BLOCK))).0;
        // More of one file or directory: the next rows are its own.
        Some((if before == ino { key.clone() } else { first }, end))
    }

    /// Whether a scan from the name `key` on may bring what will be asked for.
    fn worth_scanning(&self, key: &Key) -> bool {
        let Some((dir, hash)) = directories::place(key) else { return true };
        let mut walks = self.walks.lock();
        if walks.len() >= REMEMBERED && !walks.contains_key(&dir) {
            walks.clear();
        }
        let walk = walks.entry(dir).or_default();
        let goes_on =
            hash.checked_sub(walk.end).is_some_and(|beyond| beyond <= walk.gap.saturating_mul(BEHIND));
        walk.scattered = if goes_on { 0 } else { walk.scattered.saturating_add(1).min(SCATTERED + 1) };
        walk.scattered <= SCATTERED
    }

    /// Takes note of what a scan of names has brought.
    fn scanned(&self, found: &[(Key, Value)]) {
        let place = |row: Option<&(Key, Value)>| row.and_then(|(key, _)| directories::place(key));
        let (Some((dir, first)), Some((last_dir, last))) = (place(found.first()), place(found.last())) else {
            return;
        };
        // The scan has left the directory: it has all of it.
        let gap = if dir == last_dir { last.saturating_sub(first) / found.len() as u64 } else { 0 };
        if let Some(walk) = self.walks.lock().get_mut(&dir) {
            (walk.end, walk.gap) = (if dir == last_dir { last } else { u64::MAX }, gap);
        }
    }

    /// The range to read for the names of a directory: with those of the directories after it where others of its
    /// neighbourhood were read before.
    pub fn names(&self, dir: Ino) -> (Key, Key) {
        let (start, own) = key::of_inode(table::DIRENT, dir);
        let end = self.range(&start).map_or(own, |(_, end)| end);
        (start, end)
    }
}

impl Mdt {
    /// Loads a row, and its neighbours where others of them were missed before.
    pub(crate) async fn load_near(&self, key: &Key, loaded: &mut Loaded) -> Result<(), DbError> {
        if let Some((start, end)) = self.near.range(key) {
            let before = self.rows.all_retirements();
            let found = self.db.scan(&start, &end, ROWS).await?;
            self.near.scanned(&found);
            let complete = found.len() < ROWS || found.last().is_some_and(|(last, _)| last >= key);
            let mut row = None;
            for (near, value) in found {
                match near == *key {
                    true => row = Some(value),
                    false => self.rows.insert_near(near, value, &before),
                }
            }
            match &row {
                Some(_) => self.near.found(key),
                None => self.near.absent(key),
            }
            if complete && self.rows.insert_loaded(key.clone(), row, before.of(key), loaded) {
                return Ok(());
            }
        }
        loop {
            let retirements = self.rows.retirements(key);
            let row = self.db.get(key).await?;
            if row.is_some() {
                self.near.found(key);
            }
            if self.rows.insert_loaded(key.clone(), row, retirements, loaded) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_row_found_in_a_neighbourhood_brings_all_of_it() {
        let near = Near::default();
        assert_eq!(near.range(&key::inode(Ino(70))), None);
        near.found(&key::inode(Ino(70)));
        assert_eq!(near.range(&key::inode(Ino(200))), None);
        let (start, end) = near.range(&key::inode(Ino(127))).unwrap();
        assert_eq!((start, end), (key::inode(Ino(64)), key::inode(Ino(128))));
        // The chunks of one file are read on from where they are missed.
        assert_eq!(near.range(&key::chunk(Ino(70), 3)), None);
        near.found(&key::chunk(Ino(70), 3));
        assert_eq!(near.range(&key::chunk(Ino(70), 4)).unwrap().0, key::chunk(Ino(70), 4));
        assert_eq!(near.range(&key::chunk(Ino(71), 0)).unwrap().0, key::of_inode(table::CHUNK, Ino(64)).0);
        // Whoever makes files there asks for what is not there.
        near.absent(&key::chunk(Ino(72), 0));
        assert_eq!(near.range(&key::chunk(Ino(70), 5)), None);
        near.found(&key::super_row());
        assert_eq!(near.range(&key::super_row()), None);
        // Directories are mostly listed in the order in which they were made.
        assert_eq!(near.names(Ino(100)), key::of_inode(table::DIRENT, Ino(100)));
        near.found(&key::dirent(Ino(100), 5));
        assert_eq!(near.names(Ino(90)).0, key::of_inode(table::DIRENT, Ino(90)).0);
        assert_eq!(near.names(Ino(90)).1, key::of_inode(table::DIRENT, Ino(127)).1);
    }

    #[test]
    fn names_of_a_large_directory_are_scanned_only_in_their_order() {
        let near = Near::default();
        let name = |hash: u64| key::dirent(Ino(100), hash);
        let rows =
            |from: u64| (from..from + 100).map(|n| (name(n * 10), Value::default())).collect::<Vec<_>>();
        near.found(&name(0));
        // From one end to the other.
        for from in (0..100_000).step_by(100) {
            assert!(near.range(&name(from * 10)).is_some(), "{from}");
            near.scanned(&rows(from));
        }
        // Here and there.
        let scans = (0..1000u64).filter(|n| {
            let from = n * 7919 % 100_000;
            let scans = near.range(&name(from * 10)).is_some();
            if scans {
                near.scanned(&rows(from));
            }
            scans
        });
        let scans = scans.count();
        assert!((SCATTERED as usize..=SCATTERED as usize + 1).contains(&scans), "{scans}");
        // Another directory's are its own affair.
        near.found(&key::dirent(Ino(101), 1));
        assert!(near.range(&key::dirent(Ino(101), 5)).is_some());
    }
}
