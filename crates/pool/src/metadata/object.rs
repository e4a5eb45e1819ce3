//! The form of a metadata object: payload, a crc32c for each 64 KiB of it, trailer.
//!
//! The trailer has a fixed size, so that the payload's length follows from the object's and a listing needs no
//! further request. It names the key by its hash: two objects that changed places are noticed.

use crate::checksum::crc32c;
use crate::codec::Fields;
use bytes::Bytes;
use std::ops::Range;
use tarn_base::{Epoch, PoolGuid};

/// Bytes of payload that one crc covers.
pub(crate) const BLOCK: u64 = 64 << 10;
pub(crate) const TRAILER_LEN: u64 = 160;
/// Longest put id: what SlateDB marks its conditional puts with.
pub(crate) const PUT_ID_MAX: usize = 64;
const MAGIC: &[u8; 8] = b"TARNMETA";
const VERSION: u16 = 1;

/// What stands behind an object's payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Footer {
    pub epoch: Epoch,
    pub nonce: [u8; 16],
    pub written_ms: i64,
    /// Bytes.
    pub payload: u64,
    /// The writer's own mark; empty if it gave none.
    pub put_id: String,
    /// One crc32c for each block.
    table: Vec<u32>,
}

/// What identifies an object, beside its payload.
pub(crate) struct Identity<'a> {
    pub pool: PoolGuid,
    pub key: &'a str,
}

impl Identity<'_> {
    pub fn key_hash(&self) -> u64 {
        twox_hash::XxHash3_64::oneshot(self.key.as_bytes())
    }
}

impl Footer {
    /// The footer of a new object.
    pub fn new(epoch: Epoch, nonce: [u8; 16], written_ms: i64, put_id: String, payload: &[Bytes]) -> Footer {
        let len = crate::codec::body_len(payload);
        Footer { epoch, nonce, written_ms, payload: len, put_id, table: table(payload) }
    }

    /// Bytes of everything behind the payload.
    pub fn len(&self) -> u64 {
        overhead(self.payload)
    }

    pub fn e_tag(&self) -> String {
        self.nonce.iter().map(|b| format!("{b:02x}")).collect()
    }

    pub fn to_bytes(&self, identity: &Identity<'_>) -> Bytes {
        let mut out = Vec::with_capacity(self.len() as usize);
        self.table.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
        let table_crc = crc32c(&out);
        let start = out.len();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(&(BLOCK as u32).to_le_bytes());
        out.extend_from_slice(&identity.pool.0.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.written_ms.to_le_bytes());
        out.extend_from_slice(&self.payload.to_le_bytes());
        out.extend_from_slice(&identity.key_hash().to_le_bytes());
        out.extend_from_slice(&table_crc.to_le_bytes());
        out.push(self.put_id.len() as u8);
        out.extend_from_slice(&[0; 3]);
        out.extend_from_slice(self.put_id.as_bytes());
        out.resize(start + TRAILER_LEN as usize - 4, 0);
        let crc = crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.into()
    }

    /// Reads the footer off the end of an object of `size` bytes. `Ok(Err(n))`: give it the last `n` bytes.
    /// The outer error says why the object cannot be used.
    pub fn parse(
        tail: &[u8],
        size: u64,
        identity: &Identity<'_>,
    ) -> Result<std::result::Result<Footer, u64>, String> {
        let damaged = || "its trailer is damaged".to_string();
        let at = tail.len().checked_sub(TRAILER_LEN as usize).ok_or_else(damaged)?;
        let trailer = &tail[at..];
        let (fields, crc) = trailer.split_at(trailer.len() - 4);
        if crc != crc32c(fields).to_le_bytes() || !fields.starts_with(MAGIC) {
            return Err(damaged());
        }
        let (mut footer, table_crc) = Self::fields(&fields[8..], identity).ok_or_else(damaged)??;
        if payload_len(size) != Some(footer.payload) {
            return Err("its length is wrong".into());
        }
        let len = footer.len();
        let Some(start) = (tail.len() as u64).checked_sub(len) else { return Ok(Err(len)) };
        let table = &tail[start as usize..at];
        if crc32c(table) != table_crc {
            return Err("its checksum table is damaged".into());
        }
        footer.table = table.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
        Ok(Ok(footer))
    }

    fn fields(bytes: &[u8], identity: &Identity<'_>) -> Option<Result<(Footer, u32), String>> {
        let mut f = Fields(bytes);
        let (version, flags, block) = (f.u16()?, f.u16()?, f.u32()?);
        if version > VERSION || flags != 0 || u64::from(block) != BLOCK {
            return Some(Err(format!("a newer Tarn wrote it (metadata format {version}, flags {flags:#x})")));
        }
        let (pool, epoch) = (PoolGuid(f.u64()?), Epoch(f.u64()?));
        let (nonce, written_ms) = (f.array()?, f.u64()? as i64);
        let (payload, key_hash, table_crc) = (f.u64()?, f.u64()?, f.u32()?);
        let put_id_len = f.u8()? as usize;
        f.bytes(3)?;
        // What cannot be written again as it is was not written by Tarn.
        let put_id = f.bytes(put_id_len).filter(|id| id.len() <= PUT_ID_MAX)?;
        let put_id = std::str::from_utf8(put_id).ok()?.to_string();
        if pool != identity.pool {
            return Some(Err("it belongs to another pool".into()));
        }
        if key_hash != identity.key_hash() {
            return Some(Err("it belongs to another key".into()));
        }
        Some(Ok((Footer { epoch, nonce, written_ms, payload, put_id, table: Vec::new() }, table_crc)))
    }

