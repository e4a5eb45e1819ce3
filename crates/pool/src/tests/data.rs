//! Segments and records: written, read, damaged, placed.

use super::world::*;
use crate::segment::{grant_prefix, segment_key};
use crate::{Caching, Error, Pool, SegmentBuilder};
use bytes::Bytes;
use std::sync::Arc;
use tarn_base::{BlockPtr, ChecksumKind, Compression, Txg, VdevId};
use tarn_bucket::{Operation, fault::Fault};

const KINDS: [(Compression, ChecksumKind); 4] = [
    (Compression::Off, ChecksumKind::Xxh3),
    (Compression::Lz4, ChecksumKind::Xxh3),
    (Compression::Zstd(3), ChecksumKind::Blake3),
    (Compression::Off, ChecksumKind::Blake3),
];

fn records() -> Vec<Bytes> {
    let mut all = vec![Bytes::new(), Bytes::from("one"), data(128 << 10, 3, false), data(1 << 20, 4, true)];
    all.extend((0..20).map(|n| data(5000 + 100 * n, n as u64, n % 2 == 0)));
    all
}

fn gets(pool: &Pool, vdev: usize) -> u64 {
    let stats = pool.status().vdevs[vdev].stats.clone().unwrap();
    stats.operations[&Operation::Get].requests
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_come_back_through_every_way_of_reading() {
    let urls = memory(2);
    let pool = create(&urls).await;
    let records = records();
    for (n, (compression, checksum)) in KINDS.into_iter().enumerate() {
        for caching in [Caching::Bypass, Caching::Stream, Caching::Keep] {
            let id = segment(VdevId(1), 10 * n as u32 + caching as u32, 5);
            let ptrs = write(&pool, id, &records, compression, checksum).await.unwrap();
            assert!(pool.read(&ptrs, caching).await.unwrap() == records);
            let backwards: Vec<_> = ptrs.iter().rev().copied().collect();
            let mut read = pool.read(&backwards, caching).await.unwrap();
            read.reverse();
            assert!(read == records);
            assert_eq!(pool.cached(&ptrs[2]).is_some(), caching != Caching::Bypass);
            // A record twice in one call.
            assert_eq!(pool.read(&[ptrs[1], ptrs[1]], caching).await.unwrap()[1], records[1]);
            let stored = pool.read_stored(&ptrs).await.unwrap();
            assert!(ptrs.iter().zip(&stored).all(|(p, s)| s.len() == p.stored as usize));

            let listed = pool.segment_directory(id).await.unwrap();
            assert_eq!(listed.iter().map(|e| e.ptr).collect::<Vec<_>>(), ptrs);
            assert!(listed.iter().enumerate().all(|(n, e)| e.owner == owner(n as u64)));

            // As compaction does it.
            let copy = segment(VdevId(0), 10 * n as u32 + caching as u32, 6);
            let mut builder = SegmentBuilder::new(copy);
            let moved: Vec<BlockPtr> =
                listed.iter().zip(stored).map(|(e, s)| builder.add_stored(e.owner, &e.ptr, s)).collect();
            pool.put_segment(builder.finish()).await.unwrap();
            assert!(pool.read(&moved, caching).await.unwrap() == records);
        }
    }
}

#[tokio::test]
async fn adjacent_records_are_one_get_and_waiters_share_it() {
    let urls = memory(1);
    let pool = create(&urls).await;
    let records: Vec<_> = (0..32).map(|n| data(128 << 10, n, false)).collect();
    let ptrs =
        write(&pool, segment(VdevId(0), 1, 0), &records, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
    let before = gets(&pool, 0);
    assert!(pool.read(&ptrs, Caching::Bypass).await.unwrap() == records);
    assert_eq!(gets(&pool, 0) - before, 1);
    // Far apart: two.
    let before = gets(&pool, 0);
    pool.read(&[ptrs[0], ptrs[31]], Caching::Bypass).await.unwrap();
    assert_eq!(gets(&pool, 0) - before, 2);
    // All but a few: one, from the start of the segment.
    let (before, all_but_a_few) = (gets(&pool, 0), (3..32).filter(|n| *n != 20));
    let few: Vec<BlockPtr> = all_but_a_few.clone().map(|n| ptrs[n]).collect();
    let read = pool.read(&few, Caching::Bypass).await.unwrap();
    assert!(read.iter().eq(all_but_a_few.map(|n| &records[n])));
    assert_eq!(gets(&pool, 0) - before, 1);
    // Prefetch and demand: the later ones wait for the first.
    let before = gets(&pool, 0);
    let reads = (0..8).map(|n| {
        let (pool, ptrs) = (pool.clone(), ptrs[n..n + 8].to_vec());
        async move { pool.read(&ptrs, Caching::Stream).await.unwrap() }
    });
    for (n, read) in futures::future::join_all(reads).await.into_iter().enumerate() {
        assert_eq!(read, records[n..n + 8]);
    }
    assert_eq!(gets(&pool, 0) - before, 8);
    let before = gets(&pool, 0);
    pool.read(&ptrs[..15], Caching::Stream).await.unwrap();
    assert_eq!(gets(&pool, 0), before);
}

#[tokio::test]
async fn small_records_of_one_segment_bring_their_neighbours() {
    let urls = memory(1);
    let pool = create(&urls).await;
    let records: Vec<_> = (0..64).map(|n| data(5000, n, n % 2 == 0)).collect();
    let id = segment(VdevId(0), 1, 0);
    let ptrs = write(&pool, id, &records, Compression::Lz4, ChecksumKind::Xxh3).await.unwrap();
    let before = gets(&pool, 0);
    for (ptr, record) in ptrs.iter().zip(&records) {
        assert_eq!(pool.read(&[*ptr], Caching::Together).await.unwrap()[0], record);
    }
    assert_eq!(gets(&pool, 0) - before, 2);
    // What came along is believed only by who holds the same checksum.
    let wrong = BlockPtr { checksum: ptrs[8].checksum, ..ptrs[9] };
    assert!(pool.cached(&wrong).is_none() && pool.cached(&ptrs[9]).is_some());

    // A segment that is damaged in one place gives everything else.
    let (hurt, other) = (segment(VdevId(0), 1, 1), segment(VdevId(0), 1, 2));
    for (id, damage) in [(hurt, 5 * 5056 + 100), (other, usize::MAX)] {
        let ptrs = write(&pool, id, &records, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
        tamper(&urls[0], &segment_key(id), |bytes| {
            let at = damage.min(bytes.len() - 200);
            bytes[at] ^= 1;
        })
        .await;
        for (n, ptr) in ptrs.iter().enumerate() {
            match pool.read(&[*ptr], Caching::Together).await {
                Ok(read) => assert_eq!(read, [records[n].clone()]),
                Err(error) => assert!(n == 5 && matches!(error, Error::Damaged(_)), "{n}: {error}"),
            }
        }
    }
}

#[tokio::test]
async fn a_segment_that_is_too_long_to_be_fetched_whole_is_no_failure() {
    let urls = memory(1);
    let pool = create(&urls).await;
    pool.set_property("segment_size", "64M").await.unwrap();
    let record = data(128 << 10, 1, false);
    let records = vec![record.clone(); 512];
    let id = segment(VdevId(0), 1, 0);
    let ptrs = write(&pool, id, &records, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
    let before = gets(&pool, 0);
    for ptr in &ptrs[..8] {
        assert_eq!(pool.read(&[*ptr], Caching::Together).await.unwrap()[0], record);
    }
    let vdev = &pool.status().vdevs[0];
    assert_eq!((vdev.state, vdev.read_errors), (crate::VdevState::Online, 0));
    // One more, for the guess.
    assert_eq!(gets(&pool, 0) - before, 9);
}

/// Reads every record and the directory of a segment that was changed: right bytes or an error, never wrong ones.
async fn never_wrong(pool: &Arc<Pool>, ptrs: &[BlockPtr], records: &[Bytes]) -> usize {
    let mut failures = 0;
    for (ptr, record) in ptrs.iter().zip(records) {
        match pool.read(&[*ptr], Caching::Bypass).await {
            Ok(read) => assert!(read[0] == *record),
            Err(Error::Damaged(text)) => {
                assert!(text.contains("mem://") && text.contains("segment"), "{text}");
                failures += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    match pool.read(ptrs, Caching::Bypass).await {
        Ok(read) => assert!(read == records),
        Err(error) => assert!(matches!(error, Error::Damaged(_))),
    }
    match pool.segment_directory(ptrs[0].segment).await {
        Ok(entries) => assert_eq!(entries.iter().map(|e| e.ptr).collect::<Vec<_>>(), ptrs),
        Err(error) => assert!(matches!(error, Error::Damaged(_))),
    }
    failures
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_anywhere_never_gives_wrong_bytes() {
    let urls = memory(1);
    let pool = create(&urls).await;
    let records: Vec<_> = (0..6).map(|n| data(3000, n, n % 2 == 0)).collect();
    for (n, (compression, checksum)) in KINDS.into_iter().enumerate() {
        let id = segment(VdevId(0), n as u32, 0);
        let ptrs = write(&pool, id, &records, compression, checksum).await.unwrap();
        let key = segment_key(id);
        let good = get(&urls[0], &key).await;
        let mut caught = 0;
        for at in (0..good.len()).step_by(37).chain(good.len() - 128..good.len()) {
            let mut wrong = good.clone();
            wrong[at] ^= 0x41;
            set(&urls[0], &key, wrong).await;
            caught += never_wrong(&pool, &ptrs, &records).await;
        }
        assert!(caught > 20, "{caught}");
        for len in [0, 1, 100, good.len() / 2, good.len() - 1] {
            set(&urls[0], &key, good[..len].to_vec()).await;
            never_wrong(&pool, &ptrs, &records).await;
            assert!(pool.segment_directory(id).await.is_err());
        }
        set(&urls[0], &key, good).await;
        assert_eq!(never_wrong(&pool, &ptrs, &records).await, 0);
    }
    let status = pool.status();
    assert!(status.vdevs[0].checksum_errors > 50 && !status.errors.is_empty());
    assert!(status.status.is_some() && status.errors[0].contains(&urls[0]));
    pool.clear_errors();
    assert!(pool.status().errors.is_empty());
}

#[tokio::test]
async fn swapped_and_missing_segments_are_noticed() {
    let urls = memory(1);
    let pool = create(&urls).await;
    let (a, b) = (segment(VdevId(0), 1, 0), segment(VdevId(0), 1, 1));
    let mut ptrs = Vec::new();
    for (id, seed) in [(a, 1), (b, 2)] {
        let record = [data(4096, seed, false)];
        ptrs.extend(write(&pool, id, &record, Compression::Off, ChecksumKind::Xxh3).await.unwrap());
    }
    let (first, second) = (get(&urls[0], &segment_key(a)).await, get(&urls[0], &segment_key(b)).await);
    set(&urls[0], &segment_key(a), second).await;
    set(&urls[0], &segment_key(b), first).await;
    for (ptr, id) in ptrs.iter().zip([a, b]) {
        assert!(matches!(pool.read(&[*ptr], Caching::Keep).await, Err(Error::Damaged(_))));
        assert!(matches!(pool.segment_directory(id).await, Err(Error::Damaged(_))));
    }
    assert_eq!(pool.list_grant(a.grant).await.unwrap().len(), 2);
    pool.delete_segments(&[a, b, segment(VdevId(0), 1, 9)]).await.unwrap();
    assert!(matches!(pool.read(&ptrs[..1], Caching::Keep).await, Err(Error::Missing(_))));
    assert!(matches!(pool.read_stored(&ptrs[..1]).await, Err(Error::Missing(_))));
    assert!(matches!(pool.segment_directory(a).await, Err(Error::Missing(_))));
    assert_eq!(pool.list_grant(a.grant).await.unwrap(), []);
    let unknown = BlockPtr { segment: segment(VdevId(9), 1, 0), ..ptrs[0] };
    assert!(matches!(pool.read(&[unknown], Caching::Keep).await, Err(Error::Missing(_))));
    let future = BlockPtr { flags: 0x80, ..ptrs[0] };
    assert!(matches!(pool.read(&[future], Caching::Keep).await, Err(Error::Damaged(_))));
}

#[tokio::test]
async fn what_went_wrong_on_the_way_is_read_again() {
    let urls = memory(1);
    make_faulty(&urls[0]);
    let pool = create(&urls).await;
    let record = [data(4096, 1, false)];
    let ptrs =
        write(&pool, segment(VdevId(0), 1, 0), &record, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
    for fault in [Fault::Flip, Fault::Short] {
        faulty(&urls[0]).script(Operation::Get, "d/", 1, fault);
        assert_eq!(pool.read(&ptrs, Caching::Bypass).await.unwrap(), record);
        faulty(&urls[0]).script(Operation::Get, "d/", 2, fault);
        assert!(matches!(pool.read(&ptrs, Caching::Keep).await, Err(Error::Damaged(_))));
        assert_eq!(pool.read(&ptrs, Caching::Bypass).await.unwrap(), record);
    }
    assert_eq!(pool.status().vdevs[0].checksum_errors, 2);
}

#[tokio::test]
async fn a_reader_that_goes_away_leaves_no_waiter_behind() {
    let urls = memory(1);
    make_faulty(&urls[0]);
    let pool = create(&urls).await;
    let record = [data(4096, 1, false)];
    let ptrs =
        write(&pool, segment(VdevId(0), 1, 0), &record, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
    faulty(&urls[0]).script(Operation::Get, "d/", 1, Fault::Hang);
    let hung = tokio::spawn({
        let (pool, ptrs) = (pool.clone(), ptrs.clone());
        async move { pool.read(&ptrs, Caching::Keep).await }
    });
    tokio::task::yield_now().await;
    let waiter = tokio::spawn({
        let (pool, ptrs) = (pool.clone(), ptrs.clone());
        async move { pool.read(&ptrs, Caching::Keep).await }
    });
    tokio::task::yield_now().await;
    hung.abort();
    assert_eq!(waiter.await.unwrap().unwrap(), record);
}

#[tokio::test]
async fn equal_vdevs_carry_equal_load_and_a_faulted_one_none() {
    let urls = memory(12);
    for url in &urls[3..5] {
        make_faulty(url);
    }
    let pool = create(&urls).await;
    let mut used = [0u64; 12];
    for n in 0..2048u64 {
        let bytes = if n % 3 == 0 { 4 << 20 } else { 1_000_000 + n * 1000 };
        used[pool.place(bytes).unwrap().0 as usize] += bytes;
    }
    let mean = used.iter().sum::<u64>() as f64 / 12.0;
    assert!(*used.iter().min().unwrap() as f64 >= 0.95 * mean, "{used:?}");

    faulty(&urls[3]).set_outage(true);
    let record = [data(10, 1, false)];
    for seq in 0..3 {
        let id = segment(VdevId(3), 1, seq);
        assert!(write(&pool, id, &record, Compression::Off, ChecksumKind::Xxh3).await.is_err());
    }
    assert!((0..100).all(|_| pool.place(4 << 20).unwrap() != VdevId(3)));
    assert!(!pool.writable_vdevs().contains(&VdevId(3)));
    let status = pool.status();
    assert_eq!(status.state, crate::PoolState::Degraded);
    assert_eq!((status.vdevs[3].state, status.vdevs[3].write_errors), (crate::VdevState::Faulted, 1));
    // Two of the writes were not even tried.
    assert_eq!(faulty(&urls[3]).happened()["outage"], 2, "one write, one probe");
    faulty(&urls[3]).set_outage(false);
    well(&pool).await;
    write(&pool, segment(VdevId(3), 1, 9), &record, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
    assert_eq!(pool.status().state, crate::PoolState::Online);
    assert!((0..100).any(|_| pool.place(4 << 20).unwrap() == VdevId(3)));

    // A full store refuses, and others take over.
    faulty(&urls[4]).set_full(true);
    let put = write(&pool, segment(VdevId(4), 1, 0), &record, Compression::Off, ChecksumKind::Xxh3).await;
    assert!(matches!(put, Err(Error::NoSpace)));
    assert!(pool.place(4 << 20).is_ok_and(|vdev| vdev != VdevId(4)));
}

#[tokio::test]
async fn room_on_one_file_system_is_counted_once() {
    let root = tempfile::tempdir().unwrap();
    let urls = directories(root.path(), 12);
    let pool = create(&urls).await;
    let one = raw(&urls[0]).capacity().await.unwrap().unwrap();
    let space = pool.space();
    assert!(space.total <= one.total && space.total > one.total / 2);
    assert!(space.free < one.free);
    assert!(matches!(pool.place(space.free + (1 << 30)), Err(Error::NoSpace)));
    let status = pool.status();
    assert!(status.vdevs.iter().all(|v| v.capacity == Some(space.total / 12)));
}

#[tokio::test]
async fn sync_bothers_only_who_was_written_to() {
    let urls = memory(3);
    let pool = create(&urls).await;
    let syncs = |vdev: usize| {
        let stats = pool.status().vdevs[vdev].stats.clone().unwrap();
        stats.operations.get(&Operation::Sync).map_or(0, |s| s.requests)
    };
    pool.sync().await.unwrap();
    let before = [syncs(0), syncs(1), syncs(2)];
    let record = [data(10, 1, false)];
    write(&pool, segment(VdevId(1), 1, 0), &record, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
    pool.sync().await.unwrap();
    pool.sync().await.unwrap();
    assert_eq!([syncs(0), syncs(1), syncs(2)], [before[0], before[1] + 1, before[2]]);
}

#[tokio::test]
async fn a_segments_key_has_its_grant_for_prefix() {
    let urls = memory(1);
    let pool = create(&urls).await;
    let id = segment(VdevId(0), 3, 2);
    let mut builder = SegmentBuilder::new(id);
    builder.add(owner(0), data(10, 1, false), Compression::Off, ChecksumKind::Xxh3, Txg(1));
    pool.put_segment(builder.finish()).await.unwrap();
    let listed = raw(&urls[0]).list(&grant_prefix(id.grant)).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(pool.list_grant(id.grant).await.unwrap(), [(id, listed[0].size)]);
    assert_eq!(pool.list_grant(segment(VdevId(0), 4, 0).grant).await.unwrap(), []);
}

/// Figures for the log, not a test: `cargo test -p tarn-pool -- --ignored --nocapture figures`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn figures() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let urls = directories(root.path(), 12);
    let pool = create(&urls).await;
    let rate = |what: &str, bytes: u64, since: std::time::Instant| {
        println!("{what}: {:.2} GB/s", bytes as f64 / since.elapsed().as_secs_f64() / 1e9);
    };
    for compression in [Compression::Off, Compression::Lz4] {
        let record = data(128 << 10, 1, compression != Compression::Off);
        let records = vec![record; 32];
        let mut ptrs = Vec::new();
        let start = std::time::Instant::now();
        for n in 0..128u32 {
            let vdev = pool.place(4 << 20).unwrap();
            let id = segment(vdev, 100 + n, u32::from(compression == Compression::Off));
            ptrs.push(write(&pool, id, &records, compression, ChecksumKind::Xxh3).await.unwrap());
        }
        rate(&format!("write {compression:?}, one at a time"), 512 << 20, start);
        for round in 0..2 {
            let start = std::time::Instant::now();
            use futures::StreamExt;
            let mut reads = futures::stream::iter(&ptrs)
                .map(|run| {
                    let (pool, run) = (pool.clone(), run.clone());
                    tokio::spawn(async move { pool.read(&run, Caching::Stream).await.unwrap() })
                })
                .buffered(8);
            while let Some(read) = reads.next().await {
                assert!(read.unwrap().len() == 32);
            }
            rate(&format!("read {compression:?}, round {round}"), 512 << 20, start);
        }
        pool.read(&ptrs[0], Caching::Keep).await.unwrap();
        let start = std::time::Instant::now();
        for n in 0..100_000usize {
            assert!(pool.cached(&ptrs[0][n % 32]).is_some());
        }
        println!("cached: {:.0} ns", start.elapsed().as_nanos() as f64 / 1e5);
    }
}
