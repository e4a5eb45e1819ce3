//! One flight: records of some files, through one segment, into one commit.

use crate::client::Client;
use crate::inode::Inode;
use crate::records::Storing;
use crate::stats::add;
use crate::zfetch::STREAMED_MIN;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_base::block::{RECORD_BESIDE, SEGMENT_BESIDE, Sealed};
use tarn_base::point::{self, Point};
use tarn_base::{BlockPtr, FsError, RecordOwner, Timespec};
use tarn_pool::{Caching, Error};
use tarn_proto::{FileCommit, RecordWrite};
use tokio::sync::OwnedRwLockReadGuard;

/// A segment that could not be written is tried this often, each time with a new id and wherever the pool says; more
/// often where there are more vdevs, so that each may fail.
const ATTEMPTS: usize = 3;

/// Bytes of one file that follow each other and were written together: somebody streams them out.
const STREAM_RUN: usize = 2 << 20;

/// Records on their way.
pub(crate) struct Flight {
    pub id: u64,
    pub files: Vec<FlightFile>,
    /// Logical bytes.
    pub bytes: u64,
    /// Somebody waits for it.
    pub urgent: bool,
}

/// Records in a segment.
struct Segment {
    ptrs: Vec<BlockPtr>,
    /// It is in no bucket: the commit takes it along.
    carried: Option<Sealed>,
}

pub(crate) struct FlightFile {
    pub inode: Arc<Inode>,
    pub records: Vec<FlightRecord>,
    /// Records of the segment that must wait for what came back from an earlier flight: they are not committed.
    pub held: Vec<u64>,
    /// Keeps the file's shape, unless whoever started the flight has it exclusively.
    pub _order: Option<OwnedRwLockReadGuard<()>>,
}

impl Flight {
    /// Bytes that its segment takes at most, with what is beside its records.
    fn object_max(&self) -> u64 {
        let records: usize = self.files.iter().map(|file| file.records.len()).sum();
        self.bytes + SEGMENT_BESIDE + records as u64 * RECORD_BESIDE
    }
}

impl FlightFile {
    pub fn new(inode: Arc<Inode>, order: Option<OwnedRwLockReadGuard<()>>) -> FlightFile {
        FlightFile { inode, records: Vec::new(), held: Vec::new(), _order: order }
    }

    /// Holds what must not be committed now; gives the places of the rest. The file's earlier flights have ended.
    fn hold(&mut self, ptrs: Vec<BlockPtr>, flight: u64) -> Vec<BlockPtr> {
        let barrier = self.inode.state.lock().barrier(flight);
        let taken = std::mem::take(&mut self.records);
        let (going, held): (Vec<_>, Vec<_>) =
            taken.into_iter().zip(ptrs).partition(|(taken, _)| taken.record < barrier);
        self.held = held.into_iter().map(|(taken, _)| taken.record).collect();
        let (records, ptrs) = going.into_iter().unzip();
        self.records = records;
        ptrs
    }

    /// Whether its records follow each other and have at least so many bytes.
    fn is_run(&self, bytes: usize) -> bool {
        let follow = |pair: &[FlightRecord]| pair[0].record + 1 == pair[1].record;
        let len: usize = self.records.iter().map(|r| r.content.len()).sum();
        len >= bytes && self.records.windows(2).all(follow)
    }
}

pub(crate) struct FlightRecord {
    pub record: u64,
    pub content: Bytes,
}

/// What a commit told the metadata server of one file.
struct Told {
    size: u64,
    mtime: Option<Timespec>,
}

impl Client {
    /// Writes the flight's segment and commits it; whether anything was committed. On failure its records are dirty as
    /// before and every file of the flight carries the error.
    pub(crate) async fn fly(self: &Arc<Self>, mut flight: Flight) -> Result<bool, FsError> {
        add(&self.stats.segments_in_flight, 1);
        let outcome = self.fly_inner(&mut flight).await;
        self.stats.segments_in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Err(error) = &outcome {
            add(&self.stats.flush_failures, 1);
            tracing::warn!(%error, bytes = flight.bytes, "flush failed; the data stays and is tried again");
            if matches!(error, FsError::NoSpace | FsError::QuotaExceeded) {
                self.set_full(true);
            }
            for file in std::mem::take(&mut flight.files) {
                self.land_failed(file, flight.id, error);
            }
            self.room.notify_waiters();
        }
        outcome
    }

