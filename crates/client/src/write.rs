//! Writing: one copy into record buffers, and back-pressure.
//!
//! A write is ready at once unless it must wait for one of three things: room among the dirty bytes, a change of
//! the file's shape under way, or the committed content of a record that it covers only in part, where that cannot be
//! left for later (see [`crate::patch`]). It is applied
//! under one hold of the inode's lock, so it is atomic against other writes, and an append finds the end where
//! nobody else can put anything in between.

use crate::Handle;
use crate::buffer::{RecordBuf, SharedBuf};
use crate::client::Client;
use crate::inode::{Dirty, Inode, State};
use crate::stats::add;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_base::posix::{FILE_SIZE_MAX, SetAttr, mode};
use tarn_base::{Answer, FsError, Ino, job};

/// Where a write goes.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// At an offset in bytes.
    At(u64),
    /// As `At`, of pages that a mapping has changed already: to refuse them for want of space would lose them.
    Page(u64),
    /// Behind the last byte that the file has when it is written.
    End,
}

impl From<u64> for Target {
    fn from(offset: u64) -> Target {
        Target::At(offset)
    }
}

/// What became of an attempt to write.
enum Step {
    Done(usize),
    /// The dirty bytes are at their bound.
    Room,
    /// The file's shape is being changed.
    Blocked,
    /// The committed contents of the records in `loads` are needed.
    Load,
}

/// Committed contents that a write needs, with the tickets that say whether they still stand.
pub(crate) struct Loads {
    inode: Arc<Inode>,
    tickets: Vec<(u64, u64)>,
    contents: Vec<(u64, Bytes)>,
}

impl Loads {
    pub fn new(inode: &Arc<Inode>) -> Loads {
        Loads { inode: inode.clone(), tickets: Vec::new(), contents: Vec::new() }
    }

    /// Begins anew, with these records.
    pub fn begin(&mut self, state: &mut State, records: impl IntoIterator<Item = u64>) {
        self.clear(state);
        self.tickets = records.into_iter().map(|record| (record, state.begin_load(record))).collect();
    }

    /// Whether what was committed of the record when its ticket was taken still is.
    pub fn stands(&self, state: &State, record: u64) -> bool {
        self.tickets.iter().any(|ticket| ticket.0 == record && state.loading.contains(ticket))
    }

    /// Gives the tickets back; what they brought counts no more.
    fn clear(&mut self, state: &mut State) {
        for (record, ticket) in self.tickets.drain(..) {
            state.end_load(record, ticket);
        }
        self.contents.clear();
    }

    fn content(&self, state: &State, record: u64) -> Option<&Bytes> {
        let (_, content) = self.contents.iter().find(|(r, _)| *r == record)?;
        self.stands(state, record).then_some(content)
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        if !self.tickets.is_empty() {
            let inode = self.inode.clone();
            self.clear(&mut inode.state.lock());
        }
    }
}

/// A claim on room among the dirty bytes, until the bytes are dirty.
pub(crate) struct Room<'a> {
    client: &'a Client,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.client.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
        self.client.room.notify_waiters();
    }
}

/// Dirty records that a change made, for the flusher.
#[derive(Default)]
pub(crate) struct Fresh {
    waiting: Vec<u64>,
    /// Records that have a patch now.
    pub patched: Vec<u64>,
    /// Some were written to their end.
    pub finished: bool,
}

impl Client {
    /// Writes `data`. Answers the bytes written, always all. `kill_privileges` drops setuid and setgid first.
    pub fn write(
        self: &Arc<Self>,
        handle: Handle,
        target: impl Into<Target>,
        data: &[u8],
        kill_privileges: bool,
    ) -> Answer<usize> {
        let file = match self.check_writable().and_then(|()| self.handles.get(handle)) {
            Ok(file) => file,
            Err(e) => return Answer::err(e),
        };
        if data.is_empty() {
            return Answer::ok(0);
        }
        let target = target.into();
        if !matches!(target, Target::Page(_))
            && let Err(e) = self.admit(data.len() as u64)
        {
            return Answer::err(e);
        }
        add(&self.stats.writes, 1);
        let dropped = if kill_privileges { self.drop_privileges(file.inode.ino) } else { Answer::ok(false) };
        if let Answer::Ready(dropped) = &dropped {
            if let Err(e) = dropped {
                return Answer::err(e.clone());
            }
            if let Some(done) = self.write_ready(&file.inode, target, data) {
                add(&self.stats.writes_ready, 1);
                return Answer::Ready(done);
            }
        }
        add(&self.stats.writes_pending, 1);
        let data = Bytes::copy_from_slice(data);
        let client = self.clone();
        self.answer(async move {
            dropped.wait().await?;
            client.write_waiting(&file.inode, target, &data).await
        })
    }

