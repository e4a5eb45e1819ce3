//! Full pools, failing buckets, a pool taken over: what was acknowledged stays, and errors are told once.

use crate::store::Behaviour;
use crate::world::{READ_WRITE, World, pattern};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::{FsError, Ino};
use tarn_client::Target;

const KIB: usize = 1 << 10;

#[tokio::test(start_paused = true)]
async fn a_full_pool_refuses_new_data_and_keeps_old() {
    let mut world = World::new(1, 4096, Behaviour { capacity: 1 << 20, ..Behaviour::default() });
    let (ino, handle) = world.create("f").await;
    let mut written = 0;
    let refused = loop {
        match world.write(handle, written as u64, &pattern(1, written as u64, 16 * KIB)).await {
            Ok(n) => written += n,
            Err(e) => break e,
        }
    };
    assert_eq!(refused, FsError::NoSpace);
    assert!((900 * KIB..=1 << 20).contains(&written), "{written}");
    world.client.fsync(ino, false).wait().await.unwrap();

    // The space goes while data waits: it was acknowledged, so it stays.
    world.store.behaviour.lock().capacity = 4 << 20;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (late, other) = world.create("late").await;
    world.write(other, 0, &pattern(2, 0, 64 * KIB)).await.unwrap();
    world.store.behaviour.lock().capacity = 1 << 20;
    assert_eq!(world.client.fsync(late, false).wait().await, Err(FsError::NoSpace));
    assert_eq!(world.client.take_write_error(other), Err(FsError::NoSpace));
    assert_eq!(world.client.take_write_error(other), Ok(()), "told once");
    assert_eq!(world.client.shutdown(|_| {}).await, Err(FsError::NoSpace));
    assert_eq!(world.write(other, 0, b"more").await, Err(FsError::NoSpace));
    assert_eq!(world.read(other, 0, 64 * KIB).await, pattern(2, 0, 64 * KIB));

    // Deleting works, gives room, and the rest goes out by itself.
    world.client.close(handle);
    world.client.unlink(Ino::ROOT, b"f").wait().await.unwrap();
    let mds_settles = world.client.sync_all().wait().await;
    assert!(matches!(mds_settles, Ok(()) | Err(FsError::NoSpace)));
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(world.client.stats().dirty_bytes, 0);
    world.client.shutdown(|_| {}).await.unwrap();
    world.remount();
    let (_, handle) = world.open("late").await;
    assert_eq!(world.read(handle, 0, 64 * KIB).await, pattern(2, 0, 64 * KIB));
}

#[tokio::test(start_paused = true)]
async fn there_is_no_enospc_for_want_of_asking_again() {
    let world = World::new(9, 4096, Behaviour { capacity: 256 << 10, ..Behaviour::default() });
    let (_, handle) = world.create("f").await;
    while world.write(handle, Target::End, &[1; 16 * KIB]).await.is_ok() {}
    world.client.sync_all().wait().await.unwrap();
    // Room that came while nobody wrote.
    world.store.behaviour.lock().capacity = 1 << 20;
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.write(handle, Target::End, &[2; 16 * KIB]).await.unwrap();
    world.client.sync_all().wait().await.unwrap();

    // A flush found no room, and then what it was to write is gone.
    let (late, other) = world.create("late").await;
    world.write(other, 0, &[3; 64 * KIB]).await.unwrap();
    world.store.behaviour.lock().capacity = 256 << 10;
    assert_eq!(world.client.fsync(late, false).wait().await, Err(FsError::NoSpace));
    world.store.behaviour.lock().capacity = 1 << 20;
    world.set_size(late, 0).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.write(other, 0, &[4; 64 * KIB]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_quota_is_told_from_a_full_pool() {
    let world = World::new(2, 4096, Behaviour { capacity: 100 << 20, ..Behaviour::default() });
    world.mds.quota.store(100 << 10, Ordering::SeqCst);
    let (_, handle) = world.create("f").await;
    assert_eq!(world.write(handle, 0, &[1; 64 * KIB]).await, Ok(64 * KIB));
    assert_eq!(world.write(handle, 64 << 10, &[1; 64 * KIB]).await, Err(FsError::QuotaExceeded));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_told_once_through_each_handle_and_the_data_goes_out_later() {
    let mut world = World::new(3, 4096, Behaviour { write_fails: 1.0, ..Behaviour::default() });
    let (ino, first) = world.create("f").await;
    let (second, _, _) = world.client.open(ino, READ_WRITE).wait().await.unwrap();
    world.write(first, 0, b"stays").await.unwrap();
    assert!(matches!(world.client.fsync_handle(first, false).wait().await, Err(FsError::Io(_))));
    assert_eq!(world.client.take_write_error(first), Ok(()));
    assert!(matches!(world.client.take_write_error(second), Err(FsError::Io(_))));
    assert_eq!(world.client.take_write_error(second), Ok(()));
    assert_eq!(world.read(second, 0, 10).await, b"stays");
    world.store.behaviour.lock().write_fails = 0.0;
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(world.client.stats().dirty_bytes, 0);
    world.crash(4, true);
    let (_, handle) = world.open("f").await;
    assert_eq!(world.read(handle, 0, 10).await, b"stays");
}

#[tokio::test(start_paused = true)]
async fn a_truncation_that_fails_changes_nothing() {
    let world = World::new(5, 4096, Behaviour::default());
    let (ino, handle) = world.create("f").await;
    let data = pattern(1, 0, 10_000);
    world.write(handle, 0, &data).await.unwrap();
    world.client.fsync(ino, false).wait().await.unwrap();
    world.store.behaviour.lock().write_fails = 1.0;
    assert!(matches!(world.set_size(ino, 5000).await, Err(FsError::Io(_))));
    assert_eq!(world.read(handle, 0, 20_000).await, data);
    // To the boundary of a record nothing needs to be written.
    world.set_size(ino, 4096).await.unwrap();
    assert_eq!(world.read(handle, 0, 20_000).await, &data[..4096]);
}

#[tokio::test(start_paused = true)]
async fn a_fenced_client_says_so_and_keeps_what_it_has() {
    let world = World::new(6, 4096, Behaviour::default());
    let (ino, handle) = world.create("f").await;
    world.write(handle, 0, b"not written").await.unwrap();
    world.mds.crash(false);
    assert_eq!(world.client.fsync(ino, false).wait().await, Err(FsError::Fenced));
    assert_eq!(world.write(handle, 0, b"x").await, Err(FsError::Fenced));
    assert!(matches!(world.client.read(handle, 0, 5).wait().await, Err(FsError::Fenced)));
    assert_eq!(world.client.shutdown(|_| {}).await, Err(FsError::Fenced));
    assert_eq!(world.client.stats().dirty_bytes, 11);
}

#[tokio::test(start_paused = true)]
async fn a_read_only_dataset_takes_nothing() {
    let world = World::new(7, 4096, Behaviour::default());
    let (ino, handle) = world.create("f").await;
    world.mds.info.lock().read_only = true;
    assert_eq!(world.write(handle, 0, b"x").await, Err(FsError::ReadOnly));
    assert_eq!(world.set_size(ino, 1).await, Err(FsError::ReadOnly));
    assert_eq!(world.client.unlink(Ino::ROOT, b"f").wait().await, Err(FsError::ReadOnly));
}
