//! Block maps and space: what is committed, freed, shared, moved and deleted.

mod world;

use std::collections::BTreeMap;
use tarn_base::posix::SetAttr;
use tarn_base::{Compression, FsError, Ino, RecordOwner, SegmentId, Txg};
use tarn_mdt::Share;
use tarn_pool::SegmentBuilder;
use world::World;

const RECORD: usize = 4096;

async fn world() -> World {
    let w = World::new().await;
    let mut properties = w.mdt.properties();
    properties.record_size = RECORD as u32;
    w.mdt.set_properties(properties);
    w
}

async fn objects(w: &World) -> usize {
    w.pool.list_segments(world::DATASET).await.expect("list").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn freed_segments_are_deleted_once_durable() {
    let mut w = world().await;
    let (a, b) = (w.file(Ino::ROOT, "a").await, w.file(Ino::ROOT, "b").await);
    w.write(&[(a, 0, 1), (a, 1, 2)], RECORD).await;
    w.write(&[(b, 0, 3)], RECORD).await;
    assert_eq!(w.mdt.usage().live, 3 * RECORD as u64);
    assert_eq!(w.attr(a).await.map(|x| (x.size, x.allocated)), Ok((2 * RECORD as u64, 2 * RECORD as u64)));
    w.write(&[(a, 0, 4), (a, 1, 5)], RECORD).await;
    assert_eq!(w.read(a, 1).await, Some(5));
    w.until("the overwritten segment is deleted", async |w| objects(w).await == 2).await;
    w.unlink(Ino::ROOT, "a").await.expect("unlink");
    w.mdt.sync().await.expect("sync");
    w.until("the removed file's segment is deleted", async |w| {
        w.mdt.sync().await.expect("sync");
        objects(w).await == 1
    })
    .await;
    assert_eq!(w.read(b, 0).await, Some(3));
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_that_nobody_committed_are_swept_after_a_crash() {
    let mut w = world().await;
    let file = w.file(Ino::ROOT, "file").await;
    w.write(&[(file, 0, 1)], RECORD).await;
    w.mdt.sync().await.expect("sync");
    w.write(&[(file, 1, 3)], RECORD).await;
    assert_eq!(objects(&w).await, 2);
    w.crash().await;
    w.until("the uncommitted segment is swept", async |w| objects(w).await == 1).await;
    assert_eq!((w.read(file, 0).await, w.ptr(file, 0).await.is_some()), (Some(1), true));
    assert_eq!(w.attr(file).await.map(|x| x.size), Ok(RECORD as u64));
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_begins_and_ends_during_a_check_is_neither_leaked_nor_missing() {
    let mut w = world().await;
    let (kept, gone) = (w.file(Ino::ROOT, "kept").await, w.file(Ino::ROOT, "gone").await);
    w.write(&[(kept, 0, 1)], RECORD).await;
    w.write(&[(gone, 0, 3)], RECORD).await;
    let meanwhile = async || {
        let vdev = w.pool.place(1).expect("place");
        let grant = w.mdt.grants(vec![vdev]).wait().await.expect("grant")[0];
        let mut builder = SegmentBuilder::new(SegmentId { grant, seq: 0 });
        let owner = RecordOwner { dataset: world::DATASET, ino: kept, record: 1 };
        builder.add(owner, vec![5; RECORD].into(), Compression::Off, w.mdt.properties().checksum, Txg(0));
        w.pool.put_segment(builder.finish()).await.expect("put");
        w.unlink(Ino::ROOT, "gone").await.expect("unlink");
        w.until("the removed file's segment is deleted", async |w| {
            w.mdt.sync().await.expect("sync");
            objects(w).await == 2
        })
        .await;
    };
    let progress =
        |_| tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(meanwhile()));
    let report = w.mdt.check(false, progress).await.expect("check");
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!(report.segments, 2, "the check looked at what there was before");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_dead_segments_are_compacted() {
    let mut w = world().await;
    let mut files = Vec::new();
    for i in 0..64 {
        files.push(w.file(Ino::ROOT, &format!("f{i}")).await);
    }
    for group in files.chunks(16) {
        let records: Vec<_> = group.iter().map(|ino| (*ino, 0, ino.0 as u8)).collect();
        w.write(&records, RECORD).await;
    }
    for i in (0..64).filter(|i| i % 4 != 0) {
        w.unlink(Ino::ROOT, &format!("f{i}")).await.expect("unlink");
    }
    w.mdt.sync().await.expect("sync");
    w.until("only live bytes are left", async |w| {
        w.mdt.sync().await.expect("sync");
        let usage = w.mdt.usage();
        usage.live == 16 * RECORD as u64 && usage.stored == usage.live && objects(w).await == 1
    })
    .await;
    for ino in files.iter().step_by(4) {
        assert_eq!(w.read(*ino, 0).await, Some(ino.0 as u8));
    }
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_records_live_until_their_last_pointer_goes() {
    let mut w = world().await;
    let (a, b) = (w.file(Ino::ROOT, "a").await, w.file(Ino::ROOT, "b").await);
    w.write(&[(a, 0, 1), (a, 1, 2), (a, 3, 4)], RECORD).await;
    let share =
        Share { from: a, from_record: 0, to: b, to_record: 2, count: 4, size_at_least: 6 * RECORD as u64 };
    w.mdt.share(share).wait().await.expect("share");
    assert_eq!(w.mdt.usage().live, 3 * RECORD as u64);
    assert_eq!((w.read(b, 2).await, w.read(b, 4).await, w.read(b, 5).await), (Some(1), None, Some(4)));
    w.assert_clean().await;
    w.unlink(Ino::ROOT, "a").await.expect("unlink");
    w.until("the source is reaped", async |w| w.attr(a).await == Err(FsError::Stale)).await;
    assert_eq!(w.mdt.usage().live, 3 * RECORD as u64);
    w.assert_clean().await;
    w.truncate(b, 0).await;
    assert_eq!(w.mdt.usage().live, 0);
    w.until("the segment is deleted", async |w| {
        w.mdt.sync().await.expect("sync");
        objects(w).await == 0
    })
    .await;
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_truncations_go_in_steps_and_survive_a_crash() {
    let mut w = world().await;
    let file = w.file(Ino::ROOT, "file").await;
    let far = 64 * 200;
    for at in [0, 64 * 70, 64 * 150, far] {
        w.write(&[(file, at, 9)], RECORD).await;
    }
    assert_eq!(w.truncate(file, RECORD as u64).await.size, RECORD as u64);
    assert_eq!(w.mdt.usage().live, RECORD as u64);
    w.truncate(file, (far + 1) * RECORD as u64).await;
    for at in [64 * 70, 64 * 150, far] {
        assert_eq!(w.read(file, at).await, None);
    }
    assert_eq!(w.mdt.seek_hole(file, 0).wait().await, Ok(RECORD as u64));
    assert_eq!(w.mdt.seek_data(file, 5).wait().await, Ok(5));
    assert_eq!(w.mdt.seek_data(file, RECORD as u64).wait().await, Err(FsError::NoData));
    w.write(&[(file, far, 7)], RECORD).await;
    assert_eq!(w.mdt.seek_data(file, RECORD as u64).wait().await, Ok(far * RECORD as u64));
    w.mdt.punch(file, 1, far - 1).wait().await.expect("punch");
    assert_eq!(w.read(file, far).await, Some(7));
    w.reopen().await;
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncation_that_a_crash_left_half_done_is_finished_and_counted() {
    let mut w = world().await;
    let (file, other) = (w.file(Ino::ROOT, "file").await, w.file(Ino::ROOT, "other").await);
    w.write(&[(other, 0, 8)], RECORD).await;
    for at in [0, 64 * 70, 64 * 150, 64 * 200] {
        w.write(&[(file, at, 9)], RECORD).await;
    }
    // The first transaction is made by the call, the steps by whoever waits for them.
    drop(w.mdt.setattr(file, SetAttr { size: Some(RECORD as u64), ..SetAttr::default() }));
    w.mdt.sync().await.expect("sync");
    assert_eq!(w.attr(file).await.map(|x| x.size), Ok(RECORD as u64));
    // What is carried is brought there in the background.
    w.until("all segments are written", async |w| objects(w).await == 5).await;
    w.crash().await;
    assert_eq!(w.mdt.usage().live, 2 * RECORD as u64);
    w.assert_clean().await;
    w.until("what was cut off is deleted", async |w| objects(w).await == 2).await;
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncation_for_which_nobody_waits_takes_nothing_that_is_written_later() {
    let mut w = world().await;
    let file = w.file(Ino::ROOT, "file").await;
    for at in [0, 64 * 70, 64 * 150, 64 * 200] {
        w.write(&[(file, at, 9)], RECORD).await;
    }
    w.mdt.admit(1).await.expect("client");
    drop(w.mdt.setattr(file, SetAttr { size: Some(RECORD as u64), ..SetAttr::default() }));
    // The client is there again, and asks once more.
    w.mdt.resumed(Vec::new()).await.expect("resumed");
    assert_eq!(w.mdt.usage().live, RECORD as u64);
    w.truncate(file, RECORD as u64).await;
    w.write(&[(file, 64 * 150, 7)], RECORD).await;
    w.mdt.sync().await.expect("sync");
    w.crash().await;
    assert_eq!(w.read(file, 64 * 150).await, Some(7));
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncation_that_was_left_half_way_is_finished_before_the_file_grows_again() {
    const FAR: [u64; 3] = [64 * 70, 64 * 150, 64 * 200];
    let mut w = world().await;
    let other = w.file(Ino::ROOT, "other").await;
    w.write(&[(other, 0, 1)], RECORD).await;
    let mut files = Vec::new();
    for name in ["written", "shared", "retried", "shorter"] {
        let file = w.file(Ino::ROOT, name).await;
        for at in FAR {
            w.write(&[(file, at, 9)], RECORD).await;
        }
        files.push(file);
    }
    let [written, shared, retried, shorter] = files[..] else { panic!("four files") };
    for (file, records) in [(written, 0), (shared, 0), (retried, 0), (shorter, 64 * 100)] {
        let size = Some(records * RECORD as u64);
        drop(w.mdt.setattr(file, SetAttr { size, ..SetAttr::default() }));
    }
    w.write(&[(written, FAR[1], 7)], RECORD).await;
    let size_at_least = (FAR[1] + 1) * RECORD as u64;
    let share = Share { from: other, from_record: 0, to: shared, to_record: FAR[1], count: 1, size_at_least };
    w.mdt.share(share).wait().await.expect("share");
    for file in [retried, shorter] {
        w.truncate(file, 0).await;
        w.truncate(file, (FAR[2] + 1) * RECORD as u64).await;
    }
    w.mdt.sync().await.expect("sync");
    w.crash().await;
    for (file, kept) in [(written, Some(7)), (shared, Some(1)), (retried, None), (shorter, None)] {
        let found = [w.read(file, FAR[0]).await, w.read(file, FAR[1]).await, w.read(file, FAR[2]).await];
        assert_eq!(found, [None, kept, None]);
    }
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_removed_while_it_is_truncated_leaves_nothing() {
    let mut w = world().await;
    let file = w.file(Ino::ROOT, "file").await;
    for at in [0, 64 * 70, 64 * 150, 64 * 200] {
        w.write(&[(file, at, 9)], RECORD).await;
    }
    let truncation = w.mdt.setattr(file, SetAttr { size: Some(0), ..SetAttr::default() });
    w.unlink(Ino::ROOT, "file").await.expect("unlink");
    w.until("the file is reaped", async |w| w.attr(file).await == Err(FsError::Stale)).await;
    assert_eq!(w.mdt.usage().live, 0);
    assert_eq!(truncation.wait().await, Err(FsError::Stale));
    w.reopen().await;
    w.assert_clean().await;
    w.until("its segments are deleted", async |w| objects(w).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_all_its_records_inside_its_size_at_any_time() {
    const STEP: u64 = 256;
    const STEPS: u64 = 100;
    let mut w = world().await;
    let (a, b) = (w.file(Ino::ROOT, "a").await, w.file(Ino::ROOT, "b").await);
    let records: Vec<_> = (0..STEPS).map(|n| (a, n * STEP, 1)).collect();
    w.write(&records, RECORD).await;
    let (count, size) = (STEPS * STEP, STEPS * STEP * RECORD as u64 - 10);
    let share = Share { from: a, from_record: 0, to: b, to_record: 0, count, size_at_least: size };
    let shared = tokio::spawn(w.mdt.share(share).wait());
    let mut between = 0;
    loop {
        let attr = w.attr(b).await.expect("target");
        let done = attr.allocated / RECORD as u64;
        assert!(done == 0 || attr.size > (done - 1) * STEP * RECORD as u64, "{done} steps, {}", attr.size);
        between += u64::from(done > 0 && done < STEPS);
        if done == STEPS {
            break;
        }
    }
    assert!(between > 0, "nobody looked in the midst of it");
    shared.await.expect("share").expect("share");
    assert_eq!(w.attr(b).await.map(|attr| attr.size), Ok(size));
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_was_written_in_vain_is_gone_after_the_close() {
    let mut w = world().await;
    let file = w.file(Ino::ROOT, "file").await;
    w.write(&[(file, 0, 1)], RECORD).await;
    let id = w.segment().await;
    let mut builder = SegmentBuilder::new(id);
    let owner = RecordOwner { dataset: w.mdt.dataset(), ino: file, record: 1 };
    let (data, checksum) = (vec![2; RECORD].into(), w.mdt.properties().checksum);
    builder.add(owner, data, Compression::Off, checksum, Txg(0));
    w.pool.put_segment(builder.finish()).await.expect("put");
    w.pool.note_stray(id.grant);
    w.reopen().await;
    let left = w.pool.list_grant(id.grant).await.expect("list");
    assert!(!left.is_empty() && left.iter().all(|(segment, _)| *segment != id), "{left:?}");
    w.assert_clean().await;
    assert_eq!(w.read(file, 0).await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn however_much_is_asked_for_the_answer_is_of_bounded_size() {
    let mut w = world().await;
    let file = w.file(Ino::ROOT, "file").await;
    w.write(&[(file, 0, 1)], RECORD).await;
    // The second time all of the map that there is, is in memory.
    for _ in 0..2 {
        let ptrs = w.mdt.map(file, 0, u32::MAX).wait().await.expect("map");
        assert!(ptrs[0].is_some() && ptrs.len() <= 1 << 16 && ptrs.capacity() <= 1 << 17);
    }
    assert_eq!(w.mdt.readdir(Ino::ROOT, 0, usize::MAX).wait().await.map(|all| all.len()), Ok(1));
    assert_eq!(w.mdt.names(Ino::ROOT, 0, usize::MAX).wait().await.map(|all| all.len()), Ok(1));
}

/// Random writes, truncations, sharing and removals against a model, with crashes after syncs.
#[tokio::test(flavor = "multi_thread")]
async fn random_data_matches_a_model() {
    use rand::{RngExt, SeedableRng};
    for seed in 0..3 {
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        let mut w = world().await;
        let mut model: BTreeMap<Ino, (String, BTreeMap<u64, u8>)> = BTreeMap::new();
        for step in 0..400u32 {
            let some = |rng: &mut rand::rngs::StdRng, model: &BTreeMap<Ino, _>| {
                (!model.is_empty())
                    .then(|| *model.keys().nth(rng.random_range(0..model.len())).expect("in range"))
            };
            match rng.random_range(0..100) {
                0..15 => {
                    let name = format!("f{step}");
                    model.insert(w.file(Ino::ROOT, &name).await, (name, BTreeMap::new()));
                }
                15..60 => {
                    let mut records = BTreeMap::new();
                    for _ in 0..rng.random_range(1..12) {
                        if let Some(ino) = some(&mut rng, &model) {
                            records.insert((ino, rng.random_range(0..150u64)), rng.random());
                        }
                    }
                    let list: Vec<_> = records.iter().map(|((ino, at), fill)| (*ino, *at, *fill)).collect();
                    if !list.is_empty() {
                        w.write(&list, RECORD).await;
                    }
                    for ((ino, at), fill) in records {
                        model.get_mut(&ino).expect("chosen").1.insert(at, fill);
                    }
                }
                60..75 => {
                    if let Some(ino) = some(&mut rng, &model) {
                        let keep = rng.random_range(0..150u64);
                        w.truncate(ino, keep * RECORD as u64).await;
                        model.get_mut(&ino).expect("chosen").1.retain(|at, _| *at < keep);
                    }
                }
                75..85 => {
                    if let (Some(from), Some(to)) = (some(&mut rng, &model), some(&mut rng, &model)) {
                        let (from_record, to_record, count) =
                            (rng.random_range(0..70), rng.random_range(80..150), rng.random_range(1..10));
                        let share = Share {
                            from,
                            from_record,
                            to,
                            to_record,
                            count,
                            size_at_least: (to_record + count) * RECORD as u64,
                        };
                        w.mdt.share(share).wait().await.expect("share");
                        for i in 0..count {
                            let value = model[&from].1.get(&(from_record + i)).copied();
                            let target = &mut model.get_mut(&to).expect("chosen").1;
                            target.remove(&(to_record + i));
                            target.extend(value.map(|v| (to_record + i, v)));
                        }
                    }
                }
                85..93 => {
                    if let Some(ino) = some(&mut rng, &model) {
                        let (name, _) = model.remove(&ino).expect("chosen");
                        w.unlink(Ino::ROOT, &name).await.expect("unlink");
                    }
                }
                93..96 => {
                    w.mdt.sync().await.expect("sync");
                    w.crash().await;
                }
                _ => {
                    for (ino, (_, records)) in &model {
                        let ptrs = w.mdt.map(*ino, 0, 64).wait().await.expect("map");
                        assert!(
                            ptrs.iter()
                                .enumerate()
                                .all(|(i, p)| p.is_some() == records.contains_key(&(i as u64)))
                        );
                    }
                }
            }
        }
        for (ino, (_, records)) in &model {
            for at in 0..150 {
                assert_eq!(
                    w.read(*ino, at).await,
                    records.get(&at).copied(),
                    "seed {seed} inode {ino} record {at}"
                );
            }
        }
        w.until("orphans are reaped", async |w| w.mdt.usage().inodes == model.len() as u64 + 1).await;
        w.assert_clean().await;
        w.mdt.close().await.expect("close");
    }
}
