//! Which readers go around the kernel's page cache though nobody asked for it.
//!
//! A large file that is opened for reading for the first time here is most likely read in one pass of large requests, for
//! which pages of 4 KiB cost as much as everything below them. Whoever opens it again has the page cache.
//!
//! A reader of small blocks fares worse that way: each of its requests is a round trip to this process. How much is asked
//! for at once shows only where no page cache is in between, so it is counted there, and after a reader of small blocks
//! the next files have the page cache, until it is tried again.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use tarn_client::{Handle, OpenMode};

/// Requests after which a reader is judged.
const JUDGED: u64 = 64;
/// Smaller requests than this, on average, are better served from pages. Bytes.
const SMALL: u64 = 64 << 10;
/// Openings that have the page cache after a reader of small blocks.
const REST: u32 = 32;

pub(super) struct Hybrid {
    /// Files of at least so many bytes.
    least: u64,
    rest: AtomicU32,
    /// Handles that go around and are not judged yet.
    passing: Mutex<HashMap<Handle, Asked>>,
    count: AtomicUsize,
}

#[derive(Default)]
struct Asked {
    requests: u64,
    bytes: u64,
}

impl Hybrid {
    pub fn new(least: u64) -> Hybrid {
        Hybrid { least, rest: AtomicU32::new(0), passing: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// Whether a file of `size` bytes goes around the page cache, which may hold something of it if it is `known`. If so
    /// its handle is watched.
    pub fn passes(&self, handle: Handle, mode: OpenMode, known: bool, size: u64) -> bool {
        if !mode.read || mode.write || known || size < self.least {
            return false;
        }
        if self.rest.fetch_update(Relaxed, Relaxed, |rest| rest.checked_sub(1)).is_ok() {
            return false;
        }
        self.passing.lock().insert(handle, Asked::default());
        self.count.fetch_add(1, Relaxed);
        true
    }

    /// A handle was asked for so many bytes.
    pub fn asked(&self, handle: Handle, bytes: u64) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let mut passing = self.passing.lock();
        let Some(asked) = passing.get_mut(&handle) else { return };
        asked.requests += 1;
        asked.bytes += bytes;
        if asked.requests == JUDGED {
            if asked.bytes < JUDGED * SMALL {
                self.rest.store(REST, Relaxed);
            }
            passing.remove(&handle);
            self.count.fetch_sub(1, Relaxed);
        }
    }

    pub fn closed(&self, handle: Handle) {
        if self.count.load(Relaxed) > 0 && self.passing.lock().remove(&handle).is_some() {
            self.count.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: OpenMode = OpenMode { read: true, write: false, truncate: false, direct: false };

    #[test]
    fn large_files_that_are_only_read_pass_once() {
        let hybrid = Hybrid::new(1 << 20);
        assert!(hybrid.passes(Handle(1), READ, false, 1 << 20));
        assert!(!hybrid.passes(Handle(2), READ, false, (1 << 20) - 1));
        assert!(!hybrid.passes(Handle(2), READ, true, 1 << 20));
        assert!(!hybrid.passes(Handle(2), OpenMode { write: true, ..READ }, false, 1 << 20));
        assert!(!hybrid.passes(Handle(2), OpenMode { read: false, ..READ }, false, 1 << 20));
        hybrid.closed(Handle(1));
        hybrid.closed(Handle(2));
        assert_eq!(hybrid.count.load(Relaxed), 0);
    }

    #[test]
    fn a_reader_of_small_blocks_teaches_it() {
        let hybrid = Hybrid::new(0);
        for (at, block, learned) in [(1, SMALL, false), (2, SMALL - 1, true)] {
            assert!(hybrid.passes(Handle(at), READ, false, 1));
            (0..JUDGED).for_each(|_| hybrid.asked(Handle(at), block));
            assert_eq!(!hybrid.passes(Handle(9), READ, false, 1), learned);
            hybrid.closed(Handle(9));
        }
        assert!((1..REST).all(|at| !hybrid.passes(Handle(at.into()), READ, false, 1)));
        assert!(hybrid.passes(Handle(3), READ, false, 1), "it is tried again");
        // Too few to tell.
        (1..JUDGED).for_each(|_| hybrid.asked(Handle(3), 1));
        hybrid.closed(Handle(3));
        assert!(hybrid.passes(Handle(4), READ, false, 1));
    }
}
