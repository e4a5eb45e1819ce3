//! Directories of which every name is known: they were made since the dataset was opened, or one scan for a listing
//! brought all of them.
//!
//! Of a name that such a directory does not have, nobody need ask the database, and a listing need not either as long as
//! the rows are in memory. What is kept is the hash of each name's row, as the open txg has them. A shard of the rows
//! has the directories whose names lie in it, and changes both under one lock.

use crate::key::{self, Key, table};
use crate::rows::Row;
use foldhash::fast::FixedState;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_base::Ino;

/// Memory that a directory takes, and each of its names, in bytes.
const DIRECTORY: u64 = 256;
const NAME: u64 = 16;

fn cost(hashes: &BTreeSet<u64>) -> u64 {
    DIRECTORY + NAME * hashes.len() as u64
}

/// Memory for the directories of all shards, in bytes.
pub(crate) struct Room {
    used: AtomicU64,
    most: u64,
}

impl Room {
    pub fn new(most: u64) -> Room {
        Room { used: AtomicU64::new(0), most }
    }

    /// Bytes in use, and the most that there may be.
    pub fn usage(&self) -> (u64, u64) {
        (self.used.load(Ordering::Relaxed), self.most)
    }

    fn is_over(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.most
    }
}

/// The directory and hash of a row of names.
pub(crate) fn place(key: &[u8]) -> Option<(Ino, u64)> {
    if *key.first()? != table::DIRENT {
        return None;
    }
    Some((key::ino_of(key)?, u64::from_be_bytes(key.get(9..17)?.try_into().ok()?)))
}

/// The known directories of one shard.
#[derive(Default)]
pub(crate) struct Directories(HashMap<Ino, BTreeSet<u64>, FixedState>);

impl Directories {
    pub fn is_known(&self, dir: Ino) -> bool {
        self.0.contains_key(&dir)
    }

    /// From now on all names of `dir` are known. Others are forgotten where there is no room, and it is itself where that
    /// is not enough.
    pub fn learn(&mut self, room: &Room, dir: Ino, hashes: BTreeSet<u64>) {
        self.forget(room, dir);
        room.used.fetch_add(cost(&hashes), Ordering::Relaxed);
        self.0.insert(dir, hashes);
        self.make_room(room, dir);
    }

    pub fn forget(&mut self, room: &Room, dir: Ino) {
        if let Some(hashes) = self.0.remove(&dir) {
            room.used.fetch_sub(cost(&hashes), Ordering::Relaxed);
        }
    }

    /// A row of names has changed.
    pub fn note(&mut self, room: &Room, key: &Key, row: &Row) {
        let Some((dir, hash)) = place(key) else { return };
        let Some(hashes) = self.0.get_mut(&dir) else { return };
        match row {
            Some(_) if hashes.insert(hash) => {
                room.used.fetch_add(NAME, Ordering::Relaxed);
                self.make_room(room, dir);
            }
            None if hashes.remove(&hash) => {
                room.used.fetch_sub(NAME, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn make_room(&mut self, room: &Room, for_whom: Ino) {
        while room.is_over() {
            // In a map's order, which is nobody's.
            let other = self.0.keys().copied().find(|dir| *dir != for_whom);
            self.forget(room, other.unwrap_or(for_whom));
            if other.is_none() {
                return;
            }
        }
    }

    /// Rows of names that a directory has, if that is known.
    pub fn count(&self, dir: Ino) -> Option<usize> {
        self.0.get(&dir).map(BTreeSet::len)
    }

    /// Whether it is known that there is no such row.
    pub fn lack(&self, key: &Key) -> bool {
        place(key).and_then(|(dir, hash)| Some(!self.0.get(&dir)?.contains(&hash))).unwrap_or(false)
    }

    /// The keys of the first rows of a known directory from `start` on, at most `limit`.
    pub fn rows_from(&self, start: &Key, limit: usize) -> Option<Vec<Key>> {
        let dir = key::ino_of(start)?;
        let hash = place(start).map_or(0, |(_, hash)| hash);
        let hashes = self.0.get(&dir)?;
        Some(hashes.range(hash..).take(limit).map(|&hash| key::dirent(dir, hash)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there() -> Row {
        Some(b"names"[..].into())
    }

    #[test]
    fn what_a_known_directory_has_is_kept_up_with() {
        let (room, mut known) = (Room::new(1 << 20), Directories::default());
        let (dir, other) = (Ino(7), Ino(8));
        assert!(!known.lack(&key::dirent(dir, 1)));
        known.learn(&room, dir, BTreeSet::from([1, 5, 9]));
        known.note(&room, &key::dirent(dir, 3), &there());
        known.note(&room, &key::dirent(dir, 5), &None);
        known.note(&room, &key::dirent(dir, 9), &there());
        known.note(&room, &key::dirent(other, 4), &there());
        let lacks = |hash| known.lack(&key::dirent(dir, hash));
        assert_eq!([1, 3, 5, 9].map(lacks), [false, false, true, false]);
        assert!(!known.lack(&key::dirent(other, 5)) && !known.lack(&key::inode(dir)));
        let rows = known.rows_from(&key::of_inode(table::DIRENT, dir).0, 2);
        assert_eq!(rows, Some(vec![key::dirent(dir, 1), key::dirent(dir, 3)]));
        assert_eq!(known.rows_from(&key::dirent(dir, 4), 9), Some(vec![key::dirent(dir, 9)]));
        assert!(known.rows_from(&key::dirent(other, 4), 9).is_none());
        assert_eq!(room.usage().0, DIRECTORY + 3 * NAME);
        known.forget(&room, dir);
        assert_eq!((room.usage().0, known.lack(&key::dirent(dir, 5))), (0, false));
    }

    #[test]
    fn directories_give_way_to_later_ones_and_none_may_have_more_than_there_is() {
        let (room, mut known) = (Room::new(2 * DIRECTORY + 10 * NAME), Directories::default());
        known.learn(&room, Ino(1), BTreeSet::new());
        known.learn(&room, Ino(2), (0..10).collect());
        assert!(known.is_known(Ino(1)) && known.is_known(Ino(2)));
        known.note(&room, &key::dirent(Ino(2), 10), &there());
        assert!(!known.is_known(Ino(1)) && known.is_known(Ino(2)));
        for hash in 11..100 {
            known.note(&room, &key::dirent(Ino(2), hash), &there());
        }
        assert!(!known.is_known(Ino(2)));
        assert_eq!(room.usage().0, 0);
    }
}
