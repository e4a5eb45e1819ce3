//! The rows of a dataset in memory: what has changed and is not durable yet, and a bounded cache of what is.
//!
//! # How a row is seen
//! A row is looked up in three places, newest first: the open txg's changes, the changes of the txg that is being
//! synced, the cache of committed rows. An absent row is a fact of its own (`None`) and is cached like any other.
//! Only when no place knows the row must the database be asked, and that is never done here: the caller says
//! [`Stop::Missing`], somebody loads the row, and the operation runs anew. Of inodes that were made lately it need not
//! be: what no txg has brought there yet is not there. Nor of directories whose names are all known (`directories`).
//!
//! # Invariants
//! - At most two txgs have changes here: the open one and the one before it. They are told apart by `txg & 1`.
//! - A committed row enters the cache either from a txg that became durable ([`RowStore::retire`]) or from the
//!   database ([`RowStore::insert_loaded`]). A load that began before a retirement may be older than what was
//!   retired, so it is dropped: every shard counts its retirements.
//!
//! # Shards
//! Changes of one directory or file lie in one shard, so that it is listed or scanned there. Committed rows lie wherever
//! their whole key puts them: one directory may have more of them than all others together.

use crate::Stop;
use crate::changes::{Changes, Growth, Rows};
use crate::directories::{self, Directories, Room};
use crate::key::{self, Key};
use crate::maps::Maps;
use crate::memory::Shares;
use crate::phys::Value;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use quick_cache::{Weighter, unsync};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_base::{Ino, Txg};
use twox_hash::XxHash3_64;

/// A row's value; `None`: known to be absent.
pub type Row = Option<Value>;

const SHARDS: usize = 64;

#[derive(Clone)]
struct RowWeight;

impl Weighter<Key, Row> for RowWeight {
    fn weight(&self, key: &Key, row: &Row) -> u64 {
        weight(key, row)
    }
}

/// What a row costs beside its bytes, as measured: its place in a table, what is remembered of rows that were thrown out,
/// and the allocator's share of its value.
const ROW: u64 = 168;

/// Memory that a row takes, in bytes.
pub fn weight(key: &Key, row: &Row) -> u64 {
    let spilled = if key.spilled() { key.len() as u64 } else { 0 };
    ROW + spilled + row.as_ref().map_or(0, |value| value.len() as u64)
}

type Cache = unsync::Cache<Key, Row, RowWeight, FixedState>;

/// Committed rows. Locked after a shard of changes, never before.
struct Clean(Box<[Mutex<Cache>]>);

impl Clean {
    fn new(bytes: u64) -> Clean {
        let part = bytes / SHARDS as u64;
        let rows = (part / (ROW + 64)) as usize;
        let part = || Cache::with(rows, part, RowWeight, FixedState::default(), Default::default());
        Clean((0..SHARDS).map(|_| Mutex::new(part())).collect())
    }

    fn part(&self, key: &Key) -> &Mutex<Cache> {
        &self.0[XxHash3_64::oneshot(key) as usize % SHARDS]
    }

    fn get(&self, key: &Key) -> Option<Row> {
        self.part(key).lock().get(key).cloned()
    }

    fn insert(&self, key: Key, row: Row) {
        self.part(&key).lock().insert(key, row);
    }

    fn insert_new(&self, key: Key, row: Row) {
        let mut part = self.part(&key).lock();
        if part.peek(&key).is_none() {
            part.insert(key, row);
        }
    }

    fn remove(&self, key: &Key) {
        self.part(key).lock().remove(key);
    }

    /// Bytes in use, and the most that there may be.
    fn usage(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |(used, most), part| {
            let part = part.lock();
            (used + part.weight(), most + part.capacity())
        })
    }
}

struct Shard {
    dirty: Changes,
    directories: Directories,
    retirements: u64,
}

/// Rows that were loaded for one operation, so that the next try finds them whatever the cache has thrown out.
/// Each stands only while no txg was retired in its shard.
#[derive(Default)]
pub struct Loaded(HashMap<Key, (Row, u64)>);

/// How often each part of a store had a txg retired.
pub struct Retirements(Box<[u64]>);

impl Retirements {
    pub fn of(&self, key: &Key) -> u64 {
        self.0[RowStore::shard_index(key)]
    }
}

