//! What the client knows of a file that is open or has data here that is not committed.
//!
//! # Two sizes
//! `size` is what every caller of this client sees; `committed_size` is what the metadata server has been told.
//! They differ while data waits. The committed size never runs ahead of committed data: what lies between them
//! is either in `dirty`, or a hole that the user made.
//!
//! # A record's way
//! *Idle* dirty (in `dirty` and `idle`) -> *in flight* (`flight` names the flight, the content at the snapshot
//! is frozen) -> committed: gone from `dirty`, unless it was written again meanwhile; then it is idle again. A
//! flight that fails makes its records idle again (and `returned`): dirty data is never dropped but by truncation,
//! punching, or the end of a file without names.
//!
//! `seq` counts changes of the file. A record carries the number of its oldest change that is not committed
//! (`since`), so that `fsync` knows which records it waits for: those whose `since` is not above the count at
//! its call. Writers that go on do not hold it up.
//!
//! # Who may do what at the same time
//! `order` is held shared by writers (while they copy) and by flights (from snapshot to commit), and exclusive
//! by what changes the file's shape: truncation, punching, sharing of records. So no commit of old content can
//! arrive after the shape was changed. `state` is a short lock, never held over anything that waits.

use crate::buffer::SharedBuf;
use crate::open::Readers;
use crate::patch::Patch;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_base::posix::{Attr, FileKind};
use tarn_base::{FsError, Ino, Job, Timespec};
use tokio::sync::{Notify, RwLock};

/// One file that is open here or not yet committed.
pub(crate) struct Inode {
    pub ino: Ino,
    pub order: Arc<RwLock<()>>,
    /// Told whenever a flight ends or an exclusive change is done.
    pub changed: Notify,
    pub readers: Readers,
    pub state: Mutex<State>,
}

pub(crate) struct State {
    /// Attributes were fetched; before that nothing below counts.
    pub loaded: bool,
    pub kind: FileKind,
    /// Bytes.
    pub record_size: u64,
    pub size: u64,
    pub committed_size: u64,
    /// Who wrote last: what its flights cost is that job's.
    pub writer: Option<Arc<Job>>,
    /// Modification time that is not committed.
    pub mtime: Option<Timespec>,
    /// Access time that is not committed.
    pub atime: Option<Timespec>,
    /// The last known committed access and modification times, to decide whether a read moves the former.
    pub seen_atime: Timespec,
    pub seen_mtime: Timespec,
    pub seq: u64,
    pub dirty: BTreeMap<u64, Dirty>,
    /// Records that were written in part and whose committed content is still to come.
    pub patches: BTreeMap<u64, Patch>,
    /// Dirty records that are not in flight.
    pub idle: BTreeSet<u64>,
    /// Idle records that were written to their end: nobody is expected to touch them soon.
    pub finished: BTreeSet<u64>,
    /// Dirty records in flight that were written again since.
    pub rewritten: BTreeSet<u64>,
    /// Dirty records that came back from a flight: what was taken meanwhile must not be committed before them.
    pub returned: BTreeSet<u64>,
    /// Sum of the lengths of dirty records.
    pub dirty_bytes: u64,
    /// Flights that hold records of this file, in the order in which they must commit.
    pub flights: BTreeSet<u64>,
    /// Flights that failed so far.
    pub failures: u64,
    pub error: Option<FsError>,
    /// Why written data was given up; for the first who asks.
    pub lost: Option<FsError>,
    /// Commits under way that carry a modification time.
    pub committing: u32,
    /// Committed records being fetched for a partial write: a ticket each. A record that changes meanwhile
    /// takes its tickets back.
    pub loading: Vec<(u64, u64)>,
    pub opens: u32,
    /// No name is left.
    pub unlinked: bool,
    /// Waits in the flusher's urgent queue.
    pub urgent: bool,
    /// Waits in the flusher's queue of files that have a segment's worth of finished records.
    pub full: bool,
}

