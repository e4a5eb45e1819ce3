//! Cache vdevs: what goes in, what comes out after a restart, and that nothing depends on them.

use super::world::*;
use crate::{CacheState, CacheStatus, Caching, Error, Pool};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::{BlockPtr, Checksum, ChecksumKind, Compression, VdevId};
use tarn_bucket::Operation;

const SIZE: u64 = 64 << 20;
const RECORD: usize = 128 << 10;

fn gets(pool: &Pool) -> u64 {
    let stats = pool.status().vdevs[0].stats.clone().unwrap();
    stats.operations.get(&Operation::Get).map_or(0, |get| get.requests)
}

fn cache(pool: &Pool) -> CacheStatus {
    pool.status().caches[0].clone()
}

/// Returns when the pool's cache is as it should be.
async fn until(pool: &Pool, what: &str, right: impl Fn(&CacheStatus) -> bool) {
    for _ in 0..3000 {
        if right(&cache(pool)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: {:?}", cache(pool));
}

/// A pool whose ARC keeps nothing, with a cache in `dir`.
async fn with_cache(urls: &[String], dir: &Path) -> Arc<Pool> {
    let pool = create(urls).await;
    pool.limit_arc(0);
    pool.start_caches().await;
    pool.add_caches(&[dir.display().to_string()], Some(SIZE), false).await.unwrap();
    assert_eq!(cache(&pool).state, CacheState::Online, "{:?}", cache(&pool));
    pool
}

async fn reopened(pool: Arc<Pool>, urls: &[String]) -> Arc<Pool> {
    pool.release().await.unwrap();
    drop(pool);
    let pool = Pool::import(urls, None, options(1)).await.unwrap();
    pool.limit_arc(0);
    pool.start_caches().await;
    pool
}

async fn records(pool: &Pool, number: u32, count: u64, len: usize) -> (Vec<Bytes>, Vec<BlockPtr>) {
    let records: Vec<_> = (0..count).map(|n| data(len, n + 1000 * u64::from(number), n % 2 == 0)).collect();
    let id = segment(VdevId(0), number, 0);
    let ptrs = write(pool, id, &records, Compression::Lz4, ChecksumKind::Xxh3).await.unwrap();
    (records, ptrs)
}

/// Changes a byte in each page of the cache's files, from the page `first` on.
fn rot(dir: &Path, first: usize) {
    for entry in std::fs::read_dir(dir.join("records")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        bytes.chunks_mut(4096).skip(first).for_each(|page| page[100] ^= 1);
        std::fs::write(&path, bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_gets_brought_is_found_after_a_restart_without_any() {
    let (urls, dir) = (memory(1), tempfile::tempdir().unwrap());
    let pool = with_cache(&urls, dir.path()).await;
    let (records, ptrs) = records(&pool, 1, 32, RECORD).await;
    assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
    until(&pool, "all written", |c| c.writes == 32).await;
    let stored: u64 = ptrs.iter().map(|ptr| u64::from(ptr.stored)).sum();
    assert_eq!(cache(&pool).write_bytes, stored);

    for _ in 0..2 {
        let before = gets(&pool);
        assert!(pool.read(&ptrs, Caching::Stream).await.unwrap() == records);
        let single = pool.read(&[ptrs[7], ptrs[3]], Caching::Together).await.unwrap();
        assert_eq!(single, [records[7].clone(), records[3].clone()]);
        assert_eq!(gets(&pool) - before, 0);
    }
    let pool = reopened(pool, &urls).await;
    assert_eq!(cache(&pool).state, CacheState::Online);
    let before = gets(&pool);
    assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
    assert_eq!(gets(&pool) - before, 0);
    assert_eq!((cache(&pool).hits, cache(&pool).read_bytes, cache(&pool).writes), (32, stored, 0));
    // A scrub is of the buckets.
    pool.read(&ptrs, Caching::Bypass).await.unwrap();
    assert!(gets(&pool) > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_never_more_than_one_get_where_there_was_one() {
    let (urls, dir) = (memory(1), tempfile::tempdir().unwrap());
    let pool = with_cache(&urls, dir.path()).await;
    let (records, ptrs) = records(&pool, 1, 32, RECORD).await;
    pool.read(&ptrs[..8], Caching::Keep).await.unwrap();
    pool.read(&ptrs[16..24], Caching::Keep).await.unwrap();
    until(&pool, "two parts written", |c| c.writes == 16).await;
    pool.set_property("secondarycache", "none").await.unwrap();
    for (part, wanted) in [(0..8, 0), (0..12, 1), (4..32, 1), (0..32, 1), (17..22, 0), (20..32, 1)] {
        let before = gets(&pool);
        assert!(pool.read(&ptrs[part.clone()], Caching::Keep).await.unwrap() == records[part.clone()]);
        assert_eq!(gets(&pool) - before, wanted, "{part:?}");
    }
    assert_eq!(cache(&pool).writes, 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secondarycache_says_what_goes_in() {
    let (urls, dir) = (memory(1), tempfile::tempdir().unwrap());
    let pool = with_cache(&urls, dir.path()).await;
    let mut written = 0;
    let cases = [
        ("nostreams", Caching::Stream, false),
        ("nostreams", Caching::Keep, true),
        ("none", Caching::Keep, false),
        ("all", Caching::Stream, true),
        ("all", Caching::Keep, true),
    ];
    for (n, (value, caching, goes_in)) in cases.into_iter().enumerate() {
        pool.set_property("secondarycache", value).await.unwrap();
        let (_, ptrs) = records(&pool, n as u32, 4, RECORD).await;
        pool.read(&ptrs, caching).await.unwrap();
        // What is written after it shows that it was not.
        pool.set_property("secondarycache", "all").await.unwrap();
        let (_, others) = records(&pool, 100 + n as u32, 1, RECORD).await;
        pool.read(&others, Caching::Keep).await.unwrap();
        written += if goes_in { 5 } else { 1 };
        until(&pool, value, |c| c.writes >= written).await;
        assert_eq!(cache(&pool).writes, written, "{value}");
    }
    assert!(pool.set_property("secondarycache", "metadata").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_neighbours_go_in_together() {
    let (urls, dir) = (memory(1), tempfile::tempdir().unwrap());
    let pool = with_cache(&urls, dir.path()).await;
    let (records, ptrs) = records(&pool, 1, 20, 5000).await;
    for ptr in &ptrs[..2] {
        pool.read(&[*ptr], Caching::Together).await.unwrap();
    }
    until(&pool, "all written", |c| c.writes >= 20).await;
    let before = gets(&pool);
    for (ptr, record) in ptrs.iter().zip(&records) {
        assert_eq!(pool.read(&[*ptr], Caching::Together).await.unwrap()[0], *record);
    }
    assert_eq!(gets(&pool), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bit_rot_is_noticed_and_read_around() {
    // With and without the engine's index.
    for first in [1, 0] {
        let (urls, dir) = (memory(1), tempfile::tempdir().unwrap());
        let pool = with_cache(&urls, dir.path()).await;
        let (records, ptrs) = records(&pool, 1, 16, RECORD).await;
        pool.read(&ptrs, Caching::Keep).await.unwrap();
        until(&pool, "all written", |c| c.writes == 16).await;
        pool.release().await.unwrap();
        rot(dir.path(), first);
        let pool = Pool::import(&urls, None, options(1)).await.unwrap();
        pool.limit_arc(0);
        pool.start_caches().await;
        let before = gets(&pool);
        assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
        assert!(gets(&pool) > before);
        assert_eq!((cache(&pool).hits, cache(&pool).checksum_errors > 0), (0, first == 1));
        // What was wrong is replaced.
        until(&pool, "written again", |c| c.writes == 16).await;
        let before = gets(&pool);
        assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
        assert_eq!(gets(&pool), before);
        pool.clear_errors();
        assert_eq!(cache(&pool).checksum_errors, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_not_what_its_pointer_says_is_never_given() {
    let (urls, dir) = (memory(1), tempfile::tempdir().unwrap());
    let pool = with_cache(&urls, dir.path()).await;
    let (records, ptrs) = records(&pool, 1, 4, RECORD).await;
    pool.read(&ptrs, Caching::Keep).await.unwrap();
    until(&pool, "all written", |c| c.writes == 4).await;
    let other = BlockPtr { checksum: Checksum::Xxh3(7), ..ptrs[1] };
    let before = gets(&pool);
    assert!(matches!(pool.read(&[other], Caching::Keep).await, Err(Error::Damaged(_))));
    assert!(gets(&pool) > before);
    assert_eq!((cache(&pool).hits, cache(&pool).checksum_errors), (0, 1));
    assert_eq!(pool.read(&ptrs, Caching::Keep).await.unwrap(), records);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_vanishes_takes_nothing_with_it() {
    let (urls, root) = (memory(1), tempfile::tempdir().unwrap());
    let dir = root.path().join("nvme");
    std::fs::create_dir(&dir).unwrap();
    let pool = with_cache(&urls, &dir).await;
    let (records, ptrs) = records(&pool, 1, 16, RECORD).await;
    pool.read(&ptrs, Caching::Keep).await.unwrap();
    until(&pool, "all written", |c| c.writes == 16).await;
    std::fs::rename(&dir, root.path().join("away")).unwrap();
    assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
    until(&pool, "noticed", |c| c.state == CacheState::Unavail && c.problem.is_some()).await;
    let before = gets(&pool);
    assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
    assert!(gets(&pool) > before);

    // Not there from the beginning, and an empty directory in its place: nothing is written into that.
    let pool = reopened(pool, &urls).await;
    assert_eq!(cache(&pool).state, CacheState::Unavail);
    assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
    std::fs::create_dir(&dir).unwrap();
    let pool = reopened(pool, &urls).await;
    assert_eq!(cache(&pool).state, CacheState::Unavail);
    assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);

    // And back.
    std::fs::remove_dir(&dir).unwrap();
    std::fs::rename(root.path().join("away"), &dir).unwrap();
    let pool = reopened(pool, &urls).await;
    let before = gets(&pool);
    assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
    assert_eq!((gets(&pool) - before, cache(&pool).hits), (0, 16));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_size_is_kept_and_what_goes_is_the_oldest() {
    let (urls, dir) = (memory(1), tempfile::tempdir().unwrap());
    let pool = with_cache(&urls, dir.path()).await;
    let mut all = Vec::new();
    for number in 0..100 {
        let records = vec![data(1 << 20, number, false)];
        let id = segment(VdevId(0), number as u32, 0);
        let ptrs = write(&pool, id, &records, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
        pool.read(&ptrs, Caching::Keep).await.unwrap();
        until(&pool, "written", |c| c.writes > number).await;
        all.push((records, ptrs));
    }
    let files = std::fs::read_dir(dir.path().join("records")).unwrap();
    let length: u64 = files.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(length <= SIZE, "{length} bytes");
    until(&pool, "its use is seen", |c| c.used > SIZE / 2).await;
    assert!(cache(&pool).used <= SIZE + (1 << 20));
    pool.set_property("secondarycache", "none").await.unwrap();
    let mut hit = Vec::new();
    for (records, ptrs) in &all {
        let before = gets(&pool);
        assert!(pool.read(ptrs, Caching::Keep).await.unwrap() == *records);
        hit.push(gets(&pool) == before);
    }
    assert!(!hit[0] && hit[99], "{hit:?}");
    assert!(hit.iter().filter(|hit| **hit).count() > 20, "{hit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_too_fast_is_dropped() {
    let (urls, dir) = (memory(1), tempfile::tempdir().unwrap());
    let pool = with_cache(&urls, dir.path()).await;
    pool.set_property("l2arc_write_max", "1M").await.unwrap();
    let mut all = Vec::new();
    for number in 0..16 {
        let records: Vec<_> = (0..32).map(|n| data(RECORD, n + 100 * number, false)).collect();
        let id = segment(VdevId(0), number as u32, 0);
        all.extend(write(&pool, id, &records, Compression::Off, ChecksumKind::Xxh3).await.unwrap());
    }
    let read: u64 = all.iter().map(|ptr| u64::from(ptr.stored)).sum();
    for part in all.chunks(8) {
        pool.read(part, Caching::Keep).await.unwrap();
    }
    let now = cache(&pool);
    assert!(now.dropped_bytes > read / 4, "{now:?} of {read}");
    assert!(now.write_bytes + now.dropped_bytes <= read, "{now:?} of {read}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caches_come_and_go_and_are_one_hosts_own() {
    let (urls, root) = (memory(1), tempfile::tempdir().unwrap());
    let dirs = directories(root.path(), 3);
    let pool = with_cache(&urls, Path::new(&dirs[0])).await;
    let (records, ptrs) = records(&pool, 1, 16, RECORD).await;
    let refused = async |dir: &str, size| pool.add_caches(&[dir.to_string()], size, false).await.unwrap_err();
    for (dir, size, word) in [
        (dirs[0].as_str(), Some(SIZE), "already"),
        (dirs[1].as_str(), Some(1 << 20), "at least"),
        (dirs[1].as_str(), Some(1 << 60), "free"),
        ("/nowhere/at/all", Some(SIZE), "/nowhere"),
    ] {
        let error = refused(dir, size).await.to_string();
        assert!(error.contains(word) && !error.contains('\n'), "{error}");
    }
    // The second is refused, so the first is not taken either.
    std::fs::write(root.path().join("d2/file"), "x").unwrap();
    assert!(pool.add_caches(&dirs[1..], Some(SIZE), false).await.is_err());
    assert_eq!(std::fs::read_dir(&dirs[1]).unwrap().count(), 0);
    pool.add_caches(&dirs[1..2], Some(SIZE), false).await.unwrap();
    pool.read(&ptrs, Caching::Keep).await.unwrap();
    let written = |pool: &Pool| pool.status().caches.iter().map(|cache| cache.writes).sum::<u64>();
    for _ in 0..1000 {
        tokio::time::sleep(Duration::from_millis(if written(&pool) < 16 { 10 } else { 0 })).await;
    }
    assert_eq!(written(&pool), 16);

    // Whichever it is in, the other does not matter.
    pool.remove_caches(&dirs[..1]).await.unwrap();
    assert_eq!(pool.status().caches.len(), 1);
    assert_eq!(std::fs::read_dir(&dirs[0]).unwrap().count(), 0);
    assert!(pool.read(&ptrs, Caching::Keep).await.unwrap() == records);
    assert!(pool.remove_caches(&dirs[..1]).await.unwrap_err().to_string().contains("no cache"));
    let bucket = pool.config().vdevs[0].url.clone();
    assert!(pool.remove_caches(&[bucket]).await.unwrap_err().to_string().contains("bucket"));
    assert!(
        !String::from_utf8(pool.invitation(tarn_base::DatasetId(1), &Default::default()).unwrap())
            .unwrap()
            .contains(&dirs[1])
    );

    pool.export().await.unwrap();
    let other = Pool::import(&urls, None, options(2)).await.unwrap();
    other.start_caches().await;
    assert!(other.status().caches.is_empty());
    assert!(other.read(&ptrs, Caching::Keep).await.unwrap() == records);
    assert_eq!(other.config().caches.len(), 1);
    other.export().await.unwrap();

    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    pool.start_caches().await;
    assert_eq!(cache(&pool).state, CacheState::Online);
    pool.destroy().await.unwrap();
    assert_eq!(std::fs::read_dir(&dirs[1]).unwrap().count(), 0);
}
