//! The last bytes of a segment.

use super::{SegmentEntry, directory};
use crate::checksum::crc32c;
use crate::codec::Fields;
use bytes::Bytes;
use std::ops::Range;
use tarn_base::{Epoch, PoolGuid, SegmentId};

pub(crate) const TRAILER_LEN: usize = 128;
const MAGIC: &[u8; 8] = b"TARNSEG\0";
const VERSION: u16 = 1;

/// What a segment's trailer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentTrailer {
    pub pool: PoolGuid,
    /// The epoch of the pool's holder that wrote it.
    pub epoch: Epoch,
    pub id: SegmentId,
    /// Random: tells two writes of one key apart.
    pub nonce: [u8; 16],
    /// Milliseconds since 1970.
    pub written_ms: i64,
    pub entries: u32,
    /// Where the directory begins in the object, in bytes.
    pub directory_offset: u64,
    /// Bytes.
    pub directory_len: u32,
    pub directory_crc: u32,
}

impl SegmentTrailer {
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(TRAILER_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(&self.entries.to_le_bytes());
        out.extend_from_slice(&self.pool.0.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.id.to_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.written_ms.to_le_bytes());
        out.extend_from_slice(&self.directory_offset.to_le_bytes());
        out.extend_from_slice(&self.directory_len.to_le_bytes());
        out.extend_from_slice(&self.directory_crc.to_le_bytes());
        out.resize(TRAILER_LEN - 4, 0);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.into()
    }

    /// Reads the trailer at the end of `tail`; the text says why it cannot be used.
    pub(crate) fn parse(tail: &[u8]) -> Result<SegmentTrailer, String> {
        let Some(bytes) = tail.len().checked_sub(TRAILER_LEN).map(|at| &tail[at..]) else {
            return Err("it is shorter than a trailer".into());
        };
        let crc = crc32c(&bytes[..TRAILER_LEN - 4]);
        if bytes[TRAILER_LEN - 4..] != crc.to_le_bytes() || bytes[..8] != *MAGIC {
            return Err("its trailer is damaged".into());
        }
        Self::fields(&bytes[8..]).unwrap_or_else(|| Err("its trailer is damaged".into()))
    }

    /// The trailer at the end of `tail`, if it belongs to the segment `id` of `pool` in an object of `size` bytes.
    pub(crate) fn of(
        id: SegmentId,
        pool: PoolGuid,
        tail: &[u8],
        size: u64,
    ) -> Result<SegmentTrailer, String> {
        let trailer = SegmentTrailer::parse(tail)?;
        if trailer.id != id || trailer.pool != pool {
            return Err("its trailer is another segment's".into());
        }
        let len = u64::from(trailer.directory_len) + TRAILER_LEN as u64;
        if trailer.directory_offset.checked_add(len) != Some(size) {
            return Err("its length is wrong".into());
        }
        Ok(trailer)
    }

    /// Where the directory lies in the object, in bytes.
    pub(crate) fn directory_range(&self) -> Range<u64> {
        self.directory_offset..self.directory_offset + u64::from(self.directory_len)
    }

    /// The directory's entries.
    pub(crate) fn directory(&self, bytes: &[u8]) -> Result<Vec<SegmentEntry>, String> {
        if crc32c(bytes) != self.directory_crc {
            return Err("its directory is damaged".into());
        }
        directory::parse(self.id, bytes, self.entries, self.directory_offset)
    }

    fn fields(bytes: &[u8]) -> Option<Result<SegmentTrailer, String>> {
        let mut f = Fields(bytes);
        let (version, flags) = (f.u16()?, f.u16()?);
        if version > VERSION || flags != 0 {
            return Some(Err(format!("a newer Tarn wrote it (segment format {version}, flags {flags:#x})")));
        }
        let entries = f.u32()?;
        let pool = PoolGuid(f.u64()?);
        let epoch = Epoch(f.u64()?);
        let id = SegmentId::from_bytes(f.bytes(SegmentId::LEN)?)?;
        f.bytes(2)?;
        Some(Ok(SegmentTrailer {
            pool,
            epoch,
            id,
            nonce: f.array()?,
            written_ms: f.u64()? as i64,
            entries,
            directory_offset: f.u64()?,
            directory_len: f.u32()?,
            directory_crc: f.u32()?,
        }))
    }
}
