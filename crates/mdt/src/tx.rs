//! One attempt at an operation.
//!
//! An operation is a plain function over [`Tx`]: it reads rows, decides, and writes rows. Nothing it does is seen
//! until it has ended well, so it may stop at any point: with an error, or because a row is not in memory, after
//! which it is simply run again from the start. That is how the same few lines are both the hot path, answered
//! from memory, and the cold one.

use crate::Stop;
use crate::changes::Rows;
use crate::key::{self, Key};
use crate::phys::{COUNT_MAX, Chunk, DirentPhys, InodePhys, SegmentPhys, SuperPhys, Value, decode, encode};
use crate::rows::{Loaded, Row, RowStore};
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_base::block::Sealed;
use tarn_base::sabotage::{self, Sabotage};
use tarn_base::{FsError, Ino, SegmentId, Timespec, Txg, VdevId};

/// What must happen once an operation's rows are in the open txg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The inode has lost its last name: whoever took it holds it, and it is freed when nobody has it open.
    Orphaned(Ino),
    /// An inode without names has one again.
    Named(Ino),
    /// The segment holds nothing any more: its object may go when the time comes.
    Freed { freed_ms: u64, segment: SegmentId, size: u64 },
    /// The segment is in the txg whole, and is to be brought to its bucket.
    Carried(Sealed),
    /// The segment's share of live bytes has fallen.
    Thinned { segment: SegmentId, row: SegmentPhys },
}

