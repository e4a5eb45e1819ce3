//! Prefetch: finds out how a handle reads, and fetches ahead of it.
//!
//! A handle's reads are *sequential* when each begins where the furthest one ended, give or take a slack: the
//! kernel sends several requests of its own readahead at once and they arrive in any order. Behind the first
//! read that continues another, whole segments ahead are fetched, each as one *window*. So many bytes are on their way
//! at a time as `distance` finds out, but at most some times as many as the stream has come, so that a reader of a few
//! records costs little. What all streams together have ahead is bounded, and divided among those that read
//! ([`Ahead`]). Where some arrive before those in front of them, others are asked for in their place, up to
//! twice the distance ahead where memory allows it: so a vdev that is late does not keep the others idle. What has come and
//! lies right in front of the reader counts half as if it were on its way. A large first read at the start of a file is
//! a sequence's beginning.
//!
//! Reads at a constant *stride*, forward or backward, have their next ranges fetched as windows of their own
//! length. A file smaller than a segment is fetched whole by the first read at its start.
//!
//! A read that falls into a window on its way waits for the window rather than asking the bucket again.
//!
//! What a large file's stream has passed, memory forgets at once, unless another stream of the file has a window over it:
//! that one may have been told that it is there, and will not fetch it. So it takes it over, and lets it go with its window.

use crate::ahead::{Ahead, Counted};
use crate::client::Client;
use crate::distance::Distance;
use crate::inode::Inode;
use crate::open::OpenFile;
use crate::stats::add;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tarn_base::{BlockPtr, Job, job};
use tarn_pool::Caching;
use tokio::sync::Notify;

/// How far from its place a read may be and still belong to a sequence, in bytes, at least.
const SLACK: u64 = 1 << 20;
/// Segments ahead of a stream, at least; and for each vdev, so that one is asked for the next while it still sends: two
/// that share its bandwidth come to their ends at the same time, a third keeps it busy then.
const LEAST_AHEAD: u64 = 8;
const AHEAD_ON_VDEV: u64 = 3;
/// A first read of so many bytes at the start of a file begins a sequence.
const BEGINS: u64 = 512 << 10;
/// Equal strides in a row before they are believed, and most ranges fetched ahead.
const STRIDES_BELIEVED: u32 = 2;
const STRIDES_AHEAD: u64 = 32;
/// Windows at a stride, at most, before those of the next read.
const STRIDE_WINDOWS: usize = 4 * STRIDES_AHEAD as usize;
/// Files above this leave the ARC first when they are streamed, in bytes: the kernel caches them too.
pub(crate) const STREAMED_MIN: u64 = 16 << 20;
/// Files up to this many bytes that are read from their start are taken for one of many.
const TOGETHER_MAX: u64 = 128 << 10;

/// How one handle reads.
#[derive(Default)]
pub(crate) struct Stream {
    /// Where the sequence began and the end of its furthest read.
    start: u64,
    next: u64,
    hits: u32,
    distance: Distance,
    counted: Counted,
    /// Bytes to have on their way, and at most ahead of the reader in all, as of the last read.
    depth: u64,
    share: u64,
    /// Windows were made up to here.
    ahead: u64,
    last: Option<u64>,
    stride: i64,
    stride_hits: u32,
    /// The next range at the stride for which no window was made.
    stride_next: i64,
    windows: VecDeque<Window>,
    /// Who read last: what is fetched for the handle is that job's.
    pub reader: Option<Arc<Job>>,
}

struct Window {
    start: u64,
    end: u64,
    used: bool,
    landed: Arc<Landed>,
    /// What other streams of the file let go, and this one has before it.
    taken_over: Vec<Gone>,
}

/// A range that was fetched for a stream and let go.
struct Gone {
    start: u64,
    end: u64,
    landed: Arc<Landed>,
}

impl Gone {
    /// What memory need not have any more.
    fn streamed(&self) -> &[BlockPtr] {
        self.landed.streamed.get().map_or(&[], Vec::as_slice)
    }
}

/// Told when a window's fetch has ended, however it did.
#[derive(Default)]
pub(crate) struct Landed {
    done: AtomicBool,
    told: Notify,
    /// Memory had all of it already.
    there: AtomicBool,
    /// What was fetched, if memory need not have it once the stream has passed.
    streamed: OnceLock<Vec<BlockPtr>>,
}

