//! Who may write to a pool.
//!
//! Two things decide it. The *label* says which host has the pool: a pool that is active for another host is
//! imported only by force, because that host may be alive without our seeing it. The *authority* makes the decision
//! stick among those who try:
//! - [`host`]: for pools on this host's own disks, a lock on every local vdev, held by the process. It ends with
//!   the process, however that ends, and no force overrides it: who holds it is alive.
//! - [`bucket`]: numbered epochs in one bucket of the pool, each made by create-if-absent, so that of several who
//!   try one succeeds. A higher epoch takes the pool over; force is what makes someone try although the last epoch
//!   was not released.
//!
//! Every successful import has an epoch higher than all before it, and everything the holder writes carries it.
//! [`Gate::check`] tells a holder that it was taken over: before every write of a label, before and after a database
//! is opened, and now and then by the transaction engine. Between the check and what follows it a process may sleep
//! for as long as it takes another host to take the pool and to write. What falls into that moment does no harm:
//! - segments have names of their own, under grants that the new holder looks through;
//! - SlateDB fences its own writers by create-if-absent, so that whoever opened the database before the new holder
//!   commits nothing. Who opens it *after* the new holder fences the wrong one, finds in the check that follows that it
//!   may not write, and the new holder opens it anew (see `Database::build` in `mdt`);
//! - labels are replaced whole, so one goes ahead of the others and the authority is asked again between them: an old
//!   label can take the place of one new one, not of all (see `Pool::write_labels`), and of the two kinds the label's
//!   epoch decides (see [`crate::label`]). A pool with a single bucket has no other label; there the next import may need
//!   force, and a change of the configuration in that very moment may be lost.

pub(crate) mod bucket;
pub(crate) mod host;

use crate::vdev::Vdev;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tarn_base::Epoch;
use tarn_base::sabotage::{self, Sabotage};

/// The authority is asked at most this often, except before a label is written.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// It is asked at least this often, even while nothing is written.
const CHECK_AT_LEAST: Duration = Duration::from_secs(60);

/// One holder's claim on a pool.
#[async_trait::async_trait]
pub(crate) trait Authority: Send + Sync + 'static {
    /// The epoch won.
    fn epoch(&self) -> Epoch;
    /// [`Error::Fenced`] once a higher epoch exists.
    async fn check(&self) -> Result<()>;
    /// Covers a vdev that joins the pool.
    async fn extend(&self, vdev: &Vdev) -> Result<()>;
    /// Covers a vdev no more that did not join after all.
    fn shrink(&self, vdev: &Vdev);
    /// Lets go, so that others need no force.
    async fn release(&self) -> Result<()>;
}

const OPEN: u8 = 0;
const FENCED: u8 = 1;
const CLOSED: u8 = 2;

/// What every write passes: open while the pool is held. Once fenced or closed it stays so.
pub(crate) struct Gate {
    authority: Box<dyn Authority>,
    state: AtomicU8,
    checked: tokio::sync::Mutex<Instant>,
}

impl Gate {
    pub fn new(authority: Box<dyn Authority>) -> Gate {
        Gate { authority, state: AtomicU8::new(OPEN), checked: tokio::sync::Mutex::new(Instant::now()) }
    }

    pub fn epoch(&self) -> Epoch {
        self.authority.epoch()
    }

    /// Whether writes may go on, as far as is known. Costs nothing.
    pub fn pass(&self) -> Result<()> {
        match self.state.load(SeqCst) {
            OPEN => Ok(()),
            FENCED => Err(Error::Fenced),
            _ => Err(Error::Usage("the pool was exported or released by this process".into())),
        }
    }

    /// Somebody else has the pool.
    pub fn fence(&self) {
        let _ = self.state.compare_exchange(OPEN, FENCED, SeqCst, SeqCst);
    }

    pub fn fenced(&self) -> bool {
        self.state.load(SeqCst) == FENCED
    }

    /// Asks the authority, at most every few seconds unless `now`.
    pub async fn check(&self, now: bool) -> Result<()> {
        self.pass()?;
        let mut checked = self.checked.lock().await;
        if !now && checked.elapsed() < CHECK_EVERY {
            return self.pass();
        }
        if sabotage::on(Sabotage::IgnoreEpochs) {
            return Ok(());
        }
        let result = self.authority.check().await;
        match &result {
            Ok(()) => *checked = Instant::now(),
            Err(Error::Fenced) => self.fence(),
            // Not knowing is not being fenced: the caller decides what a bucket's failure means to it.
            Err(_) => {}
        }
        result
    }

    /// Asks if nobody has for a while: one who only reads should hear of a takeover too.
    async fn check_if_due(&self) {
        let due = self.checked.lock().await.elapsed() >= CHECK_AT_LEAST;
        if due && let Err(error) = self.check(false).await {
            tracing::warn!(%error, "the pool's authority");
        }
    }

    /// Asks now and then, for as long as the pool is open.
    pub fn watch(this: &Arc<Gate>) {
        let gate = Arc::downgrade(this);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(CHECK_AT_LEAST / 2).await;
                let Some(open) = gate.upgrade().filter(|gate| gate.pass().is_ok()) else { return };
                open.check_if_due().await;
            }
        });
    }

    pub async fn extend(&self, vdev: &Vdev) -> Result<()> {
        self.authority.extend(vdev).await
    }

    /// Takes an [`Gate::extend`] back.
    pub fn shrink(&self, vdev: &Vdev) {
        self.authority.shrink(vdev);
    }

    /// Nothing may be written from here on.
    pub fn close(&self) {
        let _ = self.state.compare_exchange(OPEN, CLOSED, SeqCst, SeqCst);
    }

    /// Closes without a word to the authority's objects, which were removed.
    pub fn abandon(&self) {
        self.close();
    }

    /// Closes, and lets the authority go.
    pub async fn release(&self) -> Result<()> {
        self.close();
        self.authority.release().await
    }
}
