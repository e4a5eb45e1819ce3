//! Taking idle dirty records for a flight.

use super::flight::{Flight, FlightFile, FlightRecord};
use super::{Item, Source};
use crate::client::Client;
use crate::inode::{InFlight, Inode, State};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tarn_base::Ino;
use tarn_base::block::SEGMENT_RECORDS_MAX;

/// A flight being filled.
pub(super) struct Filling {
    flight: Flight,
    /// Where each file is in the flight.
    places: HashMap<Ino, usize>,
    budget: Budget,
}

/// What still fits into a segment.
struct Budget {
    bytes: u64,
    records: usize,
}

/// How taking from a file went.
#[derive(PartialEq, Eq)]
enum Took {
    /// All that was asked for, or nothing is left to take.
    All,
    /// The segment is full; something is left.
    Full,
    /// The file's shape is being changed: not now.
    Blocked,
    /// What is left must not overtake a record that is in flight and was written again since.
    Later,
}

impl Client {
    /// Fills a flight from a queue; `None` when the queue had nothing that can go now. Also says whether it
    /// had something that cannot.
    pub(super) fn gather(self: &Arc<Self>, source: Source) -> (Option<Flight>, bool) {
        let mut filling =
            Filling { flight: self.new_flight(), places: HashMap::new(), budget: self.budget() };
        let mut blocked = false;
        match source {
            Source::Urgent => self.gather_urgent(&mut filling),
            Source::Full => blocked = self.gather_full(&mut filling),
            Source::Eligible => {
                blocked = self.gather_items(&mut filling, true);
                if self.under_pressure() {
                    blocked |= self.gather_items(&mut filling, false);
                }
            }
            Source::Waiting => blocked = self.gather_items(&mut filling, false),
        }
        let mut flight = filling.flight;
        flight.urgent = source == Source::Urgent;
        (if flight.files.is_empty() { None } else { Some(flight) }, blocked)
    }

    fn budget(&self) -> Budget {
        Budget { bytes: self.records.segment_size(), records: SEGMENT_RECORDS_MAX }
    }

    pub(super) fn new_flight(&self) -> Flight {
        let id = self.flush.next_flight.fetch_add(1, Ordering::AcqRel);
        Flight { id, files: Vec::new(), bytes: 0, urgent: false }
    }

    fn gather_urgent(&self, filling: &mut Filling) {
        loop {
            let Some(inode) = self.flush.queues.lock().urgent.pop_front() else { return };
            match filling.take(&inode, None) {
                Took::All | Took::Later => {}
                // Who waits asks again when the change of shape is done; if it just was, now.
                Took::Blocked => {
                    inode.state.lock().urgent = false;
                    if inode.order.try_read().is_ok() {
                        inode.changed.notify_waiters();
                    }
                }
                Took::Full => {
                    self.flush.queues.lock().urgent.push_front(inode);
                    return;
                }
            }
        }
    }

    /// A segment of the first file that fills one. Says whether none could go for now.
    fn gather_full(self: &Arc<Self>, filling: &mut Filling) -> bool {
        let mut blocked = Vec::new();
        while filling.flight.files.is_empty() {
            let Some(inode) = self.flush.queues.lock().full.pop_front() else { break };
            let finished: Vec<u64> = {
                let state = inode.state.lock();
                if state.fills(filling.budget.bytes) {
                    state.finished.iter().copied().collect()
                } else {
                    Vec::new()
                }
            };
            let stopped =
                finished.iter().map(|r| filling.take(&inode, Some(*r))).find(|took| *took != Took::All);
            if filling.flight.files.is_empty() && matches!(stopped, Some(Took::Blocked | Took::Later)) {
                blocked.push(inode);
            } else {
                self.leave_full(&inode);
            }
        }
        let any = !blocked.is_empty();
        let mut queues = self.flush.queues.lock();
        for inode in blocked.into_iter().rev() {
            queues.full.push_front(inode);
        }
        any
    }

    /// Takes from the eligible queue, or from the waiting one what is of age (everything under pressure). Says
    /// whether something had to stay.
    fn gather_items(&self, filling: &mut Filling, eligible: bool) -> bool {
        let mut blocked = Vec::new();
        while let Some(item) = self.pop_item(eligible) {
            if eligible {
                clear_eligible(&item);
            }
            match filling.take(&item.inode, Some(item.record)) {
                Took::All => {}
                Took::Blocked | Took::Later => blocked.push(item),
                Took::Full => {
                    self.push_back_front(item, eligible);
                    break;
                }
            }
        }
        let any = !blocked.is_empty();
        for item in blocked.into_iter().rev() {
            self.push_back_front(item, eligible);
        }
        any
    }

    fn pop_item(&self, eligible: bool) -> Option<Item> {
        let mut queues = self.flush.queues.lock();
        if eligible {
            let item = queues.eligible.pop_front()?;
            queues.eligible_bytes -= item.len;
            return Some(item);
        }
        let due = queues.waiting.front()?.since + self.options.flush_age;
        if due > self.options.clock.monotonic() && !self.under_pressure() {
            return None;
        }
        queues.waiting.pop_front()
    }

