use super::*;
use crate::tests::world::*;
use crate::{Pool, segment};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attribute, Error as OsError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use std::borrow::Cow;
use std::sync::Arc;
use tarn_bucket::{Operation, fault::Fault};

type Store = Arc<dyn ObjectStore>;

async fn world(count: usize) -> (Vec<String>, Arc<Pool>, Store) {
    let urls = memory(count);
    urls.iter().for_each(|url| make_faulty(url));
    let pool = create(&urls).await;
    let store = pool.metadata_store(&pool.config().datasets[0]).unwrap();
    (urls, pool, store)
}

/// The same pool as another process of its host sees it, with nothing remembered.
async fn again(pool: Arc<Pool>, urls: &[String]) -> (Arc<Pool>, Store) {
    pool.release().await.unwrap();
    drop(pool);
    let pool = Pool::import(urls, None, options(1)).await.unwrap();
    let store = pool.metadata_store(&pool.config().datasets[0]).unwrap();
    (pool, store)
}

/// URLs of the primary and the second of a path.
fn holders(pool: &Pool, path: &str) -> Vec<String> {
    let config = pool.config();
    let order = placement(path, &config.datasets[0].metadata_vdevs);
    order.into_iter().take(2).map(|i| config.vdevs[i].url.clone()).collect()
}

fn key(path: &str) -> String {
    format!("m/00000001/{path}")
}

async fn has(url: &str, path: &str) -> bool {
    objects(url).await.contains(&key(path))
}

async fn read(store: &Store, path: &str) -> Result<Bytes, OsError> {
    store.get(&Path::from(path)).await?.bytes().await
}

async fn create_if_absent(store: &Store, path: &str, body: &str, id: &str) -> Result<(), OsError> {
    let mut put = PutOptions::from(PutMode::Create);
    if !id.is_empty() {
        put.attributes.insert(Attribute::Metadata(Cow::Borrowed("slatedbputid")), id.to_string().into());
    }
    store.put_opts(&Path::from(path), PutPayload::from(body.to_string()), put).await.map(drop)
}

#[tokio::test]
async fn objects_of_every_size_come_back_whole_and_in_parts() {
    let (urls, pool, store) = world(3).await;
    for (n, len) in [0usize, 1, 65_536, 65_537, 140_000, 1 << 20, (3 << 20) + 17].into_iter().enumerate() {
        let path = Path::from(format!("compacted/{n}.sst"));
        let body = data(len, n as u64, false);
        store.put(&path, body.clone().into()).await.unwrap();
        for round in 0..2 {
            let head = store.head(&path).await.unwrap();
            assert_eq!(head.size, len as u64);
            assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == body, "round {round}");
            for range in [0..1, 65_530..65_540, 100_000..100_001, len.saturating_sub(100)..len] {
                if range.end <= len && range.start < range.end {
                    let part = store.get_range(&path, range.start as u64..range.end as u64).await.unwrap();
                    assert_eq!(part, body.slice(range));
                }
            }
        }
        let url = &holders(&pool, path.as_ref());
        assert!(has(&url[0], path.as_ref()).await && has(&url[1], path.as_ref()).await);
    }
    let listed: Vec<_> = store.list(Some(&Path::from("compacted"))).try_collect().await.unwrap();
    assert_eq!(listed.len(), 7);
    assert_eq!(listed[5].size, 1 << 20);
    assert!(store.list(Some(&Path::from("comp"))).next().await.is_none());
    store.put(&Path::from("top"), "x".into()).await.unwrap();
    let level = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(level.common_prefixes, [Path::from("compacted")]);
    assert_eq!(level.objects.len(), 1);

    // Cold, after another process opened the pool.
    let (pool, store) = again(pool, &urls).await;
    let body = data((3 << 20) + 17, 6, false);
    let path = Path::from("compacted/6.sst");
    let suffix = store.get_range(&path, (3 << 20) - 1..(3 << 20) + 17).await.unwrap();
    assert_eq!(suffix, body.slice((3 << 20) - 1..));
    pool.measure_metadata(&pool.config().datasets[0]).await.unwrap();
    let expected: usize =
        2 * [0usize, 1, 65_536, 65_537, 140_000, 1 << 20, (3 << 20) + 17, 1].iter().sum::<usize>();
    let allocated = pool.status().allocated as usize;
    assert!(allocated > expected && allocated < expected + 16 * 512, "{allocated} {expected}");

    store.copy(&path, &Path::from("copy")).await.unwrap();
    store.rename(&Path::from("copy"), &Path::from("renamed")).await.unwrap();
    assert!(read(&store, "renamed").await.unwrap() == body);
    assert!(matches!(read(&store, "copy").await, Err(OsError::NotFound { .. })));
    let all: Vec<_> = store.list(None).map_ok(|m| m.location).try_collect().await.unwrap();
    let gone = store.delete_stream(futures::stream::iter(all.into_iter().map(Ok)).boxed());
    assert_eq!(gone.try_collect::<Vec<_>>().await.unwrap().len(), 9);
    for url in &urls {
        assert!(objects(url).await.iter().all(|key| !key.starts_with("m/")));
    }
    assert_eq!(pool.status().allocated, 0);
}

