//! Profiles: what the requests of mounts spent their time on, gathered for as long as somebody asks.
//!
//! Each mount has a [`Profiler`], which costs a request one look at a flag while nobody asks. Each who asks has a
//! [`Profile`] of his own, for one mount or several.

use crate::stopwatch::{self, Layers, Stopwatch};
use crate::{Histogram, HistogramStats};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Slow requests that are kept.
pub const SLOWEST_MAX: usize = 64;

/// What a mount enters its requests into.
#[derive(Default)]
pub struct Profiler {
    on: AtomicBool,
    profiles: Mutex<Vec<Arc<Profile>>>,
}

impl Profiler {
    /// Enters requests that come from now on into `profile`, until what this gives is dropped.
    pub fn profile(self: &Arc<Self>, profile: &Arc<Profile>) -> Profiling {
        let mut profiles = self.profiles.lock();
        profiles.push(profile.clone());
        self.on.store(true, Relaxed);
        Profiling { profiler: self.clone(), profile: profile.clone() }
    }

    /// A request came. Gives its stopwatch, if anybody asks.
    pub fn begin(&self, operation: &'static str, ino: u64) -> Option<Arc<Stopwatch>> {
        self.on.load(Relaxed).then(|| Stopwatch::start(operation, ino))
    }

    /// It is answered.
    pub fn end(&self, stopwatch: &Stopwatch) {
        let layers = stopwatch.end();
        self.profiles.lock().iter().for_each(|profile| profile.add(stopwatch, layers));
    }
}

/// A mount's requests are entered into a profile, until this is dropped.
#[must_use = "nothing is entered if nobody holds this"]
pub struct Profiling {
    profiler: Arc<Profiler>,
    profile: Arc<Profile>,
}

impl Drop for Profiling {
    fn drop(&mut self) {
        let mut profiles = self.profiler.profiles.lock();
        if let Some(at) = profiles.iter().position(|profile| Arc::ptr_eq(profile, &self.profile)) {
            profiles.swap_remove(at);
        }
        self.profiler.on.store(!profiles.is_empty(), Relaxed);
    }
}

/// Requests by operation, and the slowest one by one.
pub struct Profile {
    began: Duration,
    books: Mutex<Books>,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile { began: stopwatch::now(), books: Mutex::default() }
    }
}

#[derive(Default)]
struct Books {
    operations: BTreeMap<&'static str, Operation>,
    /// The slowest first.
    slowest: Vec<SlowRequest>,
}

#[derive(Default)]
struct Operation {
    times: Histogram,
    longest: Duration,
    layers: Layers,
}

/// What was gathered. Times are in nanoseconds, those of layers as in [`crate::stopwatch::Layer::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileStats {
    /// Those that took the most time first.
    pub operations: Vec<OperationProfile>,
    /// The slowest first.
    pub slowest: Vec<SlowRequest>,
}

/// All requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationProfile {
    pub name: String,
    pub times: HistogramStats,
    pub longest_ns: u64,
    pub layers_ns: [u64; 4],
}

impl OperationProfile {
    pub fn total_ns(&self) -> u64 {
        self.layers_ns.iter().sum()
    }
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowRequest {
    pub operation: String,
    /// 0: it was about none.
    pub ino: u64,
    /// When it came, after the profile began.
    pub came_ns: u64,
    pub layers_ns: [u64; 4],
}

impl SlowRequest {
    pub fn took_ns(&self) -> u64 {
        self.layers_ns.iter().sum()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Profile {
    fn add(&self, stopwatch: &Stopwatch, layers: Layers) {
        // One that came before is another profile's.
        if let Some(came) = stopwatch.began().checked_sub(self.began) {
            self.books.lock().add(stopwatch.operation(), stopwatch.ino(), came, layers);
        }
    }

    pub fn stats(&self) -> ProfileStats {
        self.books.lock().stats()
    }
}

impl Books {
    fn add(&mut self, name: &'static str, ino: u64, came: Duration, layers: Layers) {
        let took: Duration = layers.iter().sum();
        let operation = self.operations.entry(name).or_default();
        operation.times.record(took);
        operation.longest = operation.longest.max(took);
        operation.layers.iter_mut().zip(layers).for_each(|(sum, time)| *sum += time);
        let at = self.slowest.partition_point(|slower| slower.took_ns() >= nanos(took));
        if at < SLOWEST_MAX {
            let (operation, came_ns) = (name.to_string(), nanos(came));
            self.slowest.truncate(SLOWEST_MAX - 1);
            self.slowest.insert(at, SlowRequest { operation, ino, came_ns, layers_ns: layers.map(nanos) });
        }
    }

    fn stats(&self) -> ProfileStats {
        let stats = |(name, operation): (&&str, &Operation)| OperationProfile {
            name: name.to_string(),
            times: operation.times.snapshot(),
            longest_ns: nanos(operation.longest),
            layers_ns: operation.layers.map(nanos),
        };
        let mut operations: Vec<OperationProfile> = self.operations.iter().map(stats).collect();
        operations.sort_by_key(|operation| std::cmp::Reverse(operation.total_ns()));
        ProfileStats { operations, slowest: self.slowest.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(client: u64, bucket: u64) -> Layers {
        [client, 0, 0, bucket].map(Duration::from_millis)
    }

    #[test]
    fn each_who_asks_has_what_came_meanwhile() {
        let profiler = Arc::new(Profiler::default());
        assert!(profiler.begin("read", 1).is_none());
        let (first, second) = (Arc::new(Profile::default()), Arc::new(Profile::default()));
        let profiling = profiler.profile(&first);
        let early = profiler.begin("read", 1).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let late = Arc::new(Profile::default());
        let others = [profiler.profile(&second), profiler.profile(&late)];
        let write = profiler.begin("write", 2).unwrap();
        profiler.end(&early);
        drop(profiling);
        profiler.end(&write);
        let names = |profile: &Profile| {
            let mut names: Vec<_> = profile.stats().operations.into_iter().map(|o| o.name).collect();
            names.sort();
            names
        };
        assert_eq!(names(&first), ["read"]);
        assert_eq!(names(&second), ["read", "write"]);
        assert_eq!(names(&late), ["write"]);
        assert!(profiler.begin("read", 1).is_some());
        drop(others);
        assert!(profiler.begin("read", 1).is_none());
    }

    #[test]
    fn the_dearest_and_the_slowest_come_first() {
        let mut books = Books::default();
        for n in 1..=100 {
            books.add("lookup", n, Duration::from_secs(n), layers(n, 0));
        }
        books.add("fsync", 9, Duration::ZERO, layers(50, 9000));
        let stats = books.stats();
        assert_eq!(stats.operations.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["fsync", "lookup"]);
        let lookup = &stats.operations[1];
        assert_eq!(
            (lookup.times.count, lookup.total_ns(), lookup.longest_ns),
            (100, 5_050_000_000, 100_000_000)
        );
        assert_eq!(stats.operations[0].layers_ns, [50_000_000, 0, 0, 9_000_000_000]);
        assert_eq!(stats.slowest.len(), SLOWEST_MAX);
        assert_eq!((stats.slowest[0].ino, stats.slowest[1].ino, stats.slowest[63].ino), (9, 100, 38));
        assert_eq!(stats.slowest[1].came_ns, 100_000_000_000);
        assert!(stats.slowest.is_sorted_by(|a, b| a.took_ns() >= b.took_ns()));
    }
}
