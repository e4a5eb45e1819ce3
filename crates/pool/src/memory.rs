//! Memory for records: what it is divided into, and a bound on what is being read.
//!
//! A body that comes in from a bucket, and the records that are unpacked from it, are in memory before the ARC can
//! count them. Each fetch therefore takes its bytes from one purse, and waits while that is empty. Nobody who holds a
//! part of the purse waits for somebody else's fetch, so the wait has an end.

use crate::Pool;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes for each purpose. They add up to what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    pub arc: u64,
    /// On their way from a bucket into the ARC, or to a reader.
    pub reading: u64,
    /// Buffers that wait for their next use.
    pub idle: u64,
}

impl Shares {
    pub fn of(bytes: u64) -> Shares {
        let (reading, idle) = (bytes / 5, bytes / 12);
        Shares { arc: bytes - reading - idle, reading, idle }
    }
}

/// Memory for records in use, and the most that each part may take; in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemoryUse {
    /// Records, those of streams among them.
    pub arc: u64,
    pub arc_max: u64,
    pub streams: u64,
    pub streams_max: u64,
    /// On their way from buckets.
    pub reading: u64,
    pub reading_max: u64,
    /// Buffers that nobody uses now.
    pub idle: u64,
    pub idle_max: u64,
}

/// The purse is counted in pages.
const PAGE: u64 = 4 << 10;

/// A part of the purse. It is never closed, so there is always one.
pub(crate) type Room = Option<OwnedSemaphorePermit>;

/// Bytes that may be on their way from buckets.
pub(crate) struct Reading {
    pages: Arc<Semaphore>,
    most: u64,
}

impl Reading {
    pub fn new(bytes: u64) -> Reading {
        let most = (bytes / PAGE).clamp(1, u64::from(u32::MAX));
        Reading { pages: Arc::new(Semaphore::new(most as usize)), most }
    }

    /// Room for `bytes`, until the permit is dropped. What is longer than all there is takes all.
    pub async fn room(&self, bytes: u64) -> Room {
        let pages = bytes.div_ceil(PAGE).clamp(1, self.most) as u32;
        self.pages.clone().acquire_many_owned(pages).await.ok()
    }

    /// Bytes taken, and at most.
    pub fn usage(&self) -> (u64, u64) {
        let free = self.pages.available_permits() as u64;
        ((self.most - free.min(self.most)) * PAGE, self.most * PAGE)
    }
}

impl Pool {
    /// Memory for records, by what it is used for.
    pub fn memory(&self) -> MemoryUse {
        let (reading, reading_max) = self.reading.usage();
        let (arc, arc_max) = self.arc.usage();
        let (streams, streams_max) = self.arc.streams();
        MemoryUse {
            arc,
            arc_max,
            streams,
            streams_max,
            reading,
            reading_max,
            idle: tarn_bucket::buffer::idle_bytes() as u64,
            idle_max: tarn_bucket::buffer::idle_limit() as u64,
        }
    }

    /// From now on the ARC has at most so many bytes, and never more than its part of the memory; 0: it keeps nothing.
    pub fn limit_arc(&self, bytes: u64) {
        self.arc.limit_to(bytes);
        self.bound_buffers();
    }

    /// Keeps buffers for their next use: as many as have memory of their own, and what streams do not use of theirs.
    pub(crate) fn bound_buffers(&self) {
        let with_used = self.idle + self.arc.for_streams();
        tarn_bucket::buffer::set_idle_limit(self.idle as usize, with_used as usize);
    }

    /// Bytes of the ARC without those for streams.
    pub fn arc_for_kept(&self) -> u64 {
        self.arc.for_kept()
    }

    /// Bytes of the ARC that streams have for themselves.
    pub fn arc_for_streams(&self) -> u64 {
        self.arc.for_streams()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for bytes in [64 << 20, 576 << 20, 3 << 30] {
            let Shares { arc, reading, idle } = Shares::of(bytes);
            assert_eq!(arc + reading + idle, bytes);
        }
    }

    #[tokio::test]
    async fn a_fetch_waits_for_room_and_a_long_one_takes_all() {
        let reading = Reading::new(1 << 20);
        let held = reading.room(768 << 10).await;
        assert_eq!(reading.usage(), (768 << 10, 1 << 20));
        let mut large = Box::pin(reading.room(64 << 20));
        assert!(futures::poll!(large.as_mut()).is_pending());
        drop(held);
        let held = large.await;
        assert_eq!(reading.usage().0, 1 << 20);
        drop(held);
        assert_eq!(reading.usage().0, 0);
    }
}
