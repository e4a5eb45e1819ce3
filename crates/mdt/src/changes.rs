//! The rows of one shard that have changed and are not durable yet.
//!
//! Nearly every look is for one row, so they lie in a hash table and not in order: there are never more than the
//! operations of a few seconds have left, and who lists a range sorts what he finds.

use crate::key::Key;
use crate::rows::{Row, weight};
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::AddAssign;

/// Rows by their keys, which are made of numbers and of hashes with a secret seed: nobody can aim at one place. The
/// order is the same in every run.
pub type Rows = HashMap<Key, Row, FixedState>;

/// By how many rows, and how many bytes in memory, a txg's changes have become more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    pub rows: isize,
    pub bytes: i64,
}

impl Growth {
    fn of(key: &Key, before: Option<&Row>, after: Option<&Row>) -> Growth {
        let size = |row: Option<&Row>| row.map_or(0, |row| weight(key, row) as i64);
        let count = |row: Option<&Row>| isize::from(row.is_some());
        Growth { rows: count(after) - count(before), bytes: size(after) - size(before) }
    }
}

impl AddAssign for Growth {
    fn add_assign(&mut self, more: Growth) {
        self.rows += more.rows;
        self.bytes += more.bytes;
    }
}

/// What each of the two txgs that can have changes has made of a row; they are told apart by their parity.
#[derive(Default)]
struct Versions {
    rows: [Option<Row>; 2],
    /// The one txg that has it has made it: the database does not have the row.
    new: bool,
}

#[derive(Default)]
pub(crate) struct Changes(HashMap<Key, Versions, FixedState>);

impl Changes {
    /// The row as the txg of parity `newest` sees it, if it or the one before it has changed it.
    pub fn get(&self, newest: usize, key: &Key) -> Option<&Row> {
        let rows = &self.0.get(key)?.rows;
        rows[newest].as_ref().or(rows[newest ^ 1].as_ref())
    }

    /// A row of the txg of this parity; `lacking` says that without these changes there is no such row.
    pub fn insert(&mut self, parity: usize, key: Key, row: Row, lacking: bool) -> Growth {
        match self.0.entry(key) {
            Entry::Vacant(entry) => {
                let growth = Growth::of(entry.key(), None, Some(&row));
                let versions = entry.insert(Versions { new: lacking, ..Versions::default() });
                versions.rows[parity] = Some(row);
                growth
            }
            Entry::Occupied(mut entry) => {
                let growth = Growth::of(entry.key(), entry.get().rows[parity].as_ref(), Some(&row));
                let versions = entry.get_mut();
                versions.new &= versions.rows[parity ^ 1].is_none();
                versions.rows[parity] = Some(row);
                growth
            }
        }
    }

    /// Removes a row. If the database does not have it (`lacking`, or what is known of it here), nothing is left of it but
    /// what the other txg brings there, which is to be deleted after that.
    pub fn remove(&mut self, parity: usize, key: Key, lacking: bool) -> Growth {
        let Entry::Occupied(entry) = self.0.entry(key.clone()) else {
            return if lacking { Growth::default() } else { self.insert(parity, key, None, false) };
        };
        let versions = entry.get();
        if versions.rows[parity ^ 1].is_some() || !(lacking || versions.new) {
            return self.insert(parity, key, None, false);
        }
        let growth = Growth::of(&key, versions.rows[parity].as_ref(), None);
        entry.remove();
        growth
    }

    /// The changes of one txg, in no order.
    pub fn of(&self, parity: usize) -> impl Iterator<Item = (&Key, &Row)> {
        self.0.iter().filter_map(move |(key, versions)| Some((key, versions.rows[parity].as_ref()?)))
    }

    /// The changes of one txg, which are no changes any more.
    pub fn take(&mut self, parity: usize) -> Vec<(Key, Row)> {
        let mut taken = Vec::new();
        self.0.retain(|key, versions| {
            taken.extend(versions.rows[parity].take().map(|row| (key.clone(), row)));
            versions.new = false;
            versions.rows[parity ^ 1].is_some()
        });
        if self.0.is_empty() {
            self.0.shrink_to(256);
        }
        taken
    }

