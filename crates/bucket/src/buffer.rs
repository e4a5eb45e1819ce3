//! Memory for object bodies that is used again and again.
//!
//! The first touch of fresh memory costs a page fault per 4 KiB and runs at a fraction of memory speed, slower
//! than the buckets it is filled from. So large bodies are read into buffers that return here when the last
//! [`Bytes`] that shows them is dropped, and the next body finds its pages in place.
//!
//! They ask for huge pages, which are touched for the first time, and found by the kernel when it copies from them, at a
//! fraction of the cost: large ones each for itself, smaller ones together ([`crate::slab`]).
//!
//! Buffers come in classes, four to each doubling, so that at most a quarter of one is unused (and never
//! touched, so it costs no memory). What lies here unused is bounded; see [`set_idle_limit`]. More of it is kept where
//! little is in use: a stream has many buffers in use at one moment and few at the next, and those that it does not find
//! again it must touch anew. Who knows what will be asked for has it made ready beforehand: see [`warm`].

use crate::slab::{Part, Slab};
use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bodies smaller than this many bytes come from the allocator, which keeps such memory itself.
pub const SMALLEST: usize = 64 << 10;
/// Buffers from this many bytes on are mapped by themselves; smaller ones are cut from a slab.
const MAPPED: usize = 1 << 20;
/// Default of [`set_idle_limit`] in bytes.
pub const DEFAULT_IDLE_LIMIT: usize = 256 << 20;

static IDLE: Mutex<Idle> = Mutex::new(Idle { classes: BTreeMap::new(), bytes: 0, slabs: BTreeMap::new() });
static IDLE_LIMIT: AtomicUsize = AtomicUsize::new(DEFAULT_IDLE_LIMIT);
/// Of buffers in use and unused together.
static ALL_LIMIT: AtomicUsize = AtomicUsize::new(0);
static LENT: AtomicUsize = AtomicUsize::new(0);

struct Idle {
    classes: BTreeMap<usize, Vec<Memory>>,
    bytes: usize,
    /// What the next new buffer of a class is cut from.
    slabs: BTreeMap<usize, Slab>,
}

impl Idle {
    /// A buffer of `class` that was used before.
    fn take(&mut self, class: usize) -> Option<Memory> {
        let found = self.classes.get_mut(&class)?.pop()?;
        self.bytes -= class;
        Some(found)
    }

    /// A new one of a class that is too small to be mapped by itself.
    fn cut(&mut self, class: usize) -> Option<Memory> {
        if class >= MAPPED {
            return None;
        }
        if let Some(part) = self.slabs.get_mut(&class).and_then(Slab::cut) {
            return Some(Memory::Part(part));
        }
        let mut slab = Slab::new(class).ok()?;
        let part = slab.cut()?;
        self.slabs.insert(class, slab);
        Some(Memory::Part(part))
    }

    /// Whether a buffer of `class` may lie here too.
    fn has_room(&self, class: usize) -> bool {
        let idle = self.bytes + class;
        idle <= IDLE_LIMIT.load(Relaxed) || idle + LENT.load(Relaxed) <= ALL_LIMIT.load(Relaxed)
    }

    /// Makes room for a buffer of `class` at the cost of the class that has most here, unless that is its own: what
    /// comes back is what is used now. Gives what had to go, for who frees it when nothing is locked any more.
    fn make_room(&mut self, class: usize) -> Vec<Memory> {
        let mut gone = Vec::new();
        while !self.has_room(class) {
            let most = self.classes.iter_mut().max_by_key(|(class, buffers)| *class * buffers.len());
            let Some((&other, buffers)) = most.filter(|(other, _)| **other != class) else { break };
            let Some(memory) = buffers.pop() else { break };
            self.bytes -= other;
            gone.push(memory);
        }
        gone
    }
}

