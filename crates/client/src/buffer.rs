//! Record buffers: the memory in which written data waits.
//!
//! The first touch of fresh memory costs more than the copy itself, so buffers of a whole record go back to a
//! free list and are used again. A record that is still small (most files are) has a small buffer, which
//! doubles as it grows. What the buffers take, those that wait for their next use included, stays within a limit, to
//! which writers are held. A buffer that somebody else reads (a segment on its way to a bucket, a reply on its
//! way to a reader) is never changed: a write copies it first.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buffers below this are the allocator's business.
const POOLED_MIN: usize = 32 << 10;
/// A record's first buffer, in bytes.
const FIRST: usize = 512;
/// What a dirty record costs beside its buffer, in bytes: its places in tables and queues, and its share of the file's.
const RECORD: u64 = 1 << 10;

/// Buffers that wait for their next use, and the count of all.
#[derive(Default)]
pub(crate) struct FreeList {
    held: Mutex<Held>,
    /// Bytes of buffers in use, with all that their records cost.
    lent: AtomicU64,
    /// Of them, those of patches.
    patched: AtomicU64,
    /// Bytes of the records that have patches.
    unready: AtomicU64,
    /// Bytes that buffers may take, those that wait included.
    limit: u64,
}

/// What a patch takes of the bytes in use, and what its record has.
pub(crate) struct Patched {
    home: Arc<FreeList>,
    bytes: u64,
    len: u64,
}

impl Patched {
    pub fn new(home: &Arc<FreeList>, len: u64) -> Patched {
        home.unready.fetch_add(len, Ordering::AcqRel);
        Patched { home: home.clone(), bytes: 0, len }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn set(&mut self, bytes: u64) {
        self.home.patched.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::AcqRel);
        self.bytes = bytes;
    }
}

impl Drop for Patched {
    fn drop(&mut self) {
        self.home.patched.fetch_sub(self.bytes, Ordering::AcqRel);
        self.home.unready.fetch_sub(self.len, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Held {
    by_capacity: HashMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl Held {
    /// Gives one buffer, a small one, back to the allocator.
    fn drop_one(&mut self) {
        let Some((&capacity, buffers)) = self.by_capacity.iter_mut().next() else { return };
        self.bytes -= buffers.pop().map_or(0, |_| capacity);
        if buffers.is_empty() {
            self.by_capacity.remove(&capacity);
        }
    }
}

impl FreeList {
    /// Buffers that take at most `limit` bytes as long as writers heed [`FreeList::lent`].
    pub fn new(limit: u64) -> FreeList {
        FreeList { limit, ..FreeList::default() }
    }

    /// Bytes in use by dirty records.
    pub fn lent(&self) -> u64 {
        self.lent.load(Ordering::Acquire)
    }

    /// Bytes in use by patches.
    pub fn patched(&self) -> u64 {
        self.patched.load(Ordering::Acquire)
    }

    /// Bytes of dirty records that cannot be flushed yet: they have patches.
    pub fn unready(&self) -> u64 {
        self.unready.load(Ordering::Acquire)
    }

    /// Bytes that wait for their next use.
    pub fn held(&self) -> u64 {
        self.held.lock().bytes as u64
    }

    fn take(&self, capacity: usize) -> Vec<u8> {
        let lent = self.lent.fetch_add(capacity as u64, Ordering::AcqRel) + capacity as u64;
        let mut held = self.held.lock();
        if let Some(buffer) = held.by_capacity.get_mut(&capacity).and_then(Vec::pop) {
            held.bytes -= capacity;
            return buffer;
        }
        while held.bytes > 0 && lent + held.bytes as u64 > self.limit {
            held.drop_one();
        }
        drop(held);
        Vec::with_capacity(capacity)
    }

    fn give(&self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity == 0 {
            return;
        }
        let lent = self.lent.fetch_sub(capacity as u64, Ordering::AcqRel) - capacity as u64;
        if capacity < POOLED_MIN || !capacity.is_power_of_two() {
            return;
        }
        let mut held = self.held.lock();
        if lent + (held.bytes + capacity) as u64 <= self.limit {
            held.bytes += capacity;
            buffer.clear();
            held.by_capacity.entry(capacity).or_default().push(buffer);
        }
    }
}

/// The logical content of one record up to its last valid byte; behind it everything is zeros.
pub(crate) struct RecordBuf {
    data: Vec<u8>,
    home: Arc<FreeList>,
}

impl RecordBuf {
    pub fn new(home: &Arc<FreeList>) -> RecordBuf {
        home.lent.fetch_add(RECORD, Ordering::AcqRel);
        RecordBuf { data: Vec::new(), home: home.clone() }
    }

    pub fn copy_of(home: &Arc<FreeList>, content: &[u8], record_size: usize) -> RecordBuf {
        let mut buf = RecordBuf::new(home);
        buf.reserve(content.len(), record_size);
        buf.data.extend_from_slice(content);
        buf
    }

    pub fn len(&self) -> usize {
        self.data.len()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Bytes of memory that it takes.
    pub fn cost(&self) -> u64 {
        RECORD + self.data.capacity() as u64
    }

    /// Makes room for `want` bytes: doubling, and at once the whole record when more than half of it is needed.
    fn reserve(&mut self, want: usize, record_size: usize) {
        let have = self.data.capacity();
        if want <= have {
            return;
        }
        let capacity = if want * 2 > record_size {
            record_size.max(want)
        } else {
            want.next_power_of_two().max(FIRST).min(record_size.max(want))
        };
        let mut larger = self.home.take(capacity);
        larger.extend_from_slice(&self.data);
        self.home.give(std::mem::replace(&mut self.data, larger));
    }

    /// Writes `content` at `at`; a gap before it becomes zeros.
    pub fn write(&mut self, at: usize, content: &[u8], record_size: usize) {
        let end = at + content.len();
        self.reserve(end, record_size);
        if at > self.data.len() {
            self.data.resize(at, 0);
        }
        let inside = content.len().min(self.data.len() - at);
        self.data[at..at + inside].copy_from_slice(&content[..inside]);
        self.data.extend_from_slice(&content[inside..]);
    }

    /// Zeros in `from..to`, as far as bytes are valid there.
    pub fn zero(&mut self, from: usize, to: usize) {
        let to = to.min(self.data.len());
        if from < to {
            self.data[from..to].fill(0);
        }
    }

    pub fn truncate(&mut self, len: usize) {
        self.data.truncate(len);
    }
}

impl Drop for RecordBuf {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.data));
        self.home.lent.fetch_sub(RECORD, Ordering::AcqRel);
    }
}

/// A record buffer that may be read by several and is copied before it is changed under them.
#[derive(Clone)]
pub(crate) struct SharedBuf(Arc<RecordBuf>);

struct Frozen(Arc<RecordBuf>);

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        &self.0.data
    }
}

