//! A wrapper that fails on purpose: by a script, from a seed, or by a switch. For tests.
//!
//! ```
//! # use std::sync::Arc;
//! # use tarn_bucket::{Operation, fault::{Fault, FaultBucket, Rates}, memory::MemoryBucket};
//! let bucket = FaultBucket::new(Arc::new(MemoryBucket::named("faults")));
//! // The next two puts below `log/` are applied and answered with an error.
//! bucket.script(Operation::Put, "log/", 2, Fault::ReplyLost);
//! // From here on, 5 % of all requests fail, the same ones for the same seed and the same order of requests.
//! bucket.random(42, Rates { fail: 0.05, ..Rates::default() });
//! bucket.set_outage(true);
//! ```

use crate::error::object;
use crate::{Bucket, Capacity, Error, ListPage, ObjectInfo, Operation, Result, UnfinishedUpload};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// An error, and nothing is done.
    Fail,
    /// Done after this time.
    Delay(Duration),
    /// Done, and answered with an error.
    ReplyLost,
    /// A body without its last bytes, answered as if it were whole. Reads only.
    Short,
    /// Never answered, and nothing is done.
    Hang,
    /// A body with one wrong bit. Reads only.
    Flip,
    /// The store says that it is full. Writes only.
    NoSpace,
    /// The store does not take the credentials.
    LockedOut,
    /// The store asks to be asked less.
    Busy,
}

impl Fault {
    fn fits(self, operation: Operation) -> bool {
        use Operation::{Create, Delete, Get, Put};
        match self {
            Fault::Short | Fault::Flip => operation == Get,
            Fault::NoSpace => matches!(operation, Put | Create),
            Fault::ReplyLost => matches!(operation, Put | Create | Delete),
            Fault::Fail | Fault::Delay(_) | Fault::Hang | Fault::LockedOut | Fault::Busy => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Fault::Fail => "fail",
            Fault::Delay(_) => "delay",
            Fault::ReplyLost => "reply_lost",
            Fault::Short => "short",
            Fault::Hang => "hang",
            Fault::Flip => "flip",
            Fault::NoSpace => "no_space",
            Fault::LockedOut => "locked_out",
            Fault::Busy => "busy",
        }
    }
}

/// How likely each fault is for a request that it fits, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    pub fail: f64,
    pub reply_lost: f64,
    pub short: f64,
    pub hang: f64,
    pub flip: f64,
    pub no_space: f64,
    pub delay: f64,
    /// The longest delay; each is drawn from nothing to this.
    pub longest_delay: Duration,
}

struct Scripted {
    operation: Operation,
    prefix: String,
    times: usize,
    fault: Fault,
}

#[derive(Default)]
struct Plan {
    script: Vec<Scripted>,
    random: Option<(StdRng, Rates)>,
    /// Faults that have happened, by name.
    happened: BTreeMap<&'static str, u64>,
}

/// A bucket that fails as it is told to, and otherwise is the one it wraps.
pub struct FaultBucket {
    inner: Arc<dyn Bucket>,
    plan: Mutex<Plan>,
    outage: AtomicBool,
    full: AtomicBool,
}

impl FaultBucket {
    /// A wrapper that does nothing yet.
    pub fn new(inner: Arc<dyn Bucket>) -> Arc<FaultBucket> {
        let (plan, outage, full) = (Mutex::default(), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(FaultBucket { inner, plan, outage, full })
    }

    /// The next `times` requests of that kind whose key starts with `prefix` meet `fault`. Scripts are looked
    /// through in the order they were given. A delete counts by the first of its keys.
    pub fn script(&self, operation: Operation, prefix: &str, times: usize, fault: Fault) {
        self.plan.lock().script.push(Scripted { operation, prefix: prefix.into(), times, fault });
    }

    /// Requests that no script names meet faults at random, from `seed`.
    pub fn random(&self, seed: u64, rates: Rates) {
        self.plan.lock().random = Some((StdRng::seed_from_u64(seed), rates));
    }

    /// Ends what [`FaultBucket::script`] and [`FaultBucket::random`] began.
    pub fn calm(&self) {
        let mut plan = self.plan.lock();
        plan.script.clear();
        plan.random = None;
    }

    /// While on, every request fails at once, as when the network is gone.
    pub fn set_outage(&self, on: bool) {
        self.outage.store(on, Relaxed);
    }

    /// While on, nothing can be written, and deletes still work.
    pub fn set_full(&self, on: bool) {
        self.full.store(on, Relaxed);
    }

    /// How often each fault has happened, by name; an outage's refusals are `outage`.
    pub fn happened(&self) -> BTreeMap<&'static str, u64> {
        self.plan.lock().happened.clone()
    }

    fn choose(&self, operation: Operation, key: &str) -> Option<Fault> {
        let mut plan = self.plan.lock();
        let scripted = plan
            .script
            .iter_mut()
            .find(|entry| entry.times > 0 && entry.operation == operation && key.starts_with(&entry.prefix));
        let fault = match scripted {
            Some(entry) => {
                entry.times -= 1;
                Some(entry.fault)
            }
            None => plan.random.as_mut().and_then(|(rng, rates)| draw(rng, rates, operation)),
        };
        let full = self.full.load(Relaxed) && Fault::NoSpace.fits(operation);
        let fault = if full { Some(Fault::NoSpace) } else { fault };
        let fault = fault.filter(|fault| fault.fits(operation))?;
        *plan.happened.entry(fault.name()).or_default() += 1;
        Some(fault)
    }

