//! Whether a bucket does what Tarn needs, found out by doing it.
//!
//! Everything happens in a folder of its own, `tarn-check/` and a random number, and is deleted again. What a store lacks
//! is told with what to do about it; what was found before stays, so that one inspection tells all that is wrong.

use crate::raw::{Object, parallel_get, parallel_put};
use crate::{Bucket, Error, Guarded, Result, Source};
use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::clock::{Clock, SystemClock};
use tokio::time::{Instant, timeout};

/// Bytes of a body that no store takes in one part.
const LARGE: usize = (16 << 20) + 4321;
/// Bytes of a small object.
const SMALL: usize = 4 << 10;
/// Small requests whose times are taken, one after the other.
const SMALL_REQUESTS: usize = 40;
/// Objects that are deleted by one call.
const BATCH: usize = 24;
/// Objects, and bytes of each, that are moved at once to see how fast.
const MOVED: usize = 16;
const MOVED_SIZE: u64 = 4 << 20;
/// How long a measurement may take.
const MEASURE_LIMIT: Duration = Duration::from_secs(60);
/// Seconds that clocks may differ: beyond the first they should be set, beyond the second stores refuse requests.
const SKEW_TOLD: i64 = 10;
const SKEW_REFUSED: i64 = 15 * 60;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// It works, and something should be done.
    Warning,
    /// Tarn needs it.
    Missing,
}

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub verdict: Verdict,
    /// What was seen; why not, and what to do about it, where it is not [`Verdict::Ok`].
    pub says: String,
    /// What was measured, by its name and unit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: Figures,
}

/// Numbers by name: `p50_ms`, `p99_ms`, `mib_s`.
pub type Figures = BTreeMap<&'static str, f64>;

/// An inspection under way.
struct Inspection<'a, T> {
    bucket: Arc<Guarded>,
    folder: String,
    findings: Vec<Finding>,
    tell: &'a mut T,
}

/// A folder that nothing else uses, for one inspection.
pub fn folder() -> String {
    format!("tarn-check/{:016x}", rand::random::<u64>())
}

/// Tries in `folder` all that Tarn needs of the bucket; `tell` hears of each finding when it is made. It deletes what it
/// wrote, also when something fails; who gives it up halfway calls [`tidy`].
pub async fn inspect(bucket: Arc<Guarded>, folder: &str, tell: &mut impl FnMut(&Finding)) -> Vec<Finding> {
    let mut inspection = Inspection { bucket, folder: folder.to_string(), findings: Vec::new(), tell };
    inspection.run().await;
    inspection.findings
}

/// Deletes everything in the folder.
pub async fn tidy(bucket: &Guarded, folder: &str) -> Result<()> {
    let left: Vec<String> = bucket.list(folder).await?.into_iter().map(|object| object.key).collect();
    bucket.delete(&left).await
}