/// Sets how many bytes of unused buffers are kept for the process, whatever is in use; what is above is freed at once.
/// More is kept while it is no more than `with_used` together with what is in use.
pub fn set_idle_limit(bytes: usize, with_used: usize) {
    IDLE_LIMIT.store(bytes, Relaxed);
    ALL_LIMIT.store(with_used, Relaxed);
    let mut freed = Vec::new();
    let mut idle = IDLE.lock();
    while idle.bytes > bytes {
        let Some((&class, _)) = idle.classes.iter().next_back() else { break };
        let buffers = idle.classes.remove(&class).unwrap_or_default();
        idle.bytes -= class * buffers.len();
        freed.push(buffers);
    }
    drop(idle);
}

/// Makes buffers for bodies of `len` bytes ready, as many as may lie unused: their memory is touched now, and not when
/// somebody waits for what is read into it. Bodies that come from the allocator need nothing.
pub fn warm(len: usize) {
    let class = class_of(len);
    if class < MAPPED {
        return;
    }
    // What is in use comes back here.
    while IDLE.lock().bytes + LENT.load(Relaxed) + class <= IDLE_LIMIT.load(Relaxed) {
        let Memory::Mapped(mapped) = Memory::new(class) else { return };
        // A kernel that does not know this advice touches nothing.
        if mapped.advise(Advice::PopulateWrite).is_err() {
            return;
        }
        let mut idle = IDLE.lock();
        idle.bytes += class;
        idle.classes.entry(class).or_default().push(Memory::Mapped(mapped));
    }
}

/// Bytes of buffers that are unused now.
pub fn idle_bytes() -> usize {
    IDLE.lock().bytes
}

/// Bytes of buffers that are in use now, or pinned by a [`Bytes`] that shows a part of them.
pub fn lent_bytes() -> usize {
    LENT.load(Relaxed)
}

/// Most bytes of buffers that are kept unused now.
pub fn idle_limit() -> usize {
    IDLE_LIMIT.load(Relaxed).max(ALL_LIMIT.load(Relaxed).saturating_sub(LENT.load(Relaxed)))
}

/// Bytes of memory that a body of `len` bytes takes.
pub fn footprint(len: usize) -> usize {
    if len < SMALLEST { len } else { class_of(len) }
}

/// The class of a body of `len` bytes: the next of four steps to each doubling.
fn class_of(len: usize) -> usize {
    let len = len.max(SMALLEST);
    let step = (1usize << (usize::BITS - 1 - len.leading_zeros())) / 4;
    len.div_ceil(step) * step
}

enum Memory {
    Heap(Box<[u8]>),
    Mapped(MmapMut),
    Part(Part),
}

impl Memory {
    /// Zeroed memory. Where it cannot be mapped, it comes from the allocator.
    fn new(len: usize) -> Memory {
        if len >= MAPPED
            && let Ok(mapped) = MmapMut::map_anon(len)
        {
            // Advice that is not taken does no harm.
            let _ = mapped.advise(Advice::HugePage);
            return Memory::Mapped(mapped);
        }
        Memory::Heap(vec![0; len].into_boxed_slice())
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped(bytes) => bytes,
            Memory::Part(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped(bytes) => bytes,
            Memory::Part(bytes) => bytes,
        }
    }
}

/// A buffer being filled; [`Buffer::freeze`] makes it a body.
pub struct Buffer {
    memory: Memory,
    len: usize,
}

impl Buffer {
    /// A buffer that shows `len` bytes of unspecified content.
    pub fn new(len: usize) -> Buffer {
        if len < SMALLEST {
            return Buffer { memory: Memory::new(len), len };
        }
        let class = class_of(len);
        let found = {
            let mut idle = IDLE.lock();
            idle.take(class).or_else(|| idle.cut(class))
        };
        LENT.fetch_add(class, Relaxed);
        Buffer { memory: found.unwrap_or_else(|| Memory::new(class)), len }
    }

