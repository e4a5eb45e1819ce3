//! What callers may rely on, one promise a test.

use crate::mds::Served;
use crate::store::Behaviour;
use crate::world::{READ_WRITE, ROOT, World, pattern};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::posix::{RenameMode, SetAttr, SetTime};
use tarn_base::{Answer, FsError, Ino, SegmentId, Timespec};
use tarn_client::OpenMode;
use tarn_proto::Mds;
use tokio::time::Instant;

const MIB: usize = 1 << 20;

fn large() -> Behaviour {
    Behaviour { segment_size: 4 << 20, cache: 4096, vdevs: 12, ..Behaviour::default() }
}

#[tokio::test(start_paused = true)]
async fn hot_calls_are_ready() {
    let world = World::new(1, 128 << 10, large());
    *world.mds.pending.lock() = 0.0;
    let (ino, handle) = world.create("f").await;
    let data = pattern(1, 0, MIB);
    assert!(matches!(world.client.write(handle, 0, &data, false), Answer::Ready(Ok(MIB))));
    assert!(matches!(world.client.getattr(ino), Answer::Ready(Ok(_))));
    assert!(matches!(world.client.lookup(Ino::ROOT, b"f"), Answer::Ready(Ok(_))));
    let Answer::Ready(Ok(buf)) = world.client.read(handle, 5000, 10_000) else {
        panic!("dirty data is in memory")
    };
    assert_eq!(buf.contiguous(), Some(&data[5000..15_000]));
    world.client.sync_all().wait().await.unwrap();
    let Answer::Ready(Ok(buf)) = world.client.read(handle, 0, MIB) else { panic!("the ARC has it") };
    assert_eq!(buf.to_vec(), data);
    // What is committed is overwritten in part without waiting, too.
    assert!(matches!(world.client.write(handle, 100, b"abc", false), Answer::Ready(Ok(3))));
}

#[tokio::test(start_paused = true)]
async fn attributes_show_what_is_dirty() {
    let world = World::new(2, 4096, Behaviour::default());
    let (ino, handle) = world.create("f").await;
    let before = world.client.getattr(ino).wait().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.write(handle, 0, &[1; 10_000]).await.unwrap();
    let dirty = world.client.getattr(ino).wait().await.unwrap();
    assert_eq!((dirty.size, dirty.allocated), (10_000, 10_000));
    assert!(dirty.mtime > before.mtime && dirty.ctime >= dirty.mtime);
    assert_ne!(dirty.data_version, before.data_version);
    let listed = world.client.readdir(Ino::ROOT, 0, 10).wait().await.unwrap();
    assert_eq!(listed[0].attr.size, 10_000);

    world.client.sync_all().wait().await.unwrap();
    let clean = world.client.lookup(Ino::ROOT, b"f").wait().await.unwrap();
    assert_eq!((clean.size, clean.mtime), (10_000, dirty.mtime));
    assert_ne!(clean.data_version, dirty.data_version);
}

#[tokio::test(start_paused = true)]
async fn times_that_were_set_stay() {
    let world = World::new(3, 4096, Behaviour::default());
    let (ino, handle) = world.create("f").await;
    for round in 0..20 {
        world.write(handle, 0, &[1; 100_000]).await.unwrap();
        // Sometimes while a commit is under way.
        tokio::time::sleep(Duration::from_millis(round)).await;
        let set = Timespec { sec: 1234 + round as i64, nsec: 5 };
        let change = SetAttr { mtime: Some(SetTime::To(set)), ..SetAttr::default() };
        let attr = world.client.setattr(ROOT, ino, change, None).wait().await.unwrap();
        assert_eq!(attr.mtime, set);
        world.client.fsync(ino, false).wait().await.unwrap();
        assert_eq!(world.client.getattr(ino).wait().await.unwrap().mtime, set);
    }
}

#[tokio::test(start_paused = true)]
async fn small_files_share_segments() {
    let world = World::new(4, 128 << 10, large());
    for n in 0..1000 {
        let (_, handle) = world.create(&format!("f{n}")).await;
        world.write(handle, 0, &pattern(n, 0, 3000)).await.unwrap();
        world.client.close(handle);
    }
    assert_eq!(world.store.puts.load(Ordering::Relaxed), 0);
    world.client.sync_all().wait().await.unwrap();
    assert!(world.store.puts.load(Ordering::Relaxed) <= 4);
    assert_eq!(world.client.stats().dirty_bytes, 0);
    // A file of its own of which nobody waits goes out by age.
    let (ino, handle) = world.create("late").await;
    world.write(handle, 0, b"late").await.unwrap();
    world.client.close(handle);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(world.client.stats().dirty_bytes, 0);
    assert_eq!(world.size(ino).await, 4);
}

