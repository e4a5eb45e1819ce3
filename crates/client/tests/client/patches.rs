//! Small writes into records that are not in memory.

use crate::store::{Behaviour, Refusal};
use crate::world::{World, pattern};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::{Answer, FsError, Ino};
use tarn_client::{FallocMode, Handle, Seek};
use tokio::time::Instant;

const RECORD: usize = 64 << 10;
const RECORDS: usize = 32;
/// Time that a read of a record takes.
const FAR: u64 = 100_000;

/// A file whose records are committed and not in memory, in a store that is far away.
async fn cold() -> (World, Ino, Handle, Vec<u8>) {
    let behaviour =
        Behaviour { read_us: (FAR, FAR), segment_size: 1 << 20, cache: 0, ..Behaviour::default() };
    let world = World::new(5, RECORD as u32, behaviour);
    *world.mds.pending.lock() = 0.0;
    let (ino, handle) = world.create("f").await;
    let data = pattern(1, 0, RECORD * RECORDS);
    world.write(handle, 0, &data).await.unwrap();
    world.client.sync_all().wait().await.unwrap();
    (world, ino, handle, data)
}

/// Writes at `at`, in the file and in what it must be, without waiting.
fn put(world: &World, handle: Handle, data: &mut [u8], at: usize, bytes: &[u8]) {
    let written = world.client.write(handle, at as u64, bytes, false);
    assert!(matches!(written, Answer::Ready(Ok(n)) if n == bytes.len()), "a write at {at} waits");
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

fn gets(world: &World) -> u64 {
    world.store.gets.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn they_do_not_wait_and_what_they_need_comes_together() {
    let (mut world, ino, handle, mut data) = cold().await;
    let start = Instant::now();
    for record in 0..RECORDS {
        put(&world, handle, &mut data, record * RECORD + 1000, &[7; 500]);
        put(&world, handle, &mut data, record * RECORD + 1400, &[8; 500]);
        put(&world, handle, &mut data, (record + 1) * RECORD - 10, &[9; 10]);
    }
    assert_eq!((start.elapsed(), gets(&world)), (Duration::ZERO, 0));
    let attr = world.client.getattr(ino).wait().await.unwrap();
    assert_eq!(attr.size, data.len() as u64);
    assert_eq!(world.client.stats().dirty_bytes, data.len() as u64);
    // One that crosses from one record into the next.
    put(&world, handle, &mut data, RECORD - 5, &[3; 10]);
    assert_eq!(world.read(handle, 900, 2000).await, data[900..2900]);
    assert_eq!(gets(&world), 1);
    world.client.fsync(ino, false).wait().await.unwrap();
    assert!(start.elapsed() < Duration::from_micros(5 * FAR), "{:?}", start.elapsed());
    assert_eq!(gets(&world), RECORDS as u64);
    assert_eq!(world.client.stats().dirty_bytes, 0);
    world.crash(3, true);
    let (_, handle) = world.open("f").await;
    assert_eq!(world.read(handle, 0, data.len()).await, data);
}

#[tokio::test(start_paused = true)]
async fn they_go_out_by_themselves() {
    let (mut world, _, handle, mut data) = cold().await;
    put(&world, handle, &mut data, 5 * RECORD + 77, &[1; 77]);
    put(&world, handle, &mut data, 9 * RECORD + 77, &[2; 77]);
    world.client.close(handle);
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!((world.client.stats().dirty_bytes, gets(&world)), (0, 2));
    world.crash(3, true);
    let (_, handle) = world.open("f").await;
    assert_eq!(world.read(handle, 0, data.len()).await, data);
}

#[tokio::test(start_paused = true)]
async fn records_that_are_written_all_over_are_not_read() {
    let (world, ino, handle, mut data) = cold().await;
    let bytes = pattern(2, 0, 4 * RECORD);
    for (at, piece) in bytes.chunks(4096).enumerate() {
        put(&world, handle, &mut data, at * 4096, piece);
    }
    // Another, in no order and with pieces that overlap; and one of which the rest comes at once.
    for at in [40_000, 0, 20_000] {
        put(&world, handle, &mut data, 8 * RECORD + at, &bytes[at..(at + 26_000).min(RECORD)]);
    }
    put(&world, handle, &mut data, 10 * RECORD + 5, b"x");
    put(&world, handle, &mut data, 10 * RECORD, &bytes[..RECORD]);
    world.client.fsync(ino, false).wait().await.unwrap();
    assert_eq!(gets(&world), 0);
    assert_eq!(world.read(handle, 0, data.len()).await, data);
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_punched_or_copied_has_them_in_it() {
    let (world, ino, handle, mut data) = cold().await;
    let client = &world.client;
    for record in 0..RECORDS {
        put(&world, handle, &mut data, record * RECORD + 100, &[6; 10]);
    }
    let seek =
        async |offset: usize, what| client.seek(handle, offset as u64, what).wait().await.unwrap() as usize;
    assert_eq!(seek(3 * RECORD, Seek::Data).await, 3 * RECORD);
    assert_eq!(seek(3 * RECORD, Seek::Hole).await, RECORDS * RECORD);
    let before = gets(&world);
    world.set_size(ino, (20 * RECORD) as u64).await.unwrap();
    data.truncate(20 * RECORD);
    // Of what is gone nothing was read.
    assert_eq!(gets(&world) - before, 20);

    put(&world, handle, &mut data, 19 * RECORD + 9, &[5; 9]);
    world.set_size(ino, (19 * RECORD + 12) as u64).await.unwrap();
    data.truncate(19 * RECORD + 12);
    put(&world, handle, &mut data, 2 * RECORD + 9, &[4; 9]);
    put(&world, handle, &mut data, 4 * RECORD + 9, &[4; 9]);
    let (from, len) = (2 * RECORD + 12, 2 * RECORD);
    client.fallocate(handle, FallocMode::PunchHole, from as u64, len as u64).wait().await.unwrap();
    data[from..from + len].fill(0);
    put(&world, handle, &mut data, 6 * RECORD + 9, &[2; 9]);
    put(&world, handle, &mut data, 8 * RECORD + 9, &[1; 9]);
    let (from, to) = (6 * RECORD, 8 * RECORD);
    client.copy_range(handle, from as u64, handle, to as u64, RECORD as u64).wait().await.unwrap();
    data.copy_within(from..from + RECORD, to);
    assert_eq!(world.read(handle, 0, RECORD * RECORDS).await, data);
    client.sync_all().wait().await.unwrap();
    assert_eq!(world.read(handle, 0, RECORD * RECORDS).await, data);
}

#[tokio::test(start_paused = true)]
async fn they_take_only_so_much_memory() {
    let behaviour =
        Behaviour { read_us: (FAR, FAR), segment_size: 1 << 20, cache: 0, ..Behaviour::default() };
    let mut world = World::with(5, RECORD as u32, behaviour, |options| options.dirty_max = 4 << 20);
    let (_, handle) = world.create("f").await;
    let mut data = pattern(1, 0, RECORD * 400);
    world.write(handle, 0, &data).await.unwrap();
    world.client.sync_all().wait().await.unwrap();
    let start = Instant::now();
    for n in 0..4000 {
        let at = (n * 7919) % 400 * RECORD + (n * 631) % (RECORD - 4096);
        world.write(handle, at as u64, &[n as u8; 4096]).await.unwrap();
        data[at..at + 4096].fill(n as u8);
        let memory = world.client.memory();
        assert!(memory.dirty <= (4 << 20) + RECORD as u64 * 64, "{memory:?}");
    }
    // One after the other would take 400 s.
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    world.client.sync_all().wait().await.unwrap();
    world.crash(3, true);
    let (_, handle) = world.open("f").await;
    assert!(world.read(handle, 0, data.len()).await == data);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_a_while_takes_nothing() {
    let (mut world, ino, handle, mut data) = cold().await;
    put(&world, handle, &mut data, 5 * RECORD + 77, &[1; 77]);
    *world.store.refusal.lock() = Some(Refusal::Away);
    assert!(matches!(world.client.fsync(ino, false).wait().await, Err(FsError::Io(_))));
    tokio::time::sleep(Duration::from_secs(60)).await;
    put(&world, handle, &mut data, 6 * RECORD + 77, &[1; 77]);
    assert!(matches!(world.client.fsync(ino, false).wait().await, Err(FsError::Io(_))));
    assert!(world.client.stats().dirty_bytes > 0);
    *world.store.refusal.lock() = None;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.client.stats().dirty_bytes, 0);
    world.client.fsync(ino, false).wait().await.unwrap();
    world.crash(3, true);
    let (_, handle) = world.open("f").await;
    assert_eq!(world.read(handle, 0, data.len()).await, data);
}

#[tokio::test(start_paused = true)]
async fn who_writes_into_what_is_lost_is_told_once_and_what_covers_it_is_kept() {
    for by_close in [true, false] {
        let (world, ino, handle, mut data) = cold().await;
        *world.store.refusal.lock() = Some(Refusal::Lost);
        let old = data.clone();
        put(&world, handle, &mut data, 5 * RECORD + 77, &[1; 77]);
        data.copy_from_slice(&old);
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert_eq!(world.client.stats().dirty_bytes, 0);
        match by_close {
            true => assert!(world.client.take_write_error(handle).is_err()),
            false => assert!(world.client.fsync(ino, false).wait().await.is_err()),
        }
        world.client.take_write_error(handle).unwrap();
        world.client.fsync(ino, false).wait().await.unwrap();
        put(&world, handle, &mut data, 5 * RECORD + 77, &[1; 77]);
        put(&world, handle, &mut data, 5 * RECORD, &pattern(3, 0, RECORD));
        world.client.fsync(ino, false).wait().await.unwrap();
        *world.store.refusal.lock() = None;
        assert_eq!(world.read(handle, 0, data.len()).await, data);
    }
}
