//! Whether written data will find room, asked often enough and cheaply enough to refuse it when it is written
//! rather than when it is flushed.

use crate::client::Client;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::posix::StatFs;
use tarn_base::{Answer, FsError};

/// The last answer counts for this long...
const FRESH: Duration = Duration::from_secs(1);
/// ... and for this many written bytes.
const FRESH_BYTES: u64 = 64 << 20;

#[derive(Default)]
pub(crate) struct SpaceCheck {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    asked: Option<Duration>,
    /// Bytes free when asked, less what was dirty then; `None` before the first answer.
    room: Option<u64>,
    /// Bytes admitted since.
    taken: u64,
    asking: bool,
    /// A flush found no room; stands until one succeeds, or nothing waits for one any more.
    full: bool,
}

impl Known {
    fn is_stale(&self, now: Duration) -> bool {
        self.asked.is_none_or(|at| now.saturating_sub(at) >= FRESH)
    }
}

impl Client {
    /// Admits `len` bytes of new data, or says why not: [`FsError::NoSpace`] or [`FsError::QuotaExceeded`].
    pub(crate) fn admit(self: &Arc<Self>, len: u64) -> Result<(), FsError> {
        let now = self.options.clock.monotonic();
        let mut known = self.space.known.lock();
        let stale = known.is_stale(now);
        let short = known.room.is_some_and(|room| known.taken + len > room);
        if (stale || short || known.taken >= FRESH_BYTES) && !known.asking {
            known.asking = true;
            drop(known);
            self.ask_space();
            known = self.space.known.lock();
        }
        // What was known long ago refuses nothing: there may be room again, and who flushes will find out.
        if !known.is_stale(now) && known.room.is_some_and(|room| known.taken + len > room) {
            drop(known);
            return Err(self.no_room(len));
        }
        // While dirty data waits it is tried again and again, and the first success lifts this.
        known.full &= self.dirty_bytes() > 0;
        if known.full {
            return Err(FsError::NoSpace);
        }
        known.taken += len;
        Ok(())
    }

    /// The pool is full, or only this dataset's share of it.
    fn no_room(&self, len: u64) -> FsError {
        if self.records.space().free > len + self.dirty_bytes() {
            FsError::QuotaExceeded
        } else {
            FsError::NoSpace
        }
    }

    fn ask_space(self: &Arc<Self>) {
        let _inside = self.options.runtime.enter();
        match self.mds.statfs() {
            Answer::Ready(answer) => self.space_known(answer),
            Answer::Pending(future) => {
                let client = self.clone();
                self.options.runtime.spawn(async move {
                    let answer = future.await;
                    client.space_known(answer);
                });
            }
        }
    }

    fn space_known(&self, answer: Result<StatFs, FsError>) {
        let dirty = self.dirty_bytes();
        let mut known = self.space.known.lock();
        known.asking = false;
        known.asked = Some(self.options.clock.monotonic());
        if let Ok(stat) = answer {
            known.room = Some(stat.free.saturating_sub(dirty));
            known.taken = 0;
        }
    }

    /// A flush found the pool full (or found room again).
    pub(crate) fn set_full(&self, full: bool) {
        self.space.known.lock().full = full;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.space.known.lock().full
    }

    /// Size and use of the file system; data that waits here counts as used.
    pub fn statfs(self: &Arc<Self>) -> Answer<StatFs> {
        let dirty = self.dirty_bytes();
        self.mds.statfs().map(move |mut stat| {
            stat.free = stat.free.saturating_sub(dirty);
            stat
        })
    }
}
