//! What a client asks of a metadata server, and what it answers: the one boundary between `client` and `server`.
//!
//! A client on the same machine calls the trait directly: no encoding, no channel. There is no logic here.
//!
//! # Who holds what
//! The server's side holds names, committed attributes and committed block pointers. The client holds data that
//! is not yet in a bucket, and with it a file's *visible* size and times until they are committed. Data enters
//! by [`Mds::commit`] only after the segment that holds it was written; what was committed becomes durable with
//! its transaction group ([`Mds::sync`] waits for one).

mod objects;
pub mod wire;

pub use objects::{Oss, OssError, Room};
use serde::{Deserialize, Serialize};
use tarn_base::block::Sealed;
use tarn_base::posix::{Attr, Cred, DirEntry, NameEntry, NewNode, RenameMode, SetAttr, StatFs, XattrMode};
use tarn_base::{
    Answer, BlockPtr, ChecksumKind, Compression, DatasetId, FsError, Grant, Ino, Timespec, VdevId,
};

/// What a client must know of a dataset to write into it. Changes as properties are set: read it anew for each
/// segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetInfo {
    pub id: DatasetId,
    pub compression: Compression,
    pub checksum: ChecksumKind,
    pub read_only: bool,
    /// Access times are kept; `relatime` says how eagerly.
    pub atime: bool,
    /// An access time moves only when it is older than the modification, or than a day.
    pub relatime: bool,
}

/// New contents of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordWrite {
    /// Byte offset in the file divided by the file's record size.
    pub record: u64,
    /// Where the record lies now; `None` makes it a hole.
    pub ptr: Option<BlockPtr>,
}

/// What one file gains in a [`Mds::commit`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileCommit {
    pub ino: Ino,
    pub records: Vec<RecordWrite>,
    /// The file's size is at least this from now on, in bytes.
    pub size_at_least: u64,
    /// Modification and change time; `None` leaves them.
    pub mtime: Option<Timespec>,
}

/// Pointers of a run of records, from [`Mds::map`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FileMap {
    /// One for each record asked for, in order; `None` is a hole.
    pub ptrs: Vec<Option<BlockPtr>>,
}

/// Where data or a hole begins, from [`Mds::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seek {
    Data,
    Hole,
}

/// Source of a [`Mds::share`]: records of one file that another shall point at too.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ShareRange {
    pub from: Ino,
    pub from_record: u64,
    pub to: Ino,
    pub to_record: u64,
    /// Records.
    pub count: u64,
    /// The target's size is at least this afterwards, in bytes.
    pub size_at_least: u64,
}

/// Who asks for an advisory lock. BSD, POSIX and OFD locks are all ranges with an owner; `kind` keeps the BSD
/// ones apart from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    pub kind: LockKind,
    /// The kernel's token for the open file description or the process.
    pub token: u64,
    /// Shown to whoever asks who holds a lock.
    pub pid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockKind {
    Posix,
    Bsd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockMode {
    Shared,
    Exclusive,
}

/// A byte range, both ends included; `end == u64::MAX` reaches to the end of every size the file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    pub start: u64,
    pub end: u64,
}

/// A lock in somebody's hands, from [`Mds::lock_test`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    pub range: LockRange,
    pub mode: LockMode,
    pub pid: u32,
}

