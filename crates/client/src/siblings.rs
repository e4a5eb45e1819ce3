//! Whole files of a directory, read one after another: a training set in shuffled order, a copy, `grep -r`.
//!
//! Each of them ends before a stream has formed, and its reader waits for a bucket anew. But who has read some files of
//! a directory from their start to their end will read others, most likely all. So when [`BELIEVED`] were read, the
//! directory is listed, and what was not read yet is fetched before it is opened: in the order in which the files were
//! made, because those lie side by side in segments, from the file on that was read last. A reader that comes in
//! another order finds fewer of them at first, but what was fetched stays until it is read, and each is read once in a
//! pass.
//!
//! What waits to be read is bounded as streams are: by some times what was read of the directory, by how much of what
//! was fetched ahead lately came to use, and by a part of the memory for all that is ahead ([`crate::ahead`]).
//!
//! A directory may be read all the time and still not be read through: of a spool only the new files are, and the old ones
//! wait for nobody, in the place of what others would read. So time is cut into turns of [`IDLE`] for each directory. Where
//! so little of what waits was read in a turn that the old part of it would take [`PATIENCE`] turns more, that part is
//! given up, and less is fetched there from then on, until what is fetched comes to be read. A steady reader of all files
//! is far from that, however slow: what it has read counts half after each turn, so no more waits than it reads in 32.

use crate::ahead::Ahead;
use crate::client::Client;
use crate::inode::Inode;
use crate::stats::add;
use crate::zfetch::{LetGo, Stream};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tarn_base::posix::{Attr, DirEntry, FileKind};
use tarn_base::{BlockPtr, Ino, Job, job};
use tarn_pool::Caching;

/// So many files of a directory are read whole before others are fetched.
const BELIEVED: usize = 8;
/// Larger files are streams of their own.
const SIZE_MAX: u64 = 16 << 20;
/// A directory of which no file was read whole for so long is forgotten. A file that waits for longer is old.
const IDLE: Duration = Duration::from_secs(30);
/// See above.
const PATIENCE: u64 = 64;
/// Each doubt of a directory leaves a sixteenth of what would be fetched there; so many at most.
const DOUBT_SHIFT: u32 = 4;
const DOUBTS: u32 = 3;
/// Part of the memory for what is ahead of readers that such files may have.
const PART: u64 = 2;
/// Names asked for at a time.
const PAGE: usize = 4096;
/// Files in a fetch, and fetches at once for each vdev.
const BATCH: usize = 256;
const ON_VDEV: u64 = 2;
/// Directories that are read at a time, and files whose directory is remembered.
const DIRS: usize = 256;
const PARENTS: usize = 1 << 17;

/// A file that may be fetched.
#[derive(Clone, Copy)]
struct File {
    size: u64,
    record_size: u64,
}

/// A file that was fetched.
#[derive(Clone, Copy)]
struct Waiting {
    bytes: u64,
    since: Duration,
}

/// How a directory's files are read.
#[derive(Default)]
struct Dir {
    /// Files that were read whole in this pass.
    read: HashSet<Ino>,
    /// Bytes of files that were read whole; half of those of earlier turns.
    bytes: u64,
    /// When the last of them was, and which one.
    last: Duration,
    latest: Ino,
    /// Listed, and neither read nor fetched in this pass.
    listed: BTreeMap<Ino, File>,
    /// Where to go on listing; `None` at the end.
    cursor: Option<u64>,
    listing: bool,
    /// Fetched, and not read yet; with their bytes, and those of all.
    waiting: HashMap<Ino, Waiting>,
    waiting_bytes: u64,
    /// When the turn began, and bytes of what waited that were read in it.
    turn: Duration,
    used: u64,
    doubts: u32,
    /// Under way.
    fetches: u64,
}

/// What to do for a directory.
enum Work {
    List { cookie: u64 },
    Fetch { files: Vec<(Ino, File)>, bytes: u64 },
}

pub(crate) struct Siblings {
    parents: Cache<Ino, Ino>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    dirs: HashMap<Ino, Dir>,
    /// Bytes of all that waits.
    waiting: u64,
    /// When it was last looked for directories that nobody reads.
    looked: Duration,
}