    /// The write, if nothing must be waited for.
    fn write_ready(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        target: Target,
        data: &[u8],
    ) -> Option<Result<usize, FsError>> {
        match self.attempt(inode, target, data, &mut Loads::new(inode)) {
            Ok(Step::Done(n)) => Some(Ok(n)),
            Ok(Step::Room | Step::Blocked | Step::Load) => None,
            Err(e) => Some(Err(e)),
        }
    }

    /// As [`Client::write`] below handles, waiting for whatever is needed.
    pub(crate) async fn write_waiting(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        target: Target,
        data: &[u8],
    ) -> Result<usize, FsError> {
        let mut loads = Loads::new(inode);
        loop {
            self.check_fenced()?;
            match self.attempt(inode, target, data, &mut loads)? {
                Step::Done(n) => return Ok(n),
                Step::Room => self.wait_room(data.len() as u64).await?,
                Step::Blocked => drop(inode.order.read().await),
                Step::Load => {
                    for at in 0..loads.tickets.len() {
                        let record = loads.tickets[at].0;
                        let content = self.load_record(inode.ino, record).await?;
                        loads.contents.push((record, content.unwrap_or_default()));
                    }
                }
            }
        }
    }

    /// Writes, with what memory has of the records that are needed; what it lacks is left for later where that can be.
    fn attempt(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        target: Target,
        data: &[u8],
        loads: &mut Loads,
    ) -> Result<Step, FsError> {
        let step = self.try_write(inode, target, data, loads, false)?;
        let Step::Load = step else { return Ok(step) };
        for at in 0..loads.tickets.len() {
            let record = loads.tickets[at].0;
            match self.record_ready(inode.ino, record) {
                Some(content) => loads.contents.push((record, content)),
                None => break,
            }
        }
        self.try_write(inode, target, data, loads, true)
    }

