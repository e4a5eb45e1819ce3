//! Keys of a dataset's database. The first byte is the table; numbers are big-endian, so that byte order is the
//! order of a scan. docs/FORMAT.md lists every table, those reserved for later included.

use smallvec::SmallVec;
use tarn_base::{Grant, Ino, SegmentId, VdevId};

/// A key; most fit without an allocation.
pub type Key = SmallVec<[u8; 24]>;

/// First bytes of the tables.
pub mod table {
    /// One row: the dataset's own numbers.
    pub const SUPER: u8 = b'P';
    pub const INODE: u8 = b'I';
    pub const DIRENT: u8 = b'D';
    pub const XATTR: u8 = b'X';
    /// Block maps, a chunk of 64 records each.
    pub const CHUNK: u8 = b'B';
    pub const SEGMENT: u8 = b'S';
    /// Extra references to shared records.
    pub const REFCOUNT: u8 = b'R';
    /// Segments to delete once their time has come.
    pub const RECLAIM: u8 = b'F';
    /// Inodes without a name.
    pub const ORPHAN: u8 = b'O';
    /// Truncations under way.
    pub const TRUNCATE: u8 = b'T';
    /// Open grants.
    pub const GRANT: u8 = b'G';
    /// Bytes of records by vdev.
    pub const VDEV: u8 = b'V';
    /// Segments that are not in their buckets yet, whole.
    pub const CARRIED: u8 = b'Z';
    /// One row: the client that has the dataset, and what was done for it last.
    pub const CLIENT: u8 = b'L';
}

fn with(table: u8, parts: &[&[u8]]) -> Key {
    let mut key = Key::new();
    key.push(table);
    for part in parts {
        key.extend_from_slice(part);
    }
    key
}

fn of_ino(table: u8, ino: Ino, rest: &[u8]) -> Key {
    with(table, &[&ino.0.to_be_bytes(), rest])
}

pub fn super_row() -> Key {
    with(table::SUPER, &[])
}

pub fn client_row() -> Key {
    with(table::CLIENT, &[])
}

pub fn inode(ino: Ino) -> Key {
    of_ino(table::INODE, ino, &[])
}

/// The row of all names in a directory that share a hash.
pub fn dirent(dir: Ino, hash: u64) -> Key {
    of_ino(table::DIRENT, dir, &hash.to_be_bytes())
}

pub fn xattr(ino: Ino, name: &[u8]) -> Key {
    of_ino(table::XATTR, ino, name)
}

pub fn chunk(ino: Ino, chunk: u64) -> Key {
    of_ino(table::CHUNK, ino, &chunk.to_be_bytes())
}

/// The number of a chunk from its key.
pub fn chunk_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(9..17)?.try_into().ok()?))
}

pub fn segment(id: SegmentId) -> Key {
    with(table::SEGMENT, &[&id.to_bytes()])
}

pub fn carried(id: SegmentId) -> Key {
    with(table::CARRIED, &[&id.to_bytes()])
}

/// The segment of a key of [`table::CARRIED`].
pub fn carried_of(key: &[u8]) -> Option<SegmentId> {
    SegmentId::from_bytes(key.get(1..)?)
}

pub fn refcount(id: SegmentId, offset: u32) -> Key {
    with(table::REFCOUNT, &[&id.to_bytes(), &offset.to_be_bytes()])
}

pub fn reclaim(freed_ms: u64, id: SegmentId) -> Key {
    with(table::RECLAIM, &[&freed_ms.to_be_bytes(), &id.to_bytes()])
}

/// Time of freeing in milliseconds and segment from a reclaim key.
pub fn reclaim_of(key: &[u8]) -> Option<(u64, SegmentId)> {
    let ms = u64::from_be_bytes(key.get(1..9)?.try_into().ok()?);
    Some((ms, SegmentId::from_bytes(key.get(9..)?)?))
}

pub fn orphan(ino: Ino) -> Key {
    of_ino(table::ORPHAN, ino, &[])
}

pub fn truncate(ino: Ino) -> Key {
    of_ino(table::TRUNCATE, ino, &[])
}

pub fn grant(grant: Grant) -> Key {
    with(table::GRANT, &[&grant.to_bytes()])
}

pub fn vdev(id: VdevId) -> Key {
    with(table::VDEV, &[&id.0.to_be_bytes()])
}

/// The vdev of a key of [`table::VDEV`].
pub fn vdev_of(key: &[u8]) -> Option<VdevId> {
    Some(VdevId(u16::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

/// Whether the row belongs to one inode, whose number follows the table.
pub fn is_of_inode(key: &[u8]) -> bool {
    use table::*;
    matches!(key.first(), Some(&(INODE | DIRENT | XATTR | CHUNK | ORPHAN | TRUNCATE)))
}

/// The inode number of a key that starts with one.
pub fn ino_of(key: &[u8]) -> Option<Ino> {
    Some(Ino(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?)))
}

/// The inode of a key of [`table::INODE`].
pub fn inode_of(key: &[u8]) -> Option<Ino> {
    ino_of(key).filter(|_| key[0] == table::INODE)
}

/// The half-open range of all keys that begin with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> (Key, Key) {
    let start = Key::from_slice(prefix);
    let mut end = start.clone();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    (start, end)
}

/// All rows of one table.
pub fn whole_table(table: u8) -> (Key, Key) {
    prefix_range(&[table])
}

/// All rows of one table that belong to one inode.
pub fn of_inode(table: u8, ino: Ino) -> (Key, Key) {
    prefix_range(&of_ino(table, ino, &[]))
}

/// The bytes that choose a key's shard: rows of one inode in one table lie together, so that a directory or a
/// file is scanned within one shard.
pub fn shard_bytes(key: &[u8]) -> &[u8] {
    match key.first() {
        Some(&table::DIRENT | &table::XATTR | &table::CHUNK) => &key[..key.len().min(9)],
        _ => key,
    }
}

/// Whether every key of the range `start..end` is sure to lie in the shard of `start`.
pub fn in_one_shard(start: &[u8], end: &[u8]) -> bool {
    matches!(start.first(), Some(&table::DIRENT | &table::XATTR | &table::CHUNK))
        && start.len() >= 9
        && (end.starts_with(&start[..9]) || prefix_range(&start[..9]).1[..] == *end)
}
