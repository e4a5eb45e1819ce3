//! Values as the kernel writes them, to and from Tarn's own.

use fuser::{FileAttr, FileType, INodeNo, OpenAccMode, OpenFlags, RenameFlags, TimeOrNow, WriteFlags};
use std::time::{Duration, SystemTime};
use tarn_base::posix::{Attr, Cred, FileKind, RenameMode, SetTime, StatFs, XattrMode, mode};
use tarn_base::{FsError, Ino, Timespec};
use tarn_client::{FallocMode, LockMode, LockRange, OpenMode, Seek, Target};

/// How long the kernel may keep the attributes of a file that changed a short while ago: the blocks it occupies
/// are known when its data has reached the buckets.
pub const YOUNG_TTL: Duration = Duration::from_secs(1);
/// How long a file counts as changed a short while ago.
const YOUNG: i64 = 15;

/// Largest I/O size recommended to programs, in bytes; they allocate buffers of this size.
const BLOCK_SIZE_MAX: u32 = 1 << 20;
const BLOCK_SIZE_MIN: u32 = 4096;

pub(super) fn cred(request: &fuser::Request) -> Cred {
    Cred { uid: request.uid(), gid: request.gid() }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind in the type bits of a mode; no bits mean a regular file, as in `mknod(2)`.
pub(super) fn file_kind(mode: u32) -> Result<FileKind, FsError> {
    Ok(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => FileKind::Regular,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Symlink,
        _ => return Err(FsError::invalid("file type")),
    })
}

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: attr.atime.to_system(),
        mtime: attr.mtime.to_system(),
        ctime: attr.ctime.to_system(),
        crtime: attr.crtime.to_system(),
        kind: file_type(attr.kind),
        perm: (attr.mode & mode::PERMISSIONS) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.record_size.clamp(BLOCK_SIZE_MIN, BLOCK_SIZE_MAX),
        flags: 0,
    }
}

/// What the kernel is told of a name that does not exist: the absence is cached like a name.
pub(super) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// How long the kernel may keep `attr`, by the time that it is now: where a file has data, no longer than it has been as it
/// is, so that blocks are not counted wrong for long where buckets were late. A file that has nothing in it occupies
/// nothing, and the kernel asks anew when something is written. What runs with its owner's rights is asked for each time: a
/// write takes that from it, and the kernel does not know of it.
pub(super) fn attr_ttl(attr: &Attr, now: Timespec, ttl: Duration) -> Duration {
    let regular = attr.kind == FileKind::Regular;
    let filled = regular && (attr.size > 0 || attr.allocated > 0);
    match now.sec.saturating_sub(attr.ctime.sec) {
        _ if regular && attr.mode & (mode::SETUID | mode::SETGID) != 0 => Duration::ZERO,
        _ if !filled => ttl,
        age if age < YOUNG => ttl.min(YOUNG_TTL),
        age => ttl.min(Duration::from_secs(age.unsigned_abs())),
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(Timespec::from_system(time)),
    }
}

pub(super) fn open_mode(flags: OpenFlags) -> OpenMode {
    let (read, write) = match flags.acc_mode() {
        OpenAccMode::O_RDONLY => (true, false),
        OpenAccMode::O_WRONLY => (false, true),
        OpenAccMode::O_RDWR => (true, true),
    };
    let has = |flag| flags.0 & flag != 0;
    OpenMode { read, write, truncate: has(libc::O_TRUNC), direct: has(libc::O_DIRECT) }
}

/// Where a write goes: to the end if its descriptor appends now. Pages that a mapping has changed go where they lie,
/// whichever descriptor of the file the kernel sends them by.
pub(super) fn target(offset: u64, write_flags: WriteFlags, flags: OpenFlags) -> Target {
    match (write_flags.contains(WriteFlags::FUSE_WRITE_CACHE), flags.0 & libc::O_APPEND != 0) {
        (true, _) => Target::Page(offset),
        (false, true) => Target::End,
        (false, false) => Target::At(offset),
    }
}

pub(super) fn rename_mode(flags: RenameFlags) -> Result<RenameMode, FsError> {
    match flags {
        f if f.is_empty() => Ok(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(FsError::invalid("rename flags")),
    }
}

pub(super) fn falloc_mode(flags: i32) -> Result<FallocMode, FsError> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match flags {
        0 => Ok(FallocMode::Allocate),
        KEEP => Ok(FallocMode::AllocateKeepSize),
        PUNCH => Ok(FallocMode::PunchHole),
        ZERO => Ok(FallocMode::ZeroRange),
        ZERO_KEEP => Ok(FallocMode::ZeroRangeKeepSize),
        _ => Err(FsError::NotSupported),
    }
}

pub(super) fn seek(whence: i32) -> Result<Seek, FsError> {
    match whence {
        libc::SEEK_DATA => Ok(Seek::Data),
        libc::SEEK_HOLE => Ok(Seek::Hole),
        _ => Err(FsError::invalid("whence")),
    }
}

/// `None` for one that is to be made anew and to be there before.
pub(super) fn xattr_mode(flags: i32) -> Result<Option<XattrMode>, FsError> {
    const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
    match flags {
        0 => Ok(Some(XattrMode::Any)),
        libc::XATTR_CREATE => Ok(Some(XattrMode::Create)),
        libc::XATTR_REPLACE => Ok(Some(XattrMode::Replace)),
        BOTH => Ok(None),
        _ => Err(FsError::invalid("extended attribute flags")),
    }
}

/// Classes of extended attributes in which names are free.
const XATTR_CLASSES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Whether extended attributes of that name exist here at all; the kernel has checked who may touch them.
pub(super) fn xattr_supported(name: &[u8]) -> bool {
    XATTR_CLASSES.iter().any(|class| name.starts_with(class)) || is_acl(name)
}

/// Whether the name is a class and nothing more.
pub(super) fn xattr_nameless(name: &[u8]) -> bool {
    XATTR_CLASSES.contains(&name)
}

pub(super) fn is_acl(name: &[u8]) -> bool {
    name == b"system.posix_acl_access" || name == b"system.posix_acl_default"
}

/// The kernel's range of a lock: its last offset is that of the largest file.
pub(super) fn lock_range(start: u64, end: u64) -> LockRange {
    LockRange { start, end: if end >= i64::MAX as u64 { u64::MAX } else { end } }
}

/// `None` gives the lock up.
pub(super) fn lock_mode(typ: i32) -> Result<Option<LockMode>, FsError> {
    match typ {
        libc::F_RDLCK => Ok(Some(LockMode::Shared)),
        libc::F_WRLCK => Ok(Some(LockMode::Exclusive)),
        libc::F_UNLCK => Ok(None),
        _ => Err(FsError::invalid("lock type")),
    }
}

pub(super) fn lock_type(mode: LockMode) -> i32 {
    match mode {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Exclusive => libc::F_WRLCK,
    }
}

/// Bytes in one block of `statfs`.
pub(super) const STAT_BLOCK: u64 = 4096;
/// Bytes of free space that stand for one free inode: there is no table of them that could fill up.
const INODE_SPACE: u64 = 512;

/// Blocks, free blocks, inodes and free inodes.
pub(super) fn stat_fs(stat: &StatFs) -> (u64, u64, u64, u64) {
    let free_inodes = stat.free / INODE_SPACE;
    (stat.total / STAT_BLOCK, stat.free / STAT_BLOCK, stat.inodes + free_inodes, free_inodes)
}

pub(super) fn ino(ino: INodeNo) -> Ino {
    Ino(ino.0)
}
