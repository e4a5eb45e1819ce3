//! One cache vdev: an engine on a directory, the task that looks after it, and what readers see of it.
//!
//! One task for each cache opens the engine, is the only one that writes to it, and looks at the directory now and
//! then. So a disk that hangs holds up that task and nobody else: what is offered meanwhile is dropped, and readers have
//! a time limit.
//!
//! # What is written
//! The engine does not say whether a write succeeded. But it is asked for one batch at a time, and what it does not have
//! when the batch is over was not written. After that nothing more is written to it: it is closed, and opened again
//! later, empty, because what it believes of the disk is no longer to be relied upon.
//!
//! # States
//! UNAVAIL: the directory is not there, or not the cache's. FAULTED: reading or writing failed. In both it is tried again
//! after a while, at longer and longer intervals. ONLINE: otherwise.

use super::place::{self, Held};
use crate::config::CacheConfig;
use bytes::Bytes;
use foyer::{
    Age, BlockEngineConfig, Code, DeviceBuilder, FifoConfig, FsDeviceBuilder, HybridCache,
    HybridCacheBuilder, HybridCachePolicy, Load, PsyncIoEngineConfig, RecoverMode,
};
use futures::FutureExt;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tarn_base::block::MAX_RECORD;
use tarn_base::{BlockPtr, PoolGuid, SegmentId};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, timeout};

/// A cache is at least so large, in bytes.
pub(super) const SIZE_MIN: u64 = 64 << 20;
/// What the engine throws out at once is a block, each a file: large enough for the largest record, and so large that
/// there are not many more than a thousand.
const BLOCK_MIN: u64 = 32 << 20;
const BLOCK_MAX: u64 = 1 << 30;
const BLOCKS_FEWEST: u64 = 8;
const BLOCKS_MANY: u64 = 1024;
/// The engine counts in pages, and puts a header and a key before each record.
const PAGE: u64 = 4 << 10;
/// Written in one go, unless a single record is longer; in bytes.
const BATCH: u64 = 8 << 20;
/// Records that are read at once.
const READS: usize = 64;
/// Longer than this no reader waits for a cache: then it is out.
const READ_LIMIT: Duration = Duration::from_secs(5);
const WRITE_LIMIT: Duration = Duration::from_secs(60);
/// Opening reads the index of everything that is there.
const OPEN_LIMIT: Duration = Duration::from_secs(300);
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// How often the directory is looked at, and how long that may take.
const LOOK: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
/// From one attempt to open it to the next.
const RETRY_FIRST: Duration = Duration::from_secs(30);
const RETRY_LAST: Duration = Duration::from_secs(1800);
/// So many reads that fail in a row are more than a bad spot.
const BAD_READS: u32 = 16;

/// How a cache vdev does, in zpool's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CacheState {
    Online,
    /// Its directory is not there.
    Unavail,
    /// It failed, and is tried again later.
    Faulted,
}

impl std::fmt::Display for CacheState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CacheState::Online => "ONLINE",
            CacheState::Unavail => "UNAVAIL",
            CacheState::Faulted => "FAULTED",
        })
    }
}

/// One cache vdev in a [`crate::PoolStatus`]. Counters are since the pool was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    pub guid: u64,
    pub path: String,
    pub state: CacheState,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// Most bytes that it takes, and those it took when it was last looked at, on its file system.
    pub size: u64,
    pub used: u64,
    /// Records that it had, and their stored bytes.
    pub hits: u64,
    pub read_bytes: u64,
    /// Records written to it, and their stored bytes.
    pub writes: u64,
    pub write_bytes: u64,
    /// Bytes that were not written because it could not keep up.
    pub dropped_bytes: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    /// Records that were not right when they were read, or left it at that moment.
    pub checksum_errors: u64,
}

#[derive(Default)]
struct Counts {
    used: AtomicU64,
    hits: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    dropped_bytes: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
}

/// Where a record is: the engine's key. Segment ids are never used again, so what is found under it is the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Slot(SegmentId, u32);