/// Bounds of a moment.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    ahead: &'a Ahead,
    /// Bytes of a segment, and fetches at once.
    unit: u64,
    fetches: u64,
    now: Duration,
}

impl Dir {
    fn unlisted(now: Duration) -> Dir {
        Dir { cursor: Some(0), turn: now, ..Dir::default() }
    }

    /// A file was read to its end; gives how many bytes of it had been fetched ahead.
    fn note(&mut self, ino: Ino, size: u64, now: Duration) -> u64 {
        let again = !self.read.insert(ino);
        if again && self.cursor.is_none() && self.listed.is_empty() && self.fetches == 0 {
            // The next pass over the same files.
            self.read = HashSet::from([ino]);
            self.cursor = Some(0);
        }
        self.bytes += size;
        self.last = now;
        self.latest = ino;
        self.listed.remove(&ino);
        let used = self.waits_no_more(ino);
        self.used += used;
        used
    }

    /// Gives the bytes that it had fetched.
    fn waits_no_more(&mut self, ino: Ino) -> u64 {
        let bytes = self.waiting.remove(&ino).map_or(0, |file| file.bytes);
        self.waiting_bytes -= bytes;
        bytes
    }

    /// Ends the turn, if it is time; gives the bytes that wait for nobody any more.
    fn end_turn(&mut self, now: Duration) -> u64 {
        if now < self.turn + IDLE {
            return 0;
        }
        self.turn = now;
        self.bytes /= 2;
        let used = std::mem::take(&mut self.used);
        let old = |file: &Waiting| file.since + IDLE <= now;
        let stale: u64 = self.waiting.values().filter(|file| old(file)).map(|file| file.bytes).sum();
        if stale <= PATIENCE * used {
            self.doubts = self.doubts.saturating_sub(u32::from(used > 0));
            return 0;
        }
        self.waiting.retain(|_, file| !old(file));
        self.waiting_bytes -= stale;
        self.doubts = (self.doubts + 1).min(DOUBTS);
        stale
    }

    /// What to do now, if `room` bytes more may wait.
    fn work(&mut self, room: u64, bounds: Bounds<'_>) -> Option<Work> {
        if self.read.len() < BELIEVED || self.fetches >= bounds.fetches {
            return None;
        }
        if self.listed.is_empty() {
            let cookie = self.cursor.filter(|_| !self.listing)?;
            self.listing = true;
            return Some(Work::List { cookie });
        }
        let believed = (bounds.ahead.of_come() * self.bytes) >> (DOUBT_SHIFT * self.doubts);
        let mut room = room.min(believed.saturating_sub(self.waiting_bytes));
        let after = self.listed.range(self.latest..).chain(self.listed.range(..self.latest));
        let mut files = Vec::new();
        let mut bytes = 0;
        for (ino, file) in after.take(BATCH) {
            if file.size > room || (bytes > 0 && bytes + file.size > bounds.unit) {
                break;
            }
            room -= file.size;
            bytes += file.size;
            files.push((*ino, *file));
        }
        if files.is_empty() {
            return None;
        }
        for (ino, file) in &files {
            self.listed.remove(ino);
            self.waiting.insert(*ino, Waiting { bytes: file.size, since: bounds.now });
        }
        self.waiting_bytes += bytes;
        self.fetches += 1;
        Some(Work::Fetch { files, bytes })
    }

    /// Takes in a page of names.
    fn take(&mut self, entries: &[DirEntry]) {
        self.listing = false;
        self.cursor = entries.last().map(|entry| entry.cookie);
        for DirEntry { attr, .. } in entries {
            let file = File { size: attr.size, record_size: u64::from(attr.record_size.max(1)) };
            let wanted = attr.kind == FileKind::Regular && (1..=SIZE_MAX).contains(&attr.size);
            if wanted && !self.read.contains(&attr.ino) && !self.waiting.contains_key(&attr.ino) {
                self.listed.insert(attr.ino, file);
            }
        }
    }
}

