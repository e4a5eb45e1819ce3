//! The metadata target: one dataset's inodes, directories, block maps, extended attributes and space, in one
//! SlateDB database, under an in-memory table of rows and transaction groups.
//!
//! # The way of a call
//! Every operation is a plain function over a [`tx::Tx`] (see there). [`Mdt::change`] runs it under the one
//! operation lock of the dataset, which no I/O ever happens under: an operation takes a few microseconds, so one
//! lock is enough, and there is no lock order to get wrong. [`Mdt::look`] runs one that changes nothing, without
//! that lock. Either answers at once when all its rows are in memory, else loads them and runs anew.
//!
//! # What is in the background
//! - `txg`: closes and syncs transaction groups;
//! - `carry`: brings small segments to their buckets that were committed before they are there;
//! - `reap`: frees the data of inodes that have lost their last name;
//! - `reclaim`: deletes segments that nothing points to, once that is durable and the rewind window has passed;
//! - `compact`: moves what lives in mostly dead segments into new ones.

mod acl;
mod carry;
mod changes;
mod check;
mod client;
mod compact;
mod db;
mod destroy;
mod directories;
mod forward;
mod idle;
mod key;
mod maps;
mod memory;
mod names;
mod near;
mod open;
mod ops;
mod pages;
#[doc(hidden)]
pub mod parsers;
mod paths;
mod phys;
mod reap;
mod reclaim;
mod rows;
mod tx;
mod txg;
#[cfg(test)]
#[path = "../tests/world/mod.rs"]
mod world;

// For the world of tests, which is the same on both sides of the crate's edge.
#[cfg(test)]
extern crate self as tarn_mdt;

pub use check::CheckReport;
pub use destroy::destroy;
pub use memory::MemoryUse;
pub use open::MdtOptions;
pub use ops::{FileChange, RecordChange, Share};

use foldhash::fast::FixedState;
use key::Key;
use parking_lot::{Mutex, RwLock};
use phys::{SuperPhys, Value, VdevPhys};
use rows::{Loaded, RowStore};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_base::{
    Answer, ChecksumKind, Clock, Compression, DatasetId, FsError, Histogram, HistogramStats, Ino, Request,
    Trace, Txg, VdevId,
};
use tarn_pool::Pool;
use tokio_util::sync::CancellationToken;
use tx::{Effect, Tx};

/// Why an attempt at an operation ended without a result.
#[derive(Debug, Clone)]
pub enum Stop {
    /// These rows are not in memory: load them and run again.
    Missing(Vec<Key>),
    Fail(FsError),
}

impl Stop {
    fn damaged(text: String) -> Stop {
        Stop::Fail(FsError::Io(text))
    }
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Fail(error)
    }
}

fn no_stop(stop: Stop) -> FsError {
    match stop {
        Stop::Fail(error) => error,
        Stop::Missing(_) => FsError::Io("row is missing".into()),
    }
}

type Outcome<T> = Result<T, Stop>;

fn pool_error(error: tarn_pool::Error) -> FsError {
    match error {
        tarn_pool::Error::Fenced => FsError::Fenced,
        tarn_pool::Error::NoSpace => FsError::NoSpace,
        other => FsError::Io(other.to_string()),
    }
}

/// Properties of a dataset that its metadata target heeds; they may change at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Record size of new files, in bytes: a power of two.
    pub record_size: u32,
    pub compression: Compression,
    pub checksum: ChecksumKind,
    pub atime: bool,
    pub relatime: bool,
    pub read_only: bool,
    /// Most bytes of live records; `None`: as many as the pool has.
    pub quota: Option<u64>,
}

impl Default for Properties {
    fn default() -> Self {
        Properties {
            record_size: tarn_base::block::DEFAULT_RECORD,
            compression: Compression::Lz4,
            checksum: ChecksumKind::Xxh3,
            atime: true,
            relatime: true,
            read_only: false,
            quota: None,
        }
    }
}

/// What a dataset takes up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Bytes of live records.
    pub live: u64,
    /// Bytes of records in all segments, dead ones included.
    pub stored: u64,
    pub inodes: u64,
}