impl Slot {
    pub fn of(ptr: &BlockPtr) -> Slot {
        Slot(ptr.segment, ptr.offset)
    }
}

impl Code for Slot {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        writer.write_all(&self.0.to_bytes()).map_err(foyer::Error::io_error)?;
        writer.write_all(&self.1.to_le_bytes()).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Slot> {
        let (mut segment, mut offset) = ([0; SegmentId::LEN], [0; 4]);
        reader.read_exact(&mut segment).map_err(foyer::Error::io_error)?;
        reader.read_exact(&mut offset).map_err(foyer::Error::io_error)?;
        let segment = SegmentId::from_bytes(&segment);
        let segment =
            segment.ok_or_else(|| foyer::Error::io_error(std::io::ErrorKind::InvalidData.into()))?;
        Ok(Slot(segment, u32::from_le_bytes(offset)))
    }

    fn estimated_size(&self) -> usize {
        SegmentId::LEN + 4
    }
}

/// A record's stored bytes: what its pointer's checksum is over.
pub(super) struct Stored(Bytes);

impl Code for Stored {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        writer.write_all(&self.0).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Stored> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(foyer::Error::io_error)?;
        Ok(Stored(bytes.into()))
    }

    fn estimated_size(&self) -> usize {
        self.0.len()
    }
}

type Engine = HybridCache<Slot, Stored>;

/// Records to be written, and what keeps their memory counted.
struct Batch {
    records: Vec<(Slot, Bytes)>,
    room: Vec<OwnedSemaphorePermit>,
}

impl Batch {
    fn bytes(&self) -> u64 {
        bytes(&self.records)
    }
}

/// Why the engine was closed.
enum End {
    Asked,
    /// The directory is gone.
    Lost(String),
    ReadsFail(String),
    WritesFail(String),
}

/// One cache vdev of this host.
pub(super) struct Cache {
    pub config: CacheConfig,
    pool: PoolGuid,
    /// While it is open.
    engine: RwLock<Option<Engine>>,
    state: Mutex<(CacheState, Option<String>)>,
    counts: Counts,
    /// Bytes that may wait to be written, in pages.
    room: Arc<Semaphore>,
    room_most: u32,
    queue: mpsc::UnboundedSender<Batch>,
    offered: Mutex<Option<mpsc::UnboundedReceiver<Batch>>>,
    reads: Semaphore,
    /// Reads in a row that failed.
    bad_reads: AtomicU32,
    /// Readers have found that it does not work.
    bad: Notify,
    /// Bytes that may be written a second.
    rate: Arc<AtomicU64>,
    asked_to_close: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
    /// Somebody waits to hear how opening went.
    tried: watch::Sender<bool>,
    said: AtomicBool,
}

/// Bytes of what the engine throws out at once.
fn block_size(size: u64) -> u64 {
    let wanted = (size / BLOCKS_MANY).clamp(BLOCK_MIN, BLOCK_MAX).min(size / BLOCKS_FEWEST);
    wanted / PAGE * PAGE
}

/// What a record takes in a block.
fn footprint(stored: u64) -> u64 {
    (stored + 256).next_multiple_of(PAGE)
}

impl Cache {
    /// `waiting`: bytes that may wait to be written; `rate`: bytes a second that may be.
    pub fn new(config: CacheConfig, pool: PoolGuid, waiting: u64, rate: Arc<AtomicU64>) -> Arc<Cache> {
        let (queue, offered) = mpsc::unbounded_channel();
        let room_most = waiting.div_ceil(PAGE).clamp(1, u64::from(u32::MAX >> 4)) as u32;
        Arc::new(Cache {
            config,
            pool,
            engine: RwLock::default(),
            state: Mutex::new((CacheState::Unavail, Some("it is not open".into()))),
            counts: Counts::default(),
            room: Arc::new(Semaphore::new(room_most as usize)),
            room_most,
            queue,
            offered: Mutex::new(Some(offered)),
            reads: Semaphore::new(READS),
            bad_reads: AtomicU32::new(0),
            bad: Notify::new(),
            rate,
            asked_to_close: watch::Sender::new(false),
            task: Mutex::default(),
            tried: watch::Sender::new(false),
            said: AtomicBool::new(false),
        })
    }

