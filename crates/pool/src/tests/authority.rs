//! Who may have a pool.

use super::world::*;
use crate::{Error, Pool};
use std::time::Duration;
use tarn_base::{ChecksumKind, Compression, VdevId};
use tarn_bucket::{Operation, fault::Fault};

fn held<T>(result: crate::Result<T>, says: &str) {
    match result {
        Err(Error::Held(text)) => assert!(text.contains(says) && !text.contains('\n'), "{text}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("must be refused"),
    }
}

#[tokio::test]
async fn a_lock_that_is_held_is_never_overridden() {
    let root = tempfile::tempdir().unwrap();
    let urls = directories(root.path(), 2);
    let pool = create(&urls).await;
    held(Pool::import(&urls, None, options(2)).await, "in use by host host1");
    held(Pool::import(&urls, None, options(2)).await, "-f");
    held(Pool::import(&urls, None, forced(2)).await, "is in use by process");
    held(Pool::import(&urls, None, options(1)).await, "is in use by process");
    held(Pool::create(crate::CreateSpec { force: true, ..spec(&urls, 1) }).await, "is in use by process");
    pool.check_authority().await.unwrap();
    // The process is gone, as after kill -9: its host needs no force, another does.
    drop(pool);
    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    drop(pool);
    held(Pool::import(&urls, None, options(2)).await, "in use by host host1");
    let pool = Pool::import(&urls, None, forced(2)).await.unwrap();
    pool.set_property("comment", "taken").await.unwrap();
    drop(pool);
    held(Pool::import(&urls, None, options(1)).await, "in use by host host2");
}

#[tokio::test]
async fn a_holder_whose_lock_did_not_hold_is_fenced_by_the_label() {
    let root = tempfile::tempdir().unwrap();
    let urls = directories(root.path(), 2);
    let pool = create(&urls).await;
    // As on a file system that does not share locks: the other host locks files of its own.
    for url in &urls {
        let lock = std::path::Path::new(url).join("tarn/lock");
        std::fs::remove_file(lock).unwrap();
    }
    let other = Pool::import(&urls, None, forced(2)).await.unwrap();
    assert!(matches!(pool.update_config(|_| Ok(())).await, Err(Error::Fenced)));
    assert!(matches!(pool.check_authority().await, Err(Error::Fenced)));
    other.update_config(|_| Ok(())).await.unwrap();
}

#[tokio::test]
async fn force_takes_a_pool_over_by_its_bucket_and_fences_the_old_holder() {
    let urls = memory(3);
    let pool = create(&urls).await;
    held(Pool::import(&urls, None, options(2)).await, "in use by host host1");
    // A live process of the same host keeps another out, even by force.
    held(Pool::import(&urls, None, options(1)).await, "another process of this host");
    let other = Pool::import(&urls, None, forced(2)).await.unwrap();
    assert!(other.epoch() > pool.epoch());
    assert!(matches!(pool.update_config(|_| Ok(())).await, Err(Error::Fenced)));
    assert!(matches!(pool.place(1), Err(Error::Fenced)));
    let id = segment(VdevId(0), 1, 0);
    let put = write(&pool, id, &[data(10, 1, false)], Compression::Off, ChecksumKind::Xxh3).await;
    assert!(matches!(put, Err(Error::Fenced)));
    assert_eq!(pool.status().state, crate::PoolState::Fenced);
    other.set_property("comment", "mine").await.unwrap();
    // Even if the old holder's label write was under way all the time, its lower epoch does not count.
    let stale = get(&urls[0], "tarn/label").await;
    drop(pool);
    let newer = Pool::import(&urls, None, forced(3)).await.unwrap();
    set(&urls[0], "tarn/label", stale).await;
    newer.set_property("comment", "newest").await.unwrap();
    newer.export().await.unwrap();
    drop(other);
    let last = Pool::import(&urls, None, options(4)).await.unwrap();
    assert_eq!(last.property("comment").as_deref(), Some("newest"));
}

#[tokio::test]
async fn the_authority_is_asked_now_and_then_without_a_label_write() {
    let urls = memory(1);
    let pool = create(&urls).await;
    let _other = Pool::import(&urls, None, forced(2)).await.unwrap();
    // Just asked: not again so soon.
    pool.check_authority().await.unwrap();
    tokio::time::pause();
    let mut fenced = false;
    for _ in 0..70 {
        std::thread::sleep(Duration::from_millis(100));
        fenced |= matches!(pool.check_authority().await, Err(Error::Fenced));
    }
    assert!(fenced);
}

#[tokio::test]
async fn an_exported_or_released_epoch_is_let_go() {
    let urls = memory(2);
    let mut wish = spec(&urls, 1);
    wish.properties.insert("authority".into(), format!("bucket:{}", urls[1]));
    let pool = Pool::create(wish).await.unwrap();
    pool.export().await.unwrap();
    assert!(objects(&urls[1]).await.contains(&format!("a/{:020}.released", 1)));
    assert!(objects(&urls[0]).await.iter().all(|key| !key.starts_with("a/")));
    let pool = Pool::import(&urls, None, options(2)).await.unwrap();
    pool.release().await.unwrap();
    // Released, but still host 2's by the label.
    held(Pool::import(&urls, None, options(1)).await, "in use by host host2");
    Pool::import(&urls, None, options(2)).await.unwrap();
}

#[tokio::test]
async fn a_lost_reply_to_the_epoch_is_no_foreign_holder() {
    let urls = memory(2);
    make_faulty(&urls[0]);
    let pool = create(&urls).await;
    pool.export().await.unwrap();
    faulty(&urls[0]).script(Operation::Create, "a/", 1, Fault::ReplyLost);
    // The pool's wrapper is below the fault here, so the error arrives; the next try goes on.
    assert!(Pool::import(&urls, None, options(2)).await.is_err());
    Pool::import(&urls, None, options(2)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_who_race_one_has_it() {
    let root = tempfile::tempdir().unwrap();
    for urls in [memory(3), directories(root.path(), 3)] {
        create(&urls).await.export().await.unwrap();
        for round in 0..6u64 {
            let racers = (0..6).map(|n| {
                let urls = urls.clone();
                tokio::spawn(async move { Pool::import(&urls, None, options(round * 10 + n + 2)).await })
            });
            let mut won = Vec::new();
            for result in futures::future::join_all(racers).await {
                match result.unwrap() {
                    Ok(pool) => won.push(pool),
                    Err(error) => assert!(matches!(error, Error::Held(_)), "{error}"),
                }
            }
            // All may have been refused by one another only if nobody had asked the authority first.
            assert_eq!(won.len(), 1);
            won[0].export().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_creations_of_one_bucket_do_not_mix() {
    for _ in 0..10 {
        let urls = memory(2);
        let both = (1..3u64).map(|n| {
            let urls = urls.clone();
            tokio::spawn(async move { Pool::create(spec(&urls, n)).await })
        });
        let made: Vec<_> =
            futures::future::join_all(both).await.into_iter().filter_map(|r| r.unwrap().ok()).collect();
        assert!(made.len() <= 1);
        for pool in made {
            pool.update_config(|_| Ok(())).await.unwrap();
        }
    }
}
