//! Rows that lie side by side are mostly wanted together: inodes are numbered in the order in which they are made, and what
//! was made together is looked through together. So when rows of one neighbourhood are missed again and again, they are
//! read by one scan, as far as it goes, instead of each by a search of its own.

use crate::Mdt;
use crate::db::DbError;
use crate::key::{self, Key, table};
use crate::rows::Loaded;
use parking_lot::Mutex;
use std::collections::HashMap;
use tarn_base::Ino;

/// Inodes whose rows are neighbours.
const BLOCK: u64 = 64;
/// Most rows of one scan.
const ROWS: usize = 256;
/// Neighbourhoods whose misses are remembered.
const REMEMBERED: usize = 4096;

/// In which neighbourhoods rows were found lately that had not been in memory, by table and number, with the inode of the
/// last one.
#[derive(Default)]
pub(crate) struct Near {
    found: Mutex<HashMap<(u8, u64), Ino>>,
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
        let first = key::of_inode(table, Ino(block * BLOCK)).0;
        let end = key::of_inode(table, Ino(block.saturating_add(1).saturating_mul(BLOCK))).0;
        // More of one file or directory: the next rows are its own.
        Some((if before == ino { key.clone() } else { first }, end))
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
}
