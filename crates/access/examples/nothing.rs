//! A FUSE file system that does nothing: one file, `file`, whose content lies in memory already.
//!
//!     nothing DIR SIZE
//!
//! What it costs to read is what the kernel takes for FUSE alone, so that a benchmark can tell how much of a real file
//! system's cost could be saved at all. It asks the kernel for what Tarn asks for. Ends when it is unmounted.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request, Session,
};
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

const FILE: INodeNo = INodeNo(2);
/// Larger than any request, and small enough to stay in a processor's cache.
const CONTENT: usize = 1 << 20;
const TTL: Duration = Duration::from_secs(60);

struct Nothing {
    size: u64,
    content: Vec<u8>,
}

impl Nothing {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let (kind, size) = match ino {
            FILE => (FileType::RegularFile, self.size),
            _ => (FileType::Directory, 0),
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Nothing {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in [InitFlags::FUSE_ASYNC_READ, InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_MAX_PAGES] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(CONTENT as u32);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "file" {
            true => reply.entry(&TTL, &self.attr(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, _kill_suidgid: bool, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = self.size.saturating_sub(offset).min(size.into()) as usize;
        reply.data(&self.content[..len.min(CONTENT)]);
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
    Session::new(Nothing { size, content: vec![1; CONTENT] }, dir, &config)?.run()
}