impl SharedBuf {
    pub fn new(buf: RecordBuf) -> SharedBuf {
        SharedBuf(Arc::new(buf))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The content as it is now; later writes do not change it.
    pub fn bytes(&self) -> Bytes {
        Bytes::from_owner(Frozen(self.0.clone()))
    }

    /// The buffer to change; a copy when anybody still reads the old content.
    pub fn make_mut(&mut self, record_size: usize) -> &mut RecordBuf {
        if Arc::get_mut(&mut self.0).is_none() {
            let home = self.0.home.clone();
            self.0 = Arc::new(RecordBuf::copy_of(&home, &self.0.data, record_size));
        }
        match Arc::get_mut(&mut self.0) {
            Some(buf) => buf,
            None => unreachable!("the buffer was just made and nobody else has it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_what_they_saw() {
        let home = Arc::new(FreeList::new(1 << 20));
        let mut shared = SharedBuf::new(RecordBuf::new(&home));
        shared.make_mut(65536).write(10, b"abc", 65536);
        let seen = shared.bytes();
        shared.make_mut(65536).write(11, b"XYZW", 65536);
        assert_eq!(&seen[..], b"\0\0\0\0\0\0\0\0\0\0abc");
        assert_eq!(&shared.bytes()[9..], b"\0aXYZW");
    }

    #[test]
    fn what_is_in_use_and_what_waits_stays_within_the_limit() {
        let home = Arc::new(FreeList::new(256 << 10));
        let record = |bytes: usize| RecordBuf::copy_of(&home, &vec![1; bytes], 64 << 10);
        let buffers: Vec<_> = (0..8).map(|_| record(60_000)).collect();
        assert_eq!(home.lent(), (8 * 65) << 10);
        drop(buffers);
        assert_eq!((home.lent(), home.held()), (0, 192 << 10));
        // Small ones take their room from those that wait, and no more.
        let small: Vec<_> = (0..40).map(|_| record(700)).collect();
        assert_eq!(home.lent(), 80 << 10);
        assert_eq!(home.held(), 128 << 10);
        drop(small);
        assert_eq!((home.lent(), home.held()), (0, 128 << 10));
    }

    #[test]
    fn whole_records_are_used_again() {
        let home = Arc::new(FreeList::new(1 << 20));
        let mut buf = RecordBuf::new(&home);
        buf.write(0, &[7; 60000], 65536);
        let place = buf.data.as_ptr();
        drop(buf);
        let mut again = RecordBuf::new(&home);
        again.write(40000, b"x", 65536);
        assert_eq!(again.data.as_ptr(), place);
        assert!(again.data[..40000].iter().all(|b| *b == 0));
    }
}