/// Files that are written at once, as their readers will find them: whole segments of one file each.
#[tokio::test(start_paused = true)]
async fn files_written_at_once_have_segments_of_their_own() {
    let world = World::new(4, 128 << 10, large());
    *world.mds.pending.lock() = 0.0;
    let mut files = Vec::new();
    for n in 0..4 {
        files.push(world.create(&format!("f{n}")).await);
    }
    let size = 12 * MIB + 1000;
    for at in (0..size).step_by(100_000) {
        for (n, (_, handle)) in files.iter().enumerate() {
            let len = (size - at).min(100_000);
            world.write(*handle, at as u64, &pattern(n as u64, at as u64, len)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (_, handle) in &files {
        world.client.close(*handle);
    }
    world.client.sync_all().wait().await.unwrap();
    let mut owners: HashMap<SegmentId, HashSet<Ino>> = HashMap::new();
    for (ino, _) in &files {
        let map = Served(world.mds.clone()).map(*ino, 0, 1000).wait().await.unwrap();
        let segments: HashSet<_> = map.ptrs.iter().flatten().map(|ptr| ptr.segment).collect();
        assert_eq!(segments.len(), 4, "three whole ones and the end");
        segments.into_iter().for_each(|segment| _ = owners.entry(segment).or_default().insert(*ino));
    }
    assert_eq!(owners.len(), 13, "the ends share one");
}

#[tokio::test(start_paused = true)]
async fn fsyncs_share_segments_and_wait_for_nobody_else() {
    let world = World::new(5, 4096, Behaviour { write_us: (20_000, 20_000), ..large() });
    let (_, bulk) = world.create("bulk").await;
    let mut files = Vec::new();
    for n in 0..64 {
        files.push(world.create(&format!("f{n}")).await);
    }
    world.write(bulk, 0, &vec![1; 3 * MIB]).await.unwrap();
    for (_, handle) in &files {
        world.write(*handle, 0, b"some bytes").await.unwrap();
    }
    let start = Instant::now();
    let answers: Vec<_> = files.iter().map(|(ino, _)| world.client.fsync(*ino, false)).collect();
    for answer in answers {
        answer.wait().await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    assert!(world.store.puts.load(Ordering::Relaxed) <= 4);
    assert!(world.client.stats().dirty_bytes >= 3 * MIB as u64, "the other file's data was not waited for");
}

#[tokio::test(start_paused = true)]
async fn a_cold_stream_hides_latency() {
    let behaviour = Behaviour { read_us: (20_000, 20_000), write_us: (1000, 2000), cache: 2048, ..large() };
    let mut world = World::new(6, 128 << 10, behaviour);
    *world.mds.pending.lock() = 0.0;
    let (_, handle) = world.create("big").await;
    let size = 128 * MIB;
    for at in (0..size).step_by(MIB) {
        world.write(handle, at as u64, &pattern(9, at as u64, MIB)).await.unwrap();
    }
    world.client.shutdown(|_| {}).await.unwrap();
    world.remount();
    let (_, handle) = world.open("big").await;
    let start = Instant::now();
    for at in (0..size).step_by(128 << 10) {
        assert_eq!(world.read(handle, at as u64, 128 << 10).await, pattern(9, at as u64, 128 << 10));
        // A reader of about 1 GB/s.
        tokio::time::sleep(Duration::from_micros(125)).await;
    }
    let stats = world.client.stats();
    // 1024 reads of 20 ms each would take 20 s; the reader alone takes some 0.2 to 1.1 s of this clock.
    assert!(start.elapsed() < Duration::from_millis(2500), "{:?}", start.elapsed());
    assert!(stats.reads_ready > stats.reads * 95 / 100, "{stats:?}");
    assert!(stats.prefetch_unused_bytes == 0, "{stats:?}");
}

/// Two readers of one file around the kernel's cache, one some segments behind the other.
#[tokio::test(start_paused = true)]
async fn a_stream_leaves_in_memory_what_another_of_the_file_has_before_it() {
    let behaviour = Behaviour { read_us: (1000, 2000), write_us: (1000, 2000), cache: 4096, ..large() };
    let mut world = World::with(5, 128 << 10, behaviour, |options| options.prefetch_max = 128 << 20);
    *world.mds.pending.lock() = 0.0;
    let (_, handle) = world.create("shared").await;
    let (size, chunk) = (256 * MIB, MIB);
    for at in (0..size).step_by(chunk) {
        world.write(handle, at as u64, &pattern(5, at as u64, chunk)).await.unwrap();
    }
    world.client.shutdown(|_| {}).await.unwrap();
    world.remount();
    let (ino, _) = world.open("shared").await;
    let direct = OpenMode { read: true, direct: true, ..OpenMode::default() };
    let (first, _, _) = world.client.open(ino, direct).wait().await.unwrap();
    let (second, _, _) = world.client.open(ino, direct).wait().await.unwrap();
    let behind = 14;
    for n in 0..size / chunk + behind {
        for (handle, n) in [(first, Some(n)), (second, n.checked_sub(behind))] {
            let Some(at) = n.map(|n| n * chunk).filter(|at| *at < size) else { continue };
            assert!(world.read(handle, at as u64, chunk).await == pattern(5, at as u64, chunk), "{at}");
            // What is on its way arrives: this store would be asked twice.
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    let (gets, segments) = (world.store.gets.load(Ordering::Relaxed), (size / (4 * MIB)) as u64);
    assert!(gets <= segments + 8, "{gets} gets for {segments} segments");
    world.client.close(first);
    world.client.close(second);
    let left = world.store.cached_bytes();
    assert!(left <= 8 * MIB, "{left} bytes that both have passed are still in memory");
}

/// A training set: whole files of a directory in an order that nobody can foretell, each once in a pass.
#[tokio::test(start_paused = true)]
async fn shuffled_files_are_there_before_they_are_opened() {
    let behaviour = Behaviour { read_us: (20_000, 20_000), write_us: (1000, 2000), cache: 4096, ..large() };
    let (files, size) = (400, 300_000);
    for (prefetch, passes) in [(256 << 20, 2), (0, 1)] {
        let mut world = World::with(6, 128 << 10, behaviour, |options| options.prefetch_max = prefetch);
        *world.mds.pending.lock() = 0.0;
        for n in 0..files {
            let (_, handle) = world.create(&format!("f{n}")).await;
            world.write(handle, 0, &pattern(n, 0, size)).await.unwrap();
            world.client.close(handle);
        }
        world.client.shutdown(|_| {}).await.unwrap();
        world.remount();
        for pass in 0..passes {
            let start = Instant::now();
            for n in (0..files).map(|n| n * (157 + 2 * pass) % files) {
                let (_, handle) = world.open(&format!("f{n}")).await;
                assert_eq!(world.read(handle, 0, size).await, pattern(n, 0, size));
                world.client.close(handle);
            }
            // One by one they take 20 ms each.
            let took = start.elapsed();
            assert_eq!(took >= Duration::from_secs(8), prefetch == 0, "{took:?}");
            assert!(prefetch == 0 || took < Duration::from_millis(500), "{took:?}");
        }
        let stats = world.client.stats();
        // Once each, but for one that was opened while it was on its way.
        let most = (files + 1) * size as u64;
        assert!(stats.prefetch_issued_bytes <= most && stats.prefetch_used_bytes <= most, "{stats:?}");
        assert_eq!(stats.prefetch_unused_bytes, 0, "{stats:?}");
    }
}

/// Reads of 4 KiB all over a file, from a store that takes its time.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_read_all_over_is_in_memory_soon() {
    for (read_us, fetched) in [((20_000, 20_000), true), ((500, 1000), false)] {
        let behaviour = Behaviour { read_us, write_us: (1000, 2000), cache: 4096, ..large() };
        let mut world = World::with(6, 128 << 10, behaviour, |options| options.prefetch_max = 256 << 20);
        *world.mds.pending.lock() = 0.0;
        let (_, handle) = world.create("index").await;
        let size = 64 * MIB;
        for at in (0..size).step_by(MIB) {
            world.write(handle, at as u64, &pattern(9, at as u64, MIB)).await.unwrap();
        }
        world.client.shutdown(|_| {}).await.unwrap();
        world.remount();
        let (_, handle) = world.open("index").await;
        let start = Instant::now();
        for n in 0..300 {
            let at = (n * 7919 + 13) * 4096 % size;
            assert_eq!(world.read(handle, at as u64, 4096).await, pattern(9, at as u64, 4096));
        }
        let (took, stats) = (start.elapsed(), world.client.stats());
        if fetched {
            // One by one they take 6 s.
            assert!(took < Duration::from_millis(1000), "{took:?}");
            assert!(stats.prefetch_issued_bytes <= size as u64, "{stats:?}");
        } else {
            assert_eq!(stats.prefetch_issued_bytes, 0, "{stats:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_small_file_is_one_get() {
    let mut world = World::new(7, 4096, large());
    *world.mds.pending.lock() = 0.0;
    let (_, handle) = world.create("small").await;
    let data = pattern(3, 0, 100_000);
    world.write(handle, 0, &data).await.unwrap();
    world.client.shutdown(|_| {}).await.unwrap();
    world.remount();
    let (_, handle) = world.open("small").await;
    assert_eq!(world.read(handle, 0, 4096).await, &data[..4096]);
    assert_eq!(world.read(handle, 4096, 100_000).await, &data[4096..]);
    assert_eq!(world.store.gets.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_file_without_names_is_not_written() {
    let world = World::new(8, 4096, Behaviour::default());
    let (ino, handle) = world.create("gone").await;
    world.write(handle, 0, &pattern(1, 0, 10_000)).await.unwrap();
    world.client.unlink(Ino::ROOT, b"gone").wait().await.unwrap();
    assert_eq!(world.read(handle, 0, 10_000).await, pattern(1, 0, 10_000));
    world.client.close(handle);
    assert_eq!(world.client.stats().dirty_bytes, 0);
    // Closed first, unlinked then.
    let (_, handle) = world.create("gone too").await;
    world.write(handle, 0, &pattern(1, 0, 10_000)).await.unwrap();
    world.client.close(handle);
    world.client.unlink(Ino::ROOT, b"gone too").wait().await.unwrap();
    assert_eq!(world.client.stats().dirty_bytes, 0);
    world.client.sync_all().wait().await.unwrap();
    assert_eq!(world.store.puts.load(Ordering::Relaxed), 0);
    assert_eq!(world.client.getattr(ino).wait().await, Err(FsError::Stale));

    // What is on its way then is committed as it is, if the server has the file still.
    let (ino, handle) = world.create("late").await;
    Served(world.mds.clone()).open(ino).wait().await.unwrap();
    world.write(handle, 0, &pattern(1, 0, 10_000)).await.unwrap();
    world.client.unlink(Ino::ROOT, b"late").wait().await.unwrap();
    world.store.behaviour.lock().write_us = (20_000, 20_000);
    let synced = tokio::spawn(world.client.fsync(ino, false).wait());
    while world.store.writing.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.client.close(handle);
    synced.await.unwrap().unwrap();
    assert!(world.store.writing.load(Ordering::Relaxed) > 0);
    world.client.sync_all().wait().await.unwrap();

    // One that gets a name after all is kept.
    let (attr, handle) = world.client.create_unnamed(ROOT, Ino::ROOT, 0o600).wait().await.unwrap();
    world.write(handle, 0, b"kept").await.unwrap();
    world.client.link(attr.ino, Ino::ROOT, b"named").wait().await.unwrap();
    world.client.close(handle);
    world.client.sync_all().wait().await.unwrap();
    let (_, handle) = world.open("named").await;
    assert_eq!(world.read(handle, 0, 10).await, b"kept");
}

#[tokio::test(start_paused = true)]
async fn a_rename_over_a_file_carries_its_data() {
    let mut world = World::new(9, 4096, Behaviour::default());
    let (_, old) = world.create("config").await;
    world.write(old, 0, b"old content").await.unwrap();
    world.client.close(old);
    world.client.sync_all().wait().await.unwrap();
    let (_, new) = world.create("config.new").await;
    world.write(new, 0, b"new content!").await.unwrap();
    world.client.close(new);
    let rename = world.client.rename(Ino::ROOT, b"config.new", Ino::ROOT, b"config", RenameMode::Replace);
    rename.wait().await.unwrap();
    world.crash(10, true);
    let (_, handle) = world.open("config").await;
    assert_eq!(world.read(handle, 0, 100).await, b"new content!");
}

#[tokio::test(start_paused = true)]
async fn writers_wait_when_memory_is_full() {
    let behaviour = Behaviour { write_us: (50_000, 100_000), ..large() };
    let max = 8 * MIB as u64;
    let world = World::with(11, 128 << 10, behaviour, |options| options.dirty_max = max);
    let (ino, handle) = world.create("f").await;
    let mut waited = 0;
    for at in (0..100 * MIB).step_by(MIB) {
        let answer = world.client.write(handle, at as u64, &pattern(1, at as u64, MIB), false);
        waited += u64::from(matches!(answer, Answer::Pending(_)));
        answer.wait().await.unwrap();
        assert!(world.client.stats().dirty_bytes <= max);
    }
    assert!(waited > 10);
    world.client.fsync(ino, false).wait().await.unwrap();
    assert_eq!(world.read(handle, 50 * MIB as u64, MIB).await, pattern(1, 50 * MIB as u64, MIB));
    assert!(world.store.most_writing.load(Ordering::Relaxed) <= 24);
}

#[tokio::test(start_paused = true)]
async fn the_kernel_keeps_its_cache_only_while_it_is_right() {
    let world = World::new(12, 4096, Behaviour::default());
    *world.mds.pending.lock() = 0.0;
    let (ino, handle) = world.create("f").await;
    world.write(handle, 0, b"content").await.unwrap();
    world.client.close(handle);
    world.client.sync_all().wait().await.unwrap();
    let open = |mode| world.client.open(ino, mode);
    let (handle, _, keep) = open(READ_WRITE).wait().await.unwrap();
    assert!(keep);
    world.client.close(handle);
    // A change from elsewhere.
    let set = SetAttr { size: Some(3), ..SetAttr::default() };
    crate::mds::Served(world.mds.clone()).setattr(ino, set).wait().await.unwrap();
    let (handle, attr, keep) = open(READ_WRITE).wait().await.unwrap();
    assert!(!keep && attr.size == 3);
    world.client.close(handle);
    let (_, attr, keep) = open(OpenMode { truncate: true, ..READ_WRITE }).wait().await.unwrap();
    assert!(!keep && attr.size == 0);
}

#[tokio::test(start_paused = true)]
async fn access_times_move_as_relatime_says_and_leave_the_change_time() {
    let world = World::new(13, 4096, Behaviour::default());
    let (ino, handle) = world.create("f").await;
    world.write(handle, 0, b"content").await.unwrap();
    world.client.fsync(ino, false).wait().await.unwrap();
    let before = world.client.getattr(ino).wait().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.read(handle, 0, 10).await;
    let read = world.client.getattr(ino).wait().await.unwrap();
    assert!(read.atime > before.atime);
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.read(handle, 0, 10).await;
    assert_eq!(world.client.getattr(ino).wait().await.unwrap().atime, read.atime);
    world.client.close(handle);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sent = world.client.getattr(ino).wait().await.unwrap();
    assert_eq!((sent.atime, sent.ctime), (read.atime, before.ctime));
}

/// A file that was read is closed, and while that is told its mode is changed.
#[tokio::test(start_paused = true)]
async fn an_access_time_that_is_told_late_takes_no_change_time_back() {
    for pause in 0..12 {
        let world = World::new(pause, 4096, Behaviour::default());
        *world.mds.pending.lock() = 1.0;
        let (ino, handle) = world.create("f").await;
        world.write(handle, 0, b"content").await.unwrap();
        world.client.fsync(ino, false).wait().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.read(handle, 0, 10).await;
        let read = world.client.getattr(ino).wait().await.unwrap();
        world.client.close(handle);
        tokio::time::sleep(Duration::from_micros(pause * 500)).await;
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let changed = world.client.setattr(ROOT, ino, set, None).wait().await.unwrap();
        assert!(changed.ctime > read.ctime);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = world.client.getattr(ino).wait().await.unwrap();
        assert_eq!((after.atime, after.ctime), (read.atime, changed.ctime), "after {pause}");
    }
}

#[tokio::test(start_paused = true)]
async fn stats_serialise() {
    let world = World::new(14, 4096, Behaviour::default());
    let json = serde_json::to_value(world.client.stats()).unwrap();
    assert_eq!(json["dirty_bytes"], 0);
}

/// Their bytes alone would let many more of them go together than a commit can name.
#[tokio::test(start_paused = true)]
async fn a_segment_of_tiny_files_has_only_so_many_of_them() {
    let world = World::new(31, 4096, large());
    *world.mds.pending.lock() = 0.0;
    let most = tarn_base::block::SEGMENT_RECORDS_MAX;
    for n in 0..most + most / 8 {
        let (_, handle) = world.create(&format!("{n}")).await;
        world.write(handle, 0, b"x").await.unwrap();
        world.client.close(handle);
    }
    world.client.sync_all().wait().await.unwrap();
    assert_eq!(world.store.stored(), (most + most / 8) as u64);
    assert_eq!(world.store.most_records.load(Ordering::Relaxed), most as u64);
}
