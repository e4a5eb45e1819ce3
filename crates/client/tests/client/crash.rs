//! The client dies at a random moment; what was committed must be a state that its history allows.

use crate::random::{Run, seeds};
use crate::store::Behaviour;
use crate::world::{World, pattern};
use rand::RngExt;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_crash_leaves_what_was_synced_and_nothing_that_never_was() {
    crashes(1000, 0.0).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_among_writes_that_fail_leaves_no_more_than_it_may() {
    crashes(3000, 0.4).await;
}

async fn crashes(first: u64, write_fails: f64) {
    for seed in seeds(first, 60) {
        let behaviour = Behaviour { write_us: (0, 60_000), write_fails, ..Behaviour::default() };
        let mut run = Run::new(seed, behaviour).await;
        for _ in 0..6 {
            for _ in 0..run.rng.random_range(1..120) {
                run.step().await;
            }
            let pause = run.rng.random_range(0..70);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let newest = run.rng.random_bool(0.7);
            run.crash(newest).await;
        }
    }
}

/// The first of three segments fails, and the second arrives late: the third must not be committed before both.
#[tokio::test(start_paused = true)]
async fn what_went_after_a_failure_does_not_overtake_what_came_back_by_it() {
    const SEGMENT: usize = 64 << 10;
    let behaviour = Behaviour { write_us: (50_000, 50_000), ..Behaviour::default() };
    let mut world = World::new(8, 4096, behaviour);
    let (_, handle) = world.create("f").await;
    let data = pattern(1, 0, 3 * SEGMENT);
    let part = |n: usize| &data[n * SEGMENT..(n + 1) * SEGMENT];
    let first_of = |n: usize| (n * SEGMENT / 4096) as u64;
    world.store.scripts.lock().insert(first_of(0), (Duration::from_millis(1), true));
    world.store.scripts.lock().insert(first_of(1), (Duration::from_secs(2), false));
    world.write(handle, 0, part(0)).await.unwrap();
    world.write(handle, SEGMENT as u64, part(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.client.stats().flush_failures, 1);
    world.store.scripts.lock().clear();
    world.write(handle, 2 * SEGMENT as u64, part(2)).await.unwrap();
    // The second segment has just arrived.
    tokio::time::sleep(Duration::from_millis(1960)).await;
    world.crash(9, true);
    let (ino, handle) = world.open("f").await;
    let size = world.size(ino).await as usize;
    assert!(world.read(handle, 0, data.len()).await == data[..size], "{size} bytes with a hole in them");
}
