//! A metadata server in memory: what a client may expect of one, without transactions of its own. It keeps two
//! states, the present one and the durable one, and can be cut off as a crash would.

use crate::store::Store;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tarn_base::posix::*;
use tarn_base::*;
use tarn_client::Records;
use tarn_proto::*;

#[derive(Clone)]
struct Node {
    attr: Attr,
    entries: BTreeMap<Vec<u8>, Ino>,
    map: BTreeMap<u64, BlockPtr>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    opens: u32,
}

#[derive(Clone, Default)]
pub struct State {
    nodes: HashMap<Ino, Node>,
    next_ino: u64,
    next_grant: u32,
}

pub struct MemMds {
    state: Mutex<State>,
    durable: Mutex<State>,
    freed: Mutex<Vec<BlockPtr>>,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    rng: Mutex<SmallRng>,
    /// Chance that an answer is promised rather than given.
    pub pending: Mutex<f64>,
    cut: AtomicBool,
    pub info: Mutex<DatasetInfo>,
    /// Bytes that the dataset may hold; stands for a quota.
    pub quota: AtomicU64,
    pub syncs: AtomicU64,
    /// Commits that left records behind the end of a file.
    pub behind_the_end: AtomicU64,
}

type Result<T, E = FsError> = std::result::Result<T, E>;

impl MemMds {
    pub fn new(seed: u64, record_size: u32, store: Arc<Store>, clock: Arc<dyn Clock>) -> Arc<MemMds> {
        let mut state = State { next_ino: 2, ..State::default() };
        let now = clock.now();
        let root = node(Ino::ROOT, FileKind::Directory, 0o755, record_size, now);
        state.nodes.insert(Ino::ROOT, root);
        MemMds::from_state(seed, state, store, clock)
    }

    /// The server of a state that survived.
    pub fn from_state(seed: u64, mut state: State, store: Arc<Store>, clock: Arc<dyn Clock>) -> Arc<MemMds> {
        state.nodes.values_mut().for_each(|n| n.opens = 0);
        state.next_grant += 1000;
        Arc::new(MemMds {
            durable: Mutex::new(state.clone()),
            state: Mutex::new(state),
            freed: Mutex::default(),
            store,
            clock,
            rng: Mutex::new(SmallRng::seed_from_u64(seed)),
            pending: Mutex::new(0.2),
            cut: AtomicBool::new(false),
            info: Mutex::new(DatasetInfo {
                id: DatasetId(1),
                compression: Compression::Off,
                checksum: ChecksumKind::Xxh3,
                read_only: false,
                atime: true,
                relatime: true,
            }),
            quota: AtomicU64::new(u64::MAX),
            syncs: AtomicU64::new(0),
            behind_the_end: AtomicU64::new(0),
        })
    }

    /// From now on nothing changes any more: the client's machine is gone. Gives the state that is durable, or
    /// the newest one, which may have become durable just now.
    pub fn crash(&self, newest: bool) -> State {
        self.cut.store(true, Ordering::SeqCst);
        if newest { self.state.lock().clone() } else { self.durable.lock().clone() }
    }

    fn check(&self) -> Result<()> {
        if self.cut.load(Ordering::SeqCst) { Err(FsError::Fenced) } else { Ok(()) }
    }

    /// Runs a change at once or a little later, and answers at once or a little later.
    fn answer<T: Send + 'static>(
        self: &Arc<Self>,
        f: impl FnOnce(&MemMds, &mut State) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let chance = *self.pending.lock();
        let mut rng = self.rng.lock();
        if !rng.random_bool(chance) {
            drop(rng);
            return Answer::Ready(self.check().and_then(|()| f(self, &mut self.state.lock())));
        }
        let (before, after) = (rng.random_range(0..300), rng.random_range(0..300));
        drop(rng);
        let this = self.clone();
        Answer::pending(async move {
            tokio::time::sleep(Duration::from_micros(before)).await;
            let result = this.check().and_then(|()| f(&this, &mut this.state.lock()));
            tokio::time::sleep(Duration::from_micros(after)).await;
            result
        })
    }

    fn freed(&self, ptrs: impl IntoIterator<Item = BlockPtr>) {
        self.freed.lock().extend(ptrs);
    }

    fn drop_if_unused(&self, state: &mut State, ino: Ino) {
        let unused = state.nodes.get(&ino).is_some_and(|n| n.attr.nlink == 0 && n.opens == 0);
        if unused && let Some(node) = state.nodes.remove(&ino) {
            self.freed(node.map.into_values());
        }
    }

    /// What is freed and not pointed at any more goes with the state becoming durable.
    fn settle(&self, state: &mut State) {
        *self.durable.lock() = state.clone();
        let live: HashSet<_> =
            state.nodes.values().flat_map(|n| n.map.values().map(|p| (p.segment, p.offset))).collect();
        for ptr in self.freed.lock().drain(..) {
            if !live.contains(&(ptr.segment, ptr.offset)) {
                self.store.free(&ptr);
            }
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }
}

