//! Identifiers, each a type of its own so that one cannot be passed for another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// A pool's random identity, given at creation and kept for life.
    PoolGuid(u64)
);
number!(
    /// A leaf vdev's random identity; a bucket that moves or is renamed is found again by it.
    VdevGuid(u64)
);
number!(
    /// A top-level vdev's index in the pool. Given once, never reused; a segment names it.
    VdevId(u16)
);
number!(
    /// A dataset's number in its pool. Given once, never reused.
    DatasetId(u32)
);
number!(
    /// An inode number in its dataset. The root directory is 1, as FUSE wants it; 0 is nothing.
    Ino(u64)
);
number!(
    /// A transaction group: the changes that become durable together. Counts up from 1 in each dataset.
    Txg(u64)
);
number!(
    /// The number of one ownership of a pool. Every import takes a higher one, and a holder of a lower one is
    /// fenced.
    Epoch(u64)
);

impl Ino {
    /// The root directory of every dataset.
    pub const ROOT: Ino = Ino(1);
}

impl Txg {
    /// The group that follows this one.
    pub fn next(self) -> Txg {
        Txg(self.0 + 1)
    }
}

/// A licence to write a run of segments to one top-level vdev. Committed by the dataset before the first of its
/// segments is written, so that after a crash the segments that nobody committed are found by listing the open
/// grants, and nothing else is ever listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// The top-level vdev on which every segment of the grant lies.
    pub vdev: VdevId,
    /// The dataset that was given it.
    pub dataset: DatasetId,
    /// Counts up in the dataset; never reused.
    pub number: u32,
}

impl Grant {
    /// Segments in one grant: sequence numbers run from 0 to one less.
    pub const SEGMENTS: u32 = 1024;
    /// Length of [`Grant::to_bytes`], in bytes.
    pub const LEN: usize = 10;

    /// Big-endian, so that byte order is the order of grants.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0..2].copy_from_slice(&self.vdev.0.to_be_bytes());
        out[2..6].copy_from_slice(&self.dataset.0.to_be_bytes());
        out[6..10].copy_from_slice(&self.number.to_be_bytes());
        out
    }

    /// The inverse of [`Grant::to_bytes`]; `None` when `bytes` has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Grant> {
        let b: &[u8; Self::LEN] = bytes.try_into().ok()?;
        Some(Grant {
            vdev: VdevId(u16::from_be_bytes([b[0], b[1]])),
            dataset: DatasetId(u32::from_be_bytes([b[2], b[3], b[4], b[5]])),
            number: u32::from_be_bytes([b[6], b[7], b[8], b[9]]),
        })
    }
}

/// One segment: one object, written once and never changed, its id never reused. Its place follows from the grant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentId {
    pub grant: Grant,
    pub seq: u32,
}

impl SegmentId {
    /// Length of [`SegmentId::to_bytes`], in bytes.
    pub const LEN: usize = Grant::LEN + 4;

    /// Big-endian, so that byte order is the order of segments.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..Grant::LEN].copy_from_slice(&self.grant.to_bytes());
        out[Grant::LEN..].copy_from_slice(&self.seq.to_be_bytes());
        out
    }

    /// The inverse of [`SegmentId::to_bytes`]; `None` when `bytes` has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<SegmentId> {
        let (grant, seq) = bytes.split_at_checked(Grant::LEN)?;
        Some(SegmentId { grant: Grant::from_bytes(grant)?, seq: u32::from_be_bytes(seq.try_into().ok()?) })
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// `vdev:dataset:grant:sequence`, in hexadecimal as it appears in messages.
impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = self.grant;
        write!(f, "{:x}:{:x}:{:x}:{:x}", g.vdev.0, g.dataset.0, g.number, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_ids_survive_their_bytes_and_sort_by_them() {
        let id = |v, d, n, seq| SegmentId {
            grant: Grant { vdev: VdevId(v), dataset: DatasetId(d), number: n },
            seq,
        };
        let (a, b) = (id(1, 2, 3, 4), id(1, 2, 4, 0));
        assert_eq!(SegmentId::from_bytes(&a.to_bytes()), Some(a));
        assert!(a < b && a.to_bytes() < b.to_bytes());
        assert_eq!(SegmentId::from_bytes(&[0; 3]), None);
    }
}
