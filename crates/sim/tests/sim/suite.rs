//! Seeds in processes of their own, what they add up to, and the tests.

use crate::run;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use tarn_base::sabotage::Sabotage;

/// Operations of one seed.
pub const OPERATIONS: u64 = 500;
/// Seeds that `cargo test` runs.
const SEEDS: u64 = 100;
/// Seeds within which a sabotage must be found.
const SABOTAGED: u64 = 60;

/// Every kind that a run must have seen; of faults, those of the store and those of a crash.
const FAULTS: [&str; 12] = [
    "fail",
    "delay",
    "reorder",
    "short",
    "flip",
    "hang",
    "reply_lost",
    "given_up_applied",
    "given_up_late",
    "given_up_lost",
    "crash_dropped",
    "crash_kept",
];
const OPERATION_KINDS: [&str; 34] = [
    "create",
    "mkdir",
    "mknod",
    "symlink",
    "link",
    "remove",
    "rename",
    "rename_noreplace",
    "rename_exchange",
    "setattr",
    "setxattr",
    "removexattr",
    "readdir",
    "tmpfile",
    "open",
    "close",
    "forget",
    "write",
    "read",
    "truncate",
    "fallocate",
    "copy_file_range",
    "seek",
    "fsync",
    "fdatasync",
    "sync",
    "concurrent",
    "time",
    "crash",
    "remount",
    "takeover",
    "unlink_open",
    "cut",
    "restart",
];

/// What must have gone on in the background.
const WORK: [&str; 4] = ["txgs", "reaped", "segments_deleted", "segments_compacted"];

type Counts = BTreeMap<String, u64>;

/// One seed in this process.
pub fn one(seed: u64, operations: u64, sabotage: Option<&str>) -> bool {
    if let Some(name) = sabotage {
        let Some(sabotage) = Sabotage::ALL.into_iter().find(|one| format!("{one:?}") == name) else {
            eprintln!("there is no sabotage {name}");
            return false;
        };
        commit(sabotage);
    }
    if std::env::var_os("TARN_SIM_LOG").is_some() {
        tracing_subscriber::fmt().without_time().with_ansi(false).init();
    }
    let outcome = run::run(seed, operations);
    for (what, count) in &outcome.counts {
        println!("count {what} {count}");
    }
    println!("trace {:016x}", outcome.trace);
    if let Some(wrong) = &outcome.wrong {
        println!("wrong {wrong}");
    }
    outcome.wrong.is_none()
}

#[cfg(debug_assertions)]
fn commit(sabotage: Sabotage) {
    tarn_base::sabotage::commit(sabotage);
}

#[cfg(not(debug_assertions))]
fn commit(_: Sabotage) {}

/// What a seed in a process of its own came to.
struct Report {
    seed: u64,
    good: bool,
    counts: Counts,
    trace: String,
    output: String,
}

fn child(seed: u64, sabotage: Option<Sabotage>) -> Report {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["seed", &seed.to_string()]).stdin(Stdio::null());
    if let Some(sabotage) = sabotage {
        command.args(["--sabotage", &format!("{sabotage:?}")]);
    }
    let output = command.output().expect("this program can be run again");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    let mut counts = Counts::new();
    let mut trace = String::new();
    for line in text.lines() {
        if let Some((what, count)) = line.strip_prefix("count ").and_then(|rest| rest.rsplit_once(' ')) {
            counts.insert(what.to_string(), count.parse().unwrap_or(0));
        }
        if let Some(hash) = line.strip_prefix("trace ") {
            trace = hash.to_string();
        }
    }
    Report { seed, good: output.status.success(), counts, trace, output: text }
}

/// Runs `seeds` over `jobs` processes and hands each report to `take` until that says stop.
fn spread(seeds: Range<u64>, jobs: u64, sabotage: Option<Sabotage>, mut take: impl FnMut(Report) -> bool) {
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        let (send, reports) = mpsc::channel();
        for _ in 0..jobs.max(1) {
            let (send, next, end) = (send.clone(), &next, seeds.end);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, SeqCst);
                    if seed >= end || send.send(child(seed, sabotage)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for report in reports {
            if !take(report) {
                next.store(seeds.end, SeqCst);
                break;
            }
        }
    });
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// Runs seeds, shows progress and what they add up to. Whether all were good and every kind has happened.
pub fn many(seeds: Range<u64>, jobs: Option<u64>) -> bool {
    let (total, start) = (seeds.end.saturating_sub(seeds.start), crate::host::real_micros());
    let (mut counts, mut done, mut failed) = (Counts::new(), 0, Vec::new());
    spread(seeds, jobs.unwrap_or_else(cores), None, |report| {
        for (what, count) in &report.counts {
            *counts.entry(what.clone()).or_default() += count;
        }
        done += 1;
        if !report.good {
            println!("{}", failure(&report, None));
            failed.push(report.seed);
        }
        if done % 25 == 0 || done == total {
            let seconds = (crate::host::real_micros() - start) as f64 / 1e6;
            println!("{done} of {total} seeds, {} failed, {seconds:.1} s", failed.len());
            let _ = std::io::stdout().flush();
        }
        true
    });
    let complete = show(&counts);
    println!("{} of {total} seeds equal the model", done - failed.len() as u64);
    if !failed.is_empty() {
        println!("failed seeds: {failed:?}");
    }
    failed.is_empty() && complete
}

