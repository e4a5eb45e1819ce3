//! What the guard promises: limits, retries, deadlines, counts. Time is the test's own, so that minutes pass in
//! an instant.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tarn_bucket::fault::{Fault, FaultBucket, Rates};
use tarn_bucket::memory::MemoryBucket;
use tarn_bucket::{Bucket, Error, Guarded, OpenOptions, Operation};
use tokio::time::Instant;

/// A guarded bucket in memory of its own, and the faults in between.
fn guarded(name: &str, options: &OpenOptions) -> (Arc<FaultBucket>, Arc<Guarded>) {
    MemoryBucket::forget(name);
    let faults = FaultBucket::new(Arc::new(MemoryBucket::named(name)));
    (faults.clone(), Guarded::new(faults, options))
}

fn text(text: &'static str) -> Vec<Bytes> {
    vec![Bytes::from_static(text.as_bytes())]
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again() {
    let (faults, bucket) = guarded("again", &OpenOptions::default());
    for operation in [Operation::Put, Operation::Get, Operation::Head, Operation::List, Operation::Delete] {
        faults.script(operation, "", 3, Fault::Fail);
    }
    faults.script(Operation::Create, "", 3, Fault::Fail);
    bucket.put("a", text("abc")).await.unwrap();
    bucket.create("b", text("def")).await.unwrap();
    assert_eq!(bucket.get("a", 0..3).await.unwrap(), "abc");
    assert_eq!(bucket.head("a").await.unwrap().size, 3);
    assert_eq!(bucket.list("").await.unwrap().len(), 2);
    bucket.delete(&["a".into()]).await.unwrap();
    let stats = bucket.stats();
    for operation in Operation::ALL.into_iter().filter(|operation| *operation != Operation::Sync) {
        let counted = &stats.operations[&operation];
        let all =
            (counted.requests, counted.errors, counted.retries, counted.failures, counted.latency.count);
        assert_eq!(all, (4, 3, 3, 0, 4), "{operation:?}");
    }
    let bytes = |operation| stats.operations[&operation].bytes;
    assert_eq!((bytes(Operation::Put), bytes(Operation::Create), bytes(Operation::Get)), (3, 3, 3));
    assert_eq!(stats.failures_in_a_row, 0);
    assert!(stats.last_error.unwrap().0.contains("a fault for the test"));
}

#[tokio::test(start_paused = true)]
async fn a_check_passes_over_a_failure_and_not_over_several() {
    let (faults, bucket) = guarded("check", &OpenOptions::default());
    faults.script(Operation::List, "", 2, Fault::Fail);
    bucket.check().await.unwrap();
    faults.script(Operation::List, "", 3, Fault::Fail);
    assert!(matches!(bucket.check().await, Err(Error::Io(_))));
}

#[tokio::test(start_paused = true)]
async fn answers_are_not_tried_again() {
    let (faults, bucket) = guarded("answers", &OpenOptions::default());
    faults.script(Operation::Put, "", 1, Fault::NoSpace);
    assert!(matches!(bucket.put("a", text("x")).await, Err(Error::NoSpace(_))));
    assert!(matches!(bucket.get("a", 0..1).await, Err(Error::NotFound(_))));
    bucket.create("a", text("x")).await.unwrap();
    assert!(matches!(bucket.create("a", text("x")).await, Err(Error::Exists(_))));
    let stats = bucket.stats();
    assert!(stats.operations.values().all(|operation| operation.retries == 0));
    let (get, put) = (&stats.operations[&Operation::Get], &stats.operations[&Operation::Put]);
    assert_eq!((get.errors, get.failures, put.errors, put.failures), (0, 0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_failed_sync_is_not_tried_again() {
    let (faults, bucket) = guarded("sync", &OpenOptions::default());
    faults.script(Operation::Sync, "", 1, Fault::Fail);
    assert!(matches!(bucket.sync().await, Err(Error::Io(_))));
    assert_eq!(bucket.stats().operations[&Operation::Sync].requests, 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_gone_costs_the_deadline_and_no_more() {
    let (faults, bucket) = guarded("gone", &OpenOptions::default());
    faults.set_outage(true);
    let start = Instant::now();
    let error = bucket.get("a", 0..1).await.unwrap_err();
    let took = start.elapsed();
    assert!(matches!(&error, Error::Timeout(text) if text.contains("the network is gone")), "{error}");
    assert!((Duration::from_secs(50)..=Duration::from_secs(60)).contains(&took), "{took:?}");
    let requests = bucket.stats().operations[&Operation::Get].requests;
    assert!((10..60).contains(&requests), "{requests}");
    assert_eq!(bucket.stats().failures_in_a_row, 1);
    // The bucket is back in the middle of a call.
    let waiting = tokio::spawn({
        let bucket = bucket.clone();
        async move { bucket.put("a", text("x")).await }
    });
    tokio::time::sleep(Duration::from_secs(30)).await;
    faults.set_outage(false);
    waiting.await.unwrap().unwrap();
    assert_eq!(bucket.stats().failures_in_a_row, 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_costs_the_deadline_and_no_more() {
    let options = OpenOptions { concurrency: Some(2), ..OpenOptions::default() };
    let (faults, bucket) = guarded("hang", &options);
    bucket.set_deadline(Duration::from_secs(20));
    bucket.set_attempt(Duration::from_secs(8));
    faults.random(1, Rates { hang: 1.0, ..Rates::default() });
    let start = Instant::now();
    // More calls than may be under way at once: those in the queue end too.
    let calls = (0..10).map(|_| bucket.get("a", 0..1));
    for result in futures::future::join_all(calls).await {
        assert!(matches!(result, Err(Error::Timeout(_))), "{result:?}");
    }
    for result in [bucket.sync().await, bucket.put("a", text("x")).await] {
        assert!(matches!(result, Err(Error::Timeout(_))), "{result:?}");
    }
    assert!(start.elapsed() <= Duration::from_secs(61), "{:?}", start.elapsed());
    assert!(matches!(bucket.check().await, Err(Error::Timeout(_))));
    let stats = bucket.stats();
    assert_eq!((stats.busy, stats.queued, stats.idle), (0, 0, 2));
    // One attempt that hangs is no failure.
    faults.calm();
    faults.script(Operation::Put, "", 1, Fault::Hang);
    bucket.put("a", text("x")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_long_queue_before_a_slow_store_is_no_failure() {
    let options = OpenOptions { concurrency: Some(1), ..OpenOptions::default() };
    let (faults, bucket) = guarded("slow", &options);
    faults.script(Operation::Put, "", 100, Fault::Delay(Duration::from_secs(5)));
    let calls = (0..100).map(|_| bucket.put("a", text("x")));
    let start = Instant::now();
    for result in futures::future::join_all(calls).await {
        result.unwrap();
    }
    assert!(start.elapsed() >= Duration::from_secs(500));
    let put = &bucket.stats().operations[&Operation::Put];
    assert_eq!(put.queue.count, 100);
    assert!(
        put.queue.quantile_us(1.0) > 480_000_000
            && put.latency.quantile_us(0.0) >= 5_000_000
            && put.latency.quantile_us(1.0) < 5_700_000
            && (5_000_000..5_010_000).contains(&put.latency.mean_us()),
        "{put:?}"
    );
    assert_eq!(put.latency.count, 100);
}

#[tokio::test(start_paused = true)]
async fn the_limit_holds_and_can_be_changed() {
    let options = OpenOptions { concurrency: Some(3), ..OpenOptions::default() };
    let (faults, bucket) = guarded("limit", &options);
    faults.script(Operation::Get, "", usize::MAX, Fault::Delay(Duration::from_secs(10)));
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let bucket = bucket.clone();
            tokio::spawn(async move { bucket.get("a", 0..1).await })
        })
        .collect();
    for (limit, queued) in [(3, 17), (8, 9), (1, 8)] {
        bucket.set_concurrency(limit);
        tokio::time::sleep(Duration::from_secs(if limit == 3 { 5 } else { 10 })).await;
        let stats = bucket.stats();
        assert_eq!((stats.busy, stats.queued, stats.concurrency), (limit as u64, queued, limit));
    }
    for call in calls {
        let _ = call.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_reply_was_lost_knows_its_own() {
    let (faults, bucket) = guarded("lost", &OpenOptions::default());
    faults.script(Operation::Create, "", 1, Fault::ReplyLost);
    let body = vec![Bytes::from_static(b"ours, "), Bytes::new(), Bytes::from_static(b"in pieces")];
    bucket.create("a", body).await.unwrap();
    assert_eq!(bucket.get("a", 0..99).await.unwrap(), "ours, in pieces");
    // Another's object is not ours, whatever it shares with it.
    for (key, theirs) in [("b", "theirs"), ("c", "ours"), ("d", "ours and more"), ("e", "")] {
        bucket.put(key, text(theirs)).await.unwrap();
        faults.script(Operation::Create, key, 1, Fault::Fail);
        assert!(matches!(bucket.create(key, text("ours and")).await, Err(Error::Exists(_))), "{theirs}");
        assert_eq!(bucket.get(key, 0..99).await.unwrap(), theirs);
    }
    bucket.put("f", text("ours and")).await.unwrap();
    assert!(
        matches!(bucket.create("f", text("ours and")).await, Err(Error::Exists(_))),
        "no attempt was lost"
    );
}

#[tokio::test(start_paused = true)]
async fn a_short_body_is_tried_again_unless_the_object_is_short() {
    let (faults, bucket) = guarded("short", &OpenOptions::default());
    bucket.put("a", text("0123456789")).await.unwrap();
    faults.script(Operation::Get, "", 2, Fault::Short);
    assert_eq!(bucket.get("a", 2..8).await.unwrap(), "234567");
    faults.script(Operation::Get, "", 1, Fault::Short);
    assert_eq!(bucket.get("a", 5..100).await.unwrap(), "56789");
    faults.script(Operation::Get, "", 1, Fault::Short);
    assert_eq!(bucket.get_tail("a", 4).await.unwrap(), (Bytes::from_static(b"6789"), 10));
    assert_eq!(bucket.get("a", 10..100).await.unwrap(), "");
    assert_eq!(bucket.stats().operations[&Operation::Get].retries, 4);
}

#[tokio::test(start_paused = true)]
async fn faults_at_random_are_the_same_for_the_same_seed() {
    let mut seen = Vec::new();
    for round in 0..2 {
        let (faults, bucket) = guarded("random", &OpenOptions::default());
        let delay = Duration::from_millis(5);
        let rates =
            Rates { fail: 0.1, reply_lost: 0.1, short: 0.2, flip: 0.1, delay: 0.1, ..Rates::default() };
        faults.random(7, Rates { longest_delay: delay, ..rates });
        let mut flipped = 0;
        for n in 0..300 {
            let key = format!("k{n}");
            bucket.put(&key, text("0123456789")).await.unwrap();
            flipped += usize::from(bucket.get(&key, 0..10).await.unwrap() != "0123456789");
        }
        assert!(flipped > 10, "{round}");
        seen.push((faults.happened(), flipped));
    }
    assert_eq!(seen[0], seen[1]);
    assert!(
        ["fail", "reply_lost", "short", "flip", "delay"].iter().all(|fault| seen[0].0[fault] > 10),
        "{seen:?}"
    );
}

#[tokio::test]
async fn what_is_counted_is_plain_data() {
    let (_, bucket) = guarded("plain", &OpenOptions::default());
    bucket.put("a", text("x")).await.unwrap();
    bucket.put("a", text("x")).await.unwrap();
    let json = serde_json::to_value(bucket.stats()).unwrap();
    assert_eq!(json["url"], "mem://plain");
    assert_eq!(json["operations"]["put"]["requests"], 2);
    assert_eq!(json["operations"]["put"]["latency"]["count"], 2);
    assert_eq!(json["operations"]["get"]["latency"]["count"], 0);
}

#[tokio::test(start_paused = true)]
async fn credentials_are_waited_for_a_moment_and_not_for_the_deadline() {
    let (faults, bucket) = guarded("locked-out", &OpenOptions::default());
    bucket.put("a", text("abc")).await.unwrap();
    faults.script(Operation::Get, "", 3, Fault::LockedOut);
    assert_eq!(bucket.get("a", 0..3).await.unwrap(), "abc");
    faults.script(Operation::Get, "", 1000, Fault::LockedOut);
    let start = Instant::now();
    let error = bucket.get("a", 0..3).await.unwrap_err();
    assert!(matches!(&error, Error::Credentials(text) if text.contains("expired")), "{error}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_is_asked_less_and_nothing_fails() {
    let options = OpenOptions { concurrency: Some(64), ..OpenOptions::default() };
    let (faults, bucket) = guarded("busy", &options);
    faults.script(Operation::Put, "", 500, Fault::Busy);
    let puts = (0..64).map(|n| {
        let bucket = bucket.clone();
        tokio::spawn(async move { bucket.put(&format!("{n}"), text("x")).await })
    });
    let mut puts = Box::pin(futures::future::join_all(puts));
    let (mut least, mut told) = (64, false);
    let done = loop {
        tokio::select! {
            done = &mut puts => break done,
            () = tokio::time::sleep(Duration::from_millis(10)) => {
                let stats = bucket.stats();
                (least, told) = (least.min(stats.concurrency), told | stats.slowed_ms.is_some());
            }
        }
    };
    assert!(done.into_iter().all(|put| put.unwrap().is_ok()));
    assert!(least <= 16 && told, "{least} at once");
    assert_eq!(bucket.stats().concurrency_most, 64);
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        bucket.head("1").await.unwrap();
    }
    assert_eq!((bucket.stats().concurrency, bucket.stats().slowed_ms), (64, None));
}

#[tokio::test(start_paused = true)]
async fn a_late_read_is_sent_again_and_the_first_answer_counts() {
    let options = OpenOptions { hedge: Some(true), ..OpenOptions::default() };
    let (faults, bucket) = guarded("hedge", &options);
    bucket.put("a", text("0123456789")).await.unwrap();
    let read = async || {
        let start = Instant::now();
        assert_eq!(bucket.get("a", 0..10).await.unwrap(), "0123456789");
        start.elapsed().as_millis()
    };
    faults.script(Operation::Get, "", 100, Fault::Delay(Duration::from_millis(40)));
    for _ in 0..100 {
        read().await;
    }
    faults.script(Operation::Get, "", 1, Fault::Delay(Duration::from_secs(3)));
    let took = read().await;
    assert!((50..200).contains(&took), "{took} ms");
    // The one that was late may still be the first.
    faults.script(Operation::Get, "", 1, Fault::Delay(Duration::from_millis(120)));
    faults.script(Operation::Get, "", 1, Fault::Delay(Duration::from_millis(500)));
    let took = read().await;
    assert!((110..200).contains(&took), "{took} ms");
    let stats = bucket.stats();
    assert_eq!((stats.hedged, stats.hedges_won, stats.busy), (2, 1, 0));
    assert_eq!(stats.operations[&Operation::Get].requests, 104);
    // A store that has become slow as a whole is not asked twice as much.
    faults.script(Operation::Get, "", 1000, Fault::Delay(Duration::from_secs(1)));
    for _ in 0..400 {
        read().await;
    }
    assert!(bucket.stats().hedged < 40, "{}", bucket.stats().hedged);
    // An object that is not there is an answer.
    assert!(matches!(bucket.get("b", 0..10).await, Err(Error::NotFound(_))));
}
