//! When a bucket fails: how it is known, what calls do meanwhile, and how it is known that it is back.
//!
//! # States
//! - *Fine.*
//! - *Suspect*: a call failed for good (past its deadline, or refused), and nobody else was answered lately.
//!   One probe decides. Calls that come now wait for its verdict, a few seconds at most: without that, each of them
//!   would find out by a deadline of its own.
//! - *Out*: the probe failed too. No call is sent to the store but a probe a second. It ends with the first probe that
//!   is answered.
//!
//! A store may answer reads and refuse writes (a disk that became read-only). So a failed write alone bars writes, and
//! is probed by a write; whatever is said of the store as a whole bars everything.
//!
//! # What a call does
//! With `failmode=continue` a call to a store that is out fails at once with the reason. With `failmode=wait` it waits
//! for the end of the outage and is made anew, as often as it takes: nothing above learns of it, so nothing is dropped
//! and nothing has to be repeated by hand. *Hasty* calls never wait: their caller has another place to turn to (another
//! copy, another vdev for a segment), and waits only when there is none left, by [`Outages::outlast`].
//!
//! Nor do they have to sit out a deadline to learn that a store hangs: after [`Outages::patience`] they may ask for the
//! other copy beside it. A store of which that was said is *in doubt* until it answers something; nobody waits for it
//! who need not, and its calls, its state and its deadline are as before.
//!
//! What trying again cannot help ([`lasting`] refusals) is told to the caller when it comes a second time although a
//! probe went well in between: it is about that one object.

use crate::text::now_ms;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tarn_bucket::{Bucket, Error};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Between two probes of a store that is out.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A probe that is not answered within this time has failed.
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// A call that failed past its deadline while others were answered is made anew after this.
const PAUSE: Duration = Duration::from_secs(1);
/// Who has another copy asks for it when a store has not answered for so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// A folder that nobody uses: who lists it learns whether the store answers.
const NOBODYS: &str = "tarn/nobody";
/// What a probe writes, and deletes again.
pub(crate) const PROBE: &str = "tarn/probe";

/// What a call asks of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

/// A store that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outage {
    /// Milliseconds since 1970.
    pub since_ms: i64,
    /// The failure that began it.
    pub why: String,
    /// The store is there, and does not take the credentials.
    pub locked_out: bool,
    /// Reads fail too.
    pub whole: bool,
    /// It is not certain yet.
    pub suspect: bool,
}

/// Whether the failure is one of the store, rather than an answer that the caller must deal with.
pub(crate) fn failed(error: &Error) -> bool {
    !matches!(error, Error::NotFound(_) | Error::Exists(_) | Error::NoSpace(_))
}

/// Whether the same call would fail again for all that is known.
fn lasting(error: &Error) -> bool {
    failed(error) && !error.is_transient()
}

pub(crate) struct Outages {
    bucket: Arc<dyn Bucket>,
    /// Whether calls wait. Not before the pool is open: who opens one wants to hear of it.
    waits: watch::Sender<bool>,
    now: watch::Sender<Option<Outage>>,
    waiting: AtomicU64,
    opened: Instant,
    /// Milliseconds after `opened` at which the store last answered.
    answered: AtomicU64,
    /// The same for when somebody had waited too long.
    doubted: AtomicU64,
    /// What a probe must find out, beside whether the store answers.
    writes_failed: AtomicBool,
}

