//! Block pointers: where a record is, and how to know that what came back is what was written.

use crate::{DatasetId, Ino, SegmentId, Txg};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Smallest record size in bytes.
pub const MIN_RECORD: u32 = 4 << 10;
/// Largest record size in bytes.
pub const MAX_RECORD: u32 = 16 << 20;
/// Record size of a new dataset, in bytes.
pub const DEFAULT_RECORD: u32 = 128 << 10;

/// Largest `segment_size` of a pool: bytes of records that are packed into one segment.
pub const SEGMENT_SIZE_MAX: u64 = 64 << 20;
/// Most records of one segment.
pub const SEGMENT_RECORDS_MAX: usize = 32 << 10;
/// Bytes of a segment's object beside its records, and beside each of them; generously.
pub const SEGMENT_BESIDE: u64 = 256;
pub const RECORD_BESIDE: u64 = 192;
/// No segment's object has more bytes.
pub const SEGMENT_OBJECT_MAX: u64 =
    SEGMENT_SIZE_MAX + SEGMENT_RECORDS_MAX as u64 * RECORD_BESIDE + SEGMENT_BESIDE;
const _: () = assert!(SEGMENT_SIZE_MAX / MIN_RECORD as u64 <= SEGMENT_RECORDS_MAX as u64);

/// How a record's stored bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    Off,
    Lz4,
    /// Zstandard at this level, 1 to 19.
    Zstd(i8),
}

/// Which checksum a dataset asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChecksumKind {
    /// XXH3, 64 bits: the default.
    Xxh3,
    /// BLAKE3, 256 bits.
    Blake3,
}

/// The checksum of a record's stored (compressed) bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Checksum {
    Xxh3(u64),
    Blake3([u8; 32]),
}

/// Bits of [`BlockPtr::flags`]. Unknown bits make a pointer unreadable, politely.
pub mod flag {
    /// More than one file may point at the record: a reference-count row may exist.
    pub const SHARED: u8 = 1 << 0;
    /// The stored bytes are encrypted (reserved).
    pub const ENCRYPTED: u8 = 1 << 1;
    /// The segment was moved: a remap row says where to (reserved).
    pub const MOVED: u8 = 1 << 2;
    /// The bits that this version understands.
    pub const KNOWN: u8 = SHARED;
}

/// A segment that is complete, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub id: SegmentId,
    /// Bytes of records in it.
    pub payload: u64,
    /// The object that its bucket is to hold.
    pub object: Bytes,
}

/// Where one record lies and what it must hash to. Never names a bucket: placement follows from the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockPtr {
    pub segment: SegmentId,
    /// Offset of the stored bytes in the segment, in bytes.
    pub offset: u32,
    /// Stored (compressed) length in bytes.
    pub stored: u32,
    /// Length before compression in bytes, at most the file's record size; what is missing up to the record
    /// size reads as zeros.
    pub logical: u32,
    pub compression: Compression,
    pub checksum: Checksum,
    /// The txg in which the record was written.
    pub birth: Txg,
    /// Bits of [`flag`].
    pub flags: u8,
}

impl BlockPtr {
    /// One past the last stored byte in the segment.
    pub fn end(&self) -> u32 {
        self.offset + self.stored
    }
}

/// Who owns a record in a segment, as the segment's own directory tells it: for compaction, scrub and rescue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecordOwner {
    pub dataset: DatasetId,
    pub ino: Ino,
    /// Index of the record in its file: byte offset divided by the file's record size.
    pub record: u64,
}