/// One dirty record.
pub(crate) struct Dirty {
    pub buf: SharedBuf,
    /// The oldest change that is not committed.
    pub since: u64,
    pub flight: Option<InFlight>,
    /// Waits in the flusher's queue of records whose file was closed.
    pub eligible: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct InFlight {
    pub id: u64,
    /// The first change after the snapshot.
    pub next_since: Option<u64>,
}

/// What lies over committed attributes.
#[derive(Clone, Copy)]
pub(crate) struct Overlay {
    size: u64,
    mtime: Option<Timespec>,
    atime: Option<Timespec>,
    dirty_bytes: u64,
    seq: u64,
}

impl Overlay {
    pub fn apply(&self, attr: &mut Attr) {
        attr.size = self.size;
        if let Some(mtime) = self.mtime {
            attr.mtime = mtime;
            attr.ctime = attr.ctime.max(mtime);
        }
        if let Some(atime) = self.atime {
            attr.atime = atime;
        }
        if self.dirty_bytes > 0 {
            attr.allocated += self.dirty_bytes;
            // Never equal to a committed version, and new with every change.
            attr.data_version = (1 << 63) | attr.data_version.wrapping_add(self.seq << 24);
        }
    }
}

impl Inode {
    pub fn new(ino: Ino) -> Inode {
        Inode {
            ino,
            order: Arc::new(RwLock::new(())),
            changed: Notify::new(),
            readers: Readers::default(),
            state: Mutex::new(State {
                loaded: false,
                kind: FileKind::Regular,
                record_size: 0,
                size: 0,
                committed_size: 0,
                writer: None,
                mtime: None,
                atime: None,
                seen_atime: Timespec::default(),
                seen_mtime: Timespec::default(),
                seq: 0,
                dirty: BTreeMap::new(),
                patches: BTreeMap::new(),
                idle: BTreeSet::new(),
                finished: BTreeSet::new(),
                rewritten: BTreeSet::new(),
                returned: BTreeSet::new(),
                dirty_bytes: 0,
                flights: BTreeSet::new(),
                failures: 0,
                error: None,
                lost: None,
                committing: 0,
                loading: Vec::new(),
                opens: 0,
                unlinked: false,
                urgent: false,
                full: false,
            }),
        }
    }

    /// Takes committed attributes in, unless they are known already.
    pub fn load(&self, attr: &Attr) {
        let mut state = self.state.lock();
        state.seen_atime = state.seen_atime.max(attr.atime);
        state.seen_mtime = state.seen_mtime.max(attr.mtime);
        if !state.loaded {
            state.loaded = true;
            state.kind = attr.kind;
            state.record_size = u64::from(attr.record_size.max(1));
            state.size = attr.size;
            state.committed_size = attr.size;
        }
    }

    pub fn overlay(&self) -> Option<Overlay> {
        let state = self.state.lock();
        if !state.loaded || state.kind != FileKind::Regular {
            return None;
        }
        Some(Overlay {
            size: state.size,
            mtime: state.mtime,
            atime: state.atime,
            dirty_bytes: state.dirty_bytes,
            seq: state.seq,
        })
    }

    pub fn is_clean(&self) -> bool {
        self.state.lock().is_clean()
    }
}

impl State {
    /// Everything that anybody was told is committed.
    pub fn is_clean(&self) -> bool {
        self.has_no_data() && self.size == self.committed_size && self.mtime.is_none()
    }

    /// No content waits to be committed.
    pub fn has_no_data(&self) -> bool {
        self.dirty.is_empty() && self.patches.is_empty()
    }

    pub fn is_regular(&self) -> bool {
        self.kind == FileKind::Regular
    }

    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Whether any change up to `seq` is in no commit yet.
    pub fn dirty_since(&self, seq: u64) -> bool {
        self.dirty.values().any(|d| d.since <= seq) || self.patches.values().any(|p| p.since <= seq)
    }

    /// The newest content of a record, if it is not committed.
    pub fn dirty_content(&self, record: u64) -> Option<Bytes> {
        self.dirty.get(&record).map(|d| d.buf.bytes())
    }