fn node(ino: Ino, kind: FileKind, mode: u32, record_size: u32, now: Timespec) -> Node {
    Node {
        attr: Attr {
            ino,
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            record_size,
            data_version: 1,
        },
        entries: BTreeMap::new(),
        map: BTreeMap::new(),
        target: Vec::new(),
        xattrs: BTreeMap::new(),
        opens: 0,
    }
}

impl State {
    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::Stale)
    }

    fn entry(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        self.node(parent)?.entries.get(name).copied().ok_or(FsError::NotFound)
    }

    fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        let ino = self.entry(parent, name)?;
        self.node(parent)?.entries.remove(name);
        self.node(ino)?.attr.nlink -= 1;
        Ok(ino)
    }

    fn hold_if_nameless(&mut self, ino: Ino) -> Result<Option<Ino>> {
        let node = self.node(ino)?;
        let gone = node.attr.nlink == 0;
        node.opens += u32::from(gone);
        Ok(gone.then_some(ino))
    }

    fn create(&mut self, kind: FileKind, mode: u32, now: Timespec) -> Result<Ino> {
        let record_size = self.node(Ino::ROOT)?.attr.record_size;
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.nodes.insert(ino, node(ino, kind, mode, record_size, now));
        Ok(ino)
    }
}

impl Node {
    fn seek(&self, offset: u64, what: Seek) -> Result<u64> {
        let (size, rs) = (self.attr.size, u64::from(self.attr.record_size));
        if offset >= size {
            return Err(FsError::NoData);
        }
        let mut at = offset;
        while at < size {
            let data = self.map.contains_key(&(at / rs));
            if data == (what == Seek::Data) {
                return Ok(at);
            }
            at = (at / rs + 1) * rs;
        }
        if what == Seek::Hole { Ok(size) } else { Err(FsError::NoData) }
    }

    fn set(&mut self, set: SetAttr, now: Timespec) -> Vec<BlockPtr> {
        let attr = &mut self.attr;
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::To(t) => t,
        };
        attr.mode = set.mode.unwrap_or(attr.mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = match set.ctime {
            SetCtime::Now => now,
            SetCtime::To(ctime) => ctime,
            SetCtime::Leave => attr.ctime,
        };
        if set.kill_privileges {
            attr.mode &= !mode::SETUID;
        }
        let mut freed = Vec::new();
        if let Some(size) = set.size {
            attr.size = size;
            attr.data_version += 1;
            let gone = self.map.split_off(&size.div_ceil(u64::from(attr.record_size)));
            freed.extend(gone.into_values());
        }
        freed
    }
}

/// `Mds` on the shared server: its promises need it to live on.
pub struct Served(pub Arc<MemMds>);