impl<T: FnMut(&Finding)> Inspection<'_, T> {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    fn found(&mut self, what: &'static str, verdict: Verdict, says: String) {
        self.push(Finding { what, verdict, says, figures: Figures::new() });
    }

    fn push(&mut self, finding: Finding) {
        (self.tell)(&finding);
        self.findings.push(finding);
    }

    /// Whether it went well.
    fn tried(&mut self, what: &'static str, result: Result<String>) -> bool {
        let good = result.is_ok();
        match result {
            Ok(says) => self.found(what, Verdict::Ok, says),
            Err(error) => self.found(what, Verdict::Missing, error.to_string()),
        }
        good
    }

    async fn run(&mut self) {
        let listed = self.bucket.check().await.map(|()| "the bucket can be listed".to_string());
        let reached = !matches!(&listed, Err(Error::Config(_) | Error::Io(_) | Error::Timeout(_)));
        self.tried("list", listed);
        if !reached {
            return;
        }
        let put = self.put().await;
        if !self.tried("put", put) {
            // One of several may have been written. What stands in the way of more is told.
            let _ = tidy(&self.bucket, &self.folder).await;
            return;
        }
        let got = self.get().await;
        self.tried("get", got);
        let ranged = self.range().await;
        self.tried("range", ranged);
        let created = self.create().await;
        self.tried("create", created);
        let large = self.large().await;
        self.tried("large", large);
        self.clock().await;
        self.credentials();
        self.keeps().await;
        self.uploads().await;
        let times = limited(self.put_times()).await;
        self.measured("put time", times);
        let times = limited(self.get_times()).await;
        self.measured("get time", times);
        self.speed().await;
        let deleted = self.delete().await;
        self.tried("delete", deleted);
    }

    fn wrong(&self, what: &str) -> Error {
        Error::Io(format!("{}: {what}: Tarn cannot use this store", self.bucket.url()))
    }

    async fn put(&self) -> Result<String> {
        let key = self.key("object");
        self.bucket.put(&key, vec![Bytes::from_static(b"first")]).await?;
        self.bucket.put(&key, vec![Bytes::from_static(b"second")]).await?;
        Ok("objects are written, and written again".into())
    }

    async fn get(&self) -> Result<String> {
        let key = self.key("object");
        let (found, head) = (self.bucket.get(&key, 0..100).await?, self.bucket.head(&key).await?);
        if found != "second" || head.size != 6 {
            return Err(self.wrong("a read brought something else than was written last"));
        }
        Ok("objects are read as they were written last".into())
    }

    async fn range(&self) -> Result<String> {
        let key = self.key("object");
        let middle = self.bucket.get(&key, 1..4).await?;
        let (tail, size) = self.bucket.get_tail(&key, 2).await?;
        let beyond = self.bucket.get(&key, 100..200).await?;
        if middle != "eco" || tail != "nd" || size != 6 || !beyond.is_empty() {
            return Err(self.wrong("a read of a part brought another part"));
        }
        Ok("parts of objects are read".into())
    }

    async fn create(&self) -> Result<String> {
        let key = self.key("created");
        self.bucket.create(&key, vec![Bytes::from_static(b"mine")]).await?;
        for (key, body) in [(&key, "yours"), (&self.key("object"), "third")] {
            match self.bucket.create(key, vec![Bytes::from_static(body.as_bytes())]).await {
                Err(Error::Exists(_)) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    return Err(Error::Config(format!(
                        "{}: an object that is there was created again, so that two hosts could own a pool at once: \
                         use a store that honours `If-None-Match: *`",
                        self.bucket.url()
                    )));
                }
            }
        }
        Ok("an object is created only where there is none".into())
    }

    async fn large(&self) -> Result<String> {
        let key = self.key("large");
        let mut body = vec![0; LARGE];
        rand::Rng::fill_bytes(&mut rand::rng(), &mut body);
        let body = Bytes::from(body);
        self.bucket.put(&key, vec![body.clone()]).await?;
        if self.bucket.get(&key, 0..LARGE as u64).await? != body {
            return Err(self.wrong("a large object came back as another"));
        }
        Ok("large objects are written, in parts where the store has parts".into())
    }

    /// The time of an object that was written between two looks at this host's clock is the store's clock.
    async fn clock(&mut self) {
        let clock = SystemClock::default();
        let now = || clock.now().sec;
        let (key, before) = (self.key("clock"), now());
        let written = match self.bucket.put(&key, vec![Bytes::from_static(b"x")]).await {
            Ok(()) => self.bucket.head(&key).await,
            Err(error) => Err(error),
        };
        let Ok(written) = written else { return };
        // Stores tell whole seconds.
        let store = written.modified_ms.div_euclid(1000);
        let skew = if store > now() { store - now() } else { (store + 1 - before).min(0) };
        let direction = if skew < 0 { "ahead" } else { "behind" };
        let told = format!("this host's clock is {} s {direction} of the store's", skew.abs());
        match skew.abs() {
            0..=SKEW_TOLD => self.found("clock", Verdict::Ok, "this host and the store agree".into()),
            _ => {
                let limit = SKEW_REFUSED / 60;
                let says = format!("{told}: set it (stores refuse requests from about {limit} minutes on)");
                self.found("clock", Verdict::Warning, says);
            }
        }
    }

    fn credentials(&mut self) {
        if let Some(Source { says, lasts }) = self.bucket.credentials() {
            self.found("credentials", if lasts { Verdict::Ok } else { Verdict::Warning }, says);
        }
    }

    async fn keeps(&mut self) {
        match self.bucket.keeps().await {
            Some(says) => self.found("keeps", Verdict::Warning, says),
            None => {
                self.found("keeps", Verdict::Ok, "nothing is known that would keep what is deleted".into())
            }
        }
    }

    async fn uploads(&mut self) {
        match self.bucket.uploads().await {
            Ok(_) => self.found("uploads", Verdict::Ok, "none can stay unfinished unseen".into()),
            Err(error) => {
                let says = format!("{error}: those that a crash cuts off stay, and cost");
                self.found("uploads", Verdict::Warning, says);
            }
        }
    }

    /// Times of small requests, one after the other.
    async fn put_times(&self) -> Result<(String, Figures)> {
        let body = Bytes::from(vec![7; SMALL]);
        let mut times = Vec::new();
        for n in 0..SMALL_REQUESTS {
            let start = Instant::now();
            self.bucket.put(&self.key(&format!("small/{n}")), vec![body.clone()]).await?;
            times.push(start.elapsed());
        }
        Ok(percentiles(times))
    }

    async fn get_times(&self) -> Result<(String, Figures)> {
        let mut times = Vec::new();
        for n in 0..SMALL_REQUESTS {
            let start = Instant::now();
            self.bucket.get(&self.key(&format!("small/{n}")), 0..SMALL as u64).await?;
            times.push(start.elapsed());
        }
        Ok(percentiles(times))
    }

    async fn speed(&mut self) {
        let object = |n| Object {
            bucket: self.bucket.clone() as Arc<dyn Bucket>,
            key: self.key(&format!("fast/{n}")),
        };
        let objects: Vec<Object> = (0..MOVED).map(object).collect();
        let put = limited(parallel_put(&objects, MOVED_SIZE, MOVED)).await;
        let good = put.is_ok();
        self.measured("put speed", put.map(speed));
        if good {
            let got = limited(parallel_get(&objects, MOVED_SIZE, MOVED)).await;
            self.measured("get speed", got.map(speed));
        }
    }

    /// A measurement that failed is no reason not to use the store.
    fn measured(&mut self, what: &'static str, result: Result<(String, Figures)>) {
        match result {
            Ok((says, figures)) => self.push(Finding { what, verdict: Verdict::Ok, says, figures }),
            Err(error) => self.found(what, Verdict::Warning, error.to_string()),
        }
    }

    /// Deletes everything, by way of a call for many.
    async fn delete(&self) -> Result<String> {
        let more: Vec<String> = (0..BATCH).map(|n| self.key(&format!("batch/{n}"))).collect();
        let mut written = Ok(());
        for key in &more {
            written = written.and(self.bucket.put(key, vec![Bytes::from_static(b"x")]).await);
        }
        let all = self.bucket.list(&self.folder).await?;
        let keys: Vec<String> = all.into_iter().map(|object| object.key).collect();
        self.bucket.delete(&keys).await?;
        match self.bucket.list(&self.folder).await?.len() {
            0 => written.map(|()| format!("{} objects were deleted, many at once", keys.len())),
            left => Err(self.wrong(&format!("{left} deleted objects are still there"))),
        }
    }
}