    /// Does what comes before the request itself. Gives the fault that is still to be applied to its answer.
    async fn before(&self, operation: Operation, key: &str) -> Result<Option<Fault>> {
        if self.outage.load(Relaxed) {
            *self.plan.lock().happened.entry("outage").or_default() += 1;
            return Err(self.error(operation, key, "the network is gone"));
        }
        match self.choose(operation, key) {
            Some(Fault::Fail) => Err(self.error(operation, key, "a fault for the test")),
            Some(Fault::NoSpace) => Err(Error::NoSpace(object(self.url(), key))),
            Some(Fault::LockedOut) => Err(Error::Credentials(format!("{}: they have expired", self.url()))),
            Some(Fault::Busy) => Err(Error::Busy(format!("{}: slow down", self.url()))),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                Ok(None)
            }
            fault => Ok(fault),
        }
    }

    /// Loses the answer of a request that was done, if that is its fault.
    fn after<T>(
        &self,
        fault: Option<Fault>,
        operation: Operation,
        key: &str,
        answer: Result<T>,
    ) -> Result<T> {
        match fault {
            Some(Fault::ReplyLost) if answer.is_ok() => Err(self.error(operation, key, "the reply was lost")),
            _ => answer,
        }
    }

    fn error(&self, operation: Operation, key: &str, why: &str) -> Error {
        Error::Io(format!("{}: {}: {why}", object(self.url(), key), operation.name()))
    }
}

fn draw(rng: &mut StdRng, rates: &Rates, operation: Operation) -> Option<Fault> {
    // The same number of draws for every request, so that rates can change without changing what follows.
    let (mut dice, delay) = (rng.random::<f64>(), rng.random::<f64>());
    let faults = [
        (rates.fail, Fault::Fail),
        (rates.reply_lost, Fault::ReplyLost),
        (rates.short, Fault::Short),
        (rates.hang, Fault::Hang),
        (rates.flip, Fault::Flip),
        (rates.no_space, Fault::NoSpace),
        (rates.delay, Fault::Delay(rates.longest_delay.mul_f64(delay))),
    ];
    faults.into_iter().filter(|(_, fault)| fault.fits(operation)).find_map(|(rate, fault)| {
        dice -= rate;
        (dice < 0.0).then_some(fault)
    })
}

/// What a read's fault makes of its body.
fn spoil(fault: Option<Fault>, body: Bytes) -> Bytes {
    match fault {
        Some(Fault::Short) => body.slice(..body.len() / 2),
        Some(Fault::Flip) if !body.is_empty() => {
            let mut wrong = BytesMut::from(&body[..]);
            let middle = wrong.len() / 2;
            wrong[middle] ^= 1;
            wrong.freeze()
        }
        _ => body,
    }
}

#[async_trait::async_trait]
impl Bucket for FaultBucket {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let fault = self.before(Operation::Get, key).await?;
        Ok(spoil(fault, self.inner.get(key, range).await?))
    }

    async fn get_start(&self, key: &str, len: u64) -> Result<Bytes> {
        let fault = self.before(Operation::Get, key).await?;
        Ok(spoil(fault, self.inner.get_start(key, len).await?))
    }

    async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)> {
        let fault = self.before(Operation::Get, key).await?;
        let (body, size) = self.inner.get_tail(key, len).await?;
        Ok((spoil(fault, body), size))
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo> {
        self.before(Operation::Head, key).await?;
        self.inner.head(key).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let fault = self.before(Operation::Put, key).await?;
        self.after(fault, Operation::Put, key, self.inner.put(key, body).await)
    }

    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let fault = self.before(Operation::Create, key).await?;
        self.after(fault, Operation::Create, key, self.inner.create(key, body).await)
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let key = keys.first().map_or("", String::as_str);
        let fault = self.before(Operation::Delete, key).await?;
        self.after(fault, Operation::Delete, key, self.inner.delete(keys).await)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.before(Operation::List, prefix).await?;
        self.inner.list(prefix).await
    }

    async fn list_page(&self, prefix: &str, after: Option<String>) -> Result<ListPage> {
        self.before(Operation::List, prefix).await?;
        self.inner.list_page(prefix, after).await
    }

    async fn sync(&self) -> Result<()> {
        self.before(Operation::Sync, "").await?;
        self.inner.sync().await
    }

    async fn uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        self.before(Operation::List, "").await?;
        self.inner.uploads().await
    }

    async fn end_upload(&self, upload: &UnfinishedUpload) -> Result<()> {
        self.before(Operation::Delete, &upload.key).await?;
        self.inner.end_upload(upload).await
    }

    async fn capacity(&self) -> Result<Option<Capacity>> {
        self.inner.capacity().await
    }
}
