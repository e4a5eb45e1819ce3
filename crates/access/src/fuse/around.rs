//! Which handles go around the kernel's page cache.
//!
//! Those that ask for it do, those that only write, and the first readers of large files (`hybrid`). The kernel has no
//! write-back cache here: what is written through its pages goes to this process at once anyway, at the cost of fresh
//! memory and one more copy, and what is read afterwards comes from the client's memory.
//!
//! What is written around the pages does not reach those that a reader has or is about to fill: one who follows a log
//! would see zeros where its last page ended before. So at one time a file is written around them, or read through them,
//! and never both: who opens it second does as the first one.

use super::hybrid::Hybrid;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::*};
use tarn_base::Ino;
use tarn_client::{Handle, OpenMode};

pub(super) struct Around {
    pub hybrid: Hybrid,
    /// The kernel drops the pages over which somebody writes so.
    drops_pages: AtomicBool,
    files: Mutex<HashMap<Ino, Users, FixedState>>,
}

/// The handles of one file.
#[derive(Default)]
struct Users {
    /// Those that have its pages.
    paged: u32,
    /// Those that go around them, and whether they write.
    around: Vec<(Handle, bool)>,
}

impl Users {
    fn written_around(&self) -> bool {
        self.around.iter().any(|(_, writes)| *writes)
    }
}

impl Around {
    pub fn new(hybrid: Hybrid) -> Around {
        Around { hybrid, drops_pages: AtomicBool::new(false), files: Mutex::default() }
    }

    /// The session begins with a kernel that drops the pages over which somebody writes around them, or does not.
    pub fn begin(&self, drops_pages: bool) {
        self.drops_pages.store(drops_pages, Relaxed);
    }

    /// Whether a handle of a file of `size` bytes goes around the pages, which may hold something of it if it is `known`.
    pub fn opened(&self, ino: Ino, handle: Handle, mode: OpenMode, known: bool, size: u64) -> bool {
        let wanted = mode.direct
            || !mode.read && self.drops_pages.load(Relaxed)
            || self.hybrid.passes(handle, mode, known, size);
        let mut files = self.files.lock();
        let users = files.entry(ino).or_default();
        let around = match wanted {
            true => !mode.write || users.paged == 0,
            false => users.written_around(),
        };
        match around {
            true => users.around.push((handle, mode.write)),
            false => users.paged += 1,
        }
        around
    }

    pub fn closed(&self, ino: Ino, handle: Handle) {
        self.hybrid.closed(handle);
        let mut files = self.files.lock();
        let Some(users) = files.get_mut(&ino) else { return };
        match users.around.iter().position(|(known, _)| *known == handle) {
            Some(at) => drop(users.around.swap_remove(at)),
            None => users.paged = users.paged.saturating_sub(1),
        }
        if users.paged == 0 && users.around.is_empty() {
            files.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: OpenMode = OpenMode { read: true, write: false, truncate: false, direct: false };
    const WRITE: OpenMode = OpenMode { read: false, write: true, ..READ };
    const BOTH: OpenMode = OpenMode { write: true, ..READ };
    const FILE: Ino = Ino(7);

    fn around() -> Around {
        let around = Around::new(Hybrid::new(1 << 20));
        around.begin(true);
        around
    }

    fn opened(around: &Around, handle: u64, mode: OpenMode) -> bool {
        around.opened(FILE, Handle(handle), mode, true, 100)
    }

    #[test]
    fn a_file_is_written_around_its_pages_or_read_through_them() {
        let around = around();
        assert!(opened(&around, 1, WRITE));
        assert!(opened(&around, 2, READ) && opened(&around, 3, BOTH), "it is written around them");
        around.closed(FILE, Handle(1));
        assert!(opened(&around, 4, READ), "by another one still");
        around.closed(FILE, Handle(3));
        assert!(!opened(&around, 5, READ));
        assert!(!opened(&around, 6, WRITE), "somebody reads through them");
        assert!(opened(&around, 7, OpenMode { direct: true, ..READ }), "who asks for it and writes nothing");
        [2, 4, 5, 6, 7].into_iter().for_each(|handle| around.closed(FILE, Handle(handle)));
        assert!(around.files.lock().is_empty());
        assert!(opened(&around, 8, WRITE) && around.opened(Ino(8), Handle(9), WRITE, true, 0));
        assert!(!around.opened(Ino(9), Handle(10), READ, true, 100), "another file");
    }

    #[test]
    fn where_the_kernel_keeps_pages_over_which_somebody_writes_nobody_does() {
        let around = around();
        around.begin(false);
        assert!(!opened(&around, 1, WRITE));
        around.closed(FILE, Handle(1));
        assert!(opened(&around, 2, OpenMode { direct: true, ..WRITE }), "unless they ask for it");
    }
}