    async fn fly_inner(self: &Arc<Self>, flight: &mut Flight) -> Result<bool, FsError> {
        let Segment { ptrs, carried } = self.write_segment(flight).await?;
        if carried.is_none() {
            point::pass(Point::SegmentWritten);
        }
        let segment = ptrs.first().map(|ptr| ptr.segment);
        for file in &flight.files {
            wait_turn(&file.inode, flight.id).await;
        }
        let mut ptrs = ptrs.into_iter();
        let mut going: Vec<(FlightFile, Vec<BlockPtr>)> = Vec::new();
        for mut file in std::mem::take(&mut flight.files) {
            let own = ptrs.by_ref().take(file.records.len()).collect();
            let own = file.hold(own, flight.id);
            match file.records.is_empty() {
                true => self.land_again(file, flight.id),
                false => going.push((file, own)),
            }
        }
        let (commits, told): (Vec<_>, Vec<_>) =
            going.iter().map(|(f, own)| prepare(f, own, flight.id)).unzip();
        let discard = || segment.into_iter().for_each(|segment| self.records.discard(segment));
        if commits.is_empty() {
            discard();
            return Ok(false);
        }
        let outcome = match carried {
            Some(segment) => self.mds.commit_carried(commits, segment).wait().await,
            None => self.mds.commit(commits).wait().await,
        };
        if outcome.is_err() {
            discard();
        }
        for (file, _) in &going {
            file.inode.state.lock().committing -= 1;
        }
        if let Err(e) = outcome {
            flight.files = going.into_iter().map(|(file, _)| file).collect();
            return Err(self.noted(e));
        }
        point::pass(Point::SegmentCommitted);
        add(&self.stats.commits, 1);
        self.set_full(false);
        for ((file, own), told) in going.into_iter().zip(told) {
            self.land(file, own, told, flight.id);
        }
        Ok(true)
    }

    /// PUTs the records as one segment, or leaves that to the commit; a failed attempt burns its id.
    async fn write_segment(self: &Arc<Self>, flight: &Flight) -> Result<Segment, FsError> {
        let info = self.mds.info();
        let storing = Storing { compression: info.compression, checksum: info.checksum };
        let mut last = None;
        let attempts = ATTEMPTS.max(self.records.writable_vdevs().len() + 1);
        for _ in 0..attempts {
            self.check_fenced()?;
            let vdev = self.records.place(flight.bytes).map_err(|e| self.pool_error(e))?;
            let id = self.take_segment(vdev).await?;
            let mut records = Vec::new();
            for file in &flight.files {
                for r in &file.records {
                    let owner = RecordOwner { dataset: info.id, ino: file.inode.ino, record: r.record };
                    records.push((owner, r.content.clone()));
                }
            }
            let written = if flight.urgent && flight.object_max() <= self.mds.carries() {
                let packed = self.records.clone().pack(id, records, storing).await;
                packed.map(|(segment, ptrs)| Segment { ptrs, carried: Some(segment) })
            } else {
                let ptrs = self.records.clone().write(id, records, storing).await;
                ptrs.map(|ptrs| Segment { ptrs, carried: None })
            };
            match written {
                Ok(segment) => {
                    add(&self.stats.segments_written, 1);
                    add(&self.stats.segment_bytes, flight.bytes);
                    return Ok(segment);
                }
                Err(e @ (Error::Fenced | Error::Held(_))) => return Err(self.pool_error(e)),
                Err(e) => {
                    tracing::debug!(segment = %id, error = %e, "segment not written");
                    last = Some(self.pool_error(e));
                }
            }
        }
        Err(last.unwrap_or_else(|| FsError::Io("segment not written".into())))
    }

