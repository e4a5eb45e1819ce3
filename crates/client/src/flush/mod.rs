//! Write-back: from dirty records to segments in buckets to committed pointers.
//!
//! A file that has a segment's worth of records gets a segment of its own, so that who reads it later has whole
//! segments to read; what is less is packed with others' in the order in which it became dirty. Four queues say
//! what goes:
//! - *urgent*: files that somebody waits for (fsync, syncfs). All that wait when a flight starts share it, and
//!   only a few short flights run at once, so that the next ones gather company.
//! - *full*: files of which a segment's worth of records was written to the end. Each time one segment goes.
//! - *eligible*: records whose file was closed. They go as soon as they fill a segment together.
//! - *waiting*: every dirty record. What no other queue took goes by age, or when memory is short.
//!
//! The queues' lock is taken before an inode's state, never after. The queues hold hints: an entry whose record is no longer idle dirty is passed over.
//!
//! One task starts all flights, so they have one order. A file's flights are PUT together but commit in that
//! order, and behind its committed size records are taken from the lowest up; where a flight fails, those that were
//! under way with it commit nothing beyond what came back: the committed size never covers data that is still only in
//! memory.

mod flight;
mod gather;
mod grants;

pub(crate) use flight::Flight;

use crate::client::Client;
use crate::inode::{Inode, State};
use grants::Grants;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tarn_base::{FsError, job};
use tokio::sync::Notify;

/// Segments in flight to each vdev, and to all together at most.
const FLIGHTS_PER_VDEV: usize = 2;
const FLIGHTS_MAX: usize = 24;
/// Urgent flights that do not fill a segment, at once.
const SHORT_FLIGHTS: usize = 2;
/// Percent of `dirty_max` above which everything dirty is flushed.
const PRESSURE: u64 = 60;
/// First and longest pause after a failed flight.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Nothing to do for now: look again after this at the latest.
const IDLE: Duration = Duration::from_secs(3600);

/// State of write-back.
#[derive(Default)]
pub(crate) struct Flush {
    queues: Mutex<Queues>,
    pub(crate) grants: Grants,
    /// Wakes the flusher.
    pub(crate) kick: Arc<Notify>,
    next_flight: AtomicU64,
    flights: AtomicUsize,
    short_flights: AtomicUsize,
    pause: Mutex<Pause>,
    stopped: AtomicBool,
}

#[derive(Default)]
struct Pause {
    length: Duration,
    /// Monotonic time before which only urgent flights start.
    until: Duration,
    error: Option<FsError>,
}

/// A record that should go out.
pub(crate) struct Item {
    inode: Arc<Inode>,
    record: u64,
    /// Monotonic time at which it became dirty.
    since: Duration,
    /// Length when it was queued, in bytes.
    len: u64,
}

#[derive(Default)]
struct Queues {
    urgent: VecDeque<Arc<Inode>>,
    full: VecDeque<Arc<Inode>>,
    eligible: VecDeque<Item>,
    eligible_bytes: u64,
    waiting: VecDeque<Item>,
}

/// What the flusher takes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Urgent,
    Full,
    Eligible,
    Waiting,
}

impl Flush {
    /// Segments on their way now.
    pub fn flights(&self) -> usize {
        self.flights.load(Ordering::Acquire)
    }
}

impl Client {
    pub(crate) fn start_flusher(self: &Arc<Self>) {
        let kick = self.flush.kick.clone();
        self.options.runtime.spawn(run(Arc::downgrade(self), kick));
    }

    pub(crate) fn stop_flusher(&self) {
        self.flush.stopped.store(true, Ordering::Release);
        self.flush.kick.notify_one();
    }

    /// A record became idle dirty.
    pub(crate) fn queue_waiting(&self, inode: &Arc<Inode>, record: u64) {
        let since = self.options.clock.monotonic();
        let item = Item { inode: inode.clone(), record, since, len: 0 };
        let first = {
            let mut queues = self.flush.queues.lock();
            queues.waiting.push_back(item);
            queues.waiting.len() == 1
        };
        // The flusher knows when the head of a queue that is not empty comes of age.
        if first || self.under_pressure() {
            self.flush.kick.notify_one();
        }
    }

