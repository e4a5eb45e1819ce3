//! What every bucket does, shown by one suite for all of them.

mod common;

use bytes::Bytes;
use futures::{StreamExt, future, stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tarn_bucket::fault::FaultBucket;
use tarn_bucket::local::LocalBucket;
use tarn_bucket::memory::MemoryBucket;
use tarn_bucket::raw;
use tarn_bucket::{Bucket, Error, Guarded, Location, OpenOptions, open};

type Shared = Arc<dyn Bucket>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    suite(Arc::new(MemoryBucket::named("conformance"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_directory() {
    let dir = tempfile::tempdir().unwrap();
    suite(Arc::new(LocalBucket::open(dir.path()).unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guarded_and_without_faults() {
    let dir = tempfile::tempdir().unwrap();
    let local = Arc::new(LocalBucket::open(dir.path()).unwrap());
    suite(Guarded::new(FaultBucket::new(local), &OpenOptions::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3() {
    let Some(server) = common::s3::Server::start() else { return };
    let options = server.options();
    let signed = format!("{}&unsigned_payload=false", server.bucket("signed", ""));
    let Ok(Location::S3(s3)) = Location::parse(&signed) else { panic!() };
    suite(Arc::new(tarn_bucket::s3::open(&s3, &options.environment).unwrap())).await;
    let guarded = open(&server.bucket("guarded", "/a prefix/of two"), &options).unwrap();
    suite(guarded.clone()).await;
    assert!(guarded.stats().operations.values().all(|operation| operation.failures == 0));
    guarded.put("x/y", text("z")).await.unwrap();
    assert!(server.dir("guarded").join("a prefix/of two/x/y").is_file());
    let unsigned = format!("{}&unsigned_payload=true", server.bucket("unsigned", "/p"));
    suite(open(&unsigned, &options).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moto() {
    let Some(server) = common::s3::Moto::start() else { return };
    let guarded = open(&server.bucket("whole", "/a prefix/of two").await, &server.options()).unwrap();
    suite_listing(guarded.clone(), FEW).await;
    assert!(guarded.stats().operations.values().all(|operation| operation.failures == 0));
    an_empty_object(&(open(&server.bucket("root", "").await, &server.options()).unwrap() as Shared)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gcs() {
    let Some(server) = common::gcs::Server::start() else { return };
    let guarded = open(&server.bucket("whole", "/a prefix/of two"), &server.options()).unwrap();
    suite_listing(guarded.clone(), FEW).await;
    assert!(guarded.stats().operations.values().all(|operation| operation.failures == 0));
    an_empty_object(&(open(&server.bucket("root", ""), &server.options()).unwrap() as Shared)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azure() {
    let Some(server) = common::azurite::Server::start() else { return };
    let guarded = open(&server.container("whole", "/a prefix/of two").await, &server.options()).unwrap();
    suite_listing(guarded.clone(), FEW).await;
    assert!(guarded.stats().operations.values().all(|operation| operation.failures == 0));
    an_empty_object(&(open(&server.container("root", "").await, &server.options()).unwrap() as Shared)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_raw_limit_reads_what_it_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let buckets: [Shared; 2] =
        [Arc::new(MemoryBucket::named("raw")), Arc::new(LocalBucket::open(dir.path()).unwrap())];
    let objects = raw::objects(&buckets, "raw/", 21);
    assert!(raw::parallel_put(&objects, 70_000, 4).await.unwrap() > 0.0);
    assert!(raw::parallel_get(&objects, 70_000, 4).await.unwrap() > 0.0);
    assert!(raw::parallel_get(&objects, 70_001, 4).await.is_err());
    assert_eq!(
        (buckets[0].list("raw").await.unwrap().len(), buckets[1].list("raw").await.unwrap().len()),
        (11, 10)
    );
}

async fn suite(bucket: Shared) {
    suite_listing(bucket, 10_000).await;
}

/// Objects that are listed where the server is an emulator, which looks at all that it has for each request: some pages.
const FEW: usize = 1_500;

async fn suite_listing(bucket: Shared, listed: usize) {
    put_and_read(&bucket).await;
    an_empty_object(&bucket).await;
    what_is_not_there(&bucket).await;
    odd_keys(&bucket).await;
    readers_see_the_old_or_the_new(&bucket).await;
    one_of_sixteen_creators_wins(&bucket).await;
    a_large_object(&bucket).await;
    deletes_in_batches(&bucket).await;
    a_long_listing(&bucket, listed).await;
    bucket.sync().await.unwrap();
    if let Some(capacity) = bucket.capacity().await.unwrap() {
        assert!(capacity.free <= capacity.total && capacity.total > 0);
    }
    let left = bucket.list("").await.unwrap();
    assert_eq!(left, vec![]);
}

/// Bytes that differ at every offset, cut into pieces of uneven lengths, one of them empty.
fn pieces(len: usize, seed: u8) -> (Bytes, Vec<Bytes>) {
    let whole: Bytes = (0..len).map(|at| (at % 251) as u8 ^ (at >> 8) as u8 ^ seed).collect();
    let (mut rest, mut cut) = (whole.clone(), vec![Bytes::new()]);
    while !rest.is_empty() {
        let len = (rest.len() / 3 + 1).min(rest.len());
        cut.push(rest.split_to(len));
    }
    (whole, cut)
}

fn text(text: &'static str) -> Vec<Bytes> {
    vec![Bytes::from_static(text.as_bytes())]
}

async fn delete(bucket: &Shared, keys: &[&str]) {
    bucket.delete(&keys.iter().map(|key| key.to_string()).collect::<Vec<_>>()).await.unwrap();
}

async fn put_and_read(bucket: &Shared) {
    let (whole, body) = pieces(300_000, 0);
    bucket.put("dir/object", body).await.unwrap();
    let get = async |range| bucket.get("dir/object", range).await.unwrap();
    assert_eq!(get(0..300_000).await, whole);
    assert_eq!(get(7..100_007).await, whole[7..100_007]);
    assert_eq!(get(299_999..300_000).await, whole[299_999..]);
    assert_eq!(get(299_000..400_000).await, whole[299_000..]);
    assert_eq!(get(0..u64::from(u32::MAX)).await, whole);
    assert_eq!(get(300_000..300_001).await, "");
    assert_eq!(get(1 << 40..1 << 41).await, "");
    assert_eq!(get(5..5).await, "");
    for len in [10, 20_000, 299_000, 300_000] {
        assert_eq!(bucket.get_start("dir/object", len).await.unwrap(), whole[..len as usize]);
    }
    assert_eq!(bucket.get_start("dir/object", 1 << 30).await.unwrap(), whole);
    let tail = async |len| bucket.get_tail("dir/object", len).await.unwrap();
    assert_eq!(tail(10).await, (whole.slice(299_990..), 300_000));
    assert_eq!(tail(300_000).await, (whole.clone(), 300_000));
    assert_eq!(tail(1 << 30).await, (whole.clone(), 300_000));
    assert_eq!(tail(0).await, (Bytes::new(), 300_000));
    let head = bucket.head("dir/object").await.unwrap();
    assert_eq!((head.key.as_str(), head.size), ("dir/object", 300_000));
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
    assert!((now - head.modified_ms).abs() < 600_000, "{}", head.modified_ms);
    bucket.put("dir/object", text("shorter")).await.unwrap();
    assert_eq!(bucket.get("dir/object", 0..100).await.unwrap(), "shorter");
    assert_eq!(bucket.head("dir/object").await.unwrap().size, 7);
    delete(bucket, &["dir/object"]).await;
}

async fn an_empty_object(bucket: &Shared) {
    bucket.put("empty", vec![]).await.unwrap();
    assert_eq!(bucket.get("empty", 0..10).await.unwrap(), "");
    assert_eq!(bucket.get_start("empty", 10).await.unwrap(), "");
    assert_eq!(bucket.get_tail("empty", 10).await.unwrap(), (Bytes::new(), 0));
    assert_eq!(bucket.head("empty").await.unwrap().size, 0);
    assert!(matches!(bucket.create("empty", vec![]).await, Err(Error::Exists(_))));
    delete(bucket, &["empty"]).await;
}

async fn what_is_not_there(bucket: &Shared) {
    for key in ["none", "none/at/all"] {
        for error in [
            bucket.get(key, 0..1).await.err(),
            bucket.get_start(key, 1).await.err(),
            bucket.get_tail(key, 1).await.err(),
            bucket.get_tail(key, 0).await.err(),
            bucket.head(key).await.err(),
        ] {
            assert!(matches!(&error, Some(Error::NotFound(text)) if text.contains(key)), "{error:?}");
        }
        delete(bucket, &[key]).await;
        assert_eq!(bucket.list(key).await.unwrap(), vec![]);
    }
    // A folder is no object.
    bucket.put("folder/x", text("x")).await.unwrap();
    assert!(matches!(bucket.get("folder", 0..1).await, Err(Error::NotFound(_))));
    assert!(matches!(bucket.head("folder").await, Err(Error::NotFound(_))));
    assert!(matches!(bucket.get("folder/x/y", 0..1).await, Err(Error::NotFound(_))));
    delete(bucket, &["folder", "folder/x/y"]).await;
    assert_eq!(bucket.get("folder/x", 0..1).await.unwrap(), "x");
    delete(bucket, &["folder/x"]).await;
    delete(bucket, &[]).await;
}

async fn odd_keys(bucket: &Shared) {
    let long = "long/".to_string() + &"n".repeat(200);
    let keys = [
        "sp ace",
        "per%2Fcent",
        "plus+&=?#",
        "ünïcödé/日本",
        "quote'\"<>",
        "...",
        "a.b/..c",
        "~!@$^*(),;:[]{}|",
        &long,
    ];
    for key in keys {
        bucket.put(key, vec![Bytes::from(key.to_string())]).await.unwrap_or_else(|e| panic!("{key}: {e}"));
    }
    let listed: Vec<_> = bucket.list("").await.unwrap().into_iter().map(|object| object.key).collect();
    let mut sorted = keys.map(str::to_string).to_vec();
    sorted.sort();
    assert_eq!(listed, sorted);
    for key in keys {
        assert_eq!(bucket.get(key, 0..1000).await.unwrap(), key, "{key}");
        assert_eq!(bucket.head(key).await.unwrap().size, key.len() as u64);
    }
    delete(bucket, &keys).await;
    for bad in ["", "/x", "x/", "a//b", "../x", "a/./b", "nul\0", "new\nline"] {
        assert!(matches!(bucket.put(bad, text("x")).await, Err(Error::Config(_))), "{bad:?}");
        assert!(matches!(bucket.get(bad, 0..1).await, Err(Error::Config(_))), "{bad:?}");
        assert!(matches!(bucket.delete(&[bad.to_string()]).await, Err(Error::Config(_))), "{bad:?}");
    }
}

async fn readers_see_the_old_or_the_new(bucket: &Shared) {
    let versions: Vec<_> = (0..2u8).map(|seed| pieces(200_000 + seed as usize, seed)).collect();
    bucket.put("changing", versions[0].1.clone()).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers = (0..3).map(|_| {
        let (bucket, done) = (bucket.clone(), done.clone());
        let whole = [versions[0].0.clone(), versions[1].0.clone()];
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let found = bucket.get("changing", 0..1 << 20).await.unwrap();
                assert!(whole.contains(&found), "{} bytes that were never written", found.len());
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    for round in 0..40 {
        bucket.put("changing", versions[round % 2].1.clone()).await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    delete(bucket, &["changing"]).await;
}

async fn one_of_sixteen_creators_wins(bucket: &Shared) {
    for round in 0..4 {
        let key = format!("race/{round}/lock");
        let creators = (0..16).map(|creator| {
            let (bucket, key) = (bucket.clone(), key.clone());
            tokio::spawn(
                async move { bucket.create(&key, vec![Bytes::from(format!("creator {creator}"))]).await },
            )
        });
        let mut winner = None;
        for (creator, result) in future::join_all(creators).await.into_iter().enumerate() {
            match result.unwrap() {
                Ok(()) => assert!(winner.replace(creator).is_none(), "two creators won"),
                Err(Error::Exists(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
        let winner = format!("creator {}", winner.expect("no creator won"));
        assert_eq!(bucket.get(&key, 0..100).await.unwrap(), winner);
        assert!(matches!(bucket.create(&key, text("late")).await, Err(Error::Exists(_))));
        delete(bucket, &[&key]).await;
        bucket.create(&key, text("again")).await.unwrap();
        delete(bucket, &[&key]).await;
    }
}

async fn a_large_object(bucket: &Shared) {
    let (whole, body) = pieces(64 << 20, 9);
    bucket.put("large", body).await.unwrap();
    assert!(bucket.get("large", 0..64 << 20).await.unwrap() == whole);
    let across = (8 << 20) - 5..(8 << 20) + 5;
    assert_eq!(
        bucket.get("large", across.clone()).await.unwrap(),
        whole[across.start as usize..across.end as usize]
    );
    assert_eq!(bucket.head("large").await.unwrap().size, 64 << 20);
    delete(bucket, &["large"]).await;
}

async fn put_all(bucket: &Shared, keys: &[String]) {
    let put = |key: &String| {
        let (bucket, key) = (bucket.clone(), key.clone());
        async move { bucket.put(&key, text("x")).await.unwrap() }
    };
    stream::iter(keys.iter().map(put)).buffer_unordered(16).collect::<()>().await;
}

async fn deletes_in_batches(bucket: &Shared) {
    let keys: Vec<_> = (0..2500).map(|n| format!("batch/{}/{n}", n % 7)).collect();
    let there: Vec<_> = keys.iter().step_by(2).cloned().collect();
    put_all(bucket, &there).await;
    bucket.put("batch-not", text("x")).await.unwrap();
    bucket.delete(&keys).await.unwrap();
    assert_eq!(bucket.list("batch").await.unwrap(), vec![]);
    assert!(bucket.head("batch-not").await.is_ok());
    delete(bucket, &["batch-not"]).await;
}

async fn a_long_listing(bucket: &Shared, listed: usize) {
    let mut keys: Vec<_> = (0..listed).map(|n| format!("list/{:02x}/{n}", n % 256)).collect();
    // Siblings whose names sort around the slash.
    keys.extend(["list-more/x", "list.x", "list0/x", "other/list/x"].map(str::to_string));
    put_all(bucket, &keys).await;
    keys.sort();
    let list = async |prefix| bucket.list(prefix).await.unwrap();
    let names = |found: Vec<tarn_bucket::ObjectInfo>| found.into_iter().map(|o| o.key).collect::<Vec<_>>();
    assert!(names(list("").await) == keys, "the whole listing differs");
    let below: Vec<_> = keys.iter().filter(|key| key.starts_with("list/")).cloned().collect();
    assert!(names(list("list").await) == below && names(list("list/").await) == below);
    let one: Vec<_> = keys.iter().filter(|key| key.starts_with("list/0a/")).cloned().collect();
    assert_eq!(names(list("list/0a").await), one);
    assert_eq!(list("list/0").await, vec![]);
    assert!(list("list/0a").await.iter().all(|object| object.size == 1));
    bucket.delete(&keys).await.unwrap();
}