    /// The flight's records are committed: those that were not written again are clean.
    fn land(self: &Arc<Self>, file: FlightFile, ptrs: Vec<BlockPtr>, told: Told, id: u64) {
        let (record_size, size) = {
            let state = file.inode.state.lock();
            (state.record_size as usize, state.size)
        };
        // What was streamed out is in the kernel's page cache, and its buffers are wanted for what comes next.
        let streamed = size > STREAMED_MIN && file.is_run(STREAM_RUN);
        let caching = if streamed { Caching::Bypass } else { Caching::Keep };
        // First into the ARC, then out of the dirty ones: readers find them in one or the other.
        for (r, ptr) in file.records.iter().zip(&ptrs) {
            self.records.insert_cached(ptr, r.content.clone(), caching);
        }
        let mut again = Vec::new();
        let mut finished = false;
        let mut less = 0;
        let mut state = file.inode.state.lock();
        state.committed_size = state.committed_size.max(told.size);
        if state.unlinked && state.opens == 0 {
            // Its data was dropped while this flight was under way.
            state.size = state.committed_size;
        }
        if state.mtime == told.mtime {
            state.mtime = None;
        }
        for r in &file.records {
            state.revoke_loads(|record| record == r.record);
            state.returned.remove(&r.record);
            let Some(dirty) = state.dirty.get_mut(&r.record) else { continue };
            let Some(in_flight) = dirty.flight.filter(|f| f.id == id) else { continue };
            match in_flight.next_since {
                Some(since) => {
                    dirty.since = since;
                    dirty.flight = None;
                    let full = dirty.buf.len() == record_size;
                    again.push(r.record);
                    state.idle.insert(r.record);
                    state.rewritten.remove(&r.record);
                    if full {
                        state.note_finished(r.record);
                        finished = true;
                    }
                }
                None => {
                    let len = dirty.buf.len() as u64;
                    state.dirty.remove(&r.record);
                    state.dirty_bytes -= len;
                    less += len;
                }
            }
        }
        let held = state.bring_back(file.held.iter().copied(), id);
        state.flights.remove(&id);
        let clean = state.is_clean();
        if clean {
            state.error = None;
        }
        drop(state);
        self.settled.fetch_add(1, Ordering::AcqRel);
        self.less_dirty(less);
        for record in again {
            self.queue_waiting(&file.inode, record);
        }
        for record in held {
            self.queue_again(&file.inode, record);
        }
        if finished {
            self.queue_full(&file.inode);
        }
        self.after_landing(file, clean);
    }

    /// The flight's records of this file stay dirty, with an error for whoever asks.
    fn land_failed(self: &Arc<Self>, file: FlightFile, id: u64, error: &FsError) {
        {
            let mut state = file.inode.state.lock();
            state.failures += 1;
            state.error = Some(error.clone());
        }
        self.land_again(file, id);
    }

    /// The flight's records of this file stay dirty and are queued again.
    fn land_again(self: &Arc<Self>, file: FlightFile, id: u64) {
        let again = {
            let mut state = file.inode.state.lock();
            let records = file.records.iter().map(|r| r.record);
            let again = state.bring_back(records.chain(file.held.iter().copied()), id);
            state.flights.remove(&id);
            again
        };
        for record in again {
            self.queue_again(&file.inode, record);
        }
        self.after_landing(file, false);
    }

    fn after_landing(self: &Arc<Self>, file: FlightFile, clean: bool) {
        let inode = file.inode.clone();
        // Its buffers are free only now.
        drop(file);
        self.room.notify_waiters();
        if clean {
            self.remember_version(inode.ino);
        }
        inode.changed.notify_waiters();
        self.table.forget_if_clean(inode.ino);
    }
}

/// Waits until all earlier flights of the file have ended.
async fn wait_turn(inode: &Arc<Inode>, id: u64) {
    loop {
        let changed = inode.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // A file whose dirty data was dropped meanwhile still lists its flights.
        if inode.state.lock().flights.first().is_none_or(|first| *first >= id) {
            return;
        }
        changed.await;
    }
}

/// What to tell the metadata server of one file, and a note of it.
fn prepare(file: &FlightFile, ptrs: &[BlockPtr], id: u64) -> (FileCommit, Told) {
    let mut state = file.inode.state.lock();
    state.committing += 1;
    let record_size = state.record_size;
    let end = file.records.iter().map(|r| r.record * record_size + r.content.len() as u64).max().unwrap_or(0);
    // When nothing else of the file is dirty its visible size is right too, unless it lost its data on the way.
    let gone = state.unlinked && state.opens == 0;
    let all = !gone
        && state.patches.is_empty()
        && state.dirty.len() <= file.records.len()
        && state.dirty.values().all(|d| d.flight.is_some_and(|f| f.id == id && f.next_since.is_none()));
    let size = if all { state.size } else { end };
    let mtime = state.mtime;
    let records =
        file.records.iter().zip(ptrs).map(|(r, p)| RecordWrite { record: r.record, ptr: Some(*p) }).collect();
    let commit = FileCommit { ino: file.inode.ino, records, size_at_least: size, mtime };
    (commit, Told { size, mtime })
}