    fn dir(&self) -> PathBuf {
        PathBuf::from(&self.config.path)
    }

    pub fn status(&self) -> CacheStatus {
        let (state, problem) = self.state.lock().clone();
        let count = |count: &AtomicU64| count.load(Relaxed);
        CacheStatus {
            guid: self.config.guid,
            path: self.config.path.clone(),
            state,
            problem,
            size: self.config.size,
            used: count(&self.counts.used),
            hits: count(&self.counts.hits),
            read_bytes: count(&self.counts.read_bytes),
            writes: count(&self.counts.writes),
            write_bytes: count(&self.counts.write_bytes),
            dropped_bytes: count(&self.counts.dropped_bytes),
            read_errors: count(&self.counts.read_errors),
            write_errors: count(&self.counts.write_errors),
            checksum_errors: count(&self.counts.checksum_errors),
        }
    }

    pub fn clear_errors(&self) {
        let counts = &self.counts;
        for count in [&counts.read_errors, &counts.write_errors, &counts.checksum_errors] {
            count.store(0, Relaxed);
        }
    }

    fn set_state(&self, state: CacheState, problem: Option<String>) {
        if let Some(problem) = &problem
            && !self.said.swap(true, Relaxed)
        {
            tracing::warn!("cache {}: {problem}: reading goes on without it", self.config.path);
        }
        if state == CacheState::Online && self.said.swap(false, Relaxed) {
            tracing::info!("cache {}: it is back", self.config.path);
        }
        *self.state.lock() = (state, problem);
    }

    // Readers.

    /// Whether it takes and gives records now.
    pub fn online(&self) -> bool {
        self.engine.read().is_some()
    }

    /// Whether it seems to have the record. Looks at memory alone.
    pub fn has(&self, slot: &Slot) -> bool {
        self.engine.read().as_ref().is_some_and(|engine| engine.storage().may_contains(slot))
    }

    /// A record's stored bytes, unverified; `None` when it cannot be had here after all. Takes [`READ_LIMIT`] at most.
    /// With `keep`, one that would be thrown out soon is written once more.
    pub async fn read(&self, slot: Slot, keep: bool) -> Option<Bytes> {
        let engine = self.engine.read().clone()?;
        let load = async {
            let _turn = self.reads.acquire().await;
            engine.storage().load(&slot).await
        };
        let loaded = match timeout(READ_LIMIT, load).await {
            Ok(loaded) => loaded,
            Err(_) => {
                self.counts.read_errors.fetch_add(1, Relaxed);
                self.found_bad();
                return None;
            }
        };
        let (bytes, leaving) = match loaded {
            Ok(Load::Entry { value, populated, .. }) => (value.0, populated.age == Age::Old),
            Ok(Load::Piece { piece, .. }) => (piece.value().0.clone(), false),
            Ok(Load::Miss) => {
                // The engine has looked at it and thrown it out.
                self.counts.checksum_errors.fetch_add(1, Relaxed);
                return None;
            }
            Ok(Load::Throttled) => return None,
            Err(_) => {
                self.counts.read_errors.fetch_add(1, Relaxed);
                if self.bad_reads.fetch_add(1, Relaxed) + 1 >= BAD_READS {
                    self.found_bad();
                }
                return None;
            }
        };
        self.bad_reads.store(0, Relaxed);
        if leaving && keep {
            self.offer(vec![(slot, bytes.clone())], bytes.len() as u64);
        }
        Some(bytes)
    }

    /// Whether what was read, so many bytes, is what the record's pointer says.
    pub fn judged(&self, stored: u32, right: bool) {
        if right {
            self.counts.hits.fetch_add(1, Relaxed);
            self.counts.read_bytes.fetch_add(u64::from(stored), Relaxed);
        } else {
            self.counts.checksum_errors.fetch_add(1, Relaxed);
        }
    }