#[tokio::test]
async fn an_upload_in_parts_is_one_object() {
    let (_, _, store) = world(2).await;
    let path = Path::from("big.sst");
    let mut upload = store.put_multipart(&path).await.unwrap();
    let parts = [data(6 << 20, 1, false), data(5 << 20, 2, false)];
    for part in &parts {
        upload.put_part(part.clone().into()).await.unwrap();
    }
    assert!(read(&store, "big.sst").await.is_err());
    upload.complete().await.unwrap();
    assert!(read(&store, "big.sst").await.unwrap() == parts.concat());
}

/// Milliseconds that a read takes, by the test's own clock.
async fn timed_read(store: &Store, path: &str) -> u128 {
    let start = tokio::time::Instant::now();
    assert_eq!(read(store, path).await.unwrap(), "x");
    start.elapsed().as_millis()
}

#[tokio::test(start_paused = true)]
async fn what_is_written_once_is_read_from_the_second_when_the_primary_hangs() {
    let (_, pool, store) = world(3).await;
    for path in ["wal/1.sst", "manifest/1"] {
        store.put(&Path::from(path), "x".into()).await.unwrap();
    }
    let primary = faulty(&holders(&pool, "wal/1.sst")[0]);
    primary.script(Operation::Get, "", 2, Fault::Hang);
    // The first waits a little; from then on nobody does, until the bucket has answered something.
    let waits = [timed_read(&store, "wal/1.sst").await, timed_read(&store, "wal/1.sst").await];
    assert!((1000..1100).contains(&waits[0]) && waits[1] < 100, "{waits:?}");
    assert_eq!(primary.happened()["hang"], 2);
    timed_read(&store, "wal/1.sst").await;
    primary.script(Operation::Get, "", 1, Fault::Delay(std::time::Duration::from_millis(700)));
    assert!((700..800).contains(&timed_read(&store, "wal/1.sst").await));
    // Of what is replaced, the second may be older than what the primary was told.
    let primary = faulty(&holders(&pool, "manifest/1")[0]);
    primary.calm();
    primary.script(Operation::Get, "", 1, Fault::Delay(std::time::Duration::from_secs(9)));
    assert!(timed_read(&store, "manifest/1").await >= 9000);
}

#[tokio::test]
async fn of_two_who_create_one_path_one_succeeds() {
    let (_, pool, store) = world(2).await;
    create_if_absent(&store, "manifest/1", "first", "id-1").await.unwrap();
    assert!(matches!(
        create_if_absent(&store, "manifest/1", "other", "id-2").await,
        Err(OsError::AlreadyExists { .. })
    ));
    // A retry of the first is known by its mark.
    create_if_absent(&store, "manifest/1", "first", "id-1").await.unwrap();
    assert_eq!(read(&store, "manifest/1").await.unwrap(), "first");
    let found = store.get(&Path::from("manifest/1")).await.unwrap();
    let mark = found.attributes.get(&Attribute::Metadata(Cow::Borrowed("slatedbputid"))).unwrap();
    assert_eq!(mark.as_ref(), "id-1");

    for round in 0..20 {
        let path = format!("wal/{round}");
        let racers = (0..4).map(|n| {
            let (store, path) = (store.clone(), path.clone());
            tokio::spawn(async move {
                create_if_absent(&store, &path, &format!("{n}"), &format!("{path}-{n}")).await
            })
        });
        let results = futures::future::join_all(racers).await;
        let won: Vec<_> = (0..4).filter(|&n| results[n].as_ref().unwrap().is_ok()).collect();
        assert_eq!(won.len(), 1);
        let body = read(&store, &path).await.unwrap();
        assert_eq!(body, format!("{}", won[0]));
        let urls = holders(&pool, &path);
        assert_eq!(get(&urls[0], &key(&path)).await, get(&urls[1], &key(&path)).await);
    }
}

