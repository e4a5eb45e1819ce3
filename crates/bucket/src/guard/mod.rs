//! The wrapper that every vdev uses: how many requests at once, what is tried again and for how long, and what
//! is counted.
//!
//! - **A call ends.** It waits for its turn, makes attempts with pauses between them, and ends at its cutoff
//!   with [`Error::Timeout`]. The cutoff is the deadline counted from the call, or, while it waits for its first
//!   turn, from the last answer the store gave to anyone: a long queue before a slow store is no failure, a queue
//!   before a silent one is.
//! - **An attempt ends.** A store that accepts a request and never answers costs one attempt's limit.
//! - **Only what may pass is tried again**: what [`Error::is_transient`] says. Pauses double, each drawn at random
//!   from nothing to its bound, so that many clients do not come back together.
//! - **A store that is asked too much is asked less**, until it minds no more: see `pace`. How much is worth asking is
//!   found out by trying: see `climb`.
//! - **A read that is late is sent again**, and the first answer counts: see `hedge`.
//! - **Credentials that are not taken** are looked for anew. A call waits a moment for that and then fails, long before
//!   its deadline: whoever waits for it longer should hear why.
//! - **A lost reply is not a lost race.** A create whose earlier attempt failed may find its own object: it is
//!   read back, and is ours if it holds our bytes. Bodies of two creators must differ for that, as Tarn's do by
//!   their trailers' nonces.
//! - **A sync is never tried again.** A failed one may have lost writes, and a second one would not say so. Nor
//!   does it wait for a turn: someone's fsync waits for it, and it is no load of its own.
//! - **A short read is checked.** If the object is long enough for what was asked, it is a failure.

mod climb;
mod hedge;
mod limit;
mod pace;
mod stats;

pub use stats::{OperationStats, StatsSnapshot};

use crate::environment::Environment;
use crate::error::object;
use crate::key::check;
use crate::local::LocalBucket;
use crate::store::{body_len, every_page};
use crate::{
    Bucket, Capacity, Error, ListPage, Location, ObjectInfo, Operation, Result, Source, UnfinishedUpload,
};
use crate::{azure, gcs, s3};
use bytes::Bytes;
use climb::{Bounds, Climb};
use futures::future::{Either, select};
use hedge::Hedge;
use limit::{Limit, Permit};
use pace::Pace;
use parking_lot::Mutex;
use rand::RngExt;
use stats::Stats;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tarn_base::stopwatch::{self, Layer};
use tarn_base::{Charge, Provider, Tally};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a call may take, by default.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
/// How long an attempt may take, by default.
pub const DEFAULT_ATTEMPT: Duration = Duration::from_secs(30);
/// Requests at once to begin with: a store at the network's other end needs many to fill the line, and a disk
/// serves few at a time.
pub const DEFAULT_CONCURRENCY_NETWORK: usize = 64;
pub const DEFAULT_CONCURRENCY_LOCAL: usize = 16;
/// The first pause between attempts is at most this, and each next one at most twice as long, up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Credentials that are renewed are there within this time; a call that waits for others longer says so.
const LOCKED_OUT: Duration = Duration::from_millis(1500);
/// Keys in one delete request.
const DELETE_BATCH: usize = 1000;
/// How long [`Guarded::check`] waits.
const CHECK_LIMIT: Duration = Duration::from_secs(10);
/// How often it is asked, and how long after a failure that may pass.
const CHECK_TRIES: u32 = 3;
const CHECK_PAUSE: Duration = Duration::from_millis(200);

/// How a bucket is opened. The default is right for a pool.
#[derive(Clone)]
pub struct OpenOptions {
    /// Requests at once; if not given, what the kind of store begins with, and what is found to be better.
    pub concurrency: Option<usize>,
    /// Reads that are late are sent again; by the kind of store if not given.
    pub hedge: Option<bool>,
    /// How long a call may take.
    pub deadline: Duration,
    /// How long an attempt may take, within the deadline.
    pub attempt: Duration,
    /// Where credentials are looked for.
    pub environment: Environment,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            concurrency: None,
            hedge: None,
            deadline: DEFAULT_DEADLINE,
            attempt: DEFAULT_ATTEMPT,
            environment: Environment::of_process(),
        }
    }
}

