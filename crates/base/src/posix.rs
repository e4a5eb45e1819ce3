//! The values that POSIX calls take and return, free of any protocol: no errno, no FUSE, no NFS.

use crate::{Ino, Timespec};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use thiserror::Error;

/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Most hard links of one inode.
pub const LINK_MAX: u32 = 65_000;
/// Longest name of an extended attribute, in bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_SIZE_MAX: usize = 65_536;
/// Most bytes of the names of an inode's extended attributes, each with a byte that ends it: Linux lists no more.
pub const XATTR_LIST_MAX: usize = 65_536;
/// Most bytes of the values of an inode's extended attributes.
pub const XATTR_SUM_MAX: usize = 4 << 20;
/// Largest file, in bytes.
pub const FILE_SIZE_MAX: u64 = 1 << 62;

/// What went wrong, in the caller's terms: each kind tells what the caller can do about it. Only a protocol's
/// own door turns it into errno, nfsstat or an S3 code.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("file exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory not empty")]
    NotEmpty,
    #[error("operation not permitted")]
    NotPermitted,
    #[error("permission denied")]
    AccessDenied,
    #[error("invalid argument: {0}")]
    Invalid(Cow<'static, str>),
    #[error("name too long")]
    NameTooLong,
    #[error("too many links")]
    TooManyLinks,
    #[error("file too large")]
    FileTooLarge,
    #[error("no space left in the pool")]
    NoSpace,
    #[error("quota exceeded")]
    QuotaExceeded,
    #[error("read-only")]
    ReadOnly,
    #[error("no such attribute")]
    NoAttribute,
    #[error("result does not fit the buffer")]
    Range,
    #[error("argument list too long")]
    TooBig,
    #[error("different file systems")]
    CrossDevice,
    #[error("too many levels of symbolic links")]
    Loop,
    #[error("no data at or after the offset")]
    NoData,
    #[error("would block")]
    WouldBlock,
    #[error("deadlock")]
    Deadlock,
    #[error("interrupted")]
    Interrupted,
    #[error("no such inode any more")]
    Stale,
    #[error("not supported")]
    NotSupported,
    #[error("too many open files")]
    TooManyOpen,
    /// Another owner has taken the pool: nothing may be written any more.
    #[error("the pool was taken over by another host")]
    Fenced,
    /// A bucket failed or bytes were wrong; the text names what.
    #[error("input/output error: {0}")]
    Io(String),
}

impl FsError {
    /// [`FsError::Invalid`], and what is.
    pub fn invalid(what: &'static str) -> FsError {
        FsError::Invalid(what.into())
    }
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum FileKind {
    Regular = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
}

impl FileKind {
    /// The inverse of `self as u8`.
    pub fn from_u8(n: u8) -> Option<FileKind> {
        use FileKind::*;
        [Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice]
            .into_iter()
            .find(|k| *k as u8 == n)
    }
}

/// Mode bits below the file type.
pub mod mode {
    pub const SETUID: u32 = 0o4000;
    pub const SETGID: u32 = 0o2000;
    pub const STICKY: u32 = 0o1000;
    pub const PERMISSIONS: u32 = 0o7777;
    pub const GROUP_EXEC: u32 = 0o010;
}

/// An inode's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: `0..=0o7777`.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device node, in Linux's 32-bit encoding; 0 for others.
    pub rdev: u32,
    /// Bytes. For a directory, the number of its entries; for a symlink, the length of its target.
    pub size: u64,
    /// Bytes stored in the pool for the file's data (after compression).
    pub allocated: u64,
    pub atime: Timespec,
    pub mtime: Timespec,
    pub ctime: Timespec,
    /// Birth.
    pub crtime: Timespec,
    /// Record size in bytes, a power of two; fixed when the file is created.
    pub record_size: u32,
    /// Changes whenever the file's data changes, so that a cache knows whether it still stands.
    pub data_version: u64,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    Now,
    To(Timespec),
}

/// What becomes of the change time when attributes are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetCtime {
    /// It is now, if anything is set.
    #[default]
    Now,
    To(Timespec),
    /// It stays what it is then: an access time that a client tells on behalf of reads is no change of the file.
    Leave,
}

/// The attributes that one call changes; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: SetCtime,
    /// Drop setuid (and setgid where the group may execute), as a write or a truncation by an unprivileged
    /// user does.
    pub kill_privileges: bool,
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cred {
    pub uid: u32,
    pub gid: u32,
}

/// What to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewNode {
    pub kind: FileKind,
    /// Permission bits as the caller gave them, before the umask.
    pub mode: u32,
    /// Applied unless the directory has a default ACL, which takes its place.
    pub umask: u32,
    pub rdev: u32,
    /// Target of a symbolic link; empty for others.
    pub target: Vec<u8>,
}

/// What rename does when the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// The old file of that name goes, atomically.
    Replace,
    NoReplace,
    /// The two change places, atomically.
    Exchange,
}

/// What setting an extended attribute demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    Any,
    Create,
    Replace,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    pub name: Vec<u8>,
    /// Where to go on after this entry: pass it to the next readdir. Stays valid while the entry lives. In
    /// `3..2^63`; 1 and 2 stand for `.` and `..`, 0 for the start.
    pub cookie: u64,
    /// The entry's attributes as committed or changed in memory.
    pub attr: Attr,
}

/// An entry of a directory without attributes: what the directory itself knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameEntry {
    pub name: Vec<u8>,
    /// As in [`DirEntry`].
    pub cookie: u64,
    pub ino: Ino,
    pub kind: FileKind,
}

/// A file system's size and use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StatFs {
    /// Bytes that the dataset could hold, its own included.
    pub total: u64,
    /// Bytes still free to it.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
}