impl Mds for Served {
    fn info(&self) -> DatasetInfo {
        *self.0.info.lock()
    }
    fn statfs(&self) -> Answer<StatFs> {
        self.0.answer(|mds, _| {
            let space = mds.store.space();
            let quota = mds.quota.load(Ordering::SeqCst);
            let free = space.free.min(quota.saturating_sub(mds.store.stored()));
            Ok(StatFs { total: space.total, free, inodes: 1 })
        })
    }
    fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Attr> {
        let name = name.to_vec();
        self.0.answer(move |_, s| {
            let ino = s.entry(parent, &name)?;
            Ok(s.node(ino)?.attr)
        })
    }
    fn create(&self, _cred: Cred, parent: Ino, name: &[u8], new: NewNode) -> Answer<Attr> {
        let name = name.to_vec();
        self.0.answer(move |mds, s| {
            if s.entry(parent, &name).is_ok() {
                return Err(FsError::Exists);
            }
            let ino = s.create(new.kind, new.mode & !new.umask, mds.clock.now())?;
            s.node(ino)?.target = new.target;
            s.node(parent)?.entries.insert(name, ino);
            Ok(s.node(ino)?.attr)
        })
    }
    fn create_unnamed(&self, _cred: Cred, _parent: Ino, mode: u32) -> Answer<Attr> {
        self.0.answer(move |mds, s| {
            let ino = s.create(FileKind::Regular, mode, mds.clock.now())?;
            let node = s.node(ino)?;
            node.attr.nlink = 0;
            node.opens = 1;
            Ok(node.attr)
        })
    }
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Answer<Attr> {
        let name = name.to_vec();
        self.0.answer(move |_, s| {
            if s.entry(parent, &name).is_ok() {
                return Err(FsError::Exists);
            }
            s.node(ino)?.attr.nlink += 1;
            s.node(parent)?.entries.insert(name, ino);
            Ok(s.node(ino)?.attr)
        })
    }
    fn unlink(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        let name = name.to_vec();
        self.0.answer(move |_, s| {
            let ino = s.unlink(parent, &name)?;
            s.hold_if_nameless(ino)
        })
    }
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        self.unlink(parent, name)
    }
    fn rename(
        &self,
        from: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Answer<Option<Ino>> {
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        self.0.answer(move |_, s| {
            let mut gone = None;
            let ino = s.entry(from, &name)?;
            let old = s.entry(to, &new_name).ok();
            match (mode, old) {
                (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
                (RenameMode::Exchange, None) => return Err(FsError::NotFound),
                (RenameMode::Exchange, Some(old)) => {
                    s.node(from)?.entries.insert(name, old);
                }
                (_, old) => {
                    s.node(from)?.entries.remove(&name);
                    if let Some(old) = old {
                        s.node(old)?.attr.nlink -= 1;
                        gone = s.hold_if_nameless(old)?;
                    }
                }
            }
            s.node(to)?.entries.insert(new_name, ino);
            Ok(gone)
        })
    }
    fn readlink(&self, ino: Ino) -> Answer<Vec<u8>> {
        self.0.answer(move |_, s| Ok(s.node(ino)?.target.clone()))
    }
    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<DirEntry>> {
        self.0.answer(move |_, s| {
            let names: Vec<_> = s.node(dir)?.entries.clone().into_iter().collect();
            let mut found = Vec::new();
            for (at, (name, ino)) in names.into_iter().enumerate() {
                let place = at as u64 + 3;
                if place > cookie && found.len() < max {
                    found.push(DirEntry { name, cookie: place, attr: s.node(ino)?.attr });
                }
            }
            Ok(found)
        })
    }
    fn names(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<NameEntry>> {
        let plain =
            |e: DirEntry| NameEntry { name: e.name, cookie: e.cookie, ino: e.attr.ino, kind: e.attr.kind };
        self.readdir(dir, cookie, max).map(move |entries| entries.into_iter().map(plain).collect())
    }
    fn parent(&self, dir: Ino) -> Answer<Ino> {
        Answer::ok(dir)
    }
    fn getattr(&self, ino: Ino) -> Answer<Attr> {
        self.0.answer(move |_, s| Ok(s.node(ino)?.attr))
    }
    fn setattr(&self, ino: Ino, set: SetAttr) -> Answer<Attr> {
        self.0.answer(move |mds, s| {
            let freed = s.node(ino)?.set(set, mds.clock.now());
            mds.freed(freed);
            Ok(s.node(ino)?.attr)
        })
    }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        let name = name.to_vec();
        self.0.answer(move |_, s| s.node(ino)?.xattrs.get(&name).cloned().ok_or(FsError::NoAttribute))
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], _mode: XattrMode) -> Answer<()> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.0.answer(move |_, s| {
            s.node(ino)?.xattrs.insert(name, value);
            Ok(())
        })
    }
    fn listxattr(&self, ino: Ino) -> Answer<Vec<Vec<u8>>> {
        self.0.answer(move |_, s| Ok(s.node(ino)?.xattrs.keys().cloned().collect()))
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Answer<()> {
        let name = name.to_vec();
        self.0.answer(move |_, s| s.node(ino)?.xattrs.remove(&name).map(|_| ()).ok_or(FsError::NoAttribute))
    }
    fn open(&self, ino: Ino) -> Answer<Attr> {
        self.0.answer(move |_, s| {
            let node = s.node(ino)?;
            node.opens += 1;
            Ok(node.attr)
        })
    }
    fn close(&self, ino: Ino) {
        let mut state = self.0.state.lock();
        if let Ok(node) = state.node(ino) {
            node.opens -= 1;
            self.0.drop_if_unused(&mut state, ino);
        }
    }
    fn map(&self, ino: Ino, first: u64, count: u32) -> Answer<FileMap> {
        self.0.answer(move |mds, s| {
            let node = s.node(ino)?;
            let count = mds.rng.lock().random_range(1..=count);
            Ok(FileMap {
                ptrs: (first..first + u64::from(count)).map(|r| node.map.get(&r).copied()).collect(),
            })
        })
    }
    fn commit(&self, files: Vec<FileCommit>) -> Answer<()> {
        self.0.answer(move |mds, s| {
            for file in files {
                let Ok(node) = s.node(file.ino) else {
                    mds.freed(file.records.iter().filter_map(|r| r.ptr));
                    continue;
                };
                let mut freed = Vec::new();
                for write in file.records {
                    freed.extend(match write.ptr {
                        Some(ptr) => node.map.insert(write.record, ptr),
                        None => node.map.remove(&write.record),
                    });
                }
                node.attr.size = node.attr.size.max(file.size_at_least);
                // What lies behind the end nobody would find again to free it.
                let end = node.attr.size.div_ceil(u64::from(node.attr.record_size));
                if node.map.last_key_value().is_some_and(|(last, _)| *last >= end) {
                    mds.behind_the_end.fetch_add(1, Ordering::SeqCst);
                }
                node.attr.data_version += 1;
                if let Some(mtime) = file.mtime {
                    node.attr.mtime = mtime;
                    node.attr.ctime = node.attr.ctime.max(mtime);
                }
                mds.freed(freed);
            }
            Ok(())
        })
    }
    fn punch(&self, ino: Ino, first: u64, count: u64) -> Answer<()> {
        self.0.answer(move |mds, s| {
            let node = s.node(ino)?;
            node.attr.data_version += 1;
            let mut gone = node.map.split_off(&first);
            node.map.append(&mut gone.split_off(&(first + count)));
            mds.freed(gone.into_values());
            Ok(())
        })
    }
    fn share(&self, range: ShareRange) -> Answer<()> {
        self.0.answer(move |mds, s| {
            let source = s.node(range.from)?;
            let from: Vec<_> =
                (0..range.count).map(|n| source.map.get(&(range.from_record + n)).copied()).collect();
            let node = s.node(range.to)?;
            let mut freed = Vec::new();
            for (record, ptr) in (range.to_record..).zip(from) {
                freed.extend(match ptr {
                    Some(ptr) => node.map.insert(record, ptr),
                    None => node.map.remove(&record),
                });
            }
            node.attr.size = node.attr.size.max(range.size_at_least);
            node.attr.data_version += 1;
            mds.freed(freed);
            Ok(())
        })
    }
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Answer<u64> {
        self.0.answer(move |_, s| s.node(ino)?.seek(offset, what))
    }
    fn grants(&self, vdevs: Vec<VdevId>) -> Answer<Vec<Grant>> {
        self.0.answer(move |mds, s| {
            let mut grants = Vec::new();
            for vdev in vdevs {
                s.next_grant += 1;
                grants.push(Grant { vdev, dataset: mds.info.lock().id, number: s.next_grant });
            }
            Ok(grants)
        })
    }
    fn sync(&self) -> Answer<()> {
        self.0.answer(|mds, s| {
            mds.settle(s);
            Ok(())
        })
    }
    fn lock(&self, _: Ino, _: LockOwner, _: LockRange, _: LockMode, _: bool) -> Answer<()> {
        Answer::ok(())
    }
    fn unlock(&self, _: Ino, _: LockOwner, _: LockRange) -> Answer<()> {
        Answer::ok(())
    }
    fn lock_test(&self, _: Ino, _: LockOwner, _: LockRange, _: LockMode) -> Answer<Option<HeldLock>> {
        Answer::ok(None)
    }
}
