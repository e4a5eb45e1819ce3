//! What lies in the rows: `*Phys` structs, each encoded with a version byte before it.
//!
//! Encoding is postcard (variable-length integers), so a field is never removed or reordered; a new version of a
//! struct gets a new version byte and a conversion from the old one.

use crate::{Stop, names};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::sync::Arc;
use tarn_base::block::{MAX_RECORD, MIN_RECORD, flag};
use tarn_base::posix::{Attr, FILE_SIZE_MAX, FileKind, SYMLINK_MAX};
use tarn_base::{BlockPtr, Checksum, Compression, Grant, Ino, SegmentId, Timespec, Txg};

/// The bytes of a row. They may be in several tables at once: one allocation, however many hold it.
pub type Value = Arc<[u8]>;

/// Version byte of every row that this code writes.
const VERSION: u8 = 1;

/// Rows of so many bytes, which are nearly all, are encoded on the stack, and allocated once as long as they are.
const SHORT: usize = 256;

pub fn encode<T: Serialize>(value: &T) -> Value {
    let mut short = [VERSION; SHORT];
    if let Ok(encoded) = postcard::to_slice(value, &mut short[1..]) {
        let len = encoded.len() + 1;
        return short[..len].into();
    }
    // Serializing plain data into a growing vector has no way to fail.
    postcard::to_extend(value, vec![VERSION]).unwrap_or_default().into()
}

/// What lies in a row.
pub trait Phys: Serialize + DeserializeOwned {
    /// Whether the code can work with these values. A row that decodes may still hold what no Tarn would write, and
    /// must not bring a process down that counts on from it.
    fn is_sound(&self) -> bool {
        true
    }
}

/// Numbers that are counted on from, and sums of bytes, stay below this.
pub const COUNT_MAX: u64 = 1 << 62;

pub fn decode<T: Phys>(what: &str, bytes: &[u8]) -> Result<T, Stop> {
    let (value, rest) = match bytes.split_first() {
        Some((&VERSION, rest)) => postcard::take_from_bytes::<T>(rest)
            .map_err(|e| Stop::damaged(format!("{what} row does not decode: {e}")))?,
        Some((&version, _)) => {
            return Err(Stop::damaged(format!("{what} row of version {version}: written by a newer Tarn")));
        }
        None => return Err(Stop::damaged(format!("{what} row is empty"))),
    };
    if !rest.is_empty() || !value.is_sound() {
        return Err(Stop::damaged(format!("{what} row holds what cannot be")));
    }
    Ok(value)
}

/// The dataset's own row: rewritten in every txg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuperPhys {
    /// The txg that wrote the row.
    pub txg: Txg,
    pub next_ino: u64,
    pub next_grant: u32,
    /// Bytes of live records, each shared one counted once.
    pub live: u64,
    /// Bytes of records in segments that are not freed yet.
    pub stored: u64,
    pub inodes: u64,
    /// Seed of the hash of names.
    pub hash_seed: u64,
    /// Bits of the hash of names that are kept.
    pub hash_bits: u8,
}

impl Phys for SuperPhys {
    fn is_sound(&self) -> bool {
        (1..=names::HASH_BITS).contains(&self.hash_bits)
            && self.next_grant < u32::MAX
            && [self.txg.0, self.next_ino, self.live, self.stored, self.inodes].iter().all(|n| *n < COUNT_MAX)
    }
}

/// Bits of [`InodePhys::flags`].
pub mod inode_flag {
    /// An access ACL beyond the mode exists.
    pub const ACL: u8 = 1 << 0;
    /// A default ACL exists (directories).
    pub const DEFAULT_ACL: u8 = 1 << 1;
    /// Being freed: nothing may be added any more.
    pub const REAPING: u8 = 1 << 2;
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodePhys {
    pub kind: FileKind,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    pub allocated: u64,
    pub atime: Timespec,
    pub mtime: Timespec,
    pub ctime: Timespec,
    pub crtime: Timespec,
    /// Record size as a power of two.
    pub record_shift: u8,
    pub data_version: u64,
    /// The directory that holds this directory; 0 for others.
    pub parent: Ino,
    pub flags: u8,
    /// Number of extended attributes.
    pub xattrs: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Owner for project quotas (reserved, 0).
    pub project: u32,
}

impl Phys for InodePhys {
    fn is_sound(&self) -> bool {
        let times = [self.atime, self.mtime, self.ctime, self.crtime];
        (MIN_RECORD.trailing_zeros()..=MAX_RECORD.trailing_zeros()).contains(&u32::from(self.record_shift))
            && self.size <= FILE_SIZE_MAX
            && self.allocated < COUNT_MAX
            && self.data_version < COUNT_MAX
            && self.xattrs < u32::MAX
            && self.target.len() <= SYMLINK_MAX
            && times.iter().all(|time| time.nsec < 1_000_000_000)
    }
}

impl InodePhys {
    pub fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            allocated: self.allocated,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: self.crtime,
            record_size: 1 << self.record_shift,
            data_version: self.data_version,
        }
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }
}

