//! How much room there is, without asking a store at every write.
//!
//! Local vdevs that lie on one file system share its room: each would report all of it. So capacity is kept per
//! device, and a vdev's part is the device's divided by the pool's vdevs on it. A store without a limit counts as
//! [`UNLIMITED`] bytes.
//!
//! The figures of a device are fetched at most every [`REFRESH`] (sooner after [`REFRESH_BYTES`] of writes), in the
//! background; between two fetches what is written is subtracted. A reserve, the slop, is kept from new data, so
//! that metadata and deletes can go on in a pool that is full.

use crate::Space;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tarn_bucket::{Bucket, Capacity};

/// Bytes that a store without a limit counts as: 1 EiB.
pub const UNLIMITED: u64 = 1 << 60;
const REFRESH: Duration = Duration::from_secs(1);
/// Who asks for figures that are older waits for new ones.
const OLD: Duration = Duration::from_secs(3);
const REFRESH_BYTES: u64 = 64 << 20;
/// The slop is this part of a device, within the two bounds that follow.
const SLOP_PART: u64 = 32;
const SLOP_MIN: u64 = 16 << 20;
const SLOP_MAX: u64 = 1 << 30;

/// What several vdevs may share: a file system, or a store of its own.
pub(crate) struct Device {
    /// Device number of the file system; `None` for a store that is not a local directory.
    pub number: Option<u64>,
    /// Asked for its capacity.
    bucket: Arc<dyn Bucket>,
    figures: Mutex<Figures>,
    /// Bytes of writes begun since the device was asked.
    pending: AtomicU64,
    refreshing: AtomicBool,
}

#[derive(Clone, Copy)]
struct Figures {
    total: u64,
    free: u64,
    at: Instant,
}

impl Device {
    /// A device, with its figures fetched.
    pub async fn open(number: Option<u64>, bucket: Arc<dyn Bucket>) -> tarn_bucket::Result<Arc<Device>> {
        let figures = Mutex::new(figures(bucket.capacity().await?));
        Ok(Arc::new(Device {
            number,
            bucket,
            figures,
            pending: AtomicU64::new(0),
            refreshing: AtomicBool::new(false),
        }))
    }

    /// Counts a write that begins.
    pub fn reserve(&self, bytes: u64) {
        self.pending.fetch_add(bytes, SeqCst);
    }

    /// The store itself said so.
    pub fn mark_full(&self) {
        self.figures.lock().free = 0;
    }

    /// Room on the whole device. `free` is without slop.
    pub fn space(&self) -> Space {
        let Figures { total, free, .. } = *self.figures.lock();
        let slop = slop(total);
        let free = free.saturating_sub(self.pending.load(SeqCst));
        Space { total: total.saturating_sub(slop), free: free.saturating_sub(slop) }
    }

    /// Whether it is a store without a limit.
    pub fn unlimited(&self) -> bool {
        self.figures.lock().total == UNLIMITED
    }

    /// Whether there are figures, and they are of a time when nobody asked for them.
    pub fn is_old(&self) -> bool {
        let figures = *self.figures.lock();
        figures.total != UNLIMITED && figures.at.elapsed() >= OLD
    }

    /// Whether the figures are due to be fetched again.
    pub fn stale(&self) -> bool {
        let age = self.figures.lock().at.elapsed();
        age >= REFRESH || (age >= REFRESH / 20 && self.pending.load(SeqCst) > REFRESH_BYTES)
    }

    /// Fetches the figures, unless that is happening already.
    pub async fn refresh(&self) {
        if self.refreshing.swap(true, SeqCst) {
            return;
        }
        // What was begun before the store is asked is in its answer or still in flight: counted once more at
        // worst, until the next time.
        let before = self.pending.load(SeqCst);
        match self.bucket.capacity().await {
            Ok(capacity) => {
                *self.figures.lock() = figures(capacity);
                self.pending.fetch_sub(before, SeqCst);
            }
            Err(error) => {
                tracing::warn!("{}: capacity unknown: {error}", self.bucket.url());
                self.figures.lock().at = Instant::now();
            }
        }
        self.refreshing.store(false, SeqCst);
    }
}

fn figures(capacity: Option<Capacity>) -> Figures {
    let Capacity { total, free } = capacity.unwrap_or(Capacity { total: UNLIMITED, free: UNLIMITED });
    Figures { total, free, at: Instant::now() }
}

/// Bytes of a device that are kept from new data.
fn slop(total: u64) -> u64 {
    // A device so small that the least slop is much of it keeps a quarter.
    (total / SLOP_PART).clamp(SLOP_MIN, SLOP_MAX).min(total / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slop_is_a_part_within_bounds() {
        assert_eq!(slop(1 << 30), 32 << 20);
        assert_eq!(slop(1 << 50), 1 << 30);
        assert_eq!(slop(100 << 20), 16 << 20);
        assert_eq!(slop(8 << 20), 2 << 20);
    }
}
