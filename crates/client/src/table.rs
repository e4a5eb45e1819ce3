//! The files that this client knows of: open ones, and those whose changes are not committed.

use crate::inode::{Inode, Overlay};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tarn_base::Ino;

const SHARDS: usize = 64;

struct Entry {
    inode: Arc<Inode>,
    /// Handles and calls under way: the entry stays while there are any.
    pins: usize,
}

/// Known inodes, sharded by number. A shard's lock is taken before an inode's state, never after.
pub(crate) struct Table {
    shards: Vec<Mutex<BTreeMap<Ino, Entry>>>,
    len: AtomicUsize,
}

impl Table {
    pub fn new() -> Arc<Table> {
        Arc::new(Table { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), len: AtomicUsize::new(0) })
    }

    fn shard(&self, ino: Ino) -> &Mutex<BTreeMap<Ino, Entry>> {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// The inode, if known; it may be forgotten as soon as it is clean.
    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        if self.is_empty() {
            return None;
        }
        self.shard(ino).lock().get(&ino).map(|e| e.inode.clone())
    }

    pub fn overlay(&self, ino: Ino) -> Option<Overlay> {
        self.get(ino)?.overlay()
    }

    /// The inode, known from now on for as long as the pin lives.
    pub fn pin(self: &Arc<Self>, ino: Ino) -> Pinned {
        let mut shard = self.shard(ino).lock();
        let entry = shard.entry(ino).or_insert_with(|| {
            self.len.fetch_add(1, Ordering::AcqRel);
            Entry { inode: Arc::new(Inode::new(ino)), pins: 0 }
        });
        entry.pins += 1;
        Pinned { table: self.clone(), inode: entry.inode.clone() }
    }

    /// Pins the inode only if it is known.
    pub fn pin_known(self: &Arc<Self>, ino: Ino) -> Option<Pinned> {
        if self.is_empty() {
            return None;
        }
        let mut shard = self.shard(ino).lock();
        let entry = shard.get_mut(&ino)?;
        entry.pins += 1;
        Some(Pinned { table: self.clone(), inode: entry.inode.clone() })
    }

    fn release(&self, ino: Ino, pins: usize) {
        let mut shard = self.shard(ino).lock();
        if let Some(entry) = shard.get_mut(&ino) {
            entry.pins -= pins;
            if entry.pins == 0 && entry.inode.is_clean() {
                shard.remove(&ino);
                self.len.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Forgets the inode if nobody holds it and nothing of it waits.
    pub fn forget_if_clean(&self, ino: Ino) {
        self.release(ino, 0);
    }

    /// Every inode that is not clean.
    pub fn unclean(self: &Arc<Self>) -> Vec<Pinned> {
        let mut found = Vec::new();
        for shard in &self.shards {
            for entry in shard.lock().values_mut() {
                if !entry.inode.is_clean() {
                    entry.pins += 1;
                    found.push(Pinned { table: self.clone(), inode: entry.inode.clone() });
                }
            }
        }
        found
    }

    pub fn all(self: &Arc<Self>) -> Vec<Arc<Inode>> {
        self.shards
            .iter()
            .flat_map(|s| s.lock().values().map(|e| e.inode.clone()).collect::<Vec<_>>())
            .collect()
    }
}

/// A known inode that is not forgotten while this lives.
pub(crate) struct Pinned {
    table: Arc<Table>,
    pub inode: Arc<Inode>,
}

impl Deref for Pinned {
    type Target = Arc<Inode>;
    fn deref(&self) -> &Arc<Inode> {
        &self.inode
    }
}

impl Clone for Pinned {
    fn clone(&self) -> Pinned {
        self.table.pin(self.inode.ino)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.table.release(self.inode.ino, 1);
    }
}