/// Whether that a row is gone need not be remembered: the names of its directory are known, or nobody will ask, because the
/// numbers of inodes never come back. If somebody does after all, the database knows.
fn known_to_be_gone(directories: &Directories, key: &Key) -> bool {
    directories.lack(key) || key::inode_of(key).is_some()
}

pub struct RowStore {
    shards: Box<[Mutex<Shard>]>,
    clean: Clean,
    open: AtomicU64,
    /// The first inode that the database has never had a row of, and that which it is once the closed txg is retired.
    unwritten: AtomicU64,
    unwritten_then: AtomicU64,
    names: Room,
    pub(crate) maps: Maps,
}

impl RowStore {
    /// A store whose parts take about what `shares` gives them. The database has no row of inode `next` and those after
    /// it.
    pub fn new(open: Txg, next: Ino, shares: &Shares) -> RowStore {
        let shard = || {
            Mutex::new(Shard {
                dirty: Changes::default(),
                directories: Directories::default(),
                retirements: 0,
            })
        };
        RowStore {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            clean: Clean::new(shares.rows),
            open: AtomicU64::new(open.0),
            unwritten: AtomicU64::new(next.0),
            unwritten_then: AtomicU64::new(next.0),
            names: Room::new(shares.names),
            maps: Maps::new(shares.maps),
        }
    }

    fn shard_index(key: &[u8]) -> usize {
        XxHash3_64::oneshot(key::shard_bytes(key)) as usize % SHARDS
    }

    fn shard(&self, key: &[u8]) -> &Mutex<Shard> {
        &self.shards[Self::shard_index(key)]
    }

    /// The row as the open txg sees it; `Err` when the database must be asked.
    pub fn get(&self, key: &Key, loaded: &Loaded) -> Result<Row, Stop> {
        let newest = self.newest();
        let shard = self.shard(key).lock();
        if let Some(row) = shard.dirty.get(newest, key) {
            return Ok(row.clone());
        }
        if self.is_unwritten(key) {
            return Ok(None);
        }
        if let Some((row, retirements)) = loaded.0.get(key)
            && *retirements == shard.retirements
        {
            return Ok(row.clone());
        }
        match self.clean.get(key) {
            Some(row) => Ok(row),
            None if shard.directories.lack(key) => Ok(None),
            None => Err(Stop::Missing(vec![key.clone()])),
        }
    }

    /// Which of the two tables of changes is the open txg's.
    fn newest(&self) -> usize {
        (self.open.load(Ordering::Acquire) & 1) as usize
    }

    /// Whether the database cannot have rows of the inode that `key` is of. To be asked after the changes were looked at:
    /// what was not among them is nowhere then.
    pub fn is_unwritten(&self, key: &[u8]) -> bool {
        key::is_of_inode(key)
            && key::ino_of(key).is_some_and(|ino| ino.0 >= self.unwritten.load(Ordering::Acquire))
    }

    /// Adds an operation's changes to the open txg; gives by how much they have become more. The caller holds the operation
    /// lock.
    pub fn apply(&self, txg: Txg, writes: Rows) -> Growth {
        let parity = (txg.0 & 1) as usize;
        let mut growth = Growth::default();
        for (key, row) in writes {
            if let Some(dir) = key::inode_of(&key).filter(|_| row.is_none()) {
                self.shard_of_names(dir).lock().directories.forget(&self.names, dir);
            }
            let mut shard = self.shard(&key).lock();
            let lacking = shard.directories.lack(&key);
            shard.directories.note(&self.names, &key, &row);
            growth += if row.is_some() {
                shard.dirty.insert(parity, key, row, lacking)
            } else {
                // Asked under the shard's lock: a txg that is retired meanwhile has said so before it takes it.
                let unwritten = self.is_unwritten(&key);
                shard.dirty.remove(parity, key, unwritten)
            };
        }
        growth
    }

    fn shard_of_names(&self, dir: Ino) -> &Mutex<Shard> {
        self.shard(&key::of_inode(key::table::DIRENT, dir).0)
    }

    /// A directory is about to be made: it has no names. The caller holds the operation lock.
    pub fn made(&self, dir: Ino) {
        self.shard_of_names(dir).lock().directories.learn(&self.names, dir, BTreeSet::new());
    }