#[tokio::test]
async fn a_lost_reply_is_success_at_either_step() {
    let (_, pool, store) = world(4).await;
    for step in 0..2 {
        let path = format!("wal/{step}");
        let url = holders(&pool, &path)[step].clone();
        faulty(&url).script(Operation::Create, "m/", 1, Fault::ReplyLost);
        assert!(create_if_absent(&store, &path, "mine", "id").await.is_err());
        // SlateDB retries with the same mark.
        create_if_absent(&store, &path, "mine", "id").await.unwrap();
        assert!(matches!(
            create_if_absent(&store, &path, "x", "other").await,
            Err(OsError::AlreadyExists { .. })
        ));
        for url in holders(&pool, &path) {
            assert!(has(&url, &path).await);
        }
    }
}

#[tokio::test]
async fn a_create_is_refused_while_a_holder_is_unreachable() {
    let (_, pool, store) = world(4).await;
    for n in 0..2 {
        let path = format!("wal/{n}");
        let urls = holders(&pool, &path);
        faulty(&urls[n]).set_outage(true);
        assert!(matches!(create_if_absent(&store, &path, "a", "a").await, Err(OsError::Generic { .. })));
        assert!(create_if_absent(&store, &path, "b", "b").await.is_err());
        assert_eq!(read(&store, &path).await.unwrap(), "a");
        faulty(&urls[n]).set_outage(false);
        well(&pool).await;
        // The first was there: nobody else may have the path.
        let other = create_if_absent(&store, &path, "b", "b").await;
        assert!(matches!(other, Err(OsError::AlreadyExists { .. })), "{other:?}");
        create_if_absent(&store, &path, "a", "a").await.unwrap();
        assert!(get(&urls[0], &key(&path)).await == get(&urls[1], &key(&path)).await);
    }
}

#[tokio::test]
async fn of_two_halves_the_older_epochs_wins() {
    let (urls, pool, old) = world(4).await;
    let taken_over = Pool::import(&urls, None, forced(2)).await.unwrap();
    let new = taken_over.metadata_store(&taken_over.config().datasets[0]).unwrap();
    for late in 0..2 {
        let path = format!("wal/{late}");
        let places = holders(&pool, &path);
        // Each is first in one bucket.
        create_if_absent(&new, &path, "new", "new").await.unwrap();
        raw(&places[late]).delete(&[key(&path)]).await.unwrap();
        let half = get(&places[1 - late], &key(&path)).await;
        let refused = create_if_absent(&old, &path, "old", "old").await;
        assert!(matches!(refused, Err(OsError::AlreadyExists { .. })), "{refused:?}");
        assert!(get(&places[1 - late], &key(&path)).await == half, "the older one touches nothing");
        let refused = create_if_absent(&new, &path, "new", "new").await;
        assert!(matches!(refused, Err(OsError::AlreadyExists { .. })), "{refused:?}");
        assert!(get(&places[0], &key(&path)).await == get(&places[1], &key(&path)).await);
        assert_eq!(read(&new, &path).await.unwrap(), "old");
    }
    // It has won, and must not say so.
    assert!(matches!(create_if_absent(&old, "wal/0", "old", "old").await, Err(OsError::Generic { .. })));
    assert!(pool.gate.fenced());
}

#[tokio::test]
async fn a_holder_that_lost_its_object_does_not_free_the_path() {
    let (urls, pool, store) = world(4).await;
    for path in ["wal/0", "wal/1"] {
        create_if_absent(&store, path, "old", "old").await.unwrap();
    }
    let (_pool, store) = again(pool.clone(), &urls).await;
    for (lost, path) in ["wal/0", "wal/1"].into_iter().enumerate() {
        let places = holders(&pool, path);
        raw(&places[lost]).delete(&[key(path)]).await.unwrap();
        assert!(matches!(
            create_if_absent(&store, path, "new", "new").await,
            Err(OsError::AlreadyExists { .. })
        ));
        assert_eq!(read(&store, path).await.unwrap(), "old");
        assert_eq!(get(&places[0], &key(path)).await, get(&places[1], &key(path)).await);
    }
}

