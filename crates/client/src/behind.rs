//! Letting the kernel's pages go behind a stream.
//!
//! A first pass through a file that is large beside the machine's memory would fill the page cache with what will most
//! likely not be read again, and throw out what will. It also wants fresh pages all the time, which cost more than the
//! copies into them. So the pages that such a stream has passed are dropped, and the kernel uses them again while they
//! are warm. A file that is read once more is kept, and so is one in which the reader goes back.

use crate::client::Client;
use parking_lot::RwLock;
use quick_cache::sync::Cache;
use std::sync::Arc;
use tarn_base::Ino;

/// Pages are kept for this many bytes behind the furthest request: the kernel asks ahead of its reader.
const KEPT: u64 = 12 << 20;
/// Dropped at once, in bytes.
const STEP: u64 = 4 << 20;
/// Files whose first pass is remembered.
const FILES: usize = 1 << 16;

/// Drops the pages of a file from an offset on, so many bytes; must not wait.
type Drop = dyn Fn(Ino, u64, u64) + Send + Sync;

/// Who drops pages, for files of how many bytes and more.
#[derive(Clone)]
struct Dropping {
    from: u64,
    drop: Arc<Drop>,
}

pub(crate) struct DropBehind {
    dropping: RwLock<Option<Dropping>>,
    /// Files of which a first pass has begun.
    passed: Cache<Ino, ()>,
}

impl Default for DropBehind {
    fn default() -> DropBehind {
        DropBehind { dropping: RwLock::default(), passed: Cache::new(FILES) }
    }
}

/// One handle's part.
#[derive(Default)]
pub(crate) struct Behind {
    /// Whether to drop, once that is decided.
    first_pass: Option<bool>,
    /// Pages below this offset were dropped.
    dropped: u64,
}

impl Client {
    /// Has `drop` called with inode, offset and length for pages that the kernel need not keep, in files of at least
    /// `from` bytes.
    pub fn drop_behind(&self, from: u64, drop: impl Fn(Ino, u64, u64) + Send + Sync + 'static) {
        *self.behind.dropping.write() = Some(Dropping { from, drop: Arc::new(drop) });
    }

    /// Nobody drops pages any more.
    pub fn keep_behind(&self) {
        *self.behind.dropping.write() = None;
    }

    /// A request at `offset` of a stream from the file's start, which has come to `next`.
    pub(crate) fn drop_pages(&self, behind: &mut Behind, ino: Ino, size: u64, offset: u64, next: u64) {
        if behind.first_pass == Some(false) {
            return;
        }
        let Some(Dropping { from, drop }) = self.behind.dropping.read().clone() else { return };
        if size < from {
            return;
        }
        let first_pass = *behind.first_pass.get_or_insert_with(|| {
            let first = self.behind.passed.get(&ino).is_none();
            self.behind.passed.insert(ino, ());
            first
        });
        if !first_pass || offset < behind.dropped {
            behind.first_pass = Some(false);
            return;
        }
        let upto = next.saturating_sub(KEPT) / STEP * STEP;
        if upto > behind.dropped {
            drop(ino, behind.dropped, upto - behind.dropped);
            behind.dropped = upto;
        }
    }
}