impl Landed {
    fn set(&self) {
        self.done.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    fn is_set(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub async fn wait(&self) {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            if self.is_set() {
                return;
            }
            told.await;
        }
    }
}

/// What steers a stream; sizes in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    /// Visible size of the file.
    pub size: u64,
    /// A segment.
    pub unit: u64,
    /// Vdevs that segments are spread over.
    pub stripes: u64,
    /// Bytes of records that memory keeps at the most.
    pub kept: u64,
    /// The moment of the read.
    pub now: Duration,
    /// All streams together.
    pub ahead: &'a Ahead,
}

/// What became of windows that a stream let go.
#[derive(Default)]
pub(crate) struct LetGo {
    /// Bytes of them that were read, in part at least, and that were not.
    pub used: u64,
    pub unused: u64,
    windows: Vec<Gone>,
}

/// A range to fetch, in bytes, with what to tell when it is there.
pub(crate) type Fetch = (u64, u64, Arc<Landed>);

/// What to do about a read.
pub(crate) struct Advice {
    pub fetch: Vec<Fetch>,
    pub caching: Caching,
    /// The read belongs to no sequence.
    pub scattered: bool,
    pub let_go: LetGo,
}

impl Stream {
    /// Takes note of a read and says what to fetch.
    pub fn on_read(&mut self, offset: u64, len: u64, limits: Limits<'_>) -> Advice {
        let end = (offset + len).min(limits.size);
        let slack = SLACK.max(4 * len).min(limits.unit.max(len));
        let mut let_go = LetGo::default();
        let first = self.last.is_none();
        let mut ranges = Vec::new();
        if !first && offset <= self.next + slack && end > self.next {
            self.next = end;
            self.hits += 1;
            self.look_ahead(limits, &mut ranges);
        } else if first || offset >= self.next || offset + slack < self.next {
            self.strides(offset, len, limits, &mut ranges);
            if self.stride_hits < STRIDES_BELIEVED {
                let_go = self.let_go_all();
            }
            self.start = offset;
            self.next = end;
            self.ahead = 0;
            self.hits = 0;
            self.distance.begin(offset, limits.now);
            if first && offset == 0 && limits.size <= limits.unit {
                if limits.size <= limits.ahead.room() {
                    ranges.push((0, limits.size));
                }
                self.ahead = limits.size;
            } else if first && offset == 0 && len >= BEGINS {
                self.look_ahead(limits, &mut ranges);
            }
        } else {
            self.strides(offset, len, limits, &mut ranges);
        }
        self.last = Some(offset);
        for window in &mut self.windows {
            window.used |= window.start < end && offset < window.end;
        }
        self.let_go_passed(slack, &mut let_go);
        let fetch = self.open_windows(ranges, offset, offset + len);
        let caching = match limits.size {
            0..=TOGETHER_MAX if offset == 0 && limits.ahead.max() > 0 => Caching::Together,
            size if size > STREAMED_MIN && self.hits > 0 => Caching::Stream,
            _ => Caching::Keep,
        };
        let scattered = self.hits == 0 && self.stride_hits < STRIDES_BELIEVED && !(first && offset == 0);
        Advice { fetch, caching, scattered, let_go }
    }

    /// Whether a file of so many bytes was read from its start to its end.
    pub fn read_whole(&self, size: u64) -> bool {
        self.last.is_some() && self.start == 0 && self.next >= size
    }

    /// Something has arrived: what to fetch now.
    pub fn on_arrival(&mut self, limits: Limits<'_>) -> Vec<Fetch> {
        let mut ranges = Vec::new();
        if self.ahead > self.next {
            self.extend(limits, &mut ranges);
        }
        self.open_windows(ranges, 0, 0)
    }

    /// Windows of which those that touch `from..to` are in use already.
    fn open_windows(&mut self, ranges: Vec<(u64, u64)>, from: u64, to: u64) -> Vec<Fetch> {
        let open = ranges.into_iter().map(|(start, end)| {
            let landed = Arc::new(Landed::default());
            self.windows.push_back(Window {
                start,
                end,
                used: start < to && from < end,
                landed: landed.clone(),
                taken_over: Vec::new(),
            });
            (start, end, landed)
        });
        open.collect()
    }