pub struct Tx<'a> {
    rows: &'a RowStore,
    loaded: &'a Loaded,
    pub(crate) writes: Rows,
    segments: BTreeMap<SegmentId, SegmentPhys>,
    /// Bytes that segments on these vdevs gained or lost.
    pub(crate) stored: BTreeMap<VdevId, i64>,
    pub(crate) effects: Vec<Effect>,
    /// The dataset's numbers, as they will be if the operation ends well.
    pub numbers: SuperPhys,
    /// The open txg.
    pub txg: Txg,
    /// The time of the operation.
    pub now: Timespec,
    /// The inode that it makes, if a client has been told which.
    pub again: Option<Ino>,
    /// The inode that it made.
    pub made: Option<Ino>,
    /// The directory that it made, under a number that was never used.
    pub made_directory: Option<Ino>,
    /// It is a step of a request that is not done with it: interrupted, that may be made again from its start.
    pub unfinished: bool,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(
        rows: &'a RowStore,
        loaded: &'a Loaded,
        numbers: SuperPhys,
        txg: Txg,
        now: Timespec,
    ) -> Tx<'a> {
        Tx {
            rows,
            loaded,
            writes: Rows::default(),
            segments: BTreeMap::new(),
            stored: BTreeMap::new(),
            effects: Vec::new(),
            numbers,
            txg,
            now,
            again: None,
            made: None,
            made_directory: None,
            unfinished: false,
        }
    }

    pub fn get(&self, key: &Key) -> Result<Row, Stop> {
        match self.writes.get(key) {
            Some(row) => Ok(row.clone()),
            None => self.rows.get(key, self.loaded),
        }
    }

    /// Stops with all of `keys` that are not in memory, so that they are loaded together.
    pub fn want(&self, keys: impl IntoIterator<Item = Key>) -> Result<(), Stop> {
        let mut missing = Vec::new();
        for key in keys {
            if let Err(Stop::Missing(more)) = self.get(&key) {
                missing.extend(more);
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(Stop::Missing(missing)) }
    }

    pub fn put(&mut self, key: Key, value: Value) {
        self.writes.insert(key, Some(value));
    }

    pub fn delete(&mut self, key: Key) {
        self.writes.insert(key, None);
    }

    /// The inode, [`FsError::Stale`] when it is gone.
    pub fn inode(&self, ino: Ino) -> Result<InodePhys, Stop> {
        self.find_inode(ino)?.ok_or(Stop::Fail(FsError::Stale))
    }

    pub fn find_inode(&self, ino: Ino) -> Result<Option<InodePhys>, Stop> {
        self.get(&key::inode(ino))?.map(|row| decode("inode", &row)).transpose()
    }

    pub fn put_inode(&mut self, ino: Ino, inode: &InodePhys) {
        self.put(key::inode(ino), encode(inode));
    }

    pub fn dirents(&self, dir: Ino, hash: u64) -> Result<DirentPhys, Stop> {
        match self.get(&key::dirent(dir, hash))? {
            Some(row) => decode("directory", &row),
            None => Ok(DirentPhys::default()),
        }
    }

    pub fn put_dirents(&mut self, dir: Ino, hash: u64, names: &DirentPhys) {
        let key = key::dirent(dir, hash);
        if names.entries.is_empty() { self.delete(key) } else { self.put(key, encode(names)) }
    }

    /// A chunk of a block map, to be looked at.
    pub fn map(&self, ino: Ino, chunk: u64, record_size: u32) -> Result<Arc<Chunk>, Stop> {
        match self.get(&key::chunk(ino, chunk))? {
            Some(row) => self.rows.maps.decoded(ino, chunk, &row, record_size),
            None => Ok(Arc::new(Chunk::empty())),
        }
    }

    /// A chunk of a block map, to be changed.
    pub fn chunk(&self, ino: Ino, chunk: u64, record_size: u32) -> Result<Chunk, Stop> {
        match self.get(&key::chunk(ino, chunk))? {
            Some(row) => Chunk::decode(&row, record_size),
            None => Ok(Chunk::empty()),
        }
    }

    pub fn put_chunk(&mut self, ino: Ino, chunk: u64, map: &Chunk, record_size: u32) {
        let key = key::chunk(ino, chunk);
        if map.is_empty() { self.delete(key) } else { self.put(key, map.encode(record_size)) }
    }

    /// The segment's row, to be changed in place; written when the operation ends.
    pub fn segment(&mut self, id: SegmentId) -> Result<&mut SegmentPhys, Stop> {
        if !self.segments.contains_key(&id) {
            let row = match self.get(&key::segment(id))? {
                Some(row) => decode("segment", &row)?,
                None => SegmentPhys::default(),
            };
            self.segments.insert(id, row);
        }
        self.segments.get_mut(&id).ok_or_else(|| Stop::damaged("segment row vanished".into()))
    }

    /// Counts bytes that the segment gained or lost.
    pub(crate) fn count_stored(&mut self, id: SegmentId, bytes: i64) {
        self.numbers.stored = self.numbers.stored.saturating_add_signed(bytes);
        *self.stored.entry(id.grant.vdev).or_default() += bytes;
    }

    pub fn now_ms(&self) -> u64 {
        (self.now.sec.max(0) as u64) * 1000 + u64::from(self.now.nsec) / 1_000_000
    }

    /// Turns what became of segments into rows and effects; the last step of every operation.
    pub(crate) fn settle(&mut self) {
        let freed_ms = self.now_ms();
        for (id, row) in std::mem::take(&mut self.segments) {
            let dead = row.live == 0;
            if dead || row.live < row.size && sabotage::on(Sabotage::ReclaimLive) {
                self.delete(key::segment(id));
                self.put(key::reclaim(freed_ms, id), encode(&crate::phys::ReclaimPhys { size: row.size }));
                self.count_stored(id, -(row.size as i64));
                self.effects.push(Effect::Freed { freed_ms, segment: id, size: row.size });
            } else {
                self.put(key::segment(id), encode(&row));
                if row.live < row.size {
                    self.effects.push(Effect::Thinned { segment: id, row });
                }
            }
        }
    }

    /// The number of a new inode: the next one, or that which a client was told before a crash.
    pub fn new_ino(&mut self) -> Result<Ino, Stop> {
        let ino = match self.again {
            Some(ino) if ino <= Ino::ROOT || ino.0 >= COUNT_MAX || self.find_inode(ino)?.is_some() => {
                return Err(FsError::invalid("that inode cannot be made again").into());
            }
            Some(ino) => ino,
            None => Ino(self.numbers.next_ino),
        };
        self.numbers.next_ino = self.numbers.next_ino.max(ino.0 + 1);
        self.numbers.inodes += 1;
        self.made = Some(ino);
        Ok(ino)
    }
}