    /// Shows only the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The body; its memory comes back here when the last part of it is dropped.
    pub fn freeze(self) -> Bytes {
        match self.len {
            0 => Bytes::new(),
            _ => Bytes::from_owner(self),
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let class = self.memory.bytes().len();
        if class < SMALLEST {
            return;
        }
        LENT.fetch_sub(class, Relaxed);
        let memory = std::mem::replace(&mut self.memory, Memory::Heap(Box::default()));
        let mut idle = IDLE.lock();
        let mut gone = idle.make_room(class);
        if idle.has_room(class) {
            idle.bytes += class;
            idle.classes.entry(class).or_default().push(memory);
        } else {
            gone.push(memory);
        }
        drop(idle);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one store of buffers in a process: tests that look into it do so one after another.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn classes_waste_at_most_a_quarter() {
        for len in [1, SMALLEST, SMALLEST + 1, 100_000, 4 << 20, (4 << 20) + 1, 5 << 20, (64 << 20) - 1] {
            let class = class_of(len);
            assert!(class >= len && class as f64 <= len.max(SMALLEST) as f64 * 1.25 + 1.0, "{len} {class}");
            assert_eq!(class_of(class), class);
        }
    }

    #[test]
    fn buffers_are_made_ready_up_to_the_limit() {
        let _alone = ALONE.lock();
        warm(SMALLEST);
        // A size that nothing else in this process uses.
        let class = 48 << 20;
        warm(class - 1);
        let ready = IDLE.lock().classes.get(&class).map_or(0, Vec::len);
        assert!((1..=DEFAULT_IDLE_LIMIT / class).contains(&ready), "{ready}");
        // What is used makes its way in.
        drop(Buffer::new(13 << 20));
        assert_eq!(IDLE.lock().classes.get(&(14 << 20)).map(Vec::len), Some(1));
        drop(Buffer::new(class));
        warm(class);
        let mut idle = IDLE.lock();
        assert!(idle.bytes <= DEFAULT_IDLE_LIMIT);
        let ready = idle.classes.remove(&class).map_or(0, |buffers| buffers.len());
        idle.bytes -= class * ready;
    }

    #[test]
    fn more_lies_unused_where_little_is_in_use() {
        let _alone = ALONE.lock();
        // A size that nothing else in this process uses, of which no two fit into the limit alone.
        let class = 160 << 20;
        let ready = |count| IDLE.lock().classes.get(&class).map_or(0, Vec::len) == count;
        let fill = || drop([Buffer::new(class), Buffer::new(class)]);
        fill();
        assert!(ready(1));
        set_idle_limit(DEFAULT_IDLE_LIMIT, LENT.load(Relaxed) + 4 * class);
        fill();
        assert!(ready(2) && idle_limit() >= 2 * class);
        let used = [4, 3, 2, 1].map(|_| Buffer::new(class));
        drop(Buffer::new(class));
        assert!(ready(1), "what may lie unused in any case");
        drop(used);
        set_idle_limit(DEFAULT_IDLE_LIMIT, 0);
        assert!(ready(0) && IDLE.lock().bytes <= DEFAULT_IDLE_LIMIT);
    }

    #[test]
    fn memory_comes_back_when_the_last_part_is_dropped() {
        let _alone = ALONE.lock();
        // A size that nothing else in this process uses.
        let len = 77 << 20;
        let mut buffer = Buffer::new(len);
        buffer.as_mut()[len - 1] = 7;
        let address = buffer.as_ref().as_ptr();
        let body = buffer.freeze();
        let part = body.slice(len - 1..);
        drop(body);
        assert_ne!(Buffer::new(len).as_ref().as_ptr(), address);
        assert_eq!(part[0], 7);
        drop(part);
        let addresses: Vec<_> =
            [Buffer::new(len), Buffer::new(len)].iter().map(|b| b.as_ref().as_ptr()).collect();
        assert!(addresses.contains(&address));
    }
}
