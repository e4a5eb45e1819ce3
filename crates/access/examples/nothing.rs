//! A FUSE file system that does nothing: one file, `file`, whose content lies in memory already, and files and
//! directories that are made, which are names and sizes in a table. What is written is thrown away.
//!
//!     nothing DIR SIZE
//!
//! What it costs to read, to write, or to make a name, is what the kernel takes for FUSE alone, so that a benchmark can
//! tell how much of a real file system's cost could be saved at all. It is mounted as Tarn is, and asks the kernel for what
//! Tarn asks for, so that it is sent the same requests, by `/dev/fuse`; and it keeps processors awake as Tarn does. Ends when
//! it is unmounted.

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request,
    Session, SessionACL, TimeOrNow, WriteFlags,
};
use libc::{O_ACCMODE, O_WRONLY};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tarn_access::fuse::{Awake, Wakefulness, Wanted};

const FILE: INodeNo = INodeNo(2);
/// Larger than any request, and small enough to stay in a processor's cache.
const CONTENT: usize = 1 << 20;
const TTL: Duration = tarn_access::fuse::KEPT;

/// What there is besides `file`.
#[derive(Default)]
struct Names {
    last: u64,
    entries: HashMap<u64, BTreeMap<OsString, (u64, FileType)>>,
    nodes: HashMap<u64, Node>,
    /// What each open directory held when it was opened.
    listings: HashMap<u64, Listing>,
}

#[derive(Clone, Copy)]
struct Node {
    kind: FileType,
    size: u64,
}

type Listing = Arc<Vec<(OsString, u64, FileType)>>;

struct Nothing {
    size: u64,
    content: Vec<u8>,
    names: Mutex<Names>,
    awake: Option<Arc<Wakefulness>>,
    began: Instant,
}

impl Nothing {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self, parent: INodeNo, name: &OsStr, kind: FileType) -> FileAttr {
        let mut names = self.names();
        names.last += 1;
        let ino = FILE.0 + names.last;
        let node = Node { kind, size: 0 };
        names.nodes.insert(ino, node);
        names.entries.entry(parent.0).or_default().insert(name.to_owned(), (ino, kind));
        drop(names);
        attr_of(INodeNo(ino), node)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut names = self.names();
        match names.entries.get_mut(&parent.0).and_then(|entries| entries.remove(name)) {
            Some((ino, _)) => {
                names.nodes.remove(&ino);
                names.entries.remove(&ino);
                drop(names);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let directory = Node { kind: FileType::Directory, size: 0 };
        let node = match ino {
            FILE => Node { kind: FileType::RegularFile, size: self.size },
            _ => self.names().nodes.get(&ino.0).copied().unwrap_or(directory),
        };
        attr_of(ino, node)
    }
}

fn attr_of(ino: INodeNo, node: Node) -> FileAttr {
    FileAttr {
        ino,
        size: node.size,
        blocks: node.size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: node.kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Nothing {
    fn received(&self, _request: &Request) {
        if let Some(awake) = &self.awake {
            awake.received(self.began.elapsed());
        }
    }

    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        tarn_access::fuse::negotiate(Wanted { max_write: CONTENT as u32, max_background: 64 }, config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == "file" {
            return reply.entry(&TTL, &self.attr(FILE), Generation(0));
        }
        let found = self.names().entries.get(&parent.0).and_then(|entries| entries.get(name).copied());
        match found {
            Some((ino, _)) => reply.entry(&TTL, &self.attr(INodeNo(ino)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.entry(&TTL, &self.make(parent, name, FileType::Directory), Generation(0));
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        flags: i32,
        _kill_suidgid: bool,
        reply: ReplyCreate,
    ) {
        let attr = self.make(parent, name, FileType::RegularFile);
        reply.created(&TTL, &TTL, &attr, Generation(0), FileHandle(0), open_flags(flags));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut names = self.names();
        match names.entries.get_mut(&parent.0).and_then(|entries| entries.remove(name)) {
            Some(entry) => {
                names.entries.entry(new_parent.0).or_default().insert(new_name.to_owned(), entry);
                drop(names);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let mut names = self.names();
        let held = names.entries.get(&ino.0).into_iter().flatten();
        let listing = held.map(|(name, (ino, kind))| (name.clone(), *ino, *kind)).collect();
        names.last += 1;
        let handle = names.last;
        names.listings.insert(handle, Arc::new(listing));
        drop(names);
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listing = self.names().listings.get(&handle.0).cloned().unwrap_or_default();
        for (next, (name, ino, kind)) in listing.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*ino), next as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let names = self.names();
        let listing = names.listings.get(&handle.0).cloned().unwrap_or_default();
        for (next, (name, ino, kind)) in listing.iter().enumerate().skip(offset as usize) {
            let node = names.nodes.get(ino).copied().unwrap_or(Node { kind: *kind, size: 0 });
            let attr = attr_of(INodeNo(*ino), node);
            if reply.add(attr.ino, next as u64 + 1, name, &TTL, &TTL, &attr, Generation(0)) {
                break;
            }
        }
        drop(names);
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.names().listings.remove(&handle.0);
        reply.ok();
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        _kill_suidgid: bool,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, _kill_suidgid: bool, reply: ReplyOpen) {
        reply.opened(FileHandle(0), open_flags(flags.0));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some(node) = self.names().nodes.get_mut(&ino.0) {
            node.size = node.size.max(offset + data.len() as u64);
        }
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _data: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = self.attr(ino).size.saturating_sub(offset).min(size.into()) as usize;
        reply.data(&self.content[..len.min(CONTENT)]);
    }
}

/// As Tarn has it: what is only written goes around the page cache.
fn open_flags(flags: i32) -> FopenFlags {
    match flags & O_ACCMODE {
        O_WRONLY => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        _ => FopenFlags::FOPEN_KEEP_CACHE,
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir, size] = arguments.as_slice() else {
        return Err(io::Error::other("usage: nothing DIR SIZE"));
    };
    let size = size.parse().map_err(io::Error::other)?;
    let mut config = Config::default();
    config.n_threads = Some(std::thread::available_parallelism()?.get().max(2));
    config.clone_fd = true;
    config.acl = SessionACL::All;
    config.mount_options = vec![MountOption::DefaultPermissions];
    let awake = Wakefulness::new(Awake::Auto).map(Arc::new);
    if let Some(awake) = awake.clone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::spawn(move || runtime.block_on(awake.run()));
    }
    let (content, names, began) = (vec![1; CONTENT], Mutex::default(), Instant::now());
    Session::new(Nothing { size, content, names, awake, began }, dir, &config)?.run()
}