    /// Nobody reads from it any more; its task does the rest.
    fn found_bad(&self) {
        if self.engine.write().take().is_some() {
            self.bad.notify_one();
        }
    }

    /// Has records written when their turn comes, or drops them. `memory`: bytes that they keep alive. Never waits.
    pub fn offer(&self, records: Vec<(Slot, Bytes)>, memory: u64) {
        let pages = memory.div_ceil(PAGE).clamp(1, u64::from(self.room_most)) as u32;
        let bytes = bytes(&records);
        match self.room.clone().try_acquire_many_owned(pages) {
            Ok(room) if self.online() => {
                let _ = self.queue.send(Batch { records, room: vec![room] });
            }
            _ => {
                self.counts.dropped_bytes.fetch_add(bytes, Relaxed);
            }
        }
    }

    /// Whether a record of so many bytes can be had at all.
    pub fn fits(&self, stored: u32) -> bool {
        footprint(u64::from(stored)) + PAGE <= block_size(self.config.size)
    }

    // The task.

    /// Opens it and looks after it from now on.
    pub fn start(self: &Arc<Cache>) {
        if let Some(offered) = self.offered.lock().take() {
            *self.task.lock() = Some(tokio::spawn(self.clone().look_after(offered)));
        }
    }

    pub fn started(&self) -> bool {
        self.task.lock().is_some()
    }

    /// Returns when it is open, or could not be opened.
    pub async fn tried(&self) {
        // The sender is this cache's own.
        let _ = self.tried.subscribe().wait_for(|tried| *tried).await;
    }

    /// Says how it does where nobody looks after it.
    pub async fn probe(&self) {
        let (dir, pool, cache) = (self.dir(), self.pool, self.config.guid);
        let found = tokio::task::spawn_blocking(move || place::check(&dir, pool, cache));
        let (state, problem) = match timeout(LOOK, found).await {
            Ok(Ok(Ok(()))) => (CacheState::Online, None),
            Ok(Ok(Err(why))) => (CacheState::Unavail, Some(why)),
            Ok(Err(_)) | Err(_) => (CacheState::Unavail, Some("it does not answer".into())),
        };
        *self.state.lock() = (state, problem);
    }

    /// It is to be closed; does not wait.
    pub fn ask_to_close(&self) {
        self.asked_to_close.send_replace(true);
    }

    /// Writes what waits, and closes it. Takes some seconds at most.
    pub async fn close(&self) {
        self.ask_to_close();
        let task = self.task.lock().take();
        if let Some(mut task) = task
            && timeout(CLOSE_LIMIT, &mut task).await.is_err()
        {
            task.abort();
            tracing::warn!("cache {}: it could not be closed in time", self.config.path);
        }
        *self.engine.write() = None;
    }

    async fn look_after(self: Arc<Cache>, mut offered: mpsc::UnboundedReceiver<Batch>) {
        let mut closing = self.asked_to_close.subscribe();
        let (mut pause, mut empty) = (RETRY_FIRST, false);
        loop {
            let opened = tokio::select! {
                () = asked(&mut closing) => return,
                opened = self.open(empty) => opened,
            };
            match opened {
                Ok((engine, held)) => {
                    // What readers said of the one before.
                    let _ = self.bad.notified().now_or_never();
                    self.bad_reads.store(0, Relaxed);
                    *self.engine.write() = Some(engine.clone());
                    self.set_state(CacheState::Online, None);
                    self.tried.send_replace(true);
                    let written = self.counts.writes.load(Relaxed);
                    let end = self.work(&engine, &held, &mut offered, &mut closing).await;
                    *self.engine.write() = None;
                    // A task of its own, because an engine that has failed is not to be relied upon.
                    let closed = tokio::spawn(async move { engine.close().await });
                    let _ = timeout(CLOSE_LIMIT, closed).await;
                    if self.counts.writes.load(Relaxed) > written {
                        pause = RETRY_FIRST;
                    }
                    empty = matches!(end, End::WritesFail(_));
                    match end {
                        End::Asked => return self.set_state(CacheState::Unavail, None),
                        End::Lost(why) => self.set_state(CacheState::Unavail, Some(why)),
                        End::ReadsFail(why) => self.set_state(CacheState::Faulted, Some(why)),
                        End::WritesFail(why) => {
                            let why =
                                if self.is_full().await { "its file system is full".into() } else { why };
                            self.set_state(CacheState::Faulted, Some(why));
                        }
                    }
                }
                Err(why) => self.set_state(CacheState::Unavail, Some(why)),
            }
            self.tried.send_replace(true);
            while offered.try_recv().is_ok() {}
            if timeout(pause, asked(&mut closing)).await.is_ok() {
                return;
            }
            pause = (pause * 2).min(RETRY_LAST);
        }
    }