/// Opens the bucket of that name (see [`crate::url`]). A local directory must be there; a store on the network
/// is not asked: see [`Guarded::check`].
pub fn open(url: &str, options: &OpenOptions) -> Result<Arc<Guarded>> {
    let (bucket, far): (Arc<dyn Bucket>, bool) = match Location::parse(url)? {
        Location::S3(location) => (Arc::new(s3::open(&location, &options.environment)?), true),
        Location::Gcs(location) => (Arc::new(gcs::open(&location, &options.environment)?), true),
        Location::Azure(location) => (Arc::new(azure::open(&location, &options.environment)?), true),
        Location::Local(path) => (Arc::new(LocalBucket::open(&path)?), false),
        Location::Memory(name) => (crate::memory::open(&name), false),
    };
    let first = if far { DEFAULT_CONCURRENCY_NETWORK } else { DEFAULT_CONCURRENCY_LOCAL };
    let bounds = options.concurrency.map_or(Bounds::around(first), Bounds::fixed);
    let hedge = Some(options.hedge.unwrap_or(far));
    Ok(Guarded::within(bounds, bucket, &OpenOptions { hedge, ..options.clone() }))
}

/// A bucket with a limit, retries, a deadline and counters.
pub struct Guarded {
    inner: Arc<dyn Bucket>,
    limit: Limit,
    pace: Pace,
    climb: Climb,
    hedge: Option<Hedge>,
    /// Milliseconds.
    deadline: AtomicU64,
    /// Milliseconds.
    attempt: AtomicU64,
    opened: Instant,
    /// When the store last answered anyone, in milliseconds after `opened`.
    answered: AtomicU64,
    failures_in_a_row: AtomicU64,
    last_error: Mutex<Option<(String, Instant)>>,
    stats: Stats,
    /// Counts for a store that is asked without HTTP.
    own: Tally,
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded").field("url", &self.url()).finish_non_exhaustive()
    }
}

/// What a call is about: its kind, its key (or the prefix, or nothing), and the number of its next attempt.
struct Call<'a> {
    operation: Operation,
    key: &'a str,
    attempts: u32,
    /// When its credentials were first not taken.
    locked_out: Option<Instant>,
}

impl Call<'_> {
    /// Whether new credentials did not come in time.
    fn is_locked_out(&mut self, error: &Error) -> bool {
        let locked_out = matches!(error, Error::Credentials(_));
        locked_out && self.locked_out.get_or_insert_with(Instant::now).elapsed() > LOCKED_OUT
    }
}

impl Guarded {
    /// Guards any bucket; `concurrency` is a local bucket's if not given, and no read is sent twice.
    pub fn new(inner: Arc<dyn Bucket>, options: &OpenOptions) -> Arc<Guarded> {
        let concurrency = options.concurrency.unwrap_or(DEFAULT_CONCURRENCY_LOCAL);
        Guarded::within(Bounds::fixed(concurrency), inner, options)
    }

    fn within(bounds: Bounds, inner: Arc<dyn Bucket>, options: &OpenOptions) -> Arc<Guarded> {
        let guarded = Guarded {
            inner,
            limit: Limit::new(bounds.first),
            pace: Pace::new(bounds.first),
            climb: Climb::new(bounds),
            hedge: options.hedge.unwrap_or(false).then(Hedge::default),
            deadline: AtomicU64::new(0),
            attempt: AtomicU64::new(0),
            opened: Instant::now(),
            answered: AtomicU64::new(0),
            failures_in_a_row: AtomicU64::new(0),
            last_error: Mutex::new(None),
            stats: Stats::default(),
            own: Tally::new(Provider::Local),
        };
        guarded.set_deadline(options.deadline);
        guarded.set_attempt(options.attempt);
        Arc::new(guarded)
    }

    /// Sets how many requests may be under way at once, for the next ones.
    pub fn set_concurrency(&self, concurrency: usize) {
        self.climb.set_bounds(Bounds::fixed(concurrency));
        self.pace.set_most(concurrency, &self.limit);
    }

