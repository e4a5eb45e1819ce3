use super::directory::parse as parse_directory;
use super::*;
use crate::compress::decompress;
use crate::{checksum, codec};
use bytes::Bytes;
use proptest::prelude::*;
use tarn_base::{ChecksumKind, Compression, DatasetId, Epoch, Ino, PoolGuid, Txg, VdevId};

fn id() -> SegmentId {
    SegmentId { grant: Grant { vdev: VdevId(3), dataset: DatasetId(2), number: 0x1ff }, seq: 17 }
}

fn owner(n: u64) -> RecordOwner {
    RecordOwner { dataset: DatasetId(2), ino: Ino(n + 5), record: n * 3 }
}

fn whole(body: SegmentBody) -> Vec<u8> {
    let object = body.object;
    let bytes: Vec<u8> = body.seal(PoolGuid(7), Epoch(9)).concat();
    assert_eq!(bytes.len() as u64, object);
    bytes
}

fn read_back(bytes: &[u8]) -> Result<(SegmentTrailer, Vec<SegmentEntry>), String> {
    let trailer = SegmentTrailer::parse(bytes)?;
    let start = trailer.directory_offset as usize;
    let directory = bytes.get(start..start + trailer.directory_len as usize).ok_or("outside")?;
    if checksum::crc32c(directory) != trailer.directory_crc {
        return Err("directory damaged".into());
    }
    let entries = parse_directory(trailer.id, directory, trailer.entries, trailer.directory_offset)?;
    Ok((trailer, entries))
}

#[test]
fn keys_are_readable_and_one_grant_is_one_prefix() {
    let key = segment_key(id());
    assert!(key.ends_with("/0003-00000002-000001ff/00000011"), "{key}");
    assert!(key.starts_with(&grant_prefix(id().grant)));
    assert_eq!(parse_sequence(id().grant, "00000011"), Some(id()));
    for foreign in ["11", "0000001G", "000000110", "", "+0000011"] {
        assert_eq!(parse_sequence(id().grant, foreign), None, "{foreign}");
    }
}

#[test]
fn uncompressed_records_are_not_copied() {
    let record = Bytes::from(vec![5; 4096]);
    let mut builder = SegmentBuilder::new(id());
    builder.add(owner(0), record.clone(), Compression::Off, ChecksumKind::Xxh3, Txg(1));
    let body = builder.finish();
    assert_eq!(body.pieces[0].as_ptr(), record.as_ptr());
}

fn kind() -> impl Strategy<Value = (Compression, ChecksumKind)> {
    let compression =
        prop_oneof![Just(Compression::Off), Just(Compression::Lz4), (1i8..19).prop_map(Compression::Zstd)];
    (compression, prop_oneof![Just(ChecksumKind::Xxh3), Just(ChecksumKind::Blake3)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_packed_is_found_again(
        records in prop::collection::vec((prop::collection::vec(0u8..4, 0..3000), kind(), 1u64..1 << 40), 0..20)
    ) {
        let mut builder = SegmentBuilder::new(id());
        let mut expected = Vec::new();
        for (n, (data, (compression, sum), birth)) in records.iter().enumerate() {
            let n = n as u64;
            let ptr = builder.add(owner(n), Bytes::from(data.clone()), *compression, *sum, Txg(*birth));
            prop_assert_eq!(ptr.offset as usize % ALIGN, 0);
            expected.push(SegmentEntry { owner: owner(n), ptr });
        }
        let bytes = whole(builder.finish());
        let (trailer, entries) = read_back(&bytes).unwrap();
        prop_assert_eq!((trailer.pool, trailer.epoch, trailer.id), (PoolGuid(7), Epoch(9), id()));
        prop_assert_eq!(&entries, &expected);
        for (entry, (data, _, _)) in entries.iter().zip(&records) {
            let stored = &bytes[entry.ptr.offset as usize..entry.ptr.end() as usize];
            prop_assert!(checksum::verify(&entry.ptr.checksum, stored));
            let logical = decompress(stored, entry.ptr.compression, data.len()).unwrap();
            prop_assert_eq!(&logical[..], &data[..]);
        }
    }

    #[test]
    fn garbage_is_refused_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600), count in 0u32..20) {
        let _ = parse_directory(id(), &bytes, count, 1 << 20);
        let _ = SegmentTrailer::parse(&bytes);
        let _ = codec::unframe(b"TESTTEST", 1, &bytes);
    }

    #[test]
    fn a_flipped_byte_in_directory_or_trailer_is_noticed(at in 0usize..10_000, flip in 1u8..) {
        let mut builder = SegmentBuilder::new(id());
        for n in 0..5 {
            builder.add(owner(n), Bytes::from(vec![n as u8; 100]), Compression::Off, ChecksumKind::Xxh3, Txg(1));
        }
        let mut bytes = whole(builder.finish());
        let (trailer, _) = read_back(&bytes).unwrap();
        let start = trailer.directory_offset as usize;
        let at = start + at % (bytes.len() - start);
        bytes[at] ^= flip;
        prop_assert!(read_back(&bytes).is_err());
    }
}