/// Prints the counts; whether no kind is missing.
fn show(counts: &Counts) -> bool {
    let mut complete = true;
    for (kind, names) in [("fault", &FAULTS[..]), ("op", &OPERATION_KINDS[..]), ("work", &WORK[..])] {
        let mut line = Vec::new();
        for name in names {
            let count = counts.get(&format!("{kind} {name}")).copied().unwrap_or(0);
            complete &= count > 0;
            line.push(format!("{name} {count}"));
        }
        println!("{kind}: {}", line.join(", "));
    }
    if !complete {
        println!("a kind that never happened was never tested");
    }
    complete
}

fn failure(report: &Report, sabotage: Option<Sabotage>) -> String {
    let wrong =
        report.output.lines().skip_while(|line| line.starts_with("count ") || line.starts_with("trace "));
    let wrong: Vec<&str> = wrong.collect();
    let more = sabotage.map(|one| format!(" --sabotage {one:?}")).unwrap_or_default();
    format!(
        "seed {} failed:\n{}\nreplay it: cargo test --workspace --test sim -- seed {}{more}",
        report.seed,
        wrong.join("\n"),
        report.seed
    )
}

fn every_seed_equals_the_model() -> Result<String, String> {
    let good = many(0..SEEDS, None);
    if good { Ok(String::new()) } else { Err("see above".into()) }
}

fn a_seed_gives_the_same_trace_again() -> Result<String, String> {
    let mut traces = Vec::new();
    for seed in [3, 17, 40] {
        let (first, second) = (child(seed, None), child(seed, None));
        if first.trace != second.trace || first.trace.is_empty() {
            return Err(format!("seed {seed}: trace {} and then {}", first.trace, second.trace));
        }
        if traces.contains(&first.trace) {
            return Err("two seeds have one trace".into());
        }
        traces.push(first.trace);
    }
    Ok(traces.join(", "))
}

/// A mistake must be found, and only because of it: the same seed must be good without.
fn is_found(sabotage: Sabotage) -> Result<String, String> {
    let (mut found, mut tried) = (None, 0);
    spread(0..SABOTAGED, cores(), Some(sabotage), |report| {
        tried += 1;
        if !report.good {
            found = Some(report);
        }
        found.is_none()
    });
    let Some(report) = found else { return Err(format!("{sabotage:?} was not found by {tried} seeds")) };
    let Some(wrong) = report.output.lines().find_map(|line| line.strip_prefix("wrong ")) else {
        return Err(failure(&report, Some(sabotage)));
    };
    if !child(report.seed, None).good {
        return Err(format!("seed {} fails without {sabotage:?} too", report.seed));
    }
    Ok(format!("found by seed {}, {tried} tried: {wrong:.120}", report.seed))
}

/// Runs the tests whose names contain `filter`, and reports as Rust's own test programs do.
pub fn tests(filter: Option<&str>) -> bool {
    type Test = fn() -> Result<String, String>;
    let mut all: Vec<(&str, Test)> = vec![
        ("every_seed_equals_the_model", every_seed_equals_the_model),
        ("a_seed_gives_the_same_trace_again", a_seed_gives_the_same_trace_again),
    ];
    if cfg!(debug_assertions) {
        let sabotages: [(&str, Test); 6] = [
            ("a_pointer_committed_before_its_put_is_found", || is_found(Sabotage::CommitBeforePut)),
            ("a_carried_segment_that_is_forgotten_is_found", || is_found(Sabotage::ForgetCarried)),
            ("a_read_that_is_not_verified_is_found", || is_found(Sabotage::TrustReads)),
            ("a_live_segment_that_is_reclaimed_is_found", || is_found(Sabotage::ReclaimLive)),
            ("a_host_that_ignores_epochs_is_found", || is_found(Sabotage::IgnoreEpochs)),
            ("a_commit_before_its_sync_is_found", || is_found(Sabotage::CommitBeforeSync)),
        ];
        all.extend(sabotages);
    }
    all.retain(|(name, _)| filter.is_none_or(|filter| name.contains(filter)));
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in all {
        match test() {
            Ok(note) => {
                passed += 1;
                println!("test {name} ... ok {note}");
            }
            Err(why) => {
                failed += 1;
                println!("test {name} ... FAILED\n{why}");
            }
        }
    }
    println!("test result: {}. {passed} passed; {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    failed == 0
}