#[tokio::test]
async fn a_bad_or_missing_copy_is_read_past_and_replaced() {
    let (urls, pool, store) = world(3).await;
    let body = data(200_000, 1, false);
    let path = "compacted/a.sst";
    store.put(&Path::from(path), body.clone().into()).await.unwrap();
    let places = holders(&pool, path);
    let good = get(&places[0], &key(path)).await;
    let (pool, store) = again(pool, &urls).await;
    let other = "compacted/b.sst";
    store.put(&Path::from(other), data(200_000, 2, false).into()).await.unwrap();
    let foreign = get(&holders(&pool, other)[0], &key(other)).await;
    let mut noticed = 0;
    let changes: Vec<Vec<u8>> = (0..good.len())
        .step_by(4999)
        .chain(200_000..good.len())
        .map(|at| {
            let mut wrong = good.clone();
            wrong[at] ^= 4;
            wrong
        })
        .chain([0, 1, 1000, good.len() - 1].map(|len| good[..len].to_vec()))
        .chain([foreign])
        .collect();
    for (n, wrong) in changes.into_iter().enumerate() {
        // A footer that is remembered hides damage to what stands behind the payload; a head reads it anew.
        let cold = n % 2 == 0;
        let hidden = wrong.get(..200_000) == good.get(..200_000);
        for place in &places {
            set(place, &key(path), wrong.clone()).await;
            if cold {
                assert_eq!(store.head(&Path::from(path)).await.unwrap().size, 200_000);
            }
            assert!(read(&store, path).await.unwrap() == body, "{n}");
            if place == &places[0] && (cold || !hidden) {
                assert!(get(place, &key(path)).await == good, "{n}");
                noticed += 1;
            }
            set(place, &key(path), good.clone()).await;
        }
    }
    let status = pool.status();
    assert_eq!(status.vdevs.iter().map(|v| v.checksum_errors).sum::<u64>(), noticed);
    assert!(status.repaired.iter().any(|line| line.contains(path)));

    raw(&places[0]).delete(&[key(path)]).await.unwrap();
    assert_eq!(store.get_range(&Path::from(path), 10..20).await.unwrap(), body.slice(10..20));
    assert!(get(&places[0], &key(path)).await == good);

    // Both bad: an error, and no more.
    for place in &places {
        tamper(place, &key(path), |bytes| bytes[100_000] ^= 1).await;
    }
    assert_eq!(store.get_range(&Path::from(path), 10..20).await.unwrap(), body.slice(10..20));
    let error = read(&store, path).await.unwrap_err();
    assert!(error.to_string().contains(path) && error.to_string().contains(&places[1]), "{error}");
    // One gone, one unreachable: not "not found".
    raw(&places[0]).delete(&[key(path)]).await.unwrap();
    faulty(&places[1]).set_outage(true);
    assert!(matches!(read(&store, path).await, Err(OsError::Generic { .. })));
}

#[tokio::test]
async fn a_check_finds_damage_of_either_copy_and_repairs_it() {
    let (_, pool, store) = world(3).await;
    let inner = pool.metadata(&pool.config().datasets[0]).unwrap();
    inner.settled_ms.store(-1000, std::sync::atomic::Ordering::Relaxed);
    let (path, other) = ("compacted/a.sst", "manifest/1");
    store.put(&Path::from(path), data(9 << 20, 1, false).into()).await.unwrap();
    store.put(&Path::from(other), "x".into()).await.unwrap();
    let scrub = || async { pool.scrub_metadata(&pool.config().datasets[0], |_, _| {}).await.unwrap() };
    let clean = ScrubbedMetadata { objects: 2, ..ScrubbedMetadata::default() };
    assert_eq!(scrub().await, clean);
    let places = holders(&pool, path);
    let whole = get(&places[0], &key(path)).await;
    for place in &places {
        tamper(place, &key(path), |bytes| bytes[6 << 20] ^= 1).await;
        let found = scrub().await;
        assert!(found.repaired.len() == 1 && found.bad.is_empty(), "{found:?}");
        assert!(found.repaired[0].contains(place) && found.repaired[0].contains(path), "{found:?}");
        assert!(get(place, &key(path)).await == whole);
        raw(place).delete(&[key(path)]).await.unwrap();
        // Who lists first may have it completed first.
        let found = scrub().await;
        assert!(found.repaired.len() <= 1 && found.bad.is_empty(), "{found:?}");
        assert!(get(place, &key(path)).await == whole);
    }
    assert_eq!(scrub().await, clean);
    // What no copy can heal is told of, and only that.
    for place in &places {
        tamper(place, &key(path), |bytes| bytes[100] ^= 1).await;
    }
    let found = scrub().await;
    assert!(found.repaired.is_empty() && found.bad.len() == 2, "{found:?}");
    tamper(&holders(&pool, other)[1], &key(other), |bytes| bytes[0] ^= 1).await;
    let found = scrub().await;
    assert!(found.repaired.len() == 1 && found.repaired[0].contains(other), "{found:?}");
}