    /// Takes in all the names of a directory that the database gave, if they are good: see [`RowStore::insert_loaded`].
    pub fn learn(&self, dir: Ino, mut hashes: BTreeSet<u64>, before: &Retirements) {
        let (start, end) = key::of_inode(key::table::DIRENT, dir);
        let mut shard = self.shard(&start).lock();
        let newest = self.newest();
        if shard.retirements != before.of(&start) || shard.directories.is_known(dir) {
            return;
        }
        for parity in [newest ^ 1, newest] {
            for (key, row) in shard.dirty.in_range(parity, &start, &end, usize::MAX) {
                let Some((_, hash)) = directories::place(key) else { continue };
                match row {
                    Some(_) => hashes.insert(hash),
                    None => hashes.remove(&hash),
                };
            }
        }
        shard.directories.learn(&self.names, dir, hashes);
    }

    /// Whether all names of the directory are known.
    pub fn is_known(&self, dir: Ino) -> bool {
        self.shard_of_names(dir).lock().directories.is_known(dir)
    }

    /// Whether all names of the directory are known, and they are more than so many rows.
    pub fn knows_more(&self, dir: Ino, rows: usize) -> bool {
        self.shard_of_names(dir).lock().directories.count(dir).is_some_and(|count| count > rows)
    }

    /// The first rows of names from `start` on, at most `limit`, newest state; `None` where they are not all in memory.
    pub fn listed(&self, start: &Key, limit: usize) -> Option<Vec<(Key, Value)>> {
        let shard = self.shard(start).lock();
        let newest = self.newest();
        let keys = shard.directories.rows_from(start, limit)?;
        keys.into_iter()
            .map(|key| {
                let row = shard.dirty.get(newest, &key).cloned().or_else(|| self.clean.get(&key))??;
                Some((key, row))
            })
            .collect()
    }

    /// From now on changes belong to `txg`, and inodes that are made have numbers from `next` on. The caller holds the
    /// operation lock, and the txg before the one that closes is retired.
    pub fn advance(&self, txg: Txg, next: Ino) {
        self.unwritten_then.store(next.0, Ordering::Release);
        self.open.store(txg.0, Ordering::Release);
    }