    fn push_back_front(&self, item: Item, eligible: bool) {
        if eligible && let Some(dirty) = item.inode.state.lock().dirty.get_mut(&item.record) {
            dirty.eligible = true;
        }
        let mut queues = self.flush.queues.lock();
        if eligible {
            queues.eligible_bytes += item.len;
            queues.eligible.push_front(item);
        } else {
            queues.waiting.push_front(item);
        }
    }

    /// Flights of all idle records of a file below the record `end`, for somebody who has the file exclusively.
    pub(crate) fn gather_exclusive(&self, inode: &Arc<Inode>, end: u64) -> Vec<Flight> {
        let mut flights = Vec::new();
        loop {
            let mut flight = self.new_flight();
            let mut budget = self.budget();
            let mut state = inode.state.lock();
            let wanted: Vec<u64> = state.idle.range(..end).copied().collect();
            let mut records = Vec::new();
            for record in wanted {
                match snapshot(&mut state, record, flight.id, &mut budget, records.is_empty()) {
                    Some(taken) => records.push(taken),
                    None => break,
                }
            }
            if records.is_empty() {
                return flights;
            }
            state.flights.insert(flight.id);
            drop(state);
            flight.bytes = records.iter().map(|r| r.content.len() as u64).sum();
            flight.files.push(FlightFile { records, ..FlightFile::new(inode.clone(), None) });
            flights.push(flight);
        }
    }
}

fn clear_eligible(item: &Item) {
    if let Some(dirty) = item.inode.state.lock().dirty.get_mut(&item.record) {
        dirty.eligible = false;
    }
}

/// Freezes a record's content for a flight; `None` when it does not fit any more.
fn snapshot(
    state: &mut State,
    record: u64,
    flight: u64,
    budget: &mut Budget,
    anyway: bool,
) -> Option<FlightRecord> {
    let dirty = state.dirty.get_mut(&record)?;
    let len = dirty.buf.len() as u64;
    if budget.records == 0 || len > budget.bytes && !anyway {
        return None;
    }
    budget.records -= 1;
    budget.bytes = budget.bytes.saturating_sub(len);
    dirty.flight = Some(InFlight { id: flight, next_since: None });
    let taken = FlightRecord { record, content: dirty.buf.bytes() };
    state.idle.remove(&record);
    state.finished.remove(&record);
    Some(taken)
}

/// The idle records that may go now: all of them, or one and what must commit no later than it. Behind the
/// committed size the lower ones must not stay back, so one that is in flight and was written again since holds
/// back all above it; says whether that happened. At most `most` of them.
fn takeable(state: &State, wanted: Option<u64>, most: usize) -> (Vec<u64>, bool) {
    let behind = state.committed_size / state.record_size.max(1);
    let barrier = state.rewritten.range(behind..).next().map_or(u64::MAX, |r| *r);
    let (first, last) = match wanted {
        None => (0, u64::MAX),
        Some(record) if !state.idle.contains(&record) => return (Vec::new(), false),
        Some(record) => (behind.min(record), record),
    };
    let records = state.idle.range(first..=last).copied().take_while(|r| *r < barrier).take(most).collect();
    (records, state.idle.range(first..=last).next_back().is_some_and(|r| *r > barrier))
}

impl Filling {
    /// Takes idle records of a file: all of them, or one and what must commit no later than it.
    fn take(&mut self, inode: &Arc<Inode>, wanted: Option<u64>) -> Took {
        let at = match self.places.get(&inode.ino) {
            Some(at) => *at,
            None => match inode.order.clone().try_read_owned() {
                Ok(order) => {
                    self.flight.files.push(FlightFile::new(inode.clone(), Some(order)));
                    self.places.insert(inode.ino, self.flight.files.len() - 1);
                    self.flight.files.len() - 1
                }
                Err(_) => return Took::Blocked,
            },
        };
        let mut state = inode.state.lock();
        let (records, held_back) = takeable(&state, wanted, self.budget.records + 1);
        let mut took = if held_back { Took::Later } else { Took::All };
        for record in records {
            let first = self.flight.bytes == 0;
            let Some(taken) = snapshot(&mut state, record, self.flight.id, &mut self.budget, first) else {
                took = Took::Full;
                break;
            };
            state.flights.insert(self.flight.id);
            self.flight.bytes += taken.content.len() as u64;
            self.flight.files[at].records.push(taken);
        }
        if wanted.is_none() && took != Took::Full {
            // Under the same lock: the landing that makes a held back record idle wakes who waits for it.
            state.urgent = false;
        }
        drop(state);
        if self.flight.files[at].records.is_empty() {
            self.flight.files.pop();
            self.places.remove(&inode.ino);
        }
        took
    }
}
