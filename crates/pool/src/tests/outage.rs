use super::world::*;
use crate::{Caching, Error, Pool, PoolState, VdevState};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::{BlockPtr, ChecksumKind, Compression, VdevId};
use tarn_bucket::Operation;
use tarn_bucket::fault::Fault;
use tokio::task::JoinHandle;

/// Longer than a probe takes and than two of them are apart.
const SOON: Duration = Duration::from_secs(8);

async fn world(count: usize, failmode: &str) -> (Vec<String>, Arc<Pool>) {
    let urls = memory(count);
    urls.iter().for_each(|url| make_faulty(url));
    let pool = create(&urls).await;
    pool.set_property("failmode", failmode).await.unwrap();
    (urls, pool)
}

async fn put(pool: &Pool, vdev: u16, seq: u32) -> crate::Result<Vec<BlockPtr>> {
    let records = [data(5000, u64::from(seq), false)];
    write(pool, segment(VdevId(vdev), 1, seq), &records, Compression::Off, ChecksumKind::Xxh3).await
}

fn reading(pool: &Arc<Pool>, ptrs: &[BlockPtr]) -> JoinHandle<crate::Result<Vec<Bytes>>> {
    let (pool, ptrs) = (pool.clone(), ptrs.to_vec());
    tokio::spawn(async move { pool.read(&ptrs, Caching::Bypass).await })
}

async fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + SOON;
    while !fact() {
        assert!(tokio::time::Instant::now() < end, "not soon: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn calls_wait_for_a_bucket_and_go_on_by_themselves() {
    let (urls, pool) = world(1, "wait").await;
    let ptrs = put(&pool, 0, 0).await.unwrap();
    faulty(&urls[0]).set_outage(true);
    let read = reading(&pool, &ptrs);
    let written = tokio::spawn({
        let pool = pool.clone();
        async move { put(&pool, 0, 1).await }
    });
    until("suspended", || pool.status().state == PoolState::Suspended).await;
    let status = pool.status();
    assert_eq!(status.vdevs[0].state, VdevState::Faulted);
    let outage = status.vdevs[0].outage.clone().unwrap();
    assert!(outage.why.contains("the network is gone") && outage.since_ms > 0, "{outage:?}");
    assert!(status.status.unwrap().contains(&urls[0]) && status.action.unwrap().contains("umount -f"));
    assert!(pool.suspended().unwrap().contains(&urls[0]));
    // Nothing is sent to the store but probes.
    let before = faulty(&urls[0]).happened()["outage"];
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let sent = faulty(&urls[0]).happened()["outage"] - before;
    assert!((1..=4).contains(&sent), "{sent} requests in 2.5 s");
    assert!(!read.is_finished() && !written.is_finished());
    faulty(&urls[0]).set_outage(false);
    let records = tokio::time::timeout(SOON, read).await.unwrap().unwrap().unwrap();
    assert_eq!(records[0], data(5000, 0, false));
    tokio::time::timeout(SOON, written).await.unwrap().unwrap().unwrap();
    assert_eq!((pool.status().state, pool.suspended()), (PoolState::Online, None));
}

#[tokio::test]
async fn failmode_continue_lets_those_who_wait_go_and_fails_the_next_at_once() {
    let (urls, pool) = world(3, "wait").await;
    let ptrs = put(&pool, 1, 0).await.unwrap();
    faulty(&urls[1]).set_outage(true);
    let read = reading(&pool, &ptrs);
    until("waiting", || pool.vdevs()[1].outages.waiting() == 1).await;
    pool.set_property("failmode", "continue").await.unwrap();
    let error = tokio::time::timeout(SOON, read).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains(&urls[1]), "{error}");
    assert_eq!((pool.status().state, pool.suspended()), (PoolState::Degraded, None));
    let before = pool.status().vdevs[1].read_errors;
    assert!(reading(&pool, &ptrs).await.unwrap().is_err());
    assert_eq!(pool.status().vdevs[1].read_errors, before, "the store was not asked");
    faulty(&urls[1]).set_outage(false);
    well(&pool).await;
    reading(&pool, &ptrs).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_pool_that_is_given_up_waits_no_more() {
    let (urls, pool) = world(1, "wait").await;
    let ptrs = put(&pool, 0, 0).await.unwrap();
    faulty(&urls[0]).set_outage(true);
    let read = reading(&pool, &ptrs);
    until("waiting", || pool.vdevs()[0].outages.waiting() == 1).await;
    pool.give_up();
    assert!(tokio::time::timeout(SOON, read).await.unwrap().unwrap().is_err());
    assert!(tokio::time::timeout(SOON, pool.release()).await.unwrap().is_err());
}

#[tokio::test]
async fn failmode_takes_effect_even_where_it_cannot_be_written() {
    let (urls, pool) = world(1, "wait").await;
    let ptrs = put(&pool, 0, 0).await.unwrap();
    faulty(&urls[0]).set_outage(true);
    let read = reading(&pool, &ptrs);
    until("waiting", || pool.vdevs()[0].outages.waiting() == 1).await;
    let set = tokio::time::timeout(SOON, pool.set_property("failmode", "continue")).await.unwrap();
    assert!(set.unwrap_err().to_string().contains("until the pool is closed"));
    assert!(tokio::time::timeout(SOON, read).await.unwrap().unwrap().is_err());
}

#[tokio::test]
async fn a_segment_goes_elsewhere_rather_than_wait() {
    let (urls, pool) = world(3, "wait").await;
    faulty(&urls[0]).set_outage(true);
    assert!(matches!(put(&pool, 0, 0).await, Err(Error::Bucket(_))));
    assert!((0..20).all(|_| pool.place(1 << 20).unwrap() != VdevId(0)));
    put(&pool, 1, 0).await.unwrap();
}

#[tokio::test]
async fn a_store_that_refuses_only_writes_is_read() {
    let (urls, pool) = world(1, "wait").await;
    let ptrs = put(&pool, 0, 0).await.unwrap();
    faulty(&urls[0]).script(Operation::Put, "", usize::MAX, Fault::Fail);
    let written = tokio::spawn({
        let pool = pool.clone();
        async move { put(&pool, 0, 1).await }
    });
    until("an outage", || pool.status().vdevs[0].outage.as_ref().is_some_and(|o| o.writes_only)).await;
    reading(&pool, &ptrs).await.unwrap().unwrap();
    assert!(!written.is_finished() && pool.suspended().unwrap().contains("refuses writes"));
    faulty(&urls[0]).calm();
    tokio::time::timeout(SOON, written).await.unwrap().unwrap().unwrap();
    assert!(!objects(&urls[0]).await.iter().any(|key| key.contains("probe")));
}

#[tokio::test]
async fn one_failure_is_no_outage() {
    let (urls, pool) = world(1, "continue").await;
    let ptrs = put(&pool, 0, 0).await.unwrap();
    faulty(&urls[0]).script(Operation::Get, "d/", 1, Fault::Fail);
    assert!(reading(&pool, &ptrs).await.unwrap().is_err());
    // The verdict is waited for, and it is a good one.
    reading(&pool, &ptrs).await.unwrap().unwrap();
    assert_eq!(pool.status().vdevs[0].outage, None);
    pool.set_property("failmode", "wait").await.unwrap();
    faulty(&urls[0]).script(Operation::Get, "d/", 3, Fault::Fail);
    reading(&pool, &ptrs).await.unwrap().unwrap();
}

#[tokio::test]
async fn who_waits_to_read_again_what_was_wrong_leaves_room_to_others() {
    let (urls, pool) = world(1, "wait").await;
    for (seq, compression) in [Compression::Off, Compression::Lz4].into_iter().enumerate() {
        let record = [data(16 << 20, 1, compression == Compression::Lz4)];
        let id = segment(VdevId(0), 1, seq as u32);
        let ptrs = write(&pool, id, &record, compression, ChecksumKind::Xxh3).await.unwrap();
        // Wrong once, and then the bucket is gone.
        faulty(&urls[0]).script(Operation::Get, "d/", 1, Fault::Flip);
        for operation in [Operation::Get, Operation::List] {
            faulty(&urls[0]).script(operation, "", usize::MAX, Fault::Fail);
        }
        let read = reading(&pool, &ptrs);
        until("waiting", || pool.vdevs()[0].outages.waiting() == 1).await;
        assert_eq!(pool.memory().reading, 0);
        faulty(&urls[0]).calm();
        assert!(tokio::time::timeout(SOON, read).await.unwrap().unwrap().unwrap() == record);
        well(&pool).await;
    }
    assert_eq!(faulty(&urls[0]).happened()["flip"], 2);
}

#[tokio::test]
async fn metadata_is_read_from_the_copy_that_answers_and_waits_for_neither_or_both() {
    use object_store::{ObjectStoreExt, path::Path};
    let (urls, pool) = world(2, "wait").await;
    let store = pool.metadata_store(&pool.config().datasets[0]).unwrap();
    let path = Path::from("compacted/a.sst");
    store.put(&path, "good".into()).await.unwrap();
    let read = || {
        let (store, path) = (store.clone(), path.clone());
        async move { store.get(&path).await?.bytes().await }
    };
    for url in &urls {
        faulty(url).set_outage(true);
        assert_eq!(tokio::time::timeout(SOON, read()).await.unwrap().unwrap(), "good");
        faulty(url).set_outage(false);
        well(&pool).await;
    }
    urls.iter().for_each(|url| faulty(url).set_outage(true));
    let waiting = tokio::spawn(read());
    let putting = tokio::spawn({
        let store = store.clone();
        async move { store.put(&Path::from("compacted/b.sst"), "b".into()).await }
    });
    until("suspended", || pool.suspended().is_some()).await;
    assert!(!waiting.is_finished() && !putting.is_finished());
    urls.iter().for_each(|url| faulty(url).set_outage(false));
    assert_eq!(tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap(), "good");
    tokio::time::timeout(SOON, putting).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn calls_wait_for_credentials_and_status_says_so() {
    let (urls, pool) = world(1, "wait").await;
    let ptrs = put(&pool, 0, 0).await.unwrap();
    for operation in [Operation::Get, Operation::List] {
        faulty(&urls[0]).script(operation, "", 100_000, Fault::LockedOut);
    }
    let read = reading(&pool, &ptrs);
    until("locked out", || pool.status().vdevs[0].outage.as_ref().is_some_and(|o| o.locked_out)).await;
    until("suspended", || pool.status().state == PoolState::Suspended).await;
    let status = pool.status();
    assert!(status.status.unwrap().contains("does not take the credentials"));
    assert!(status.action.unwrap().contains("renew the credentials"));
    assert!(!read.is_finished());
    faulty(&urls[0]).calm();
    assert_eq!(read.await.unwrap().unwrap()[0].len(), 5000);
}
