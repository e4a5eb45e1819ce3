//! Every parser of what lies in a dataset's rows, in one shape, for tests that feed them what nobody would write.

use crate::acl::Acl;
use crate::key;
use crate::names::Hashing;
use crate::phys::{
    CarriedPhys, Chunk, ClientPhys, DirentPhys, GrantPhys, InodePhys, Phys, ReclaimPhys, RefcountPhys,
    SegmentPhys, SuperPhys, TruncatePhys, VdevPhys, decode, encode,
};
use std::fmt::Debug;
use tarn_base::Ino;
use tarn_base::block::{DEFAULT_RECORD, MAX_RECORD, MIN_RECORD};
use tarn_pool::parsers::Parser;

/// As those of `tarn_bucket`.
pub const PARSERS: &[Parser] = &[
    ("mdt-dataset", dataset),
    ("mdt-inode", inode),
    ("mdt-names", row::<DirentPhys>),
    ("mdt-segment", row::<SegmentPhys>),
    ("mdt-references", row::<RefcountPhys>),
    ("mdt-vdev", row::<VdevPhys>),
    ("mdt-freed", row::<ReclaimPhys>),
    ("mdt-carried", row::<CarriedPhys>),
    ("mdt-truncation", row::<TruncatePhys>),
    ("mdt-grant", row::<GrantPhys>),
    ("mdt-client", row::<ClientPhys>),
    ("mdt-block-map", block_map),
    ("mdt-keys", keys),
    ("mdt-acl", acl),
];

fn parsed<T: Phys + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value = decode::<T>("test", bytes).ok()?;
    let back = decode::<T>("test", &encode(&value)).ok();
    assert_eq!(back.as_ref(), Some(&value), "it does not come back");
    Some(value)
}

fn row<T: Phys + PartialEq + Debug>(bytes: &[u8]) -> bool {
    parsed::<T>(bytes).is_some()
}

fn dataset(bytes: &[u8]) -> bool {
    let Some(numbers) = parsed::<SuperPhys>(bytes) else { return false };
    let hashing = Hashing { seed: numbers.hash_seed, bits: numbers.hash_bits };
    assert!(crate::names::cookie(hashing.of(b"name"), u16::MAX) < 1 << 63);
    numbers.txg.next() > numbers.txg
}

fn inode(bytes: &[u8]) -> bool {
    let Some(inode) = parsed::<InodePhys>(bytes) else { return false };
    let attr = inode.attr(Ino::ROOT);
    assert!(attr.record_size.is_power_of_two());
    for time in [attr.atime, attr.mtime, attr.ctime, attr.crtime] {
        assert_eq!(tarn_base::Timespec::from_system(time.to_system()), time);
    }
    true
}

/// The row does not say for which record size it was made: the inode does.
fn block_map(bytes: &[u8]) -> bool {
    let mut accepted = false;
    for record_size in [MIN_RECORD, DEFAULT_RECORD, MAX_RECORD] {
        let Ok(chunk) = Chunk::decode(bytes, record_size) else { continue };
        let back = Chunk::decode(&chunk.encode(record_size), record_size).ok();
        assert_eq!(back.as_ref(), Some(&chunk), "it does not come back");
        accepted = true;
    }
    accepted
}

fn keys(bytes: &[u8]) -> bool {
    let _ = (key::ino_of(bytes), key::chunk_of(bytes), key::vdev_of(bytes), key::shard_bytes(bytes));
    let _ = key::in_one_shard(bytes, &key::prefix_range(bytes).1);
    if let Some(segment) = key::carried_of(bytes) {
        assert_eq!(key::carried_of(&key::carried(segment)), Some(segment));
    }
    let Some((freed_ms, segment)) = key::reclaim_of(bytes) else { return false };
    assert_eq!(key::reclaim_of(&key::reclaim(freed_ms, segment)), Some((freed_ms, segment)));
    true
}

fn acl(bytes: &[u8]) -> bool {
    let Ok(acl) = Acl::parse(bytes) else { return false };
    assert_eq!(Acl::parse(&acl.to_bytes()), Ok(acl.clone()));
    let (child, mode) = acl.inherit(0o7777);
    assert!(mode <= 0o777 && child.mode() == mode);
    true
}
