//! Checksums of stored bytes: of records (chosen by the dataset) and of Tarn's own structures (crc32c).

use tarn_base::{Checksum, ChecksumKind};
use twox_hash::XxHash3_64;

/// The checksum that a record of these stored bytes has.
pub fn compute(kind: ChecksumKind, stored: &[u8]) -> Checksum {
    match kind {
        ChecksumKind::Xxh3 => Checksum::Xxh3(XxHash3_64::oneshot(stored)),
        ChecksumKind::Blake3 => Checksum::Blake3(*blake3::hash(stored).as_bytes()),
    }
}

/// Whether the stored bytes are what was written.
pub fn verify(checksum: &Checksum, stored: &[u8]) -> bool {
    match checksum {
        Checksum::Xxh3(sum) => XxHash3_64::oneshot(stored) == *sum,
        Checksum::Blake3(sum) => blake3::hash(stored).as_bytes() == sum,
    }
}

/// CRC-32C (Castagnoli) of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}
