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

/// Which neighbourhoods were missed lately, by table and number, with the inode that was missed last.
#[derive(Default)]
pub(crate) struct Near {
    missed: Mutex<HashMap<(u8, u64), Ino>>,
}

impl Near {
    /// Takes note of a row that is not in memory. Gives the range to read instead of it alone, where there is reason to.
    fn miss(&self, key: &Key) -> Option<(Key, Key)> {
        let table = *key.first()?;
        if !matches!(table, table::INODE | table::CHUNK | table::DIRENT) {
            return None;
        }
        let ino = key::ino_of(key)?;
        let block = ino.0 / BLOCK;
        let mut missed = self.missed.lock();
        if missed.len() >= REMEMBERED {
            missed.clear();
        }
        let before = missed.insert((table, block), ino)?;
        let first = key::of_inode(table, Ino(block * BLOCK)).0;
        let end = key::of_inode(table, Ino(block.saturating_add(1).saturating_mul(BLOCK))).0;
        // More of one file or directory: the next rows are its own.
        Some((if before == ino { key.clone() } else { first }, end))
    }
}

impl Mdt {
    /// Loads a row, and its neighbours where others of them were missed before.
    pub(crate) async fn load_near(&self, key: &Key, loaded: &mut Loaded) -> Result<(), DbError> {
        if let Some((start, end)) = self.near.miss(key) {
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
            if complete && self.rows.insert_loaded(key.clone(), row, before.of(key), loaded) {
                return Ok(());
            }
        }
        loop {
            let retirements = self.rows.retirements(key);
            let row = self.db.get(key).await?;
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
    fn the_second_miss_in_a_neighbourhood_reads_all_of_it() {
        let near = Near::default();
        assert_eq!(near.miss(&key::inode(Ino(70))), None);
        assert_eq!(near.miss(&key::inode(Ino(200))), None);
        let (start, end) = near.miss(&key::inode(Ino(127))).unwrap();
        assert_eq!((start, end), (key::inode(Ino(64)), key::inode(Ino(128))));
        // The chunks of one file are read on from where they are missed.
        assert_eq!(near.miss(&key::chunk(Ino(70), 3)), None);
        assert_eq!(near.miss(&key::chunk(Ino(70), 4)).unwrap().0, key::chunk(Ino(70), 4));
        assert_eq!(near.miss(&key::chunk(Ino(71), 0)).unwrap().0, key::of_inode(table::CHUNK, Ino(64)).0);
        assert_eq!(near.miss(&key::super_row()), None);
    }
}