/// One more call that waits; counted until this is dropped.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Outages {
    pub fn new(bucket: Arc<dyn Bucket>) -> Arc<Outages> {
        Arc::new(Outages {
            bucket,
            waits: watch::Sender::new(false),
            now: watch::Sender::new(None),
            waiting: AtomicU64::new(0),
            opened: Instant::now(),
            answered: AtomicU64::new(0),
            doubted: AtomicU64::new(0),
            writes_failed: AtomicBool::new(false),
        })
    }

    /// `failmode`: whether calls wait from now on. Those that wait already are told.
    pub fn set_waits(&self, waits: bool) {
        self.waits.send_replace(waits);
    }

    pub fn waits(&self) -> bool {
        *self.waits.borrow()
    }

    /// The outage under way, once it is certain.
    pub fn now(&self) -> Option<Outage> {
        self.now.borrow().clone().filter(|outage| !outage.suspect)
    }

    /// Calls that wait for its end.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(SeqCst)
    }

    /// Whether new data should go elsewhere.
    pub fn shuns_writes(&self) -> bool {
        self.now.borrow().is_some()
    }

    fn age_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }

    fn heard(&self) {
        self.answered.store(self.age_ms(), SeqCst);
    }

    /// How long to wait for an answer before asking for another copy.
    pub fn patience(&self) -> Duration {
        let doubted = self.doubted.load(SeqCst) > self.answered.load(SeqCst);
        if doubted { Duration::ZERO } else { PATIENCE }
    }

    /// Somebody who began to wait at `start` has turned to another copy.
    pub fn doubt(&self, start: Instant) {
        if !self.heard_since(start) {
            self.doubted.store(self.age_ms(), SeqCst);
        }
    }

    fn heard_since(&self, start: Instant) -> bool {
        self.opened + Duration::from_millis(self.answered.load(SeqCst)) > start
    }

    /// Makes a call by these rules. `make` may be used several times.
    pub async fn call<T, F: Future<Output = tarn_bucket::Result<T>>>(
        self: &Arc<Self>,
        side: Side,
        hasty: bool,
        make: impl Fn() -> F,
    ) -> tarn_bucket::Result<T> {
        let mut refused = false;
        loop {
            if let Some(outage) = self.barred(side, hasty).await {
                return Err(Error::Timeout(outage.why));
            }
            let start = Instant::now();
            let error = match make().await {
                Err(error) if failed(&error) => error,
                answer => {
                    self.heard();
                    return answer;
                }
            };
            // Answers of its first half say little: the store may have gone away since.
            let alone = !self.heard_since(start + start.elapsed() / 2);
            if alone {
                self.suspect(side, &error);
            }
            let again = !hasty && self.waits() && !(lasting(&error) && refused);
            if !again {
                return Err(error);
            }
            refused = lasting(&error);
            if !alone {
                sleep(PAUSE).await;
            }
        }
    }

    /// Waits while calls of this kind must; gives the outage if they fail instead.
    async fn barred(&self, side: Side, hasty: bool) -> Option<Outage> {
        let mut now = self.now.subscribe();
        let mut waits = self.waits.subscribe();
        loop {
            let outage = now.borrow_and_update().clone()?;
            if side == Side::Read && !outage.whole && !outage.suspect {
                return None;
            }
            let wait = !hasty && *waits.borrow_and_update();
            if !outage.suspect && !wait {
                return Some(outage);
            }
            let _waiting = (!outage.suspect).then(|| Waiting::new(&self.waiting));
            tokio::select! {
                changed = now.changed() => changed.ok()?,
                changed = waits.changed() => changed.ok()?,
            }
        }
    }

    /// For who made a hasty call that failed and has nowhere else to turn: waits until it makes sense to make it
    /// anew. `false`: it does not, because calls do not wait.
    pub async fn outlast(&self, side: Side) -> bool {
        if !self.waits() {
            return false;
        }
        if self.now.borrow().is_none() {
            sleep(PAUSE).await;
        }
        self.barred(side, false).await.is_none()
    }

    /// A call failed, and nobody was answered meanwhile.
    fn suspect(self: &Arc<Self>, side: Side, error: &Error) {
        if side == Side::Write {
            self.writes_failed.store(true, SeqCst);
        }
        let begins = self.now.send_if_modified(|now| {
            let begins = now.is_none();
            if begins {
                let (since_ms, why) = (now_ms(), error.to_string());
                let locked_out = matches!(error, Error::Credentials(_));
                *now = Some(Outage { since_ms, why, locked_out, whole: true, suspect: true });
            }
            begins
        });
        if begins {
            let this = self.clone();
            tokio::spawn(async move { this.probe_to_end().await });
        }
    }

    /// Probes until the store is back. There is one such task for each outage: who begins one starts it.
    async fn probe_to_end(&self) {
        loop {
            let found = self.probe().await;
            let mut ended = None;
            self.now.send_if_modified(|now| {
                let Some(outage) = now else { return false };
                match found {
                    None => ended = now.take(),
                    Some(whole) => {
                        if outage.suspect && outage.locked_out {
                            tracing::error!("calls wait for credentials: {}", outage.why);
                        } else if outage.suspect {
                            tracing::error!("{}: does not answer: {}", self.bucket.url(), outage.why);
                        }
                        (outage.whole, outage.suspect) = (whole, false);
                    }
                }
                true
            });
            match ended {
                Some(outage) if !outage.suspect => {
                    let seconds = (now_ms() - outage.since_ms) / 1000;
                    tracing::warn!("{}: answers again, after {seconds} s", self.bucket.url());
                    return;
                }
                Some(_) => return,
                None => sleep(PROBE_EVERY).await,
            }
        }
    }

    /// Asks the store once. `None`: it is well. Otherwise whether all of it fails, or only writes.
    async fn probe(&self) -> Option<bool> {
        let ask = async {
            let answers = |result: tarn_bucket::Result<()>| !result.is_err_and(|error| failed(&error));
            if !answers(self.bucket.list_page(NOBODYS, None).await.map(drop)) {
                return Some(true);
            }
            if self.writes_failed.load(SeqCst) {
                let body = vec![bytes::Bytes::from_static(b"probe")];
                if !answers(self.bucket.put(PROBE, body).await) {
                    return Some(false);
                }
                self.writes_failed.store(false, SeqCst);
                // It says nothing if it stays; the next probe deletes it.
                let _ = self.bucket.delete(&[PROBE.to_string()]).await;
            }
            None
        };
        let found = timeout(PROBE_LIMIT, ask).await.unwrap_or(Some(true));
        if found.is_none() {
            self.heard();
        }
        found
    }
}
