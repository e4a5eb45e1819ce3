//! The list of what was found damaged, for `pool status -v`.

use crate::text::now_ms;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tarn_base::{RecordOwner, SegmentId};

/// Remembered at most; the oldest go.
const KEEP: usize = 1000;

/// Something stored that could not be read as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamageRecord {
    /// Milliseconds since 1970, when it was last seen; 0 is filled in.
    pub seen_ms: i64,
    /// URL of the vdev.
    pub vdev: String,
    /// The object's key.
    pub object: String,
    pub segment: Option<SegmentId>,
    /// Offset in the segment, in bytes.
    pub offset: Option<u32>,
    /// Whose record it is, where that is known.
    pub owner: Option<RecordOwner>,
    /// The file's name, where it was looked up: dataset and path.
    pub file: Option<String>,
    /// What is wrong with it.
    pub problem: String,
    /// A good copy took its place.
    pub repaired: bool,
}

#[derive(Default)]
pub(crate) struct DamageLog(Mutex<VecDeque<DamageRecord>>);

impl DamageLog {
    /// Adds a record; one about the same place replaces the older, and keeps an owner that it knew.
    pub fn note(&self, mut record: DamageRecord) {
        if record.seen_ms == 0 {
            record.seen_ms = now_ms();
        }
        let mut list = self.0.lock();
        let same = |r: &DamageRecord| {
            (&r.vdev, &r.object, r.offset) == (&record.vdev, &record.object, record.offset)
        };
        if let Some(at) = list.iter().position(same)
            && let Some(old) = list.remove(at)
        {
            record.owner = record.owner.or(old.owner);
            record.file = record.file.or(old.file);
        }
        if list.len() >= KEEP {
            list.pop_front();
        }
        list.push_back(record);
    }

    /// Says whose record lies there, if something was noted of it. Whether there was.
    pub fn own(&self, segment: SegmentId, offset: u32, owner: RecordOwner) -> bool {
        let mut list = self.0.lock();
        let found = list.iter_mut().find(|r| r.segment == Some(segment) && r.offset == Some(offset));
        found.map(|record| record.owner = Some(owner)).is_some()
    }

    /// Gives records of these owners the name of their file.
    pub fn name(&self, name: impl Fn(&RecordOwner) -> Option<String>) {
        for record in self.0.lock().iter_mut() {
            if record.file.is_none() {
                record.file = record.owner.as_ref().and_then(&name);
            }
        }
    }

    pub fn list(&self) -> Vec<DamageRecord> {
        self.0.lock().iter().cloned().collect()
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }
}