    /// The blocks that hold `range`, as a range of bytes.
    pub fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK).min(self.payload)
    }

    /// Whether `bytes`, which begin at block boundary `start`, are what was written there.
    pub fn verify(&self, start: u64, bytes: &[u8]) -> bool {
        let first = (start / BLOCK) as usize;
        let whole =
            (start + bytes.len() as u64).is_multiple_of(BLOCK) || start + bytes.len() as u64 == self.payload;
        let mut blocks = bytes.chunks(BLOCK as usize).enumerate();
        whole
            && start.is_multiple_of(BLOCK)
            && blocks.all(|(n, b)| self.table.get(first + n) == Some(&crc32c(b)))
    }

    /// Memory that the footer takes, in bytes.
    pub fn weight(&self) -> usize {
        self.table.len() * 4 + self.put_id.len() + 128
    }
}

/// Bytes behind a payload of `payload` bytes.
pub(crate) fn overhead(payload: u64) -> u64 {
    4 * payload.div_ceil(BLOCK) + TRAILER_LEN
}

/// The payload of an object of `size` bytes; `None` if there is none of that size.
pub(crate) fn payload_len(size: u64) -> Option<u64> {
    let body = size.checked_sub(TRAILER_LEN)?;
    let payload = body.checked_sub(4 * body.div_ceil(BLOCK + 4))?;
    (payload.checked_add(overhead(payload)) == Some(size)).then_some(payload)
}

/// Crcs over blocks of a payload that comes in pieces.
fn table(payload: &[Bytes]) -> Vec<u32> {
    let mut table = Vec::new();
    let mut block = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut filled = 0u64;
    for piece in payload {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min((BLOCK - filled) as usize));
            block.update(now);
            filled += now.len() as u64;
            rest = later;
            if filled == BLOCK {
                table.push(block.finalize_reset() as u32);
                filled = 0;
            }
        }
    }
    if filled > 0 {
        table.push(block.finalize() as u32);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(payload: &[Bytes]) -> (Footer, Vec<u8>) {
        let footer = Footer::new(Epoch(3), [7; 16], 5, "put".into(), payload);
        let mut bytes = payload.concat();
        bytes.extend_from_slice(&footer.to_bytes(&Identity { pool: PoolGuid(1), key: "m/x" }));
        (footer, bytes)
    }

    #[test]
    fn an_object_of_any_size_comes_back() {
        let id = Identity { pool: PoolGuid(1), key: "m/x" };
        for len in [0, 1, 65_535, 65_536, 65_537, 200_000, 1 << 20] {
            let data: Bytes = (0..len).map(|i: usize| (i * 7) as u8).collect();
            let pieces: Vec<Bytes> = data.chunks(30_011).map(Bytes::copy_from_slice).collect();
            let (footer, bytes) = object(&pieces);
            let size = bytes.len() as u64;
            assert_eq!(payload_len(size), Some(len as u64));
            assert_eq!(Footer::parse(&bytes, size, &id), Ok(Ok(footer.clone())));
            let tail = &bytes[bytes.len() - TRAILER_LEN as usize..];
            match Footer::parse(tail, size, &id).unwrap() {
                Ok(found) => assert!(len == 0 && found == footer),
                Err(more) => assert_eq!(more, footer.len()),
            }
            assert!(footer.verify(0, &data));
            assert!(Footer::parse(&bytes[1..], size - 1, &id).is_err() || len == 0);
            let other = Identity { pool: PoolGuid(1), key: "m/y" };
            assert_eq!(Footer::parse(&bytes, size, &other), Err("it belongs to another key".into()));
        }
    }

    #[test]
    fn sizes_that_no_object_has_are_refused() {
        // A byte of payload has a crc of four.
        for size in [0, TRAILER_LEN - 1, TRAILER_LEN + 1, TRAILER_LEN + 4] {
            assert_eq!(payload_len(size), None, "{size}");
        }
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let id = Identity { pool: PoolGuid(1), key: "m/x" };
        let (footer, bytes) = object(&[Bytes::from(vec![9; 70_000])]);
        for at in (0..70_000).step_by(997).chain(70_000..bytes.len()) {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            match Footer::parse(&wrong, wrong.len() as u64, &id) {
                Ok(Ok(found)) => assert!(found == footer && !found.verify(0, &wrong[..70_000]), "{at}"),
                other => assert!(other.is_err(), "{at}"),
            }
        }
    }
}