    /// Opens the directory and the engine, which reads its index.
    async fn open(&self, empty: bool) -> Result<(Engine, Arc<Held>), String> {
        let (dir, pool, cache) = (self.dir(), self.pool, self.config.guid);
        let (records, size) = (place::records(&dir), self.config.size);
        let hold = tokio::task::spawn_blocking(move || {
            let held = place::hold(&dir, pool, cache)?;
            if empty {
                held.wipe().map_err(|e| e.to_string())?;
                // Otherwise it would fill the disk again and again.
                if place::free(&dir).map_err(|e| e.to_string())? < size {
                    return Err("its file system has too little room".to_string());
                }
            }
            Ok(Arc::new(held))
        });
        let late = |_| "it does not answer".to_string();
        let held = timeout(OPEN_LIMIT, hold).await.map_err(late)?.map_err(|e| e.to_string())??;
        // A thread of its own, because it opens files: whatever goes wrong in there ends there.
        let runtime = tokio::runtime::Handle::current();
        let engine = tokio::task::spawn_blocking(move || runtime.block_on(engine(records, size)));
        let engine = timeout(OPEN_LIMIT, engine).await.map_err(late)?.map_err(|e| e.to_string())?;
        Ok((engine.map_err(|e| e.to_string())?, held))
    }

    /// Writes what is offered, until there is a reason to close the engine.
    async fn work(
        &self,
        engine: &Engine,
        held: &Arc<Held>,
        offered: &mut mpsc::UnboundedReceiver<Batch>,
        closing: &mut watch::Receiver<bool>,
    ) -> End {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let first = tokio::select! {
                biased;
                () = asked(closing) => break,
                () = self.bad.notified() => return End::ReadsFail("reads failed".into()),
                _ = looks.tick() => {
                    if let Err(why) = self.look(held).await {
                        return End::Lost(why);
                    }
                    continue;
                }
                Some(batch) = offered.recv() => batch,
            };
            let rate = self.rate.load(Relaxed).max(1);
            let batch = gather(first, offered);
            let pace = tokio::time::sleep(Duration::from_secs_f64(batch.bytes() as f64 / rate as f64));
            let written = self.write(engine, &batch.records).await;
            drop(batch);
            if let Err(why) = written {
                return End::WritesFail(why);
            }
            tokio::select! {
                () = asked(closing) => break,
                () = pace => {}
            }
        }
        // What waits is not much, and would be missed.
        while let Ok(first) = offered.try_recv() {
            if self.write(engine, &gather(first, offered).records).await.is_err() {
                break;
            }
        }
        End::Asked
    }

    /// Looks whether the directory is still there, and at what it takes.
    async fn look(&self, held: &Arc<Held>) -> Result<(), String> {
        let held = held.clone();
        let look = tokio::task::spawn_blocking(move || held.look());
        match timeout(WRITE_LIMIT, look).await {
            Ok(Ok(Ok(used))) => {
                self.counts.used.store(used, Relaxed);
                Ok(())
            }
            Ok(Ok(Err(e))) => Err(format!("its directory is gone: {e}")),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err("it does not answer".into()),
        }
    }

    async fn is_full(&self) -> bool {
        let dir = self.dir();
        let free = tokio::task::spawn_blocking(move || place::free(&dir));
        matches!(timeout(LOOK, free).await, Ok(Ok(Ok(free))) if free < BATCH)
    }

    /// Writes records, as many at once as the engine can take.
    async fn write(&self, engine: &Engine, mut records: &[(Slot, Bytes)]) -> Result<(), String> {
        while !records.is_empty() {
            let (part, rest) = records.split_at(at_once(records));
            records = rest;
            for (slot, stored) in part {
                drop(engine.storage_writer(*slot).force().insert(Stored(stored.clone())));
            }
            let flushed = timeout(WRITE_LIMIT, engine.storage().wait()).await;
            let failed = part.iter().filter(|(slot, _)| !engine.storage().may_contains(slot)).count() as u64;
            if flushed.is_err() || failed > 0 {
                self.counts.write_errors.fetch_add(failed.max(1), Relaxed);
                let why = if flushed.is_err() { "writes do not end" } else { "writes failed" };
                return Err(why.into());
            }
            self.counts.writes.fetch_add(part.len() as u64, Relaxed);
            self.counts.write_bytes.fetch_add(bytes(part), Relaxed);
        }
        Ok(())
    }
}