impl State {
    /// All that can be begun in a directory now.
    fn work(&mut self, parent: Ino, bounds: Bounds<'_>) -> Vec<Work> {
        let mut begun = Vec::new();
        let Some(dir) = self.dirs.get_mut(&parent) else { return begun };
        loop {
            let room = (bounds.ahead.max() / PART).saturating_sub(self.waiting).min(bounds.ahead.room());
            let Some(work) = dir.work(room, bounds) else { return begun };
            if let Work::Fetch { bytes, .. } = work {
                self.waiting += bytes;
                bounds.ahead.begin(bytes);
            }
            begun.push(work);
        }
    }

    /// Forgets directories that nobody reads any more, and what waits too long in others; gives the bytes that were fetched
    /// for nobody.
    fn forget_idle(&mut self, now: Duration) -> u64 {
        let full = self.dirs.len() > DIRS;
        if !full && now < self.looked + IDLE / 8 {
            return 0;
        }
        self.looked = now;
        let oldest = self.dirs.values().map(|dir| dir.last).min().filter(|_| full);
        let mut unused = 0;
        self.dirs.retain(|_, dir| {
            let stays = dir.last + IDLE > now && Some(dir.last) != oldest;
            unused += if stays { dir.end_turn(now) } else { dir.waiting_bytes };
            stays
        });
        self.waiting -= unused;
        unused
    }
}

impl Siblings {
    pub fn new() -> Siblings {
        Siblings { parents: Cache::new(PARENTS), state: Mutex::default() }
    }

    /// Where a file was found.
    pub fn found(&self, parent: Ino, attr: &Attr) {
        if attr.kind == FileKind::Regular && self.parents.get(&attr.ino) != Some(parent) {
            self.parents.insert(attr.ino, parent);
        }
    }

    pub fn listed(&self, parent: Ino, entries: &[DirEntry]) {
        entries.iter().for_each(|entry| self.found(parent, &entry.attr));
    }
}