#[tokio::test]
async fn a_listing_has_lone_copies_completed_but_not_deleted_ones() {
    let (_, pool, store) = world(3).await;
    let inner = pool.metadata(&pool.config().datasets[0]).unwrap();
    let mut lone = Vec::new();
    for n in 0..20 {
        let path = format!("wal/{n}");
        store.put(&Path::from(path.as_str()), "x".into()).await.unwrap();
        let places = holders(&pool, &path);
        raw(&places[n % 2]).delete(&[key(&path)]).await.unwrap();
        lone.push((path, places));
    }
    let list = || async { store.list(None).try_collect::<Vec<_>>().await.unwrap().len() };
    assert_eq!(list().await, 20);
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    // Too young: they might be on their way.
    assert!(!has(&lone[0].1[0], &lone[0].0).await);
    inner.settled_ms.store(-1000, std::sync::atomic::Ordering::Relaxed);
    inner.books.lock().deleted.insert(lone[1].0.clone());
    assert_eq!(list().await, 20);
    for (n, (path, places)) in lone.iter().enumerate().filter(|(n, _)| *n != 1) {
        for _ in 0..100 {
            if has(&places[n % 2], path).await {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(get(&places[0], &key(path)).await == get(&places[1], &key(path)).await);
    }
    assert!(!has(&lone[1].1[1], &lone[1].0).await);
}

#[tokio::test]
async fn listing_does_without_one_vdev() {
    let (_, pool, store) = world(4).await;
    for n in 0..30 {
        store.put(&Path::from(format!("wal/{n}")), "x".into()).await.unwrap();
    }
    faulty(&pool.config().vdevs[1].url).set_outage(true);
    assert_eq!(store.list(None).try_collect::<Vec<_>>().await.unwrap().len(), 30);
    faulty(&pool.config().vdevs[2].url).set_outage(true);
    assert!(store.list(None).try_collect::<Vec<_>>().await.is_err());
}

#[tokio::test]
async fn what_was_read_of_a_half_done_update_is_not_undone() {
    let (urls, mut pool, mut store) = world(3).await;
    let path = Path::from("gc/manifest.boundary");
    store.put_opts(&path, "1".into(), PutMode::Create.into()).await.unwrap();
    for (body, anew) in [("2", false), ("3", true)] {
        let [primary, second] = &holders(&pool, path.as_ref())[..] else { panic!("two copies") };
        let e_tag = store.head(&path).await.unwrap().e_tag;
        // The primary has it, and the second does not.
        faulty(second).script(Operation::Put, "m/", usize::MAX, Fault::Fail);
        let mode = PutMode::Update(UpdateVersion { e_tag, version: None });
        assert!(store.put_opts(&path, body.into(), mode.into()).await.is_err());
        assert!(get(primary, &key(path.as_ref())).await != get(second, &key(path.as_ref())).await);
        faulty(second).calm();
        well(&pool).await;
        if anew {
            (pool, store) = again(pool, &urls).await;
        }
        assert_eq!(read(&store, path.as_ref()).await.unwrap(), body);
        assert!(get(primary, &key(path.as_ref())).await == get(second, &key(path.as_ref())).await);
        let e_tag = store.head(&path).await.unwrap().e_tag;
        tamper(primary, &key(path.as_ref()), |bytes| bytes[0] ^= 1).await;
        assert_eq!(read(&store, path.as_ref()).await.unwrap(), body);
        assert_eq!(store.head(&path).await.unwrap().e_tag, e_tag);
    }
}

#[tokio::test]
async fn a_version_is_updated_only_from_the_one_expected() {
    let (_, pool, store) = world(3).await;
    let path = Path::from("gc/manifest.boundary");
    let first = store.put_opts(&path, "1".into(), PutMode::Create.into()).await.unwrap();
    let update = |body: &'static str, tag: Option<String>| {
        let mode = PutMode::Update(UpdateVersion { e_tag: tag, version: None });
        store.put_opts(&path, body.into(), mode.into())
    };
    let second = update("2", first.e_tag.clone()).await.unwrap();
    assert!(matches!(update("x", first.e_tag).await, Err(OsError::Precondition { .. })));
    assert_eq!(store.head(&path).await.unwrap().e_tag, second.e_tag);
    let racers = (0..5).map(|n| {
        let (store, path, tag) = (store.clone(), path.clone(), second.e_tag.clone());
        tokio::spawn(async move {
            let mode = PutMode::Update(UpdateVersion { e_tag: tag, version: None });
            store.put_opts(&path, format!("r{n}").into(), mode.into()).await
        })
    });
    let results = futures::future::join_all(racers).await;
    assert_eq!(results.into_iter().filter(|r| r.as_ref().unwrap().is_ok()).count(), 1);
    // Whoever was taken over may not.
    let tag = store.head(&path).await.unwrap().e_tag;
    let urls: Vec<_> = pool.config().vdevs.iter().map(|v| v.url.clone()).collect();
    let _other = Pool::import(&urls, None, forced(2)).await.unwrap();
    assert!(update("late", tag).await.is_err());
}

fn settings() -> slatedb::config::Settings {
    slatedb::config::Settings {
        flush_interval: Some(std::time::Duration::from_millis(5)),
        object_store_max_retries: Some(3),
        l0_sst_size_bytes: 256 << 10,
        ..Default::default()
    }
}

async fn open_db(store: &Store) -> slatedb::Db {
    slatedb::Db::builder("db", store.clone()).with_settings(settings()).build().await.unwrap()
}

async fn fill(db: &slatedb::Db, from: u32, to: u32) {
    for n in from..to {
        db.put(n.to_be_bytes(), vec![n as u8; 300]).await.unwrap();
    }
    db.flush().await.unwrap();
}

async fn check(db: &slatedb::Db, to: u32) {
    for n in 0..to {
        assert_eq!(db.get(n.to_be_bytes()).await.unwrap().as_deref(), Some(&vec![n as u8; 300][..]), "{n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slatedb_lives_on_it_and_a_second_opener_fences_the_first() {
    let (_, _pool, store) = world(4).await;
    let first = open_db(&store).await;
    fill(&first, 0, 2000).await;
    let second = open_db(&store).await;
    check(&second, 2000).await;
    let late = async {
        first.put(b"late", b"x").await?;
        first.flush().await
    };
    assert!(late.await.is_err());
    fill(&second, 2000, 2500).await;
    second.close().await.unwrap();
    let third = open_db(&store).await;
    check(&third, 2500).await;
    assert_eq!(third.get(b"late").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slatedb_survives_the_loss_of_any_one_vdevs_copies() {
    let (urls, pool, store) = world(4).await;
    let db = open_db(&store).await;
    fill(&db, 0, 3000).await;
    db.close().await.unwrap();
    drop((db, store));
    let mut pool = pool;
    for (n, url) in urls.iter().enumerate() {
        let metadata: Vec<_> = objects(url).await.into_iter().filter(|key| key.starts_with("m/")).collect();
        assert!(!metadata.is_empty());
        match n % 2 {
            0 => raw(url).delete(&metadata).await.unwrap(),
            _ => {
                for key in &metadata {
                    tamper(url, key, |bytes| {
                        let middle = bytes.len() / 2;
                        bytes[middle] ^= 0x80;
                        bytes[0] ^= 1;
                    })
                    .await;
                }
            }
        }
        let store;
        (pool, store) = again(pool, &urls).await;
        let db = open_db(&store).await;
        check(&db, 3000).await;
        db.close().await.unwrap();
        // What was not read is still bad: put the copies right before the next vdev loses its own.
        let all: Vec<_> = store.list(None).try_collect().await.unwrap();
        for object in all {
            store.get(&object.location).await.unwrap().bytes().await.unwrap();
        }
        drop((db, store));
        scrub(&pool, &urls).await;
    }
    assert!(pool.guid().0 != 0 && segment::ALIGN == 64);
}

/// Makes each object's two copies the same, as a scrub would.
async fn scrub(pool: &Pool, urls: &[String]) {
    for url in urls {
        for name in objects(url).await.iter().filter_map(|key| key.strip_prefix("m/00000001/")) {
            let places = holders(pool, name);
            let good = get(&places[0], &key(name)).await;
            set(&places[1], &key(name), good).await;
        }
    }
}