    fn try_write(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        target: Target,
        data: &[u8],
        loads: &mut Loads,
        later: bool,
    ) -> Result<Step, FsError> {
        let Some(_room) = self.claim_room(data.len() as u64) else { return Ok(Step::Room) };
        let Ok(_order) = inode.order.try_read() else { return Ok(Step::Blocked) };
        let now = self.options.clock.now();
        let fresh = {
            let mut state = inode.state.lock();
            let offset = match target {
                Target::At(offset) | Target::Page(offset) => offset,
                Target::End => state.size,
            };
            if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
                return Err(FsError::FileTooLarge);
            }
            let needed = needed_records(&state, offset, data.len() as u64);
            let lacking: Vec<u64> =
                needed.iter().copied().filter(|r| loads.content(&state, *r).is_none()).collect();
            if !lacking.is_empty() {
                let later = later || lacking.iter().all(|r| state.patches.contains_key(r));
                if !(later && self.may_patch(&state, offset + data.len() as u64)) {
                    loads.begin(&mut state, needed);
                    return Ok(Step::Load);
                }
            }
            let fresh = self.apply(&mut state, offset, data, loads, &lacking);
            state.size = state.size.max(offset + data.len() as u64);
            state.mtime = Some(now);
            state.writer = job::current();
            loads.clear(&mut state);
            fresh
        };
        add(&self.stats.write_bytes, data.len() as u64);
        job::charged(|job| job.wrote(data.len() as u64));
        self.queue_fresh(inode, fresh);
        Ok(Step::Done(data.len()))
    }

    /// Copies `data` into the records' buffers, or into patches of those that are `lacking`.
    fn apply(&self, state: &mut State, offset: u64, data: &[u8], loads: &Loads, lacking: &[u64]) -> Fresh {
        let seq = state.next_seq();
        let record_size = state.record_size as usize;
        let mut fresh = Fresh::default();
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let record = at / record_size as u64;
            let inside = (at % record_size as u64) as usize;
            let len = rest.len().min(record_size - inside);
            let (part, more) = rest.split_at(len);
            rest = more;
            at += len as u64;
            if lacking.contains(&record) {
                self.patch(state, record, seq, inside, part, &mut fresh);
                continue;
            }
            let loaded = loads.content(state, record).cloned();
            if let Some(content) = &loaded {
                self.complete(state, record, content.clone(), &mut fresh);
            }
            // It is covered.
            let patch = self.take_patch(state, record);
            let finished = self.change_record(state, record, seq, &mut fresh, loaded, |buf| {
                if inside == 0 && len >= buf.len() {
                    // Nothing of the old content stays: no need to copy it, should somebody still read it.
                    *buf = SharedBuf::new(RecordBuf::new(&self.free));
                }
                buf.make_mut(record_size).write(inside, part, record_size);
                inside + len == record_size
            });
            if let (Some(patch), Some(dirty)) = (patch, state.dirty.get_mut(&record)) {
                dirty.since = dirty.since.min(patch.since);
            }
            if finished {
                state.note_finished(record);
                fresh.finished = true;
            }
        }
        fresh
    }

    /// Changes one record's dirty content, made from `base` if it was not dirty; keeps every account of it.
    pub(crate) fn change_record<T>(
        &self,
        state: &mut State,
        record: u64,
        seq: u64,
        fresh: &mut Fresh,
        base: Option<Bytes>,
        change: impl FnOnce(&mut SharedBuf) -> T,
    ) -> T {
        let record_size = state.record_size as usize;
        let mut before = 0;
        let dirty =
            state.dirty.entry(record).and_modify(|dirty| before = dirty.buf.len()).or_insert_with(|| {
                let base = base.unwrap_or_default();
                let base = &base[..base.len().min(record_size)];
                let buf = SharedBuf::new(RecordBuf::copy_of(&self.free, base, record_size));
                Dirty { buf, since: seq, flight: None, eligible: false }
            });
        let out = change(&mut dirty.buf);
        let after = dirty.buf.len();
        if after >= before {
            let more = (after - before) as u64;
            state.dirty_bytes += more;
            self.more_dirty(more);
        } else {
            let less = (before - after) as u64;
            state.dirty_bytes -= less;
            self.less_dirty(less);
        }
        if state.note_change(record, seq) {
            fresh.waiting.push(record);
        }
        out
    }

    /// Tells the flusher of what became dirty. Not to be called with the inode's state locked.
    pub(crate) fn queue_fresh(&self, inode: &Arc<Inode>, fresh: Fresh) {
        for record in fresh.waiting {
            self.queue_waiting(inode, record);
        }
        if !fresh.patched.is_empty() {
            self.queue_patched(inode, fresh.patched);
        }
        if fresh.finished {
            self.queue_full(inode);
        }
    }

    /// The committed content of a record, if memory has it; empty for a hole.
    fn record_ready(&self, ino: Ino, record: u64) -> Option<Bytes> {
        let Answer::Ready(Ok(map)) = self.mds.map(ino, record, 1) else { return None };
        match map.ptrs.first()? {
            None => Some(Bytes::new()),
            Some(ptr) => self.records.cached(ptr),
        }
    }

    fn claim_room(&self, len: u64) -> Option<Room<'_>> {
        let reserved = self.reserved.fetch_add(len, Ordering::AcqRel);
        let room = Room { client: self, bytes: len };
        // A write larger than the bound must get through some time.
        if self.has_room(reserved, len) { Some(room) } else { None }
    }

    /// Whether `len` bytes more may become dirty, beside those that others have `reserved` room for. Where nothing can be
    /// flushed, nothing will make room.
    fn has_room(&self, reserved: u64, len: u64) -> bool {
        let flushable = self.dirty_bytes().saturating_sub(self.free.unready());
        flushable + reserved == 0 || self.free.lent() + reserved + len <= self.options.dirty_max
    }

    /// A claim on room for `len` bytes, when there is some.
    pub(crate) async fn room_for(&self, len: u64) -> Result<Room<'_>, FsError> {
        loop {
            if let Some(room) = self.claim_room(len) {
                return Ok(room);
            }
            self.wait_room(len).await?;
        }
    }

    async fn wait_room(&self, len: u64) -> Result<(), FsError> {
        loop {
            let more = self.room.notified();
            tokio::pin!(more);
            more.as_mut().enable();
            if self.has_room(self.reserved.load(Ordering::Acquire), len) {
                return Ok(());
            }
            self.check_fenced()?;
            // What is acknowledged is kept and tried again, but there is no point in waiting for it.
            if self.is_full() {
                return Err(FsError::NoSpace);
            }
            if let Some(error) = self.flush_error() {
                return Err(error);
            }
            self.flush.kick.notify_one();
            more.await;
        }
    }

    /// Drops setuid and setgid: before somebody changes the file's content who may not leave it them. Says whether it had
    /// one of them.
    pub fn drop_privileges(&self, ino: Ino) -> Answer<bool> {
        let set = SetAttr { kill_privileges: true, ..SetAttr::default() };
        match self.mds.getattr(ino) {
            Answer::Ready(Ok(attr)) if attr.mode & (mode::SETUID | mode::SETGID) == 0 => Answer::ok(false),
            _ => self.mds.setattr(ino, set).map(|_| true),
        }
    }
}

/// Records of which a write covers only a part and which have committed content alone.
fn needed_records(state: &State, offset: u64, len: u64) -> Vec<u64> {
    let record_size = state.record_size;
    let end = offset + len;
    let (first, last) = (offset / record_size, (end - 1) / record_size);
    let mut needed = Vec::new();
    for record in [first, last] {
        let start = record * record_size;
        if state.dirty.contains_key(&record) || !state.maybe_committed(record) || needed.contains(&record) {
            continue;
        }
        let valid_end = (start + record_size).min(state.committed_size);
        if offset > start || end < valid_end {
            needed.push(record);
        }
    }
    needed
}
