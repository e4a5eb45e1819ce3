//! What the tests are made of: hosts, buckets, faults between pool and bucket.

use crate::open::Opened;
use crate::{CreateSpec, HostId, ImportOptions, Pool, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use tarn_base::{
    BlockPtr, ChecksumKind, Compression, DatasetId, Grant, Ino, RecordOwner, SegmentId, Txg, VdevId,
};
use tarn_bucket::fault::FaultBucket;
use tarn_bucket::memory::MemoryBucket;
use tarn_bucket::{Bucket, Location};

static FAULTS: LazyLock<Mutex<HashMap<String, Option<Arc<FaultBucket>>>>> = LazyLock::new(Mutex::default);
static NAMES: AtomicU64 = AtomicU64::new(0);

/// Puts a bucket that fails on purpose where a test asked for one by [`faulty`].
pub(crate) fn interpose(opened: Opened) -> Opened {
    let mut faults = FAULTS.lock();
    let Some(place) = faults.get_mut(opened.url()) else { return opened };
    let faulty = place.get_or_insert_with(|| FaultBucket::new(opened.bucket.clone()));
    Opened { bucket: faulty.clone(), ..opened }
}

/// Buckets of this URL will fail on purpose from their next opening on.
pub(crate) fn make_faulty(url: &str) {
    FAULTS.lock().insert(url.to_string(), None);
}

/// The fault bucket of a URL that was opened.
pub(crate) fn faulty(url: &str) -> Arc<FaultBucket> {
    FAULTS.lock()[url].clone().expect("was opened")
}

pub(crate) fn host(n: u64) -> HostId {
    HostId { id: n, name: format!("host{n}") }
}

pub(crate) fn options(n: u64) -> ImportOptions {
    ImportOptions { host: host(n), force: false, new_name: None, memory: 64 << 20 }
}

pub(crate) fn forced(n: u64) -> ImportOptions {
    ImportOptions { force: true, ..options(n) }
}

/// URLs of fresh buckets in memory.
pub(crate) fn memory(count: usize) -> Vec<String> {
    let first = NAMES.fetch_add(count as u64, Relaxed);
    (0..count as u64).map(|n| format!("mem://pool-test-{}", first + n)).collect()
}

/// Fresh local directories below `root`.
pub(crate) fn directories(root: &Path, count: usize) -> Vec<String> {
    let make = |n| {
        let path = root.join(format!("d{n}"));
        std::fs::create_dir(&path).unwrap();
        path.display().to_string()
    };
    (0..count).map(make).collect()
}

pub(crate) fn spec(urls: &[String], n: u64) -> CreateSpec {
    CreateSpec {
        name: "tank".into(),
        urls: urls.to_vec(),
        // Tests want to hear of errors.
        properties: [("failmode".to_string(), "continue".to_string())].into(),
        root_properties: Default::default(),
        host: host(n),
        force: false,
    }
}

pub(crate) async fn create(urls: &[String]) -> Arc<Pool> {
    Pool::create(spec(urls, 1)).await.unwrap()
}

/// Returns when no vdev is known, or suspected, to fail any more.
pub(crate) async fn well(pool: &Pool) {
    while pool.vdevs().iter().any(|v| v.outages.shuns_writes()) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// The bucket itself, past pool and faults.
pub(crate) fn raw(url: &str) -> Box<dyn Bucket> {
    match Location::parse(url).unwrap() {
        Location::Memory(name) => Box::new(MemoryBucket::named(&name)),
        Location::Local(path) => Box::new(tarn_bucket::local::LocalBucket::open(&path).unwrap()),
        Location::S3(_) | Location::Gcs(_) | Location::Azure(_) => unreachable!(),
    }
}

/// Every object of a bucket.
pub(crate) async fn objects(url: &str) -> Vec<String> {
    raw(url).list("").await.unwrap().into_iter().map(|o| o.key).collect()
}

pub(crate) async fn get(url: &str, key: &str) -> Vec<u8> {
    raw(url).get_tail(key, 1 << 40).await.unwrap().0.to_vec()
}

pub(crate) async fn set(url: &str, key: &str, bytes: Vec<u8>) {
    raw(url).put(key, vec![bytes.into()]).await.unwrap();
}

/// Changes an object behind the pool's back.
pub(crate) async fn tamper(url: &str, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = get(url, key).await;
    change(&mut bytes);
    set(url, key, bytes).await;
}

pub(crate) fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target: PathBuf = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(crate) fn segment(vdev: VdevId, number: u32, seq: u32) -> SegmentId {
    SegmentId { grant: Grant { vdev, dataset: DatasetId(1), number }, seq }
}

pub(crate) fn owner(record: u64) -> RecordOwner {
    RecordOwner { dataset: DatasetId(1), ino: Ino(2), record }
}

/// Writes records as one segment.
pub(crate) async fn write(
    pool: &Pool,
    id: SegmentId,
    records: &[Bytes],
    compression: Compression,
    checksum: ChecksumKind,
) -> Result<Vec<BlockPtr>> {
    let mut builder = crate::SegmentBuilder::new(id);
    let ptrs = records
        .iter()
        .enumerate()
        .map(|(n, data)| builder.add(owner(n as u64), data.clone(), compression, checksum, Txg(7)))
        .collect();
    pool.put_segment(builder.finish()).await?;
    Ok(ptrs)
}

/// Bytes that compress (`text`) or do not.
pub(crate) fn data(len: usize, seed: u64, text: bool) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len).map(|n| if text { (n / 50) as u8 ^ seed as u8 } else { next() as u8 }).collect()
}