/// Counters since the dataset was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    /// Calls answered from memory.
    pub ready: u64,
    /// Calls that had to wait for the database or for a txg.
    pub pending: u64,
    /// Gets and scans of the database.
    pub database_reads: u64,
    /// The open txg's number, and that of the last durable one.
    pub txg: u64,
    pub durable: u64,
    /// Rows changed in the open txg, and the memory that they take.
    pub open_rows: u64,
    pub open_bytes: u64,
    pub txgs: u64,
    pub rows_synced: u64,
    pub bytes_synced: u64,
    pub txg_retries: u64,
    /// How long txgs took from their closing until they were durable.
    pub txg_sync: HistogramStats,
    pub reaped: u64,
    pub segments_deleted: u64,
    pub segments_compacted: u64,
    pub bytes_compacted: u64,
    /// Segments that are committed and not in their buckets yet.
    pub carried_bytes: u64,
}

#[derive(Default)]
struct Counters {
    ready: AtomicU64,
    pending: AtomicU64,
    txgs: AtomicU64,
    rows_synced: AtomicU64,
    bytes_synced: AtomicU64,
    txg_sync: Histogram,
    reaped: AtomicU64,
    segments_deleted: AtomicU64,
    segments_compacted: AtomicU64,
    bytes_compacted: AtomicU64,
}

/// What the operation lock guards.
struct OpState {
    /// The open txg.
    txg: Txg,
    numbers: SuperPhys,
    /// Bytes of records in segments that are not freed yet, by vdev.
    stored: BTreeMap<VdevId, u64>,
    /// Whether the open txg has changed anything; the rows that are to be written for it, and the memory that they take.
    changed: bool,
    rows: usize,
    bytes: u64,
    /// Changes since the dataset was opened.
    changes: u64,
    /// The client on another host that has the dataset.
    client: Option<client::ClientState>,
}

/// One open dataset.
pub struct Mdt {
    dataset: DatasetId,
    pool: Arc<Pool>,
    db: db::Database,
    rows: RowStore,
    shares: memory::Shares,
    op: Mutex<OpState>,
    engine: txg::Engine,
    properties: RwLock<Properties>,
    hashing: names::Hashing,
    /// Inodes that somebody holds open, and how often.
    open_inodes: Mutex<HashMap<Ino, reap::OpenInode, FixedState>>,
    reaper: reap::Reaper,
    reclaimer: reclaim::Reclaimer,
    carrier: carry::Carrier,
    compactor: compact::Compactor,
    near: near::Near,
    /// Where the last listings ended, the newest first.
    ends: Mutex<VecDeque<ops::End>>,
    pages: pages::Pages,
    /// Grants of earlier sessions under which segments may lie that nobody committed.
    old_grants: Mutex<Vec<tarn_base::Grant>>,
    /// Held by who adds up what the attributes of an inode take, until one more is set.
    measuring: tokio::sync::Mutex<()>,
    truncations: ops::Truncations,
    counters: Counters,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
    stop: CancellationToken,
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    /// The txg engine outlives the other tasks, which wait for it.
    stop_txgs: CancellationToken,
    txg_task: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

fn orphaned(effects: &[Effect]) -> Option<Ino> {
    effects.iter().find_map(|effect| match effect {
        Effect::Orphaned(ino) => Some(*ino),
        _ => None,
    })
}

impl Mdt {
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    pub fn properties(&self) -> Properties {
        *self.properties.read()
    }

    /// Takes effect for everything that comes after.
    pub fn set_properties(&self, properties: Properties) {
        *self.properties.write() = properties;
    }

    pub fn usage(&self) -> Usage {
        let numbers = self.op.lock().numbers;
        Usage { live: numbers.live, stored: numbers.stored, inodes: numbers.inodes }
    }

    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (txg, open_rows, open_bytes) = {
            let op = self.op.lock();
            (op.txg.0, op.rows as u64, op.bytes)
        };
        Stats {
            txg,
            durable: self.engine.durable().0,
            open_rows,
            open_bytes,
            bytes_synced: of(&self.counters.bytes_synced),
            txg_sync: self.counters.txg_sync.snapshot(),
            ready: of(&self.counters.ready),
            pending: of(&self.counters.pending),
            database_reads: of(&self.db.reads),
            txgs: of(&self.counters.txgs),
            rows_synced: of(&self.counters.rows_synced),
            txg_retries: of(&self.engine.retries),
            reaped: of(&self.counters.reaped),
            segments_deleted: of(&self.counters.segments_deleted),
            segments_compacted: of(&self.counters.segments_compacted),
            bytes_compacted: of(&self.counters.bytes_compacted),
            carried_bytes: self.carrier.bytes(),
        }
    }