    fn look_ahead(&mut self, limits: Limits<'_>, ranges: &mut Vec<(u64, u64)>) {
        let streams = limits.ahead.streams(&mut self.counted, limits.now);
        self.share = limits.ahead.max() / streams;
        let most = self.share / 3 * 2;
        let least = (LEAST_AHEAD.max(AHEAD_ON_VDEV * limits.stripes) / streams).max(1) * limits.unit;
        let found = self.distance.at(self.next, limits.now, least, most);
        self.depth = limits.ahead.believed(self.next - self.start).clamp(limits.unit.min(most), found);
        self.ahead = self.ahead.max(self.next);
        self.extend(limits, ranges);
    }

    /// Asks for more while too little is on its way.
    fn extend(&mut self, limits: Limits<'_>, ranges: &mut Vec<(u64, u64)>) {
        let mut flying = self.outstanding();
        let target = (self.next + (2 * self.depth).min(self.share)).min(limits.size);
        let mut room = limits.ahead.room();
        while self.ahead < target && flying < self.depth {
            let end = ((self.ahead / limits.unit + 1) * limits.unit).min(limits.size);
            let bytes = end - self.ahead;
            if bytes > room {
                break;
            }
            ranges.push((self.ahead, end));
            flying += bytes;
            room -= bytes;
            self.ahead = end;
        }
    }

    /// Bytes that are on their way, and half of those that have come and lie in front of the reader without a gap. A reader
    /// that has much to read waits for nobody, and more would only be spread over more memory; but if all of it counted,
    /// buckets would have nothing to do until it is read, and then the reader.
    fn outstanding(&self) -> u64 {
        let (mut outstanding, mut gap) = (0, false);
        for window in &self.windows {
            let landed = window.landed.is_set();
            gap |= !landed;
            outstanding += match (landed, gap) {
                (false, _) => window.end - window.start,
                (true, false) => window.end.saturating_sub(window.start.max(self.next)) / 2,
                (true, true) => 0,
            };
        }
        outstanding
    }

    fn strides(&mut self, offset: u64, len: u64, limits: Limits<'_>, ranges: &mut Vec<(u64, u64)>) {
        let Some(last) = self.last else { return };
        let stride = offset as i64 - last as i64;
        if stride == 0 {
            return;
        }
        if stride != self.stride {
            self.stride = stride;
            self.stride_hits = 0;
            return;
        }
        self.stride_hits += 1;
        if self.stride_hits < STRIDES_BELIEVED {
            return;
        }
        let count =
            (1u64 << self.stride_hits.min(10)).min(STRIDES_AHEAD).min(limits.ahead.room() / len.max(1));
        let furthest = offset as i64 + stride * count as i64;
        if self.stride_hits == STRIDES_BELIEVED {
            self.stride_next = offset as i64 + stride;
        }
        while (furthest - self.stride_next) * stride.signum() >= 0 {
            let start = self.stride_next;
            self.stride_next += stride;
            if start >= 0 && (start as u64) < limits.size {
                ranges.push((start as u64, (start as u64 + len).min(limits.size)));
            } else {
                break;
            }
        }
    }

    /// A read had to wait.
    pub fn waited(&mut self) {
        self.distance.waited();
    }

    /// Windows that are still on their way and cover any of a range.
    pub fn on_the_way(&self, offset: u64, end: u64) -> Vec<Arc<Landed>> {
        let covers = |w: &&Window| w.start < end && offset < w.end && !w.landed.is_set();
        self.windows.iter().filter(covers).map(|w| w.landed.clone()).collect()
    }

    /// Lets go of windows that the stream has passed, and of the oldest at a stride if there are too many: backward, none is
    /// ever passed. Of a sequence's, which are bounded in bytes, the oldest are those that its reader wants next.
    fn let_go_passed(&mut self, slack: u64, let_go: &mut LetGo) {
        let (next, sequence) = (self.next, self.hits > 0);
        let passed = |window: &Window| window.end + slack <= next && (sequence || window.used);
        let strided = !sequence && self.stride_hits >= STRIDES_BELIEVED;
        let too_many = if strided { (self.windows.len() + 1).saturating_sub(STRIDE_WINDOWS) } else { 0 };
        let mut oldest = 0;
        self.windows.retain_mut(|window| {
            oldest += 1;
            let stays = oldest > too_many && !passed(window);
            if !stays {
                let_go.add(window);
            }
            stays
        });
    }

