//! Segments: one object each, written once, many records packed together.
//!
//! ```text
//! record 0 | 0.. | record 1 | 0.. | ... | directory | trailer (128 bytes)
//! ```
//! Every record and the directory begin at a multiple of [`ALIGN`] bytes. The directory lists the records with
//! their owners and checksums, so that a segment can be understood without the metadata: for compaction, scrub and
//! rescue. The trailer, of fixed size at the very end, finds and protects the directory and says which pool,
//! epoch and segment this is. Records carry no header of their own: a read of one record is one ranged GET of
//! exactly its stored bytes, and adjacent records are one range.
//!
//! The layout byte by byte is in docs/FORMAT.md.

mod builder;
pub(crate) mod directory;
mod trailer;

pub use builder::{SegmentBody, SegmentBuilder};
pub use trailer::SegmentTrailer;
pub(crate) use trailer::TRAILER_LEN;

use tarn_base::{BlockPtr, DatasetId, Grant, RecordOwner, SegmentId, VdevId};

/// Records begin at multiples of this many bytes.
pub const ALIGN: usize = 64;

/// What a segment holds, from its own directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentEntry {
    pub owner: RecordOwner,
    pub ptr: BlockPtr,
}

/// Where segments of a grant lie in their bucket, ending in `/`. The first part is a hash: stores limit the
/// requests per prefix, and a local directory should stay small.
pub fn grant_prefix(grant: Grant) -> String {
    let bytes = grant.to_bytes();
    let hash = twox_hash::XxHash3_64::oneshot(&bytes) as u8;
    format!("d/{hash:02x}/{:04x}-{:08x}-{:08x}/", grant.vdev.0, grant.dataset.0, grant.number)
}

/// The object key of a segment.
pub fn segment_key(id: SegmentId) -> String {
    format!("{}{:08x}", grant_prefix(id.grant), id.seq)
}

/// The segment of this grant whose key ends in `name`; `None` for a foreign object.
pub(crate) fn parse_sequence(grant: Grant, name: &str) -> Option<SegmentId> {
    let seq = u32::from_str_radix(name, 16).ok()?;
    (name == format!("{seq:08x}")).then_some(SegmentId { grant, seq })
}

/// Where all segments lie in their bucket.
pub(crate) const SEGMENTS: &str = "d/";

/// The segment of an object key; `None` for a foreign object.
pub(crate) fn parse_key(key: &str) -> Option<SegmentId> {
    let (grant, name) = key.strip_prefix(SEGMENTS)?.split_once('/')?.1.split_once('/')?;
    let mut parts = grant.split('-');
    let grant = Grant {
        vdev: VdevId(u16::from_str_radix(parts.next()?, 16).ok()?),
        dataset: DatasetId(u32::from_str_radix(parts.next()?, 16).ok()?),
        number: u32::from_str_radix(parts.next()?, 16).ok()?,
    };
    parse_sequence(grant, name).filter(|id| segment_key(*id) == key)
}

#[cfg(test)]
mod tests;