    /// A record's flight failed: it has waited long enough already.
    fn queue_again(&self, inode: &Arc<Inode>, record: u64) {
        let item = Item { inode: inode.clone(), record, since: Duration::ZERO, len: 0 };
        self.flush.queues.lock().waiting.push_front(item);
    }

    /// Records of the file were written to their end: if they fill a segment, it may go.
    pub(crate) fn queue_full(&self, inode: &Arc<Inode>) {
        {
            let mut state = inode.state.lock();
            if state.full || !state.fills(self.records.segment_size()) {
                return;
            }
            state.full = true;
        }
        self.flush.queues.lock().full.push_back(inode.clone());
        self.flush.kick.notify_one();
    }

    /// A segment of the file went: what is left of it waits for the next turn, or for company.
    fn leave_full(&self, inode: &Arc<Inode>) {
        let closed = {
            let mut state = inode.state.lock();
            state.full = false;
            state.opens == 0 && !state.unlinked
        };
        self.queue_full(inode);
        if closed {
            self.queue_closed(inode);
        }
    }

    /// Nobody has the file open: what of it does not fill a segment goes with others'.
    pub(crate) fn queue_closed(&self, inode: &Arc<Inode>) {
        let mut eligible = Vec::new();
        {
            let mut state = inode.state.lock();
            let own = state.fills(self.records.segment_size());
            let State { idle, finished, dirty, .. } = &mut *state;
            if !own {
                finished.clear();
            }
            for record in idle.difference(finished) {
                if let Some(dirty) = dirty.get_mut(record).filter(|d| !d.eligible) {
                    dirty.eligible = true;
                    eligible.push((*record, dirty.buf.len() as u64));
                }
            }
        }
        let enough = {
            let mut queues = self.flush.queues.lock();
            for (record, len) in eligible {
                let item = Item { inode: inode.clone(), record, since: Duration::ZERO, len };
                queues.eligible.push_back(item);
                queues.eligible_bytes += len;
            }
            queues.eligible_bytes >= self.records.segment_size()
        };
        if enough {
            self.flush.kick.notify_one();
        }
    }

    /// Somebody waits for the file.
    pub(crate) fn queue_urgent(&self, inode: &Arc<Inode>) {
        self.flush.queues.lock().urgent.push_back(inode.clone());
        self.flush.kick.notify_one();
    }

    pub(crate) fn under_pressure(&self) -> bool {
        self.free.lent() > self.options.dirty_max / 100 * PRESSURE
    }

    /// Starts every flight whose time has come; gives how long nothing more can happen by itself.
    fn flush_round(self: &Arc<Self>) -> Duration {
        let by_memory = (self.options.flights_max / self.records.segment_size().max(1)) as usize;
        let limit =
            (self.records.writable_vdevs().len() * FLIGHTS_PER_VDEV).min(by_memory).clamp(1, FLIGHTS_MAX);
        // The files that fill segments are being changed in shape: others need not wait for them.
        let mut stuck = false;
        loop {
            if self.flush.flights.load(Ordering::Acquire) >= limit || self.check_fenced().is_err() {
                return IDLE;
            }
            let (source, rest) = self.next_source(stuck);
            let Some(source) = source else { return if stuck { rest.min(PAUSE_MIN) } else { rest } };
            let (flight, blocked) = self.gather(source);
            match flight {
                Some(flight) => self.launch(flight, source == Source::Urgent),
                // What could go belongs to files whose shape is being changed.
                None if blocked && source == Source::Full => stuck = true,
                None if blocked => return PAUSE_MIN,
                None => {}
            }
        }
    }