    /// All changes of a closed txg.
    pub fn changes(&self, txg: Txg) -> Vec<(Key, Row)> {
        let mut out = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            out.extend(shard.dirty.of((txg.0 & 1) as usize).map(|(k, v)| (k.clone(), v.clone())));
        }
        out
    }

    /// A txg is durable and the database shows it: its rows become cached ones.
    pub fn retire(&self, txg: Txg) {
        // Before rows leave the changes, or they would be nowhere.
        self.unwritten.store(self.unwritten_then.load(Ordering::Acquire), Ordering::Release);
        for shard in &self.shards {
            let mut shard = shard.lock();
            let rows = shard.dirty.take((txg.0 & 1) as usize);
            if rows.is_empty() {
                continue;
            }
            shard.retirements += 1;
            for (key, row) in rows {
                match row.is_none() && known_to_be_gone(&shard.directories, &key) {
                    true => self.clean.remove(&key),
                    false => self.clean.insert(key, row),
                }
            }
        }
    }

    /// To be asked before the database is: a load is good only if this has not moved meanwhile.
    pub fn retirements(&self, key: &Key) -> u64 {
        self.shard(key).lock().retirements
    }

    /// As [`RowStore::retirements`], of all rows.
    pub fn all_retirements(&self) -> Retirements {
        Retirements(self.shards.iter().map(|shard| shard.lock().retirements).collect())
    }

    /// Takes in a row that the database gave unasked, if it is good: see [`RowStore::insert_loaded`].
    pub fn insert_near(&self, key: Key, value: Value, before: &Retirements) {
        let shard = self.shard(&key).lock();
        if shard.retirements == before.of(&key) {
            self.clean.insert_new(key, Some(value));
        }
    }

    /// Takes in a row that the database gave. `false`: a txg was retired meanwhile, ask again.
    pub fn insert_loaded(&self, key: Key, row: Row, retirements: u64, loaded: &mut Loaded) -> bool {
        let shard = self.shard(&key).lock();
        if shard.retirements != retirements {
            return false;
        }
        self.clean.insert(key.clone(), row.clone());
        loaded.0.insert(key, (row, retirements));
        true
    }

    /// The first changed rows in `start..end`, the newest state of each, and the key up to which they are all of them:
    /// a listing goes on from there. About `limit` rows of each table of changes are looked at.
    pub fn changed_in(&self, start: &Key, end: &Key, limit: usize) -> (BTreeMap<Key, Row>, Key) {
        let newest = self.newest();
        let mut out = BTreeMap::new();
        let mut upto = end.clone();
        let mut collect = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            for parity in [newest ^ 1, newest] {
                for (count, (key, row)) in
                    shard.dirty.in_range(parity, start, &upto, limit).into_iter().enumerate()
                {
                    if count == limit {
                        upto = key.clone();
                        break;
                    }
                    out.insert(key.clone(), row.clone());
                }
            }
        };
        if key::in_one_shard(start, end) {
            collect(self.shard(start));
        } else {
            self.shards.iter().for_each(collect);
        }
        drop(out.split_off(&upto));
        (out, upto)
    }

    /// Bytes of committed rows that are cached now, and at most.
    pub fn usage(&self) -> (u64, u64) {
        let parts = [self.clean.usage(), self.maps.usage(), self.names.usage()];
        parts.into_iter().fold((0, 0), |(used, most), (u, m)| (used + u, most + m))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: Ino = Ino(1000);

    fn row(text: &str) -> Row {
        Some(text.as_bytes().into())
    }

    fn write(store: &RowStore, txg: u64, key: &Key, value: Row) {
        store.apply(Txg(txg), Rows::from_iter([(key.clone(), value)]));
    }

    #[test]
    fn newest_change_wins_and_survives_retirement() {
        let store = RowStore::new(Txg(1), NEXT, &Shares::of(8 << 20));
        let (key, none) = (key::inode(Ino(5)), Loaded::default());
        assert!(store.get(&key, &none).is_err());
        write(&store, 1, &key, row("one"));
        store.advance(Txg(2), NEXT);
        write(&store, 2, &key, row("two"));
        assert_eq!(store.get(&key, &none).ok(), Some(row("two")));
        assert_eq!(store.changes(Txg(1)), vec![(key.clone(), row("one"))]);
        store.retire(Txg(1));
        assert_eq!(store.get(&key, &none).ok(), Some(row("two")));
        store.advance(Txg(3), NEXT);
        store.retire(Txg(2));
        assert_eq!(store.get(&key, &none).ok(), Some(row("two")));
    }

    #[test]
    fn what_is_gone_takes_no_room_where_that_is_known_otherwise() {
        let (store, none) = (RowStore::new(Txg(1), NEXT, &Shares::of(8 << 20)), Loaded::default());
        let (known, unknown) = (Ino(1), Ino(2));
        store.learn(known, BTreeSet::from([7]), &store.all_retirements());
        let keys = [key::inode(Ino(5)), key::dirent(known, 7), key::dirent(unknown, 7)];
        for key in &keys {
            write(&store, 1, key, row("here"));
        }
        store.advance(Txg(2), NEXT);
        store.retire(Txg(1));
        for key in &keys {
            write(&store, 2, key, None);
        }
        store.advance(Txg(3), NEXT);
        store.retire(Txg(2));
        assert!(keys.iter().map(|key| store.clean.get(key)).eq([None, None, Some(None)]));
        assert!(store.get(&keys[0], &none).is_err(), "the database is asked");
        assert!(keys[1..].iter().all(|key| store.get(key, &none).ok() == Some(None)));
    }

    #[test]
    fn what_no_txg_has_brought_of_a_new_inode_is_not_there() {
        let (store, none) = (RowStore::new(Txg(1), NEXT, &Shares::of(8 << 20)), Loaded::default());
        let (old, new) = (key::dirent(Ino(999), 7), key::dirent(NEXT, 7));
        assert!(store.get(&old, &none).is_err());
        assert_eq!(store.get(&new, &none).ok(), Some(None));
        // Other rows have no inode, whatever their keys look like.
        assert!(
            store
                .get(&key::reclaim(5000, tarn_base::SegmentId::from_bytes(&[9; 14]).unwrap()), &none)
                .is_err()
        );
        write(&store, 1, &new, row("name"));
        store.advance(Txg(2), Ino(1001));
        assert_eq!(store.get(&new, &none).ok(), Some(row("name")));
        assert_eq!(store.get(&key::dirent(NEXT, 8), &none).ok(), Some(None));
        store.retire(Txg(1));
        assert_eq!(store.get(&new, &none).ok(), Some(row("name")));
        // The caches may have thrown it out.
        assert!(store.get(&key::dirent(NEXT, 8), &none).is_err());
        assert_eq!(store.get(&key::dirent(Ino(1001), 8), &none).ok(), Some(None));
    }

    #[test]
    fn a_load_that_raced_with_a_retirement_is_dropped() {
        let store = RowStore::new(Txg(1), NEXT, &Shares::of(8 << 20));
        let key = key::inode(Ino(5));
        let before = store.retirements(&key);
        write(&store, 1, &key, row("new"));
        store.advance(Txg(2), NEXT);
        store.retire(Txg(1));
        let mut loaded = Loaded::default();
        assert!(!store.insert_loaded(key.clone(), row("old"), before, &mut loaded));
        assert_eq!(store.get(&key, &loaded).ok(), Some(row("new")));
    }

    #[test]
    fn changes_are_listed_in_parts_and_none_is_left_out() {
        let store = RowStore::new(Txg(1), NEXT, &Shares::of(8 << 20));
        let (start, end) = key::of_inode(key::table::DIRENT, Ino(7));
        // Even ones are committed later, every third is removed again.
        for n in 0..100 {
            write(&store, 1 + n % 2, &key::dirent(Ino(7), n), row("name"));
        }
        store.advance(Txg(2), NEXT);
        for n in (0..100).step_by(3) {
            write(&store, 2, &key::dirent(Ino(7), n), None);
        }
        for limit in [1, 7, 1000] {
            let (mut from, mut seen) = (start.clone(), Vec::new());
            while from < end {
                let (part, upto) = store.changed_in(&from, &end, limit);
                assert!(upto > from && part.len() <= 2 * limit, "{limit}");
                seen.extend(part);
                from = upto;
            }
            let expected =
                (0..100).map(|n| (key::dirent(Ino(7), n), if n % 3 == 0 { None } else { row("name") }));
            assert!(seen.into_iter().eq(expected), "{limit}");
        }
    }

    #[test]
    fn names_are_learnt_with_what_was_changed_meanwhile() {
        let (store, none) = (RowStore::new(Txg(1), NEXT, &Shares::of(8 << 20)), Loaded::default());
        let (dir, other) = (Ino(7), Ino(8));
        let name = |hash| key::dirent(dir, hash);
        let before = store.all_retirements();
        for (txg, hash, row) in
            [(1, 2, None), (1, 5, row("five")), (2, 3, None), (2, 2, row("again")), (2, 6, None)]
        {
            if txg == 2 {
                store.advance(Txg(2), NEXT);
            }
            write(&store, txg, &name(hash), row);
        }
        write(&store, 1, &key::dirent(other, 1), row("one"));
        // This is what the database had before all that.
        store.learn(dir, BTreeSet::from([1, 2, 3, 4, 6]), &before);
        assert!(store.get(&name(1), &none).is_err());
        assert_eq!(store.get(&name(7), &none).ok(), Some(None));
        assert_eq!(store.listed(&name(0), 10), None);
        for hash in [1, 4] {
            store.insert_near(name(hash), b"old"[..].into(), &before);
        }
        let hashes = |limit| {
            let rows = store.listed(&name(0), limit).unwrap_or_default();
            rows.iter().filter_map(|(key, _)| Some(directories::place(key)?.1)).collect::<Vec<_>>()
        };
        assert_eq!((hashes(10), hashes(2)), (vec![1, 2, 4, 5], vec![1, 2]));
        store.retire(Txg(1));
        write(&store, 2, &name(4), None);
        assert_eq!(hashes(10), [1, 2, 5]);
        // What was retired since then may not have been in the database.
        store.learn(other, BTreeSet::new(), &before);
        assert!(!store.is_known(other));
        write(&store, 2, &key::inode(dir), None);
        assert!(!store.is_known(dir));
    }

    #[test]
    fn ranges_of_a_directory_lie_in_one_shard() {
        let (start, end) = key::of_inode(key::table::DIRENT, Ino(0xff));
        assert!(key::in_one_shard(&start, &end));
        let (start, end) = key::whole_table(key::table::ORPHAN);
        assert!(!key::in_one_shard(&start, &end));
    }
}