    /// Runs an operation that changes nothing.
    pub(crate) fn look<T: Send + 'static>(
        self: &Arc<Self>,
        op: impl Fn(&Tx) -> Outcome<T> + Send + Sync + 'static,
    ) -> Answer<T> {
        match self.try_look(&Loaded::default(), &op) {
            Ok(value) => self.ready(Ok(value)),
            Err(Stop::Fail(error)) => self.ready(Err(error)),
            Err(Stop::Missing(keys)) => {
                let mdt = self.clone();
                self.begun(async move { mdt.retry(keys, |loaded| mdt.try_look(loaded, &op)).await })
            }
        }
    }

    /// Runs an operation that changes rows; its changes enter the open txg together.
    pub(crate) fn change<T: Send + 'static>(
        self: &Arc<Self>,
        op: impl Fn(&mut Tx) -> Outcome<T> + Send + Sync + 'static,
    ) -> Answer<T> {
        if let Err(error) = self.changeable() {
            return self.ready(Err(error));
        }
        let first = if self.overfull() {
            Err(Stop::Missing(Vec::new()))
        } else {
            self.try_change(&Loaded::default(), &op)
        };
        match first {
            Ok(value) => self.ready(Ok(value)),
            Err(Stop::Fail(error)) => self.ready(Err(error)),
            Err(Stop::Missing(keys)) => {
                let mdt = self.clone();
                self.begun(async move { mdt.change_when_loaded(keys, &op).await })
            }
        }
    }

    /// Whether clients may change anything.
    pub(crate) fn changeable(&self) -> Result<(), FsError> {
        match self.engine.fenced() {
            true => Err(FsError::Fenced),
            false if self.properties.read().read_only => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// One step of several, and the way in for background tasks, whom neither a read-only property nor a full txg
    /// stops.
    pub(crate) async fn change_slowly<T>(
        self: &Arc<Self>,
        op: &(impl Fn(&mut Tx) -> Outcome<T> + Sync),
    ) -> Result<T, FsError> {
        self.change_when_loaded(Vec::new(), op).await
    }

    async fn change_when_loaded<T>(
        self: &Arc<Self>,
        keys: Vec<Key>,
        op: &(impl Fn(&mut Tx) -> Outcome<T> + Sync),
    ) -> Result<T, FsError> {
        while self.overfull() {
            self.sync().await?;
        }
        self.retry(keys, |loaded| self.try_change(loaded, op)).await
    }

    fn ready<T>(&self, result: Result<T, FsError>) -> Answer<T> {
        self.counters.ready.fetch_add(1, Ordering::Relaxed);
        Answer::Ready(result)
    }

    /// An answer for which the database is asked. What the database has in memory it gives at once.
    pub(crate) fn begun<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, FsError>> + Send + 'static,
    ) -> Answer<T> {
        let _runtime = self.runtime.enter();
        let answer = Answer::pending(future).begun();
        let count = match answer {
            Answer::Ready(_) => &self.counters.ready,
            Answer::Pending(_) => &self.counters.pending,
        };
        count.fetch_add(1, Ordering::Relaxed);
        answer
    }

    fn try_look<T>(&self, loaded: &Loaded, op: &impl Fn(&Tx) -> Outcome<T>) -> Outcome<T> {
        op(&Tx::new(&self.rows, loaded, SuperPhys::default(), Txg(0), self.clock.now()))
    }

    fn try_change<T>(self: &Arc<Self>, loaded: &Loaded, op: &impl Fn(&mut Tx) -> Outcome<T>) -> Outcome<T> {
        let request = Request::current();
        let again = request.as_ref().and_then(|request| request.again);
        let mut state = self.op.lock();
        let now = again.map_or_else(|| self.clock.now(), |trace| trace.at);
        let mut tx = Tx::new(&self.rows, loaded, state.numbers, state.txg, now);
        tx.again = again.and_then(|trace| trace.ino);
        let value = op(&mut tx)?;
        tx.settle();
        let Tx { mut writes, effects, numbers, stored, made, made_directory, unfinished, .. } = tx;
        state.numbers = numbers;
        state.changes += 1;
        if let Some(request) = request {
            let trace =
                Trace { txg: state.txg, order: state.changes, at: now, ino: made.or(orphaned(&effects)) };
            let trace = request.note(trace);
            if let (false, Some(client)) = (unfinished, &mut state.client) {
                client.note(&request, trace);
            }
        }
        for (vdev, change) in stored {
            let stored = state.stored.entry(vdev).or_default();
            *stored = stored.saturating_add_signed(change);
            writes.insert(key::vdev(vdev), Some(phys::encode(&VdevPhys { stored: *stored })));
        }
        if let Some(dir) = made_directory {
            self.rows.made(dir);
        }
        let listed = self.pages.among(&writes);
        state.changed |= !writes.is_empty();
        let growth = self.rows.apply(state.txg, writes);
        state.rows = state.rows.saturating_add_signed(growth.rows);
        state.bytes = state.bytes.saturating_add_signed(growth.bytes);
        let full = state.rows >= txg::TXG_ROWS
            || state.bytes >= self.shares.txg
            || state.client.as_ref().is_some_and(client::ClientState::is_full);
        self.pages.changed(&listed);
        let txg = state.txg;
        drop(state);
        if full {
            self.engine.wanted.notify_one();
        }
        for effect in effects {
            self.follow(effect, txg);
        }
        Ok(value)
    }

    fn follow(&self, effect: Effect, txg: Txg) {
        match effect {
            Effect::Orphaned(ino) => self.hold(ino, true),
            Effect::Named(ino) => self.named(ino),
            Effect::Freed { freed_ms, segment, size } => {
                self.compactor.forget(segment);
                self.reclaimer.add(freed_ms, segment, size, txg);
            }
            Effect::Thinned { segment, row } => self.compactor.note(segment, row),
            Effect::Carried(segment) => self.carry(segment),
        }
    }

    async fn retry<T>(
        self: &Arc<Self>,
        mut keys: Vec<Key>,
        attempt: impl Fn(&Loaded) -> Outcome<T>,
    ) -> Result<T, FsError> {
        let mut loaded = Loaded::default();
        loop {
            self.load(keys, &mut loaded).await?;
            match attempt(&loaded) {
                Ok(value) => return Ok(value),
                Err(Stop::Fail(error)) => return Err(error),
                Err(Stop::Missing(more)) => keys = more,
            }
        }
    }

    async fn load(&self, keys: Vec<Key>, loaded: &mut Loaded) -> Result<(), FsError> {
        for key in keys {
            self.load_near(&key, loaded).await?;
        }
        Ok(())
    }

    /// Up to `limit` live rows of `start..end`, in order, uncommitted changes included.
    pub(crate) async fn scan(
        &self,
        start: &Key,
        end: &Key,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, FsError> {
        let mut out = Vec::new();
        let mut from = start.clone();
        while out.len() < limit && from < *end {
            // Changes first: a txg that becomes durable between the two reads is then seen twice, never missed.
            let room = limit - out.len();
            let (changed, known) = self.rows.changed_in(&from, end, room.saturating_add(1));
            let stored = match key::in_one_shard(&from, &known) && self.rows.is_unwritten(&from) {
                true => Vec::new(),
                false => self.db.scan(&from, &known, room.saturating_add(1)).await?,
            };
            // Beyond the last row that the database gave there may be more of its rows, so only what lies before
            // it is known to be complete.
            let whole = stored.len() <= room;
            let upto = if whole { known } else { stored[stored.len() - 1].0.clone() };
            let mut merged: std::collections::BTreeMap<Key, rows::Row> =
                stored.into_iter().filter(|(k, _)| *k < upto).map(|(k, v)| (k, Some(v))).collect();
            merged.extend(changed.range(..upto.clone()).map(|(k, v)| (k.clone(), v.clone())));
            out.extend(merged.into_iter().filter_map(|(k, v)| Some((k, v?))));
            from = upto;
        }
        out.truncate(limit);
        Ok(out)
    }
}