    /// Sets how long a call may take, for calls that have not had their first turn yet.
    pub fn set_deadline(&self, deadline: Duration) {
        self.deadline.store(deadline.as_millis() as u64, Relaxed);
    }

    /// Sets how long an attempt may take, for the next ones.
    pub fn set_attempt(&self, attempt: Duration) {
        self.attempt.store(attempt.as_millis() as u64, Relaxed);
    }

    /// Asks the bucket once whether it can be used, and says within seconds why not: for who names a bucket and
    /// waits for the answer.
    pub async fn check(&self) -> Result<()> {
        let limit = CHECK_LIMIT.min(Duration::from_millis(self.deadline.load(Relaxed)));
        // A folder that nobody uses: a bucket is not listed for being asked.
        let asked = async {
            let mut tries = 1;
            while let Err(error) = self.inner.list_page("tarn-check", None).await {
                if tries == CHECK_TRIES || !error.is_transient() {
                    return Err(error);
                }
                tries += 1;
                tokio::time::sleep(CHECK_PAUSE).await;
            }
            // A web server may answer whatever it is asked for.
            match self.inner.head(&format!("tarn-check/{:016x}", rand::random::<u64>())).await {
                Ok(_) => Err(Error::Config(format!(
                    "{}: it has an object that nobody has written, so it is no object store: check the endpoint",
                    self.url()
                ))),
                Err(_) => Ok(()),
            }
        };
        match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Timeout(format!("{}: no answer within {} s", self.url(), limit.as_secs()))),
        }
    }

    /// What this vdev did since it was opened.
    pub fn stats(&self) -> StatsSnapshot {
        let operations = self.stats.snapshot();
        let busy = operations.values().map(|operation| operation.in_flight).sum();
        let queued = operations.values().map(|operation| operation.waiting).sum();
        let last_error = self.last_error.lock().clone();
        let (hedged, hedges_won) = self.hedge.as_ref().map_or((0, 0), Hedge::counts);
        StatsSnapshot {
            url: self.url().to_string(),
            concurrency: self.limit.get(),
            concurrency_most: self.pace.most(),
            slowed_ms: self.pace.slowed(&self.limit).map(|since| since.elapsed().as_millis() as u64),
            busy,
            idle: (self.limit.get() as u64).saturating_sub(busy),
            queued,
            failures_in_a_row: self.failures_in_a_row.load(Relaxed),
            last_error: last_error.map(|(text, at)| (text, at.elapsed().as_millis() as u64)),
            operations,
            hedged,
            hedges_won,
            errors: self.stats.errors(),
            provider: self.tally().unwrap_or(&self.own).provider(),
            charged: self.tally().unwrap_or(&self.own).snapshot(),
        }
    }

    /// Counts the bytes of a body.
    fn moved(&self, operation: Operation, bytes: u64) {
        self.climb.moved(bytes);
        self.stats.of(operation).add_bytes(bytes);
        match operation {
            _ if self.tally().is_some() => {}
            Operation::Get => self.own.received(bytes),
            _ => self.own.sent_bytes(bytes),
        }
    }

    /// Counts a request where the store itself does not.
    fn charge(&self, operation: Operation) {
        let charge = match operation {
            Operation::Put | Operation::Create => Charge::Put,
            Operation::List => Charge::List,
            Operation::Get => Charge::Get,
            Operation::Head => Charge::Head,
            Operation::Delete => Charge::Delete,
            Operation::Sync => return,
        };
        if self.tally().is_none() {
            self.own.sent(charge, 0);
        }
    }

    /// When a call that began at `start` and has had no turn yet is to end, as things stand.
    fn cutoff(&self, start: Instant) -> Instant {
        let answered = self.opened + Duration::from_millis(self.answered.load(Relaxed));
        start.max(answered) + Duration::from_millis(self.deadline.load(Relaxed))
    }

    fn heard(&self) {
        self.answered.store(self.opened.elapsed().as_millis() as u64, Relaxed);
        if self.failures_in_a_row.load(Relaxed) > 0 {
            self.failures_in_a_row.store(0, Relaxed);
        }
    }

    /// Waits for a turn, as long as the store goes on answering others. Gives the time spent waiting.
    async fn turn(
        &self,
        operation: Operation,
        start: Instant,
        cutoff: Option<Instant>,
    ) -> Option<(Option<Permit<'_>>, Duration)> {
        if operation == Operation::Sync {
            return Some((None, Duration::ZERO));
        }
        if let Some(permit) = self.limit.try_acquire() {
            return Some((Some(permit), Duration::ZERO));
        }
        self.climb.starved();
        let asked = Instant::now();
        let _queued = self.stats.of(operation).queue();
        let mut turn = std::pin::pin!(self.limit.acquire());
        loop {
            let until = cutoff.unwrap_or_else(|| self.cutoff(start));
            match timeout_at(until, &mut turn).await {
                Ok(permit) => return Some((Some(permit), asked.elapsed())),
                Err(_) if cutoff.is_none() && self.cutoff(start) > until => {}
                Err(_) => return None,
            }
        }
    }

    /// Runs attempts until one succeeds, fails for good, or the time is over. `attempt` is told whether it
    /// repeats one that failed.
    async fn call<T, F: Future<Output = Result<T>>>(
        &self,
        operation: Operation,
        key: &str,
        mut attempt: impl FnMut(bool) -> F,
    ) -> Result<T> {
        let _span = stopwatch::enter(Layer::Bucket);
        let start = Instant::now();
        let mut call = Call { operation, key, attempts: 0, locked_out: None };
        let (mut cutoff, mut last) = (None, None);
        loop {
            let Some((permit, queued)) = self.turn(operation, start, cutoff).await else {
                return Err(self.give_up(&call, start, last));
            };
            let until = *cutoff.get_or_insert_with(|| self.cutoff(start));
            let error = match self.attempt(&call, queued, until, attempt(call.attempts > 0)).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            drop(permit);
            call.attempts += 1;
            if !error.is_transient() || operation == Operation::Sync || call.is_locked_out(&error) {
                if !error.is_answer() {
                    self.stats.of(operation).give_up();
                    self.failures_in_a_row.fetch_add(1, Relaxed);
                }
                return Err(error);
            }
            let pause = pause(call.attempts);
            if Instant::now() + pause >= until {
                return Err(self.give_up(&call, start, Some(error)));
            }
            tracing::debug!(bucket = self.url(), operation = operation.name(), key, %error, "trying again");
            last = Some(error);
            sleep(pause).await;
        }
    }

    async fn attempt<T>(
        &self,
        call: &Call<'_>,
        queued: Duration,
        until: Instant,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let counted = self.stats.of(call.operation).begin(queued, call.attempts > 0);
        self.charge(call.operation);
        let limit = match call.operation {
            // There is no second attempt to leave time for.
            Operation::Sync => until,
            _ => until.min(Instant::now() + Duration::from_millis(self.attempt.load(Relaxed))),
        };
        let result = match timeout_at(limit, request).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout(format!("{}: no answer in time", self.name(call)))),
        };
        let failed = result.as_ref().is_err_and(|error| !error.is_answer());
        counted.end(failed);
        if !failed && let Some(limit) = self.climb.answered(self.opened.elapsed()) {
            self.pace.set_most(limit, &self.limit);
        }
        let busy = matches!(result, Err(Error::Busy(_)));
        if let Some(limit) = self.pace.answered(busy, &self.limit) {
            let most = self.pace.most();
            tracing::warn!("{}: asks to be asked less: {limit} of {most} requests at once", self.url());
        }
        match &result {
            Err(error) if failed => {
                self.stats.failed(error);
                *self.last_error.lock() = Some((error.to_string(), Instant::now()));
            }
            _ => self.heard(),
        }
        if matches!(result, Err(Error::NoSpace(_))) {
            // A full store is there, and says so.
            self.heard();
        }
        result
    }

    fn name(&self, call: &Call<'_>) -> String {
        let place = if call.key.is_empty() { self.url().to_string() } else { object(self.url(), call.key) };
        format!("{} {place}", call.operation.name())
    }

    fn give_up(&self, call: &Call<'_>, start: Instant, last: Option<Error>) -> Error {
        self.stats.of(call.operation).give_up();
        self.failures_in_a_row.fetch_add(1, Relaxed);
        let why =
            last.map_or_else(|| "it never had its turn, as nothing was answered".into(), |e| e.to_string());
        Error::Timeout(format!(
            "{}: given up after {:.1} s and {} attempts: {why}",
            self.name(call),
            start.elapsed().as_secs_f64(),
            call.attempts,
        ))
    }

    /// What `ask` brings, a read of so many bytes; one that is late is sent again where there is room for that.
    async fn hedged<F>(&self, bytes: u64, ask: impl Fn() -> F) -> Result<Bytes>
    where
        F: Future<Output = Result<Bytes>>,
    {
        let Some(hedge) = &self.hedge else { return ask().await };
        let asked = Instant::now();
        let mut first = std::pin::pin!(ask());
        let soon = match hedge.patience(bytes) {
            Some(patience) => timeout(patience, &mut first).await.ok(),
            None => Some(first.as_mut().await),
        };
        let answer = match soon {
            Some(answer) => answer,
            None => match self.spare(hedge) {
                Some(_permit) => self.again(hedge, first, ask()).await,
                None => first.await,
            },
        };
        if answer.is_ok() {
            hedge.learn(bytes, asked.elapsed());
        }
        answer
    }

    /// Leave to send a read again: nobody else waits for a turn, the store minds nothing, and it was not done too often.
    fn spare(&self, hedge: &Hedge) -> Option<Permit<'_>> {
        let permit = self.limit.try_acquire().filter(|_| self.pace.slowed(&self.limit).is_none())?;
        hedge.spend().then_some(permit)
    }

    /// The first good answer of two requests for the same, or one that says why there is none.
    async fn again<F>(
        &self,
        hedge: &Hedge,
        first: std::pin::Pin<&mut F>,
        second: impl Future<Output = Result<Bytes>>,
    ) -> Result<Bytes>
    where
        F: Future<Output = Result<Bytes>>,
    {
        self.charge(Operation::Get);
        let counted = self.stats.of(Operation::Get).begin(Duration::ZERO, false);
        let answer = match select(first, std::pin::pin!(second)).await {
            Either::Left((Err(error), second)) if !error.is_answer() => second.await,
            Either::Left((answer, _)) => return answer,
            Either::Right((Err(_), first)) => return first.await,
            Either::Right((answer, _)) => answer,
        };
        if answer.is_ok() {
            hedge.won();
            counted.end(false);
        }
        answer
    }

    /// What one attempt of a read of `range` has brought, with its length checked.
    async fn checked(&self, key: &str, range: Range<u64>, body: Bytes) -> Result<Bytes> {
        let (got, asked) = (body.len() as u64, range.end.saturating_sub(range.start));
        if got != asked {
            let size = self.inner.head(key).await?.size;
            let due = size.min(range.end).saturating_sub(range.start);
            if got != due {
                return Err(Error::Io(format!("{}: {key}: {got} bytes came where {due} are", self.url())));
            }
        }
        Ok(body)
    }

    /// One attempt to create, or a repeated one, which may find what the first has written.
    async fn create_or_find(&self, key: &str, body: Vec<Bytes>, repeated: bool) -> Result<()> {
        let ours = if repeated { body.clone() } else { Vec::new() };
        match self.inner.create(key, body).await {
            Err(Error::Exists(place)) if repeated => {
                let (found, size) = self.inner.get_tail(key, body_len(&ours) + 1).await?;
                if found.len() as u64 != size.min(body_len(&ours) + 1) {
                    return Err(Error::Io(format!("{place}: read back short")));
                }
                if !same(&ours, &found) {
                    return Err(Error::Exists(place));
                }
                // The attempt that wrote it may have ended before it was durable.
                self.inner.sync().await
            }
            other => other,
        }
    }
}