/// A metadata server as its client sees it.
///
/// Every call may answer at once from memory or promise an answer. Names are bytes: not UTF-8, not empty, no
/// `/`, at most 255. Callers have checked permissions (the kernel does, for FUSE); the server keeps the rules
/// that only it can keep (sticky bits and modes are the caller's; ACL inheritance, link counts, setgid
/// inheritance, loops in rename are the server's).
pub trait Mds: Send + Sync + 'static {
    fn info(&self) -> DatasetInfo;
    fn statfs(&self) -> Answer<StatFs>;

    // Names.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<Attr>;
    /// Creates any kind of node. [`tarn_base::FsError::Exists`] when the name is taken.
    fn create(&self, cred: Cred, parent: Ino, name: &[u8], node: NewNode) -> Answer<Attr>;
    /// Creates a regular file without a name, open; it is reclaimed when it is closed unless `link` names it.
    fn create_unnamed(&self, cred: Cred, parent: Ino, mode: u32) -> Answer<Attr>;
    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Answer<Attr>;
    /// Removes a name that is not a directory's. An inode that has lost its last name is answered and counts as open:
    /// it stays until the last [`Mds::close`], of which the caller owes one more.
    fn unlink(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>>;
    /// Removes an empty directory; as [`Mds::unlink`].
    fn rmdir(&self, parent: Ino, name: &[u8]) -> Answer<Option<Ino>>;
    /// Renames; what is replaced fares as in [`Mds::unlink`].
    fn rename(
        &self,
        from: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Answer<Option<Ino>>;
    fn readlink(&self, ino: Ino) -> Answer<Vec<u8>>;
    /// Up to `max` entries after `cookie` (0: from the start), without `.` and `..`, in cookie order; fewer
    /// only at the end.
    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<DirEntry>>;
    /// The same names without attributes, which cost a row each. One that was removed meanwhile may be among them.
    fn names(&self, dir: Ino, cookie: u64, max: usize) -> Answer<Vec<NameEntry>>;
    /// The directory that holds this directory; the root's is itself.
    fn parent(&self, dir: Ino) -> Answer<Ino>;

    // Attributes.
    fn getattr(&self, ino: Ino) -> Answer<Attr>;
    /// Sets attributes in one transaction. A smaller size frees what lies behind it; the bytes between the new
    /// size and the end of its record read as zeros from now on, whatever the record holds.
    fn setattr(&self, ino: Ino, set: SetAttr) -> Answer<Attr>;
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>>;
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()>;
    fn listxattr(&self, ino: Ino) -> Answer<Vec<Vec<u8>>>;
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Answer<()>;

    // Open files. An open inode outlives its last name.
    fn open(&self, ino: Ino) -> Answer<Attr>;
    fn close(&self, ino: Ino);

    // Data.
    /// Pointers of `count` records from `first`. May answer fewer than `count` (at least one) when the rest is
    /// not in memory; ask again from there.
    fn map(&self, ino: Ino, first: u64, count: u32) -> Answer<FileMap>;
    /// Makes written records part of their files, all in one transaction. An inode that is gone meanwhile is
    /// passed over, and its records are freed.
    fn commit(&self, files: Vec<FileCommit>) -> Answer<()>;
    /// Most bytes of a segment that [`Mds::commit_carried`] takes now; 0 where it takes none.
    fn carries(&self) -> u64 {
        0
    }
    /// As [`Mds::commit`], of records in a segment that is in no bucket: it is brought there in the background, and is
    /// as durable as the transaction.
    fn commit_carried(&self, _files: Vec<FileCommit>, _segment: Sealed) -> Answer<()> {
        Answer::err(FsError::Invalid("nothing is carried here".into()))
    }
    /// Makes holes of `count` whole records from `first`; the size stays.
    fn punch(&self, ino: Ino, first: u64, count: u64) -> Answer<()>;
    /// Lets one file point at records of another in the same dataset (or elsewhere in itself).
    fn share(&self, range: ShareRange) -> Answer<()>;
    /// Offset in bytes of the first data or hole at or after `offset`, by committed records alone.
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Answer<u64>;
    /// One licence for each vdev named, durable when it is answered, so that segments may be written at once.
    fn grants(&self, vdevs: Vec<VdevId>) -> Answer<Vec<Grant>>;

    // Durability.
    /// Answers when all that was changed in the dataset before the call is durable.
    fn sync(&self) -> Answer<()>;

    // Advisory locks.
    /// Takes a lock, replacing what the owner held in the range; waits for it when `wait`, else
    /// [`tarn_base::FsError::WouldBlock`]. Dropping the future gives up the wait.
    fn lock(&self, ino: Ino, owner: LockOwner, range: LockRange, mode: LockMode, wait: bool) -> Answer<()>;
    fn unlock(&self, ino: Ino, owner: LockOwner, range: LockRange) -> Answer<()>;
    /// The first lock that would stand in the way; `None` when there is none.
    fn lock_test(
        &self,
        ino: Ino,
        owner: LockOwner,
        range: LockRange,
        mode: LockMode,
    ) -> Answer<Option<HeldLock>>;
}
