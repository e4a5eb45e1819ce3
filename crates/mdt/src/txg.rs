//! Transaction groups: what changes together becomes durable together.
//!
//! # States
//! A txg is *open* (operations add rows), *syncing* (closed to operations, being written) or *durable*. One is
//! open at all times, at most one is syncing. Closing one takes the operation lock for an instant: the open
//! txg's number goes up and the dataset's own row is written into the one that closes.
//!
//! # Why the order is as it is
//! 1. Operations that name a segment enter the open txg only after its PUT was acknowledged.
//! 2. When a txg closes, every segment that it names is therefore written; `Pool::sync` makes them durable.
//! 3. Then the rows go into the database as one batch, which is atomic and durable when it returns.
//! 4. Then, and only then, waiters are told, and reclaim may delete what the txg freed.
//!
//! # Failures
//! Rows carry whole values, so writing a batch twice does no harm: after a failure the database is opened anew
//! and the batch written again, for as long as it takes; nothing is dropped. Where calls wait for buckets that fail
//! (`failmode=wait`) waiters keep waiting; where they do not, those who wait while an attempt fails are told, and may
//! ask again. Only when another owner has fenced the database, or the dataset was given up, is there no way on:
//! everything then fails with `Fenced`.

use crate::changes::Rows;
use crate::phys::encode;
use crate::{Mdt, key};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::point::{self, Point};
use tarn_base::sabotage::{self, Sabotage};
use tarn_base::{FsError, Ino, Txg};
use tokio::sync::{Notify, watch};

/// A txg closes after this time even if nobody asks.
pub const TXG_TIMEOUT: Duration = Duration::from_secs(5);
/// A txg closes when it has this many rows, which is as long as an fsync should have to wait for others' rows, or
pub const TXG_ROWS: usize = 32 << 10;
/// this many bytes of rows, or sooner where memory is short.
pub const TXG_BYTES: u64 = 8 << 20;

/// Where calls do not wait for buckets, a sync takes at most this beyond a request's deadline.
const BEYOND_DEADLINE: Duration = Duration::from_secs(4);

/// What waiters see of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// All txgs up to this one are durable.
    pub durable: Txg,
    pub fenced: bool,
    /// Attempts that failed so far, as far as waiters are to hear of them, and why the last one did.
    pub failures: u64,
    pub error: Option<FsError>,
}

pub struct Engine {
    pub progress: watch::Sender<Progress>,
    /// Somebody wants the open txg closed.
    pub wanted: Notify,
    /// Failures of the txg that is being synced, in a row; shown in `stats`.
    pub retries: std::sync::atomic::AtomicU64,
}

impl Engine {
    pub fn new(durable: Txg) -> Engine {
        Engine {
            progress: watch::Sender::new(Progress { durable, ..Progress::default() }),
            wanted: Notify::new(),
            retries: Default::default(),
        }
    }

    pub fn durable(&self) -> Txg {
        self.progress.borrow().durable
    }

    pub fn fenced(&self) -> bool {
        self.progress.borrow().fenced
    }

    /// Nothing becomes durable any more.
    pub fn fence(&self) {
        self.progress.send_modify(|progress| progress.fenced = true);
    }

    /// Tells those who wait that an attempt failed.
    fn tell(&self, error: &FsError) {
        self.progress.send_modify(|progress| {
            progress.failures += 1;
            progress.error = Some(error.clone());
        });
    }

    /// Waits until `txg` is durable, or an attempt fails and waiters are told.
    pub async fn wait(&self, txg: Txg) -> Result<(), FsError> {
        let mut progress = self.progress.subscribe();
        let failures = progress.borrow_and_update().failures;
        let seen = progress
            .wait_for(|now| now.fenced || now.durable >= txg || now.failures > failures)
            .await
            .map_err(|_| FsError::Fenced)?;
        if seen.fenced {
            return Err(FsError::Fenced);
        }
        if seen.durable >= txg {
            return Ok(());
        }
        Err(seen.error.clone().unwrap_or_else(|| FsError::Io("a transaction group failed".into())))
    }
}

