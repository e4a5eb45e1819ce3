//! Packing records into a segment.

use super::trailer::{SegmentTrailer, TRAILER_LEN};
use super::{ALIGN, SegmentEntry, directory};
use crate::checksum::{self, crc32c};
use crate::compress::Compressor;
use crate::text::now_ms;
use bytes::Bytes;
use tarn_base::block::{RECORD_BESIDE, SEGMENT_BESIDE};
use tarn_base::{BlockPtr, ChecksumKind, Compression, Epoch, PoolGuid, RecordOwner, SegmentId, Txg};

const _: () = assert!((ALIGN + directory::ENTRY_MAX) as u64 <= RECORD_BESIDE);
const _: () = assert!((ALIGN + TRAILER_LEN) as u64 <= SEGMENT_BESIDE);

static ZEROS: [u8; ALIGN] = [0; ALIGN];

/// Packs records into one segment. Records that are not compressed are not copied: the caller's memory goes
/// straight into the PUT.
pub struct SegmentBuilder {
    id: SegmentId,
    compressor: Compressor,
    pieces: Vec<Bytes>,
    directory: Vec<u8>,
    entries: u32,
    /// Bytes in `pieces`.
    len: usize,
    payload: u64,
}

impl SegmentBuilder {
    /// Starts an empty segment.
    pub fn new(id: SegmentId) -> SegmentBuilder {
        SegmentBuilder {
            id,
            compressor: Compressor::default(),
            pieces: Vec::new(),
            directory: Vec::new(),
            entries: 0,
            len: 0,
            payload: 0,
        }
    }

    /// Compresses and checksums `logical` (one record), and appends it. Keeps compressed bytes only if they are
    /// at least an eighth shorter. Gives the pointer that the record will have.
    pub fn add(
        &mut self,
        owner: RecordOwner,
        logical: Bytes,
        compression: Compression,
        checksum: ChecksumKind,
        birth: Txg,
    ) -> BlockPtr {
        let length = logical.len() as u32;
        let (stored, compression) = match self.compressor.compress(&logical, compression) {
            Some(short) => (short, compression),
            None => (logical, Compression::Off),
        };
        let checksum = checksum::compute(checksum, &stored);
        let like = BlockPtr {
            segment: self.id,
            offset: 0,
            stored: stored.len() as u32,
            logical: length,
            compression,
            checksum,
            birth,
            flags: 0,
        };
        self.append(owner, like, stored)
    }

    /// Appends a record as it is stored elsewhere (compaction): nothing is compressed or hashed anew.
    pub fn add_stored(&mut self, owner: RecordOwner, ptr: &BlockPtr, stored: Bytes) -> BlockPtr {
        debug_assert_eq!(ptr.stored as usize, stored.len());
        self.append(owner, *ptr, stored)
    }

    fn append(&mut self, owner: RecordOwner, like: BlockPtr, stored: Bytes) -> BlockPtr {
        self.align();
        let ptr = BlockPtr { segment: self.id, offset: self.len as u32, ..like };
        self.len += stored.len();
        self.payload += stored.len() as u64;
        self.pieces.push(stored);
        directory::write(&mut self.directory, &SegmentEntry { owner, ptr });
        self.entries += 1;
        ptr
    }

    fn align(&mut self) {
        let pad = self.len.next_multiple_of(ALIGN) - self.len;
        if pad > 0 {
            self.pieces.push(Bytes::from_static(&ZEROS[..pad]));
            self.len += pad;
        }
    }

    /// Stored bytes so far, with their alignment.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Ends the segment with its directory and trailer. The trailer is complete only once
    /// [`crate::Pool::put_segment`] has entered pool and epoch.
    pub fn finish(mut self) -> SegmentBody {
        self.align();
        let trailer = SegmentTrailer {
            pool: PoolGuid(0),
            epoch: Epoch(0),
            id: self.id,
            nonce: rand::random(),
            written_ms: now_ms(),
            entries: self.entries,
            directory_offset: self.len as u64,
            directory_len: self.directory.len() as u32,
            directory_crc: crc32c(&self.directory),
        };
        let object = (self.len + self.directory.len() + TRAILER_LEN) as u64;
        self.pieces.push(self.directory.into());
        SegmentBody { id: self.id, pieces: self.pieces, payload: self.payload, object, trailer }
    }
}

/// A finished segment, ready to be PUT.
#[derive(Debug, Clone)]
pub struct SegmentBody {
    pub id: SegmentId,
    /// Pieces in order, up to the trailer.
    pub pieces: Vec<Bytes>,
    /// Bytes of records (what accounting calls the segment's size).
    pub payload: u64,
    /// Bytes of the object, trailer included.
    pub object: u64,
    trailer: SegmentTrailer,
}

impl SegmentBody {
    /// The whole object, with its writer's pool and epoch.
    pub(crate) fn seal(self, pool: PoolGuid, epoch: Epoch) -> Vec<Bytes> {
        let trailer = SegmentTrailer { pool, epoch, ..self.trailer };
        let mut pieces = self.pieces;
        pieces.push(trailer.to_bytes());
        pieces
    }
}