    /// Whether the record can have committed content: it begins inside the committed size.
    pub fn maybe_committed(&self, record: u64) -> bool {
        record * self.record_size < self.committed_size
    }

    /// A fetch of committed content begins: the ticket tells later whether it still stands.
    pub fn begin_load(&mut self, record: u64) -> u64 {
        let ticket = self.next_seq();
        self.loading.push((record, ticket));
        ticket
    }

    /// Ends a fetch; whether what it brought is still the record's content.
    pub fn end_load(&mut self, record: u64, ticket: u64) -> bool {
        match self.loading.iter().position(|l| *l == (record, ticket)) {
            Some(at) => {
                self.loading.swap_remove(at);
                true
            }
            None => false,
        }
    }

    /// Committed content of these records is not what a fetch under way would bring.
    pub fn revoke_loads(&mut self, records: impl Fn(u64) -> bool) {
        self.loading.retain(|(record, _)| !records(*record));
    }

    /// Drops dirty records and patches from `first` to before `end`; gives the bytes that are dirty no more.
    pub fn drop_dirty(&mut self, first: u64, end: u64) -> u64 {
        let mut rest = self.dirty.split_off(&first);
        let mut kept = rest.split_off(&end);
        self.dirty.append(&mut kept);
        self.idle.retain(|r| *r < first || *r >= end);
        self.finished.retain(|r| *r < first || *r >= end);
        self.rewritten.retain(|r| *r < first || *r >= end);
        self.returned.retain(|r| *r < first || *r >= end);
        self.revoke_loads(|r| r >= first && r < end);
        let mut patches = self.patches.split_off(&first);
        self.patches.append(&mut patches.split_off(&end));
        let dropped: u64 = rest.values().map(|d| d.buf.len() as u64).sum::<u64>()
            + patches.values().map(Patch::len).sum::<u64>();
        self.dirty_bytes -= dropped;
        dropped
    }

    /// The first record behind the committed size that came back from a flight and is not on its way with `flight`, which
    /// may commit nothing beyond it. `u64::MAX` where there is none.
    pub fn barrier(&self, flight: u64) -> u64 {
        let behind = self.committed_size / self.record_size.max(1);
        let elsewhere = |record: &&u64| {
            self.dirty.get(record).is_some_and(|dirty| dirty.flight.is_none_or(|taken| taken.id != flight))
        };
        self.returned.range(behind..).find(elsewhere).copied().unwrap_or(u64::MAX)
    }

    /// Records of a flight that were not committed are idle again; gives those that are still dirty.
    pub fn bring_back(&mut self, records: impl Iterator<Item = u64>, flight: u64) -> Vec<u64> {
        let mut again = Vec::new();
        for record in records {
            let Some(dirty) = self.dirty.get_mut(&record) else { continue };
            if dirty.flight.is_some_and(|taken| taken.id == flight) {
                dirty.flight = None;
                self.rewritten.remove(&record);
                self.returned.insert(record);
                again.push(record);
            }
        }
        self.idle.extend(again.iter().copied());
        again
    }

    /// A record was written to its end. One in flight is not idle: it is looked at again when it lands.
    pub fn note_finished(&mut self, record: u64) {
        if self.idle.contains(&record) {
            self.finished.insert(record);
        }
    }

    /// Whether the finished records make up a segment of `bytes`.
    pub fn fills(&self, bytes: u64) -> bool {
        !self.finished.is_empty() && self.finished.len() as u64 * self.record_size >= bytes
    }

    /// Notes a change of one dirty record that was made now. Returns true when the record became idle dirty by
    /// it and must be queued.
    pub fn note_change(&mut self, record: u64, seq: u64) -> bool {
        let Some(dirty) = self.dirty.get_mut(&record) else { return false };
        match &mut dirty.flight {
            Some(flight) => {
                flight.next_since.get_or_insert(seq);
                self.rewritten.insert(record);
                false
            }
            None => self.idle.insert(record),
        }
    }
}
