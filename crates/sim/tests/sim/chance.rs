//! What all parts of one simulated world share: its chance, its counters, its trace, and the moment of its crash.

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use tokio::sync::Notify;
use twox_hash::XxHash3_64;

/// One world's chance and memory of itself.
pub struct Chance {
    pub seed: u64,
    rng: Mutex<SmallRng>,
    counts: Mutex<BTreeMap<String, u64>>,
    trace: AtomicU64,
    loud: bool,
    /// Lives so far: a crash or a remount ends one.
    pub life: AtomicU64,
    requests: AtomicU64,
    crash_at: AtomicU64,
    crashed: AtomicBool,
    crash: Notify,
}

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance {
            seed,
            rng: Mutex::new(SmallRng::seed_from_u64(seed)),
            counts: Mutex::default(),
            trace: AtomicU64::new(seed),
            loud: std::env::var_os("TARN_SIM_TRACE").is_some(),
            life: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            crash_at: AtomicU64::new(u64::MAX),
            crashed: AtomicBool::new(false),
            crash: Notify::new(),
        }
    }

    /// A number from nothing to before `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.rng.lock().random_range(0..end.max(1))
    }

    /// True in `percent` of all cases.
    pub fn percent(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A choice for `what` that does not depend on what was chosen before: things end in no particular order.
    pub fn fate(&self, what: &str, choices: u64) -> u64 {
        let life = self.life.load(SeqCst);
        XxHash3_64::oneshot_with_seed(self.seed ^ life << 32, what.as_bytes()) % choices.max(1)
    }

    pub fn count(&self, what: &str) {
        self.count_more(what, 1);
    }

    pub fn count_more(&self, what: &str, more: u64) {
        *self.counts.lock().entry(what.to_string()).or_default() += more;
    }

    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().clone()
    }

    /// Something happened: into the trace, with its time.
    pub fn trace(&self, text: &str) {
        let at = tokio::time::Instant::now().into_std();
        let line = format!("{} {at:?} {text}", self.life.load(SeqCst));
        let mixed = XxHash3_64::oneshot_with_seed(self.trace.load(SeqCst), line.as_bytes());
        self.trace.store(mixed, SeqCst);
        if self.loud {
            println!("{line}");
        }
    }

    pub fn trace_hash(&self) -> u64 {
        self.trace.load(SeqCst)
    }

    /// The machine stops when so many more requests have been made.
    pub fn crash_after(&self, requests: u64) {
        self.crash_at.store(self.requests.load(SeqCst) + requests, SeqCst);
    }

    /// Whether a crash is to come that has not been seen yet.
    pub fn crash_is_set(&self) -> bool {
        self.crash_at.load(SeqCst) != u64::MAX
    }

    pub fn crash_now(&self) {
        self.crashed.store(true, SeqCst);
        self.crash.notify_one();
    }

    /// The machine stops although nobody waits for that.
    pub fn stop(&self) {
        self.crashed.store(true, SeqCst);
    }

    pub fn has_crashed(&self) -> bool {
        self.crashed.load(SeqCst)
    }

    /// Returns when the machine stops.
    pub fn crashes(&self) -> impl Future<Output = ()> + '_ {
        self.crash.notified()
    }

    /// A new life begins.
    pub fn live(&self) {
        self.crashed.store(false, SeqCst);
        self.crash_at.store(u64::MAX, SeqCst);
        self.life.fetch_add(1, SeqCst);
    }

    /// One more request; never returns when the machine has stopped. Gives the request's number.
    pub async fn request(&self) -> u64 {
        let number = self.requests.fetch_add(1, SeqCst) + 1;
        if number >= self.crash_at.load(SeqCst) && !self.has_crashed() {
            self.crash_now();
        }
        self.still_alive().await;
        number
    }

    /// Never returns when the machine has stopped.
    pub async fn still_alive(&self) {
        if self.has_crashed() {
            std::future::pending::<()>().await;
        }
    }
}
