//! Record buffers: the memory in which written data waits.
//!
//! The first touch of fresh memory costs more than the copy itself, so buffers of a whole record go back to a
//! free list and are used again. A record that is still small (most files are) has a small buffer, which
//! doubles as it grows. A buffer that somebody else reads (a segment on its way to a bucket, a reply on its
//! way to a reader) is never changed: a write copies it first.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Buffers below this are the allocator's business.
const POOLED_MIN: usize = 32 << 10;
/// The free list keeps at most this much, in bytes: about what waits in memory while somebody writes without a pause.
const POOLED_BYTES: usize = 256 << 20;
/// A record's first buffer, in bytes.
const FIRST: usize = 4 << 10;

/// Buffers that wait for their next use, by capacity.
#[derive(Default)]
pub(crate) struct FreeList {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    by_capacity: HashMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl FreeList {
    fn take(&self, capacity: usize) -> Vec<u8> {
        if capacity >= POOLED_MIN {
            let mut held = self.held.lock();
            if let Some(buffer) = held.by_capacity.get_mut(&capacity).and_then(Vec::pop) {
                held.bytes -= capacity;
                return buffer;
            }
        }
        Vec::with_capacity(capacity)
    }

    fn give(&self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity < POOLED_MIN || !capacity.is_power_of_two() {
            return;
        }
        let mut held = self.held.lock();
        if held.bytes + capacity <= POOLED_BYTES {
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

/// `content` in memory of about its own size: what a cache should keep of a record that fills little of its
/// buffer.
pub(crate) fn compact(content: Bytes, capacity_hint: usize) -> Bytes {
    if content.len() * 2 < capacity_hint { Bytes::copy_from_slice(&content) } else { content }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_what_they_saw() {
        let home = Arc::new(FreeList::default());
        let mut shared = SharedBuf::new(RecordBuf::new(&home));
        shared.make_mut(65536).write(10, b"abc", 65536);
        let seen = shared.bytes();
        shared.make_mut(65536).write(11, b"XYZW", 65536);
        assert_eq!(&seen[..], b"\0\0\0\0\0\0\0\0\0\0abc");
        assert_eq!(&shared.bytes()[9..], b"\0aXYZW");
    }

    #[test]
    fn whole_records_are_used_again() {
        let home = Arc::new(FreeList::default());
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