fn bytes(records: &[(Slot, Bytes)]) -> u64 {
    records.iter().map(|(_, stored)| stored.len() as u64).sum()
}

/// How many of the records can be written at once: at least one, and up to [`BATCH`] bytes.
fn at_once(records: &[(Slot, Bytes)]) -> usize {
    let mut taken = 0;
    let fits = |(_, stored): &&(Slot, Bytes)| {
        taken += footprint(stored.len() as u64);
        taken <= BATCH
    };
    records.iter().take_while(fits).count().max(1)
}

/// Returns when it is to be closed.
async fn asked(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|asked| *asked).await;
}

/// What waits, up to about [`BATCH`] bytes, as one.
fn gather(first: Batch, offered: &mut mpsc::UnboundedReceiver<Batch>) -> Batch {
    let mut all = first;
    while all.bytes() < BATCH
        && let Ok(mut batch) = offered.try_recv()
    {
        all.records.append(&mut batch.records);
        all.room.append(&mut batch.room);
    }
    all
}

/// An engine on the files in `dir`, with what it finds there.
async fn engine(dir: PathBuf, size: u64) -> foyer::Result<Engine> {
    let block = block_size(size);
    // There are two buffers of this size, of which only what is used is ever touched.
    let buffer = (footprint(u64::from(MAX_RECORD))).min(block).max(BATCH.min(block)) as usize;
    let device = FsDeviceBuilder::new(&dir).with_capacity(size as usize).build()?;
    let config = BlockEngineConfig::new(device)
        .with_block_size(block as usize)
        .with_buffer_pool_size(buffer)
        .with_submit_queue_size_threshold(4 * buffer)
        // One is being written and one kept ready: without any, nothing could be written after a crash.
        .with_clean_block_threshold(2);
    // Nothing stays in the engine's memory: for that there is the ARC.
    let builder = HybridCacheBuilder::new()
        .with_name("l2arc")
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .with_flush_on_close(false)
        .memory(1)
        .with_shards(1)
        .with_eviction_config(FifoConfig::default())
        .storage()
        .with_io_engine_config(PsyncIoEngineConfig::new())
        .with_engine_config(config)
        .with_recover_mode(RecoverMode::Quiet);
    builder.build().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_record_fits_and_the_blocks_stay_few() {
        for size in [256 << 20, 1 << 30, 100 << 30, 1 << 40, 4 << 40, 1u64 << 44] {
            let block = block_size(size);
            assert!(footprint(u64::from(MAX_RECORD)) + PAGE <= block, "{size}");
            assert!(size / block >= BLOCKS_FEWEST && block < 1 << 32, "{size}");
            assert!(size / block <= BLOCKS_MANY || block == BLOCK_MAX, "{size}");
        }
        assert!(SIZE_MIN / block_size(SIZE_MIN) >= BLOCKS_FEWEST);
    }
}