    pub fn let_go_all(&mut self) -> LetGo {
        self.ahead = 0;
        let mut let_go = LetGo::default();
        self.windows.drain(..).for_each(|mut window| let_go.add(&mut window));
        let_go
    }

    /// Takes over what another stream of the file has let go, and this one has a window over.
    fn take_over(&mut self, gone: &mut Vec<Gone>) {
        for taken in std::mem::take(gone) {
            let covers = |window: &&mut Window| window.start < taken.end && taken.start < window.end;
            match self.windows.iter_mut().rev().find(covers) {
                Some(last) => last.taken_over.push(taken),
                None => gone.push(taken),
            }
        }
    }
}

impl LetGo {
    /// Bytes that were no stream's.
    pub fn of(used: u64, unused: u64) -> LetGo {
        LetGo { used, unused, windows: Vec::new() }
    }

    fn add(&mut self, window: &mut Window) {
        let bytes = window.end - window.start;
        match window.used {
            _ if window.landed.there.load(Ordering::Relaxed) => {}
            true => self.used += bytes,
            false => self.unused += bytes,
        }
        self.windows.append(&mut window.taken_over);
        self.windows.push(Gone { start: window.start, end: window.end, landed: window.landed.clone() });
    }
}

impl Client {
    /// Counts what was let go.
    pub(crate) fn let_go(&self, gone: &LetGo) {
        add(&self.stats.prefetch_used_bytes, gone.used);
        add(&self.stats.prefetch_unused_bytes, gone.unused);
        self.ahead.let_go(gone.used, gone.unused);
    }

    /// The handle's stream, which is not locked now, has let windows go: counts them, and lets memory forget what nobody will
    /// ask for again.
    pub(crate) fn pass(&self, file: &OpenFile, gone: LetGo) {
        self.let_go(&gone);
        let mut gone = gone.windows;
        gone.retain(|gone| !gone.streamed().is_empty());
        if gone.is_empty() {
            return;
        }
        for other in file.inode.readers.others(file) {
            other.stream.lock().take_over(&mut gone);
        }
        gone.iter().for_each(|gone| self.records.passed(gone.streamed()));
    }

    /// The handle is closed: what it had fetched is used or not.
    pub(crate) fn end_stream(&self, file: &OpenFile) {
        file.inode.readers.remove(file);
        let gone = {
            let mut stream = file.stream.lock();
            self.ahead.leave(&mut stream.counted);
            stream.let_go_all()
        };
        self.pass(file, gone);
    }

    /// Fetches a window in the background, unless memory has it all.
    pub(crate) fn prefetch(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        (start, end, landed): Fetch,
        caching: Caching,
    ) {
        let inode = &file.inode;
        let bytes = end - start;
        let record_size = inode.state.lock().record_size;
        let (first, count) = (start / record_size, (end.div_ceil(record_size) - start / record_size) as u32);
        if self.in_memory(inode, first, count) {
            landed.there.store(true, Ordering::Relaxed);
            landed.set();
            return;
        }
        self.ahead.begin(bytes);
        add(&self.stats.prefetch_issued_bytes, bytes);
        let client = self.clone();
        let (inode, file) = (inode.clone(), Arc::downgrade(file));
        self.options.runtime.spawn(job::for_job(job::current(), async move {
            // A failure is found again by whoever really reads there.
            if let Ok(ptrs) = client.map_all(inode.ino, first, count).await {
                let wanted = client.not_in_memory(&inode, first, &ptrs);
                if caching == Caching::Stream {
                    let _ = landed.streamed.set(wanted.clone());
                }
                if !wanted.is_empty() {
                    let _ = client.records.clone().read(wanted, caching).await;
                }
            }
            client.ahead.end(bytes);
            landed.set();
            if let Some(file) = file.upgrade() {
                let limits = client.limits(&file.inode);
                let more = file.stream.lock().on_arrival(limits);
                more.into_iter().for_each(|fetch| client.prefetch(&file, fetch, caching));
            }
        }));
    }

    fn in_memory(&self, inode: &Inode, first: u64, count: u32) -> bool {
        let ptrs = self.map_ready(inode.ino, first, count);
        ptrs.is_some_and(|ptrs| self.not_in_memory(inode, first, &ptrs).is_empty())
    }