async fn limited<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || Error::Timeout(format!("not measured: it took more than {} s", MEASURE_LIMIT.as_secs()));
    timeout(MEASURE_LIMIT, work).await.map_err(|_| late())?
}

fn percentiles(mut sorted: Vec<Duration>) -> (String, Figures) {
    sorted.sort_unstable();
    let at = |percent: usize| {
        let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let (p50, p99) = (at(50), at(99));
    let says = format!("p50 {p50:.1} ms, p99 {p99:.1} ms ({} times {} KiB)", sorted.len(), SMALL >> 10);
    (says, Figures::from([("p50_ms", p50), ("p99_ms", p99)]))
}

fn speed(bytes_per_second: f64) -> (String, Figures) {
    let speed = bytes_per_second / f64::from(1 << 20);
    let says = format!("{speed:.0} MiB/s ({MOVED} objects of {} MiB at once)", MOVED_SIZE >> 20);
    (says, Figures::from([("mib_s", speed)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Fault, FaultBucket};
    use crate::memory::MemoryBucket;
    use crate::{OpenOptions, Operation};

    async fn inspected(bucket: Arc<dyn Bucket>) -> Vec<Finding> {
        let options = OpenOptions { deadline: Duration::from_millis(300), ..OpenOptions::default() };
        let mut told = Vec::new();
        let found = inspect(Guarded::new(bucket, &options), &folder(), &mut |f| told.push(f.clone())).await;
        assert_eq!(told, found);
        found
    }

    #[tokio::test]
    async fn a_good_bucket_lacks_nothing_and_is_left_empty() {
        let bucket = Arc::new(MemoryBucket::named("inspected"));
        let found = inspected(bucket.clone()).await;
        assert!(found.iter().all(|finding| finding.verdict == Verdict::Ok), "{found:?}");
        assert_eq!(found.len(), 14);
        assert_eq!(bucket.list("").await.unwrap(), []);
    }

    /// Puts where it is told to create.
    struct Careless(Arc<MemoryBucket>);

    #[async_trait::async_trait]
    impl Bucket for Careless {
        fn url(&self) -> &str {
            self.0.url()
        }
        async fn get(&self, key: &str, range: std::ops::Range<u64>) -> Result<Bytes> {
            self.0.get(key, range).await
        }
        async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)> {
            self.0.get_tail(key, len).await
        }
        async fn head(&self, key: &str) -> Result<crate::ObjectInfo> {
            Ok(crate::ObjectInfo { modified_ms: 0, ..self.0.head(key).await? })
        }
        async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
            self.0.put(key, body).await
        }
        async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
            self.0.put(key, body).await
        }
        async fn delete(&self, keys: &[String]) -> Result<()> {
            self.0.delete(keys).await
        }
        async fn list(&self, prefix: &str) -> Result<Vec<crate::ObjectInfo>> {
            self.0.list(prefix).await
        }
        async fn sync(&self) -> Result<()> {
            self.0.sync().await
        }
        async fn capacity(&self) -> Result<Option<crate::Capacity>> {
            self.0.capacity().await
        }
    }

    fn not_ok(found: &[Finding]) -> Vec<(&str, Verdict)> {
        let bad = found.iter().filter(|finding| finding.verdict != Verdict::Ok);
        bad.map(|finding| (finding.what, finding.verdict)).collect()
    }

    #[tokio::test]
    async fn what_a_store_lacks_is_told_with_the_rest() {
        let memory = Arc::new(MemoryBucket::named("careless"));
        let found = inspected(Arc::new(Careless(memory.clone()))).await;
        assert_eq!(not_ok(&found), [("create", Verdict::Missing), ("clock", Verdict::Warning)]);
        assert!(found.iter().any(|finding| finding.says.contains("two hosts")), "{found:?}");
        assert!(
            found.iter().any(|finding| finding.says.contains("ahead of the store's: set it")),
            "{found:?}"
        );
        assert_eq!((found.len(), memory.list("").await.unwrap()), (14, vec![]));
    }

    #[tokio::test]
    async fn a_bucket_that_cannot_be_written_is_told_so_once() {
        let faults = FaultBucket::new(Arc::new(MemoryBucket::named("readonly")));
        faults.script(Operation::Put, "", usize::MAX, Fault::Fail);
        let found = inspected(faults).await;
        assert_eq!(not_ok(&found), [("put", Verdict::Missing)]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let (says, figures) = percentiles((1..=40).rev().map(Duration::from_millis).collect());
        assert_eq!((figures["p50_ms"], figures["p99_ms"]), (20.0, 40.0));
        assert!(says.starts_with("p50 20.0 ms, p99 40.0 ms"), "{says}");
    }
}