impl Mdt {
    /// Answers when every change made before the call is durable.
    pub async fn sync(self: &Arc<Self>) -> Result<(), FsError> {
        let target = {
            let op = self.op.lock();
            if op.changed { op.txg } else { Txg(op.txg.0 - 1) }
        };
        if self.engine.fenced() {
            return Err(FsError::Fenced);
        }
        if self.engine.durable() < target {
            self.engine.wanted.notify_one();
        }
        let durable = self.engine.wait(target);
        if self.pool.waits() {
            return durable.await;
        }
        // Whatever it is that takes so long, who asked is told.
        let limit = self.pool.deadline() + BEYOND_DEADLINE;
        let late = |_| Err(FsError::Io(format!("not durable within {} s", limit.as_secs())));
        tokio::time::timeout(limit, durable).await.unwrap_or_else(late)
    }

    /// Whether the open txg has grown so far beyond its bounds that operations must wait.
    pub(crate) fn overfull(&self) -> bool {
        self.op.lock().bytes > self.shares.overfull
    }

    /// The engine's task: closes and syncs txgs until the dataset is closed.
    pub(crate) async fn run_txgs(self: Arc<Self>) {
        loop {
            tokio::select! {
                _ = self.engine.wanted.notified() => {}
                _ = tokio::time::sleep(TXG_TIMEOUT) => {}
                _ = self.stop_txgs.cancelled() => return,
            }
            if !self.sync_open_txg().await {
                return;
            }
        }
    }

    /// Closes the open txg and makes it durable. `false` when that can never happen.
    pub(crate) async fn sync_open_txg(&self) -> bool {
        let Some(txg) = self.close_txg() else { return true };
        let closed = self.clock.monotonic();
        point::pass(Point::TxgClosed);
        let changes = self.rows.changes(txg);
        self.counters.rows_synced.fetch_add(changes.len() as u64, Ordering::Relaxed);
        let mut pause = Duration::from_millis(50);
        loop {
            match self.write_txg(&changes).await {
                Ok(()) => break,
                Err(FsError::Fenced) => {
                    tracing::error!(dataset = %self.dataset, "the pool was taken over: no more changes");
                    self.engine.fence();
                    return false;
                }
                Err(error) => {
                    self.engine.retries.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%txg, %error, "txg is not durable yet, trying again");
                    if !self.pool.waits() {
                        self.engine.tell(&error);
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(5));
                }
            }
        }
        point::pass(Point::TxgWritten);
        self.rows.retire(txg);
        self.counters.txgs.fetch_add(1, Ordering::Relaxed);
        self.counters.txg_sync.record(self.clock.monotonic().saturating_sub(closed));
        self.engine.progress.send_modify(|progress| {
            progress.durable = txg;
            progress.error = None;
        });
        true
    }

    fn close_txg(&self) -> Option<Txg> {
        let mut op = self.op.lock();
        if !op.changed {
            return None;
        }
        let txg = op.txg;
        op.numbers.txg = txg;
        let mut own = Rows::from_iter([(key::super_row(), Some(encode(&op.numbers)))]);
        if let Some(row) = op.client.as_mut().and_then(crate::client::ClientState::row) {
            own.insert(key::client_row(), Some(row));
        }
        self.rows.apply(txg, own);
        op.txg = txg.next();
        (op.changed, op.rows) = (false, 0);
        self.counters.bytes_synced.fetch_add(std::mem::take(&mut op.bytes), Ordering::Relaxed);
        self.rows.advance(op.txg, Ino(op.numbers.next_ino));
        Some(txg)
    }

    async fn write_txg(&self, changes: &[(key::Key, crate::rows::Row)]) -> Result<(), FsError> {
        self.pool.check_authority().await.map_err(crate::pool_error)?;
        let late = sabotage::on(Sabotage::CommitBeforeSync);
        if !late {
            self.pool.sync().await.map_err(crate::pool_error)?;
        }
        point::pass(Point::TxgSynced);
        match self.db.commit(changes).await {
            Ok(()) if late => self.pool.sync().await.map_err(crate::pool_error),
            other => Ok(other?),
        }
    }
}
