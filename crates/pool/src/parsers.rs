//! Every parser of what lies in a bucket below the datasets, in one shape, for tests that feed them what nobody would
//! write.
//!
//! Most of what Tarn writes carries checksums, behind which bytes that were changed at random never come. So each
//! parser is given the bytes as they are, and then with their checksums mended.

use crate::authority::bucket::{self, EpochObject};
use crate::checksum::{self, crc32c};
use crate::codec::{FRAME_HEADER, frame};
use crate::create::{self, claim_bytes, parse_claim};
use crate::history;
use crate::label::{self, Found, LABEL_VERSION};
use crate::metadata::object::{self, Footer, Identity, payload_len};
use crate::read::{Form, unpack};
use crate::segment::{self, SegmentTrailer, directory};
use crate::{check_property, name_problem, parse_duration, parse_size};
use bytes::Bytes;
use tarn_base::block::{MAX_RECORD, flag};
use tarn_base::{BlockPtr, Checksum, ChecksumKind, Compression, DatasetId, Grant, PoolGuid};
use tarn_base::{SegmentId, Txg, VdevId};
pub use tarn_bucket::parsers::Parser;

/// As those of `tarn_bucket`.
pub const PARSERS: &[Parser] = &[
    ("pool-label", |bytes| framed(label::MAGIC, bytes, label)),
    ("pool-epoch", |bytes| framed(bucket::MAGIC, bytes, epoch)),
    ("pool-history", |bytes| framed(history::MAGIC, bytes, history_entry)),
    ("pool-claim", |bytes| framed(create::CLAIM_MAGIC, bytes, claim)),
    ("pool-segment", |bytes| segment(bytes) | segment(&mended_segment(bytes))),
    ("pool-metadata-object", |bytes| metadata(bytes) | metadata(&mended_metadata(bytes))),
    ("pool-record", record),
    ("pool-keys", keys),
    ("pool-words", words),
];

/// As they are, and as the body of a frame that is whole.
fn framed(magic: &[u8; 8], bytes: &[u8], parse: fn(&[u8]) -> bool) -> bool {
    let body = bytes.get(FRAME_HEADER..).unwrap_or_default();
    parse(bytes) | parse(&frame(magic, 1, body))
}

fn label(bytes: &[u8]) -> bool {
    let Found::Label(label) = label::parse("bucket", bytes) else { return false };
    let written = label.to_bytes().expect("it was read from JSON");
    let Found::Label(back) = label::parse("bucket", &written) else { panic!("it does not come back") };
    assert_eq!((&back, back.rank()), (&label, label.rank()));
    let (mut next, _) = ((*label).clone(), label.feature_problem());
    // What a host does with it: the next epoch, a new name, another vdev, another dataset.
    next.pool.epoch.0 += 1;
    next.pool.generation += 1;
    next.pool.next_dataset += 1;
    next.pool.rename("other");
    LABEL_VERSION == 1
}

fn epoch(bytes: &[u8]) -> bool {
    let Some(epoch) = EpochObject::parse(bytes) else { return false };
    let written = epoch.to_bytes().expect("it was read from JSON");
    assert_eq!(EpochObject::parse(&written), Some(epoch));
    true
}

fn history_entry(bytes: &[u8]) -> bool {
    let Some(entry) = history::parse(bytes) else { return false };
    let written = history::to_bytes(&entry).expect("it was read from JSON");
    assert!(!crate::format_time(entry.time_ms).is_empty());
    assert_eq!(history::parse(&written), Some(entry));
    true
}

fn claim(bytes: &[u8]) -> bool {
    let Some(claim) = parse_claim(bytes) else { return false };
    assert_eq!(parse_claim(&claim_bytes(&claim).expect("it was read from JSON")), Some(claim));
    true
}

fn segment(bytes: &[u8]) -> bool {
    let Ok(trailer) = SegmentTrailer::parse(bytes) else { return false };
    assert_eq!(SegmentTrailer::parse(&trailer.to_bytes()).as_ref(), Ok(&trailer), "it does not come back");
    if SegmentTrailer::of(trailer.id, trailer.pool, bytes, bytes.len() as u64).is_err() {
        return false;
    }
    let range = trailer.directory_range();
    let Ok(entries) = trailer.directory(&bytes[range.start as usize..range.end as usize]) else {
        return false;
    };
    let mut written = Vec::new();
    for entry in &entries {
        directory::write(&mut written, entry);
        let stored = &bytes[entry.ptr.offset as usize..entry.ptr.end() as usize];
        if let Some(logical) = unpack(&entry.ptr, Bytes::copy_from_slice(stored), Form::Logical) {
            assert_eq!(logical.len(), entry.ptr.logical as usize);
        }
    }
    let back = directory::parse(trailer.id, &written, trailer.entries, trailer.directory_offset);
    assert_eq!(back, Ok(entries), "it does not come back");
    true
}