/// All names in a directory that share a hash; almost always one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirentPhys {
    pub entries: Vec<NamePhys>,
}

impl Phys for DirentPhys {
    fn is_sound(&self) -> bool {
        self.entries.iter().all(|entry| names::check(&entry.name).is_ok())
            && self.entries.windows(2).all(|two| two[0].slot < two[1].slot)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamePhys {
    /// Tells names of one hash apart in cookies; stays while the name lives.
    pub slot: u16,
    pub ino: Ino,
    pub kind: FileKind,
    pub name: Vec<u8>,
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPhys {
    /// Bytes of records ever committed in it.
    pub size: u64,
    /// Bytes of records that something still points to.
    pub live: u64,
}

impl Phys for SegmentPhys {
    fn is_sound(&self) -> bool {
        self.size < COUNT_MAX && self.live < COUNT_MAX
    }
}

/// A record that more than one file points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefcountPhys {
    /// References beyond the first.
    pub extra: u32,
}

impl Phys for RefcountPhys {
    fn is_sound(&self) -> bool {
        self.extra < u32::MAX
    }
}

/// What a dataset keeps on one vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevPhys {
    /// Bytes of records in segments that are not freed yet.
    pub stored: u64,
}

impl Phys for VdevPhys {
    fn is_sound(&self) -> bool {
        self.stored < COUNT_MAX
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimPhys {
    /// Bytes of records.
    pub size: u64,
}

impl Phys for ReclaimPhys {
    fn is_sound(&self) -> bool {
        self.size < COUNT_MAX
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedPhys {
    /// Bytes of records.
    pub payload: u64,
    pub object: Bytes,
}

impl Phys for CarriedPhys {
    fn is_sound(&self) -> bool {
        self.payload < COUNT_MAX
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TruncatePhys {
    /// First record to free.
    pub from_record: u64,
}

impl Phys for TruncatePhys {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantPhys {
    pub grant: Grant,
    pub granted_ms: u64,
}

impl Phys for GrantPhys {}

/// The client on another host that has the dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientPhys {
    pub id: u64,
    /// Numbers of the requests that were carried out and that the client may ask for once more, in order, with the inode
    /// that each made or orphaned.
    pub done: Vec<(u64, Option<Ino>)>,
}

impl Phys for ClientPhys {
    fn is_sound(&self) -> bool {
        self.done.is_sorted_by_key(|(number, _)| *number)
    }
}

/// Records in one row of the block map.
pub const CHUNK_RECORDS: u64 = 64;

/// Alignment of records in a segment, in bytes.
const ALIGN: u32 = 64;

/// One chunk of a file's block map, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub ptrs: Vec<Option<BlockPtr>>,
}

/// Records that follow each other both in the file and in their segment.
#[derive(Serialize, Deserialize)]
struct RunPhys {
    first: u8,
    segment: SegmentId,
    offset: u32,
    birth: Txg,
    records: Vec<RecordPhys>,
}

#[derive(Serialize, Deserialize)]
struct RecordPhys {
    stored: u32,
    /// Bytes missing from a whole record.
    short: u32,
    compression: i8,
    flags: u8,
    checksum: ChecksumPhys,
}

#[derive(Serialize, Deserialize)]
enum ChecksumPhys {
    Xxh3([u8; 8]),
    Blake3([u8; 32]),
}

const LZ4: i8 = -1;

/// The whole row; [`Chunk::decode`] looks at what is in it.
impl Phys for Vec<RunPhys> {}

fn next_offset(ptr: &BlockPtr) -> Option<u32> {
    ptr.end().checked_next_multiple_of(ALIGN)
}

impl Chunk {
    pub fn empty() -> Chunk {
        Chunk { ptrs: vec![None; CHUNK_RECORDS as usize] }
    }

    /// Bytes of memory.
    pub fn size(&self) -> u64 {
        (size_of::<Chunk>() + self.ptrs.capacity() * size_of::<Option<BlockPtr>>()) as u64
    }

    pub fn is_empty(&self) -> bool {
        self.ptrs.iter().all(Option::is_none)
    }

    /// The row's bytes; about 13 bytes a record and 20 a run.
    pub fn encode(&self, record_size: u32) -> Value {
        let mut runs: Vec<RunPhys> = Vec::new();
        let mut follows: Option<(usize, BlockPtr)> = None;
        for (i, ptr) in self.ptrs.iter().enumerate() {
            let Some(ptr) = ptr else { continue };
            let joins = follows.as_ref().is_some_and(|(at, last)| {
                at + 1 == i
                    && last.segment == ptr.segment
                    && last.birth == ptr.birth
                    && next_offset(last) == Some(ptr.offset)
            });
            if !joins {
                runs.push(RunPhys {
                    first: i as u8,
                    segment: ptr.segment,
                    offset: ptr.offset,
                    birth: ptr.birth,
                    records: Vec::new(),
                });
            }
            if let Some(run) = runs.last_mut() {
                run.records.push(RecordPhys {
                    stored: ptr.stored,
                    short: record_size.saturating_sub(ptr.logical),
                    compression: match ptr.compression {
                        Compression::Off => 0,
                        Compression::Lz4 => LZ4,
                        Compression::Zstd(level) => level,
                    },
                    flags: ptr.flags,
                    checksum: match ptr.checksum {
                        Checksum::Xxh3(sum) => ChecksumPhys::Xxh3(sum.to_le_bytes()),
                        Checksum::Blake3(sum) => ChecksumPhys::Blake3(sum),
                    },
                });
            }
            follows = Some((i, *ptr));
        }
        encode(&runs)
    }

    pub fn decode(bytes: &[u8], record_size: u32) -> Result<Chunk, Stop> {
        let damaged = || Stop::damaged("block map row is inconsistent".into());
        let runs: Vec<RunPhys> = decode("block map", bytes)?;
        let mut chunk = Chunk::empty();
        for run in runs {
            let mut offset = run.offset;
            for (at, record) in (usize::from(run.first)..).zip(run.records) {
                if record.flags & !flag::KNOWN != 0 {
                    return Err(Stop::damaged(
                        "block pointer with unknown flags: written by a newer Tarn".into(),
                    ));
                }
                let ptr = BlockPtr {
                    segment: run.segment,
                    offset,
                    stored: record.stored,
                    logical: record_size.checked_sub(record.short).ok_or_else(damaged)?,
                    compression: match record.compression {
                        0 => Compression::Off,
                        LZ4 => Compression::Lz4,
                        level @ 1.. => Compression::Zstd(level),
                        _ => return Err(damaged()),
                    },
                    checksum: match record.checksum {
                        ChecksumPhys::Xxh3(sum) => Checksum::Xxh3(u64::from_le_bytes(sum)),
                        ChecksumPhys::Blake3(sum) => Checksum::Blake3(sum),
                    },
                    birth: run.birth,
                    flags: record.flags,
                };
                let end = offset.checked_add(record.stored).and_then(|e| e.checked_next_multiple_of(ALIGN));
                offset = end.ok_or_else(damaged)?;
                let slot = chunk.ptrs.get_mut(at).ok_or_else(damaged)?;
                // What is compressed is kept only where it is shorter, so no record is stored in more bytes.
                if slot.is_some() || record.stored > record_size {
                    return Err(damaged());
                }
                *slot = Some(ptr);
            }
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tarn_base::{DatasetId, VdevId};

    fn pointer() -> impl Strategy<Value = BlockPtr> {
        (0u32..3, 0u32..1000, 1u32..5000, 0u32..=8192, any::<bool>(), any::<[u8; 32]>(), 0i8..4).prop_map(
            |(seq, slot, stored, logical, blake, sum, comp)| BlockPtr {
                segment: SegmentId {
                    grant: Grant { vdev: VdevId(1), dataset: DatasetId(1), number: 7 },
                    seq,
                },
                offset: slot * ALIGN,
                stored,
                logical,
                compression: match comp {
                    0 => Compression::Off,
                    1 => Compression::Lz4,
                    level => Compression::Zstd(level),
                },
                checksum: if blake { Checksum::Blake3(sum) } else { Checksum::Xxh3(u64::from(sum[0])) },
                birth: Txg(u64::from(seq)),
                flags: u8::from(blake),
            },
        )
    }

    proptest! {
        #[test]
        fn block_maps_survive_their_rows(ptrs in prop::collection::vec(prop::option::of(pointer()), 64)) {
            let chunk = Chunk { ptrs };
            let back = Chunk::decode(&chunk.encode(8192), 8192).unwrap_or_else(|_| Chunk::empty());
            prop_assert_eq!(back, chunk);
        }

        #[test]
        fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Chunk::decode(&bytes, 4096);
            let _ = decode::<InodePhys>("inode", &bytes);
            let _ = decode::<DirentPhys>("directory", &bytes);
        }
    }

    #[test]
    fn a_sequential_chunk_is_small() {
        let mut chunk = Chunk::empty();
        for (i, slot) in chunk.ptrs.iter_mut().enumerate() {
            *slot = Some(BlockPtr {
                segment: SegmentId {
                    grant: Grant { vdev: VdevId(3), dataset: DatasetId(1), number: 9 },
                    seq: 5,
                },
                offset: i as u32 * 131_072,
                stored: 131_072,
                logical: 131_072,
                compression: Compression::Off,
                checksum: Checksum::Xxh3(!0),
                birth: Txg(1 << 30),
                flags: 0,
            });
        }
        let bytes = chunk.encode(131_072).len();
        assert!(bytes <= 64 * 15 + 40, "{bytes} bytes");
    }
}