impl Client {
    fn sibling_bounds(&self) -> Bounds<'_> {
        let fetches = ON_VDEV * self.records.stripes().max(1);
        let now = self.options.clock.monotonic();
        Bounds { ahead: &self.ahead, unit: self.records.segment_size(), fetches, now }
    }

    /// A handle is closed that was read as `stream` says: if that was all of a small file, others in its directory may
    /// come next.
    pub(crate) fn note_whole(self: &Arc<Self>, inode: &Inode, stream: &Stream) {
        let (ino, size) = (inode.ino, inode.state.lock().size);
        if !(1..=SIZE_MAX).contains(&size) || !stream.read_whole(size) || self.ahead.max() == 0 {
            return;
        }
        let Some(parent) = self.siblings.parents.get(&ino) else { return };
        let now = self.options.clock.monotonic();
        let (gone, work) = {
            let mut state = self.siblings.state.lock();
            let unused = state.forget_idle(now);
            let dir = state.dirs.entry(parent).or_insert_with(|| Dir::unlisted(now));
            let used = dir.note(ino, size, now);
            state.waiting -= used;
            (LetGo::of(used, unused), state.work(parent, self.sibling_bounds()))
        };
        self.let_go(&gone);
        self.begin(parent, work, stream.reader.as_ref());
    }

    fn begin(self: &Arc<Self>, parent: Ino, work: Vec<Work>, reader: Option<&Arc<Job>>) {
        for work in work {
            let client = self.clone();
            self.options.runtime.spawn(job::for_job(reader.cloned(), async move {
                match work {
                    Work::List { cookie } => client.list_siblings(parent, cookie).await,
                    Work::Fetch { files, bytes } => client.fetch_siblings(parent, files, bytes).await,
                }
                let more = client.siblings.state.lock().work(parent, client.sibling_bounds());
                client.begin(parent, more, job::current().as_ref());
            }));
        }
    }

    async fn list_siblings(self: &Arc<Self>, parent: Ino, cookie: u64) {
        // A directory that cannot be listed has nothing to fetch.
        let entries = self.mds.readdir(parent, cookie, PAGE).wait().await.unwrap_or_default();
        self.siblings.listed(parent, &entries);
        if let Some(dir) = self.siblings.state.lock().dirs.get_mut(&parent) {
            dir.take(&entries);
        }
    }

    /// Fetches what memory lacks of these files. What fails is found again by whoever really reads there.
    async fn fetch_siblings(self: &Arc<Self>, parent: Ino, files: Vec<(Ino, File)>, bytes: u64) {
        let mut ptrs = Vec::new();
        let mut there = Vec::new();
        for (ino, file) in files {
            let count = file.size.div_ceil(file.record_size) as u32;
            let map = self.map_all(ino, 0, count).await.unwrap_or_default();
            let lacking: Vec<BlockPtr> =
                map.into_iter().flatten().filter(|ptr| self.records.cached(ptr).is_none()).collect();
            match lacking.is_empty() {
                true => there.push(ino),
                false => add(&self.stats.prefetch_issued_bytes, file.size),
            }
            ptrs.extend(lacking);
        }
        if !ptrs.is_empty() {
            let _ = self.records.clone().read(ptrs, Caching::Keep).await;
        }
        self.ahead.end(bytes);
        let mut state = self.siblings.state.lock();
        let Some(dir) = state.dirs.get_mut(&parent) else { return };
        dir.fetches = dir.fetches.saturating_sub(1);
        // Nobody fetched those ahead.
        let known: u64 = there.iter().map(|ino| dir.waits_no_more(*ino)).sum();
        state.waiting -= known;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn bounds(ahead: &Ahead) -> Bounds<'_> {
        Bounds { ahead, unit: 4096 * KIB, fetches: 4, now: Duration::ZERO }
    }

    fn dir(files: u64) -> Dir {
        let mut dir = Dir::unlisted(Duration::ZERO);
        dir.cursor = None;
        dir.listed =
            (1..=files).map(|n| (Ino(n), File { size: 256 * KIB, record_size: 128 * KIB })).collect();
        dir
    }

    fn fetched(work: &[Work]) -> Vec<u64> {
        let files = work.iter().flat_map(|work| match work {
            Work::Fetch { files, .. } => files.clone(),
            Work::List { .. } => Vec::new(),
        });
        files.map(|(ino, _)| ino.0).collect()
    }

    fn read(state: &mut State, ino: u64, ahead: &Ahead) -> Vec<Work> {
        let used = state.dirs.get_mut(&Ino(7)).unwrap().note(Ino(ino), 256 * KIB, Duration::ZERO);
        state.waiting -= used;
        state.work(Ino(7), bounds(ahead))
    }

    /// A file of the directory is read at a time, and what is fetched then comes at once; gives the bytes of what was
    /// given up and of what was fetched.
    fn read_at(state: &mut State, ino: u64, second: u64, ahead: &Ahead) -> (u64, u64) {
        let now = Duration::from_secs(second);
        let bounds = Bounds { now, ..bounds(ahead) };
        let gone = state.forget_idle(now);
        let used = state.dirs.get_mut(&Ino(7)).unwrap().note(Ino(ino), 256 * KIB, now);
        state.waiting -= used;
        let mut fetched = 0;
        loop {
            let work = state.work(Ino(7), bounds);
            let bytes = work.iter().map(|work| match work {
                Work::Fetch { bytes, .. } => *bytes,
                Work::List { .. } => 0,
            });
            let bytes: u64 = bytes.sum();
            if bytes == 0 {
                return (gone, fetched);
            }
            fetched += bytes;
            ahead.end(bytes);
            state.dirs.get_mut(&Ino(7)).unwrap().fetches = 0;
        }
    }

    #[test]
    fn old_files_of_a_busy_directory_wait_no_longer_than_they_may() {
        let ahead = Ahead::new(64 << 20);
        let mut state = State { dirs: HashMap::from([(Ino(7), dir(10_000))]), ..State::default() };
        // New files are read, again and again, and none of those that were there.
        let (mut gone, mut fetched) = (0, 0);
        for n in 0..1800 {
            let (unread, bytes) = read_at(&mut state, 20_000 + n, n * 2, &ahead);
            gone += unread;
            fetched += bytes;
        }
        assert!(fetched >= 32 << 20, "{fetched}: all that may wait, at first");
        assert_eq!(gone + state.waiting, fetched, "what nobody reads is told to be unread");
        assert_eq!(state.waiting, state.dirs[&Ino(7)].waiting_bytes);
        assert!(state.waiting < 1 << 20, "{}", state.waiting);
        assert!(fetched < 80 << 20, "{fetched}: less and less is fetched there");
        // Somebody reads the others after all.
        let mut unread = state.dirs[&Ino(7)].listed.keys().map(|ino| ino.0).collect::<Vec<_>>().into_iter();
        for (n, ino) in unread.by_ref().take(4000).enumerate() {
            read_at(&mut state, ino, 3600 + n as u64 / 20, &ahead);
        }
        assert_eq!(state.dirs[&Ino(7)].doubts, 0);
        assert_eq!(state.waiting, 32 << 20);
    }

    #[test]
    fn what_a_steady_reader_will_read_waits_however_slow_it_is() {
        let ahead = Ahead::new(16 << 30);
        for pause in [1, 5, 29] {
            let mut state = State { dirs: HashMap::from([(Ino(7), dir(3000))]), ..State::default() };
            let (gone, fetched) = (1..=3000).fold((0, 0), |(gone, fetched), n| {
                let (unread, bytes) = read_at(&mut state, n, n * pause, &ahead);
                (gone + unread, fetched + bytes)
            });
            assert_eq!((gone, fetched), (0, 2992 * 256 * KIB), "a file every {pause} s");
        }
    }

    #[test]
    fn some_files_must_be_read_and_then_others_come_bounded_by_memory() {
        let ahead = Ahead::new(64 << 20);
        let mut state = State { dirs: HashMap::from([(Ino(7), dir(1000))]), ..State::default() };
        for ino in 101..108 {
            assert!(read(&mut state, ino, &ahead).is_empty());
        }
        let work = read(&mut state, 108, &ahead);
        assert_eq!(
            fetched(&work),
            (109..173).collect::<Vec<_>>(),
            "four segments of files, from the last one on"
        );
        // They arrive: more, until half of what may be ahead waits to be read.
        state.dirs.get_mut(&Ino(7)).unwrap().fetches = 0;
        ahead.end(16 << 20);
        assert_eq!(fetched(&state.work(Ino(7), bounds(&ahead))).len(), 64);
        state.dirs.get_mut(&Ino(7)).unwrap().fetches = 0;
        ahead.end(16 << 20);
        assert!(state.work(Ino(7), bounds(&ahead)).is_empty());
        assert_eq!(state.waiting, 32 << 20);
        // Files are read, in any order: as many others come.
        assert_eq!(fetched(&read(&mut state, 150, &ahead)), [237]);
        assert_eq!(state.forget_idle(IDLE * 2), 32 << 20);
        assert_eq!((state.waiting, state.dirs.len()), (0, 0));
    }

    #[test]
    fn few_files_do_not_bring_a_directory() {
        let ahead = Ahead::new(1 << 30);
        let mut state = State { dirs: HashMap::from([(Ino(7), dir(100_000))]), ..State::default() };
        (1..=8).for_each(|ino| _ = read(&mut state, ino, &ahead));
        for _ in 0..20 {
            state.dirs.get_mut(&Ino(7)).unwrap().fetches = 0;
            state.work(Ino(7), bounds(&ahead));
        }
        assert_eq!(state.waiting, 8 * 16 * 256 * KIB, "sixteen times what was read");
    }

    #[test]
    fn a_second_pass_begins_when_the_first_has_seen_all() {
        let ahead = Ahead::new(1 << 30);
        let mut state = State { dirs: HashMap::from([(Ino(7), dir(20))]), ..State::default() };
        (1..=20).for_each(|ino| _ = read(&mut state, ino, &ahead));
        let dir = state.dirs.get_mut(&Ino(7)).unwrap();
        assert!(dir.listed.is_empty());
        dir.fetches = 0;
        assert!(read(&mut state, 5, &ahead).is_empty(), "seven more first");
        let lists = (6..=12).flat_map(|ino| read(&mut state, ino, &ahead)).collect::<Vec<_>>();
        assert!(matches!(lists[..], [Work::List { cookie: 0 }]), "asked once");
    }
}