    /// Pointers whose records are neither dirty nor cached.
    pub(crate) fn not_in_memory(
        &self,
        inode: &Inode,
        first: u64,
        ptrs: &[Option<BlockPtr>],
    ) -> Vec<BlockPtr> {
        let dirty: Vec<u64> = {
            let state = inode.state.lock();
            state.dirty.range(first..first + ptrs.len() as u64).map(|(r, _)| *r).collect()
        };
        let wanted = (first..).zip(ptrs).filter(|(r, _)| dirty.binary_search(r).is_err());
        wanted.filter_map(|(_, p)| *p).filter(|p| self.records.cached(p).is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limits(ahead: &Ahead, size: u64) -> Limits<'_> {
        Limits { size, unit: 4 * MIB, stripes: 3, kept: 1 << 30, now: Duration::ZERO, ahead }
    }

    fn ranges(advice: &Advice) -> Vec<(u64, u64)> {
        advice.fetch.iter().map(|(s, e, _)| (*s / MIB, *e / MIB)).collect()
    }

    #[test]
    fn a_stream_grows_its_distance() {
        let mut stream = Stream::default();
        let budget = Ahead::new(64 * MIB);
        let l = limits(&budget, 1 << 34);
        assert_eq!(ranges(&stream.on_read(0, MIB, l)), [(1, 4), (4, 8), (8, 12), (12, 16), (16, 20)]);
        assert_eq!(ranges(&stream.on_read(MIB, MIB, l)), [(20, 24), (24, 28), (28, 32), (32, 36), (36, 40)]);
        for at in 2..1000 {
            // A store that has as much to give as it is asked for.
            let now = Duration::from_secs_f64(1e5 - 1e5 / at as f64);
            stream.waited();
            stream.on_read(at * MIB, MIB, Limits { now, ..l });
        }
        // Two thirds of it on its way.
        assert_eq!(stream.ahead, 1036 * MIB);
        // What arrives out of order makes room for more, up to all of it.
        while let Some(window) = stream.windows.iter().skip(1).find(|w| !w.landed.is_set()) {
            window.landed.set();
            stream.on_arrival(l);
        }
        assert_eq!(stream.ahead, 1064 * MIB);
        // What has all come in order, twice what is to be on its way: the reader has enough.
        stream.windows.iter().for_each(|window| window.landed.set());
        assert!(stream.on_read(1000 * MIB, MIB, l).fetch.is_empty());
        let gone = stream.let_go_all();
        assert!(gone.unused <= 64 * MIB && gone.used > 0);
        assert!(stream.on_arrival(l).is_empty(), "the stream has ended");
    }

    #[test]
    fn reordered_requests_stay_a_stream_and_jumps_do_not() {
        let mut stream = Stream::default();
        let budget = Ahead::new(64 * MIB);
        let l = limits(&budget, 1 << 30);
        for at in [0, 2, 1, 3, 5, 4, 6] {
            stream.on_read(at * MIB / 4, MIB / 4, l);
        }
        assert!(stream.hits > 0 && stream.ahead >= 4 * MIB);
        let jumped = stream.on_read(500 * MIB, 4096, l);
        assert!(jumped.fetch.is_empty() && stream.windows.is_empty() && stream.hits == 0);
    }

    #[test]
    fn a_small_first_read_is_no_stream_yet_and_many_vdevs_want_more() {
        let mut stream = Stream::default();
        let budget = Ahead::new(512 * MIB);
        let l = Limits { stripes: 12, ..limits(&budget, 1 << 34) };
        assert!(stream.on_read(0, MIB / 4, l).fetch.is_empty());
        for at in 1..200 {
            stream.on_read(at * MIB / 4, MIB / 4, l);
        }
        assert_eq!(stream.ahead, 192 * MIB, "50 MiB read, and three segments for each vdev on their way");
    }

    #[test]
    fn streams_share_and_nothing_is_fetched_without_room() {
        let budget = Ahead::new(256 * MIB);
        let l = limits(&budget, 1 << 34);
        for count in [4, 100] {
            let mut streams: Vec<_> = (0..count).map(|_| Stream::default()).collect();
            let share = (256 / count * MIB).max(2 * l.unit);
            for at in 0..1000 {
                for stream in &mut streams {
                    stream.waited();
                    let fetched = stream.on_read(at * MIB, MIB, l).fetch;
                    fetched.iter().for_each(|(_, _, landed)| landed.set());
                }
            }
            assert!(streams.iter().all(|stream| stream.ahead <= stream.next + share));
            assert!(streams.iter().all(|stream| stream.ahead >= 1000 * MIB));
        }
        budget.begin(256 * MIB);
        let mut late = Stream::default();
        assert!((0..10).all(|at| late.on_read(at * MIB, MIB, l).fetch.is_empty()));
        assert!(Stream::default().on_read(0, 4096, limits(&budget, 3 * MIB)).fetch.is_empty());
        budget.end(256 * MIB);
        assert!(!late.on_read(10 * MIB, MIB, l).fetch.is_empty());
        let off = Ahead::new(0);
        assert!((0..10).all(|at| late.on_read(at * MIB, MIB, limits(&off, 1 << 34)).fetch.is_empty()));
    }

    #[test]
    fn many_small_windows_stay_until_they_are_read() {
        let budget = Ahead::new(1 << 30);
        let mut stream = Stream::default();
        let mut most = 0;
        for at in 0..1000 {
            let l = Limits { unit: MIB, stripes: 100, ..limits(&budget, 1 << 34) };
            let advice = stream.on_read(at * MIB, MIB, l);
            assert_eq!(advice.let_go.unused, 0);
            assert!(at == 0 || stream.windows.iter().any(|w| w.start <= at * MIB && w.end > at * MIB));
            most = most.max(stream.windows.len());
            stream.windows.iter().for_each(|window| window.landed.set());
        }
        assert!(most > STRIDE_WINDOWS, "only {most}");
        assert!(
            stream.windows.len() as u64 <= (stream.ahead - stream.next) / MIB + 3,
            "what was read is gone"
        );
    }

    #[test]
    fn what_lies_far_ahead_keeps_nothing_that_was_passed() {
        let budget = Ahead::new(64 * MIB);
        let l = limits(&budget, 1 << 40);
        let mut stream = Stream::default();
        (0..8).for_each(|n| _ = stream.on_read(n << 30, MIB, l));
        let ahead = stream.windows.iter().filter(|window| !window.used).count();
        assert!(ahead >= 32, "at the stride");
        for at in 1..500 {
            stream.on_read((7 << 30) + at * MIB, MIB, l);
            stream.windows.iter().for_each(|window| window.landed.set());
        }
        let passed = |w: &&Window| w.end + 4 * MIB < stream.next;
        assert_eq!(stream.windows.iter().filter(passed).count(), 0);
        assert!(stream.windows.iter().filter(|window| window.start >= 8 << 30).count() >= ahead);
    }

    #[test]
    fn windows_at_a_stride_are_bounded() {
        for sign in [1i64, -1] {
            let budget = Ahead::new(64 * MIB);
            let l = limits(&budget, 1 << 40);
            let mut stream = Stream::default();
            for n in 0..1000 {
                stream.on_read(((1 << 39) + sign * n * (16 << 20)) as u64, MIB, l);
                assert!(stream.windows.len() < STRIDE_WINDOWS + STRIDES_AHEAD as usize);
            }
        }
    }

    #[test]
    fn small_files_come_whole() {
        let budget = Ahead::new(64 * MIB);
        assert_eq!(ranges(&Stream::default().on_read(0, 4096, limits(&budget, 3 * MIB))), [(0, 3)]);
    }

    #[test]
    fn strides_are_found_both_ways() {
        for sign in [1i64, -1] {
            let mut stream = Stream::default();
            let budget = Ahead::new(64 * MIB);
            let l = limits(&budget, 1 << 30);
            let at = |n: i64| (512 * MIB as i64 + sign * n * 16 * MIB as i64) as u64;
            let mut fetched = Vec::new();
            for n in 0..8 {
                fetched.extend(ranges(&stream.on_read(at(n), MIB, l)));
            }
            let expected: Vec<_> =
                (4..fetched.len() as i64 + 4).map(|n| (at(n) / MIB, at(n) / MIB + 1)).collect();
            assert!(fetched.len() >= 8);
            assert_eq!(fetched, expected);
        }
    }
}