    /// The first changes of one txg in `start..end`, in order: `limit` of them, and one more where there are more.
    pub fn in_range(&self, parity: usize, start: &Key, end: &Key, limit: usize) -> Vec<(&Key, &Row)> {
        let mut found: Vec<_> = self.of(parity).filter(|(key, _)| (start..end).contains(key)).collect();
        if found.len() > limit {
            found.select_nth_unstable_by_key(limit, |(key, _)| *key);
            found.truncate(limit + 1);
        }
        found.sort_unstable_by_key(|(key, _)| *key);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;
    use tarn_base::Ino;

    fn row(text: &'static str) -> Row {
        Some(text.as_bytes().into())
    }

    #[test]
    fn the_newest_version_is_seen_and_each_txg_has_its_own() {
        let (mut changes, [one, two]) = (Changes::default(), [1, 2].map(|n| key::inode(Ino(n))));
        changes.insert(1, one.clone(), row("old"), false);
        changes.insert(0, one.clone(), None, false);
        changes.insert(1, two.clone(), row("two"), false);
        assert_eq!((changes.get(0, &one), changes.get(1, &one)), (Some(&None), Some(&row("old"))));
        assert_eq!(changes.get(0, &two), Some(&row("two")));
        let mut taken = changes.take(1);
        taken.sort();
        assert_eq!(taken, [(one.clone(), row("old")), (two.clone(), row("two"))]);
        assert_eq!((changes.get(1, &one), changes.get(0, &two)), (Some(&None), None));
        assert_eq!(changes.take(0), [(one, None)]);
        assert!(changes.0.is_empty());
    }

    #[test]
    fn what_the_database_never_had_leaves_nothing_unless_it_is_on_its_way() {
        let (mut changes, key) = (Changes::default(), key::orphan(Ino(1)));
        changes.insert(0, key.clone(), row("orphan"), false);
        changes.remove(0, key.clone(), true);
        changes.remove(0, key.clone(), true);
        assert!(changes.0.is_empty());
        changes.insert(1, key.clone(), row("orphan"), false);
        changes.remove(0, key.clone(), true);
        assert_eq!(changes.get(0, &key), Some(&None));
    }

    #[test]
    fn what_a_txg_has_made_and_removed_was_never_there() {
        let (mut changes, key) = (Changes::default(), key::dirent(Ino(1), 2));
        let mut growth = changes.insert(0, key.clone(), row("name"), true);
        assert_eq!(growth, Growth { rows: 1, bytes: weight(&key, &row("name")) as i64 });
        growth += changes.insert(0, key.clone(), row("another name"), false);
        assert_eq!(growth, Growth { rows: 1, bytes: weight(&key, &row("another name")) as i64 });
        growth += changes.remove(0, key.clone(), false);
        assert_eq!((growth, changes.0.len()), (Growth::default(), 0));
        // What the txg before it takes to the database must be deleted there, on its way or arrived.
        for arrived in [false, true] {
            changes.insert(0, key.clone(), row("name"), true);
            changes.insert(1, key.clone(), row("newer"), false);
            if arrived {
                changes.take(0);
            }
            changes.remove(1, key.clone(), false);
            assert_eq!(changes.get(1, &key), Some(&None), "{arrived}");
            changes.take(0);
            changes.take(1);
        }
        // And what was never said to be lacking.
        changes.insert(0, key.clone(), row("name"), false);
        changes.remove(0, key.clone(), false);
        assert_eq!(changes.get(0, &key), Some(&None));
    }

    #[test]
    fn ranges_are_in_order_and_say_where_there_is_more() {
        let mut changes = Changes::default();
        for n in (0..100).rev() {
            changes.insert(n as usize % 2, key::inode(Ino(n)), row("inode"), false);
        }
        let (start, end) = (key::inode(Ino(10)), key::inode(Ino(20)));
        let found = |limit| {
            let rows = changes.in_range(0, &start, &end, limit);
            rows.iter().filter_map(|(key, _)| Some(key::inode_of(key)?.0)).collect::<Vec<_>>()
        };
        assert_eq!(found(100), [10, 12, 14, 16, 18]);
        assert_eq!(found(5), [10, 12, 14, 16, 18]);
        assert_eq!((found(2), found(0)), (vec![10, 12, 14], vec![10]));
    }
}