/// Whether the pieces joined are `whole`.
fn same(pieces: &[Bytes], mut whole: &[u8]) -> bool {
    let all = pieces.iter().all(|piece| match whole.split_at_checked(piece.len()) {
        Some((start, rest)) => {
            whole = rest;
            start == piece
        }
        None => false,
    });
    all && whole.is_empty()
}

/// The pause before the attempt that follows `attempts` failed ones.
fn pause(attempts: u32) -> Duration {
    let bound = FIRST_PAUSE.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
    rand::rng().random_range(Duration::ZERO..=bound)
}

#[async_trait::async_trait]
impl Bucket for Guarded {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        check(self.url(), key)?;
        let ask = || async {
            let body = self.inner.get(key, range.clone()).await?;
            self.checked(key, range.clone(), body).await
        };
        let get = |_| self.hedged(range.end.saturating_sub(range.start), ask);
        let body = self.call(Operation::Get, key, get).await?;
        self.moved(Operation::Get, body.len() as u64);
        Ok(body)
    }

    async fn get_start(&self, key: &str, len: u64) -> Result<Bytes> {
        check(self.url(), key)?;
        let ask = || async {
            let body = self.inner.get_start(key, len).await?;
            self.checked(key, 0..len, body).await
        };
        let get = |_| self.hedged(len, ask);
        let body = self.call(Operation::Get, key, get).await?;
        self.moved(Operation::Get, body.len() as u64);
        Ok(body)
    }

    async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)> {
        check(self.url(), key)?;
        let get = |_| async {
            let (body, size) = self.inner.get_tail(key, len).await?;
            match (body.len() as u64, len.min(size)) {
                (got, due) if got == due => Ok((body, size)),
                (got, due) => {
                    Err(Error::Io(format!("{}: {key}: {got} bytes came where {due} are", self.url())))
                }
            }
        };
        let (body, size) = self.call(Operation::Get, key, get).await?;
        self.moved(Operation::Get, body.len() as u64);
        Ok((body, size))
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo> {
        check(self.url(), key)?;
        self.call(Operation::Head, key, |_| self.inner.head(key)).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        check(self.url(), key)?;
        self.call(Operation::Put, key, |_| self.inner.put(key, body.clone())).await?;
        self.moved(Operation::Put, body_len(&body));
        Ok(())
    }

    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        check(self.url(), key)?;
        let create = |repeated| self.create_or_find(key, body.clone(), repeated);
        self.call(Operation::Create, key, create).await?;
        self.moved(Operation::Create, body_len(&body));
        Ok(())
    }

    /// Each batch is a request of its own, and they go out together.
    async fn delete(&self, keys: &[String]) -> Result<()> {
        keys.iter().try_for_each(|key| check(self.url(), key))?;
        let batches = keys.chunks(DELETE_BATCH).map(|batch| {
            let key = if batch.len() == 1 { batch[0].as_str() } else { "" };
            self.call(Operation::Delete, key, move |_| self.inner.delete(batch))
        });
        futures::future::try_join_all(batches).await.map(drop)
    }

    /// Each page is a request of its own with a deadline of its own.
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        every_page(self, prefix).await
    }

    async fn list_page(&self, prefix: &str, after: Option<String>) -> Result<ListPage> {
        self.call(Operation::List, prefix, |_| self.inner.list_page(prefix, after.clone())).await
    }

    async fn uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        self.call(Operation::List, "", |_| self.inner.uploads()).await
    }

    async fn end_upload(&self, upload: &UnfinishedUpload) -> Result<()> {
        self.call(Operation::Delete, &upload.key, |_| self.inner.end_upload(upload)).await
    }

    async fn sync(&self) -> Result<()> {
        self.call(Operation::Sync, "", |_| self.inner.sync()).await
    }

    async fn capacity(&self) -> Result<Option<Capacity>> {
        let limit = Duration::from_millis(self.deadline.load(Relaxed));
        match tokio::time::timeout(limit, self.inner.capacity()).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Timeout(format!("{}: its capacity was not told in time", self.url()))),
        }
    }

    fn credentials(&self) -> Option<Source> {
        self.inner.credentials()
    }

    async fn keeps(&self) -> Option<String> {
        self.inner.keeps().await
    }

    fn tally(&self) -> Option<&Tally> {
        self.inner.tally()
    }
}
