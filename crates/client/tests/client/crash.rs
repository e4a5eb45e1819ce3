//! The client dies at a random moment; what was committed must be a state that its history allows.

use crate::random::{Run, seeds};
use crate::store::Behaviour;
use rand::RngExt;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_crash_leaves_what_was_synced_and_nothing_that_never_was() {
    for seed in seeds(1000, 60) {
        let behaviour = Behaviour { write_us: (0, 60_000), ..Behaviour::default() };
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
