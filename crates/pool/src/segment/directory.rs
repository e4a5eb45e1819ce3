//! A segment's directory: its records, their owners and checksums.

use super::SegmentEntry;
use crate::codec::Fields;
use tarn_base::block::{MAX_RECORD, flag};
use tarn_base::{BlockPtr, Checksum, Compression, DatasetId, Ino, RecordOwner, SegmentId, Txg};

/// Longest entry in bytes.
pub(crate) const ENTRY_MAX: usize = 44 + 32;

/// Appends one entry.
pub(crate) fn write(out: &mut Vec<u8>, entry: &SegmentEntry) {
    let SegmentEntry { owner, ptr } = entry;
    out.reserve(ENTRY_MAX);
    out.extend_from_slice(&owner.dataset.0.to_le_bytes());
    out.extend_from_slice(&owner.ino.0.to_le_bytes());
    out.extend_from_slice(&owner.record.to_le_bytes());
    out.extend_from_slice(&ptr.offset.to_le_bytes());
    out.extend_from_slice(&ptr.stored.to_le_bytes());
    out.extend_from_slice(&ptr.logical.to_le_bytes());
    out.extend_from_slice(&ptr.birth.0.to_le_bytes());
    let (kind, level) = match ptr.compression {
        Compression::Off => (0, 0),
        Compression::Lz4 => (1, 0),
        Compression::Zstd(level) => (2, level),
    };
    out.extend_from_slice(&[kind, level as u8, ptr.flags]);
    match &ptr.checksum {
        Checksum::Xxh3(sum) => {
            out.push(1);
            out.extend_from_slice(&sum.to_le_bytes());
        }
        Checksum::Blake3(sum) => {
            out.push(2);
            out.extend_from_slice(sum);
        }
    }
}

/// Reads a directory of `count` entries; the text says why it cannot be used. `payload_end` is the directory's own
/// offset: no record reaches beyond it.
pub(crate) fn parse(
    id: SegmentId,
    bytes: &[u8],
    count: u32,
    payload_end: u64,
) -> Result<Vec<SegmentEntry>, String> {
    let mut fields = Fields(bytes);
    let mut entries = Vec::with_capacity((count as usize).min(bytes.len() / 52 + 1));
    for n in 0..count {
        let entry =
            entry(id, &mut fields).ok_or_else(|| format!("entry {n} of its directory is damaged"))??;
        let end = u64::from(entry.ptr.offset) + u64::from(entry.ptr.stored);
        if end > payload_end.min(u64::from(u32::MAX)) {
            return Err(format!("entry {n} of its directory points outside of it"));
        }
        // Who unpacks it makes room for so much.
        if entry.ptr.logical > MAX_RECORD {
            return Err(format!("entry {n} of its directory is longer than a record can be"));
        }
        entries.push(entry);
    }
    if !fields.0.is_empty() {
        return Err("its directory is longer than its entries".into());
    }
    Ok(entries)
}

fn entry(id: SegmentId, f: &mut Fields<'_>) -> Option<Result<SegmentEntry, String>> {
    let owner = RecordOwner { dataset: DatasetId(f.u32()?), ino: Ino(f.u64()?), record: f.u64()? };
    let (offset, stored, logical) = (f.u32()?, f.u32()?, f.u32()?);
    let birth = Txg(f.u64()?);
    let (kind, level, flags) = (f.u8()?, f.u8()? as i8, f.u8()?);
    if flags & !flag::KNOWN != 0 {
        return Some(Err(format!("a newer Tarn wrote it (record flags {flags:#x})")));
    }
    let compression = match kind {
        0 => Compression::Off,
        1 => Compression::Lz4,
        2 if level > 0 => Compression::Zstd(level),
        _ => return Some(Err(format!("a newer Tarn wrote it (compression {kind})"))),
    };
    let checksum = match f.u8()? {
        1 => Checksum::Xxh3(f.u64()?),
        2 => Checksum::Blake3(f.array()?),
        other => return Some(Err(format!("a newer Tarn wrote it (checksum {other})"))),
    };
    let ptr = BlockPtr { segment: id, offset, stored, logical, compression, checksum, birth, flags };
    Some(Ok(SegmentEntry { owner, ptr }))
}