    /// Which queue a flight should be gathered from now, or how long until one has something; not from the files that
    /// fill segments when those are `stuck`.
    fn next_source(&self, stuck: bool) -> (Option<Source>, Duration) {
        let now = self.options.clock.monotonic();
        let segment = self.records.segment_size();
        let mut queues = self.flush.queues.lock();
        if !queues.urgent.is_empty() {
            let short = self.flush.short_flights.load(Ordering::Acquire);
            if short < SHORT_FLIGHTS || urgent_fills(&queues, segment) {
                return (Some(Source::Urgent), Duration::ZERO);
            }
        }
        let paused = self.flush.pause.lock().until;
        if now < paused {
            return (None, paused - now);
        }
        if !stuck && !queues.full.is_empty() {
            return (Some(Source::Full), Duration::ZERO);
        }
        if queues.eligible_bytes >= segment {
            return (Some(Source::Eligible), Duration::ZERO);
        }
        if self.under_pressure() {
            if !queues.eligible.is_empty() {
                return (Some(Source::Eligible), Duration::ZERO);
            }
            if !queues.waiting.is_empty() {
                return (Some(Source::Waiting), Duration::ZERO);
            }
        }
        queues.drop_stale_head();
        match queues.waiting.front() {
            None => (None, IDLE),
            Some(item) => {
                let due = item.since + self.options.flush_age;
                if due <= now { (Some(Source::Waiting), Duration::ZERO) } else { (None, due - now) }
            }
        }
    }

    fn launch(self: &Arc<Self>, flight: Flight, urgent: bool) {
        let short = urgent && flight.bytes < self.records.segment_size() / 2;
        self.flush.flights.fetch_add(1, Ordering::AcqRel);
        if short {
            self.flush.short_flights.fetch_add(1, Ordering::AcqRel);
        }
        let client = self.clone();
        let writer = flight.files.last().and_then(|file| file.inode.state.lock().writer.clone());
        self.options.runtime.spawn(job::for_job(writer, async move {
            // The failure is noted in every file of the flight, for whoever asks there.
            match client.fly(flight).await {
                Ok(true) => client.pause_after(None),
                // Nothing was committed, but for no reason of its own.
                Ok(false) => {}
                Err(error) => client.pause_after(Some(error)),
            }
            if short {
                client.flush.short_flights.fetch_sub(1, Ordering::AcqRel);
            }
            client.flush.flights.fetch_sub(1, Ordering::AcqRel);
            client.flush.kick.notify_one();
        }));
    }

    fn pause_after(&self, error: Option<FsError>) {
        let mut pause = self.flush.pause.lock();
        if error.is_some() {
            pause.length = (pause.length * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            pause.until = self.options.clock.monotonic() + pause.length;
            pause.error = error;
        } else {
            *pause = Pause::default();
        }
        drop(pause);
        self.room.notify_waiters();
    }

    /// Why flushing makes no progress, if it does not.
    pub(crate) fn flush_error(&self) -> Option<FsError> {
        self.flush.pause.lock().error.clone()
    }
}

/// Whether the files in the urgent queue have a segment's worth of dirty data together.
fn urgent_fills(queues: &Queues, segment: u64) -> bool {
    let mut bytes = 0;
    queues.urgent.iter().any(|inode| {
        bytes += inode.state.lock().dirty_bytes;
        bytes >= segment
    })
}

impl Queues {
    /// Forgets entries at the head whose record has gone out another way.
    fn drop_stale_head(&mut self) {
        while let Some(item) = self.waiting.front() {
            if item.inode.state.lock().idle.contains(&item.record) {
                break;
            }
            self.waiting.pop_front();
        }
    }
}

/// The flusher: starts flights until the client is dropped or shut down.
async fn run(client: Weak<Client>, kick: Arc<Notify>) {
    loop {
        let Some(strong) = client.upgrade() else { return };
        if strong.flush.stopped.load(Ordering::Acquire) {
            return;
        }
        let rest = strong.flush_round().min(strong.patch_round(IDLE));
        drop(strong);
        let _ = tokio::time::timeout(rest, kick.notified()).await;
    }
}