/// The bytes with every checksum of a segment as it should be.
fn mended_segment(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let Some(at) = out.len().checked_sub(segment::TRAILER_LEN) else { return out };
    let number = |from: usize, len: usize| {
        out[at + from..at + from + len].iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte))
    };
    let (start, len) = (number(72, 8) as usize, number(80, 4) as usize);
    if let Some(directory) = start.checked_add(len).and_then(|end| out.get(start..end)) {
        let crc = crc32c(directory);
        out[at + 84..at + 88].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c(&out[at..at + segment::TRAILER_LEN - 4]);
    out[at + segment::TRAILER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    out
}

const METADATA: Identity<'static> = Identity { pool: PoolGuid(1), key: "m/00000001/test" };

fn metadata(bytes: &[u8]) -> bool {
    let size = bytes.len() as u64;
    let tail = bytes.len().saturating_sub(object::TRAILER_LEN as usize);
    // Whoever knows nothing of an object asks for its end first.
    if let Ok(Err(more)) = Footer::parse(&bytes[tail..], size, &METADATA) {
        assert!(more <= size);
    }
    let Ok(Ok(footer)) = Footer::parse(bytes, size, &METADATA) else { return false };
    let payload = &bytes[..footer.payload as usize];
    let whole = [payload, &footer.to_bytes(&METADATA)].concat();
    assert_eq!(Footer::parse(&whole, size, &METADATA), Ok(Ok(footer.clone())), "it does not come back");
    let middle = footer.payload / 2..footer.payload;
    let blocks = footer.blocks(&middle);
    let _ = footer.verify(blocks.start, &bytes[blocks.start as usize..blocks.end as usize]);
    footer.verify(0, payload)
}

/// The bytes with every checksum of a metadata object as it should be, and with a pool and a key that are known here.
fn mended_metadata(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let size = out.len() as u64;
    let Some(at) = out.len().checked_sub(object::TRAILER_LEN as usize) else { return out };
    let Some(payload) = payload_len(size) else { return out };
    let crc = crc32c(&out[payload as usize..at]);
    let trailer = &mut out[at..];
    trailer[16..24].copy_from_slice(&METADATA.pool.0.to_le_bytes());
    trailer[56..64].copy_from_slice(&payload.to_le_bytes());
    trailer[64..72].copy_from_slice(&METADATA.key_hash().to_le_bytes());
    trailer[72..76].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c(&trailer[..156]);
    trailer[156..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Four bytes of logical length, one of compression, and a record's stored bytes.
fn record(bytes: &[u8]) -> bool {
    let Some((head, stored)) = bytes.split_first_chunk::<5>() else { return false };
    let logical = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) % (MAX_RECORD + 1);
    let compression = match head[4] % 3 {
        0 => Compression::Off,
        1 => Compression::Lz4,
        _ => Compression::Zstd(3),
    };
    let grant = Grant { vdev: VdevId(0), dataset: DatasetId(1), number: 1 };
    let ptr = BlockPtr {
        segment: SegmentId { grant, seq: 0 },
        offset: 0,
        stored: stored.len() as u32,
        logical,
        compression,
        checksum: checksum::compute(ChecksumKind::Xxh3, stored),
        birth: Txg(1),
        flags: flag::KNOWN,
    };
    let wrong = BlockPtr { checksum: Checksum::Blake3([0; 32]), ..ptr };
    let stored = Bytes::copy_from_slice(stored);
    assert_eq!(unpack(&wrong, stored.clone(), Form::Logical), None);
    let Some(found) = unpack(&ptr, stored, Form::Logical) else { return false };
    assert_eq!(found.len(), logical as usize);
    true
}

fn keys(bytes: &[u8]) -> bool {
    let Ok(key) = std::str::from_utf8(bytes) else { return false };
    let Some(id) = segment::parse_key(key) else { return false };
    assert_eq!(segment::segment_key(id), key);
    true
}

/// Names, sizes, times and the properties of a pool, as they are typed.
fn words(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let (name, value) = text.split_once('=').unwrap_or((text, text));
    let sized = parse_size(value).is_some_and(|n| parse_size(&n.to_string()) == Some(n));
    let timed = parse_duration(value)
        .is_some_and(|time| parse_duration(&format!("{}ms", time.as_millis())) == Some(time));
    assert_eq!((sized, timed), (parse_size(value).is_some(), parse_duration(value).is_some()));
    name_problem(name).is_none() | check_property(name, value, true).is_ok() | sized | timed
}
