//! A dataset for a client on another host: who may have it, and what is kept for it when its connection is lost.
//!
//! One client has the dataset at a time. It keeps it when its connection breaks and when this host does: until it says
//! that it leaves, or has been away for [`PATIENCE`] while another asks for it.

use crate::{LocalMds, LocalOss};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::{Done, FsError, Ino, SegmentId, Txg};
use tarn_mdt::Mdt;
use tarn_pool::{BucketError, Pool};
use tarn_proto::wire::{Hello, Refusal, Served, Session};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A client that is away keeps its dataset at least this long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A connection that is to end does so within this time.
const ENDING: Duration = Duration::from_secs(30);

pub struct Exported {
    name: String,
    pool: Arc<Pool>,
    mdt: Arc<Mdt>,
    /// Those that hold for the dataset.
    properties: BTreeMap<String, String>,
    instance: u64,
    state: Mutex<State>,
    /// Held by the connection that is served.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct State {
    mds: Arc<LocalMds>,
    /// Clients that are coming or leaving: until that is over nobody else has the dataset either.
    moving: usize,
    /// Ends the connection that is served.
    end: CancellationToken,
    connected: bool,
    /// Since when nobody is connected.
    since: Instant,
}

/// A client is coming or leaving.
pub struct Moving(Arc<Exported>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.state.lock().moving -= 1;
    }
}

/// The right to be served, given back when it is dropped.
struct Turn {
    export: Arc<Exported>,
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.export.state.lock();
        state.connected = false;
        state.since = Instant::now();
    }
}

impl Exported {
    pub fn new(
        name: &str,
        pool: Arc<Pool>,
        mdt: Arc<Mdt>,
        properties: BTreeMap<String, String>,
    ) -> Arc<Exported> {
        let state = State {
            mds: LocalMds::new(mdt.clone()),
            moving: 0,
            end: CancellationToken::new(),
            connected: false,
            since: Instant::now(),
        };
        Arc::new(Exported {
            name: name.to_string(),
            pool,
            mdt,
            properties,
            instance: rand::random(),
            state: Mutex::new(state),
            turn: Arc::default(),
        })
    }

    /// Whoever is about to let a client in says so first: from then on [`Exported::taken`] holds.
    pub fn moving(self: &Arc<Self>) -> Moving {
        self.state.lock().moving += 1;
        Moving(self.clone())
    }

    /// Lets a client have the dataset, or have it again.
    pub async fn admit(self: &Arc<Self>, hello: &Hello) -> Result<Served, Refusal> {
        let _moving = self.moving();
        match self.mdt.client() {
            Some(id) if id == hello.client => {}
            Some(_) if !hello.resumes => self.give_up_absent().await.map_err(Refusal::Not)?,
            None if !hello.resumes => {}
            _ => {
                let why = format!("'{}': this client was away for too long and was given up", self.name);
                return Err(Refusal::Gone(why));
            }
        }
        self.state.lock().end.cancel();
        let guard = tokio::time::timeout(ENDING, self.turn.clone().lock_owned()).await;
        let not = |why: &str| Refusal::Not(format!("'{}': {why}", self.name));
        let guard = guard.map_err(|_| not("an earlier connection of this client does not end"))?;
        let known = self.mdt.admit(hello.client).await.map_err(|e| not(&e.to_string()))?;
        let mut state = self.state.lock();
        state.end = CancellationToken::new();
        state.connected = true;
        Ok(Served {
            mds: state.mds.clone(),
            oss: LocalOss::new(self.pool.clone(), self.mdt.dataset()),
            session: Arc::new(Kept(self.clone())),
            known,
            pool: self
                .pool
                .invitation(self.mdt.dataset(), &self.properties)
                .map_err(|e| not(&e.to_string()))?,
            end: state.end.clone(),
            turn: Box::new(Turn { export: self.clone(), _guard: guard }),
        })
    }

    /// Gives up a client that has been away for long enough.
    async fn give_up_absent(self: &Arc<Self>) -> Result<(), String> {
        {
            let state = self.state.lock();
            if state.connected {
                return Err(format!("'{}' is in use by another client: one at a time", self.name));
            }
            let left = PATIENCE.saturating_sub(state.since.elapsed()).as_secs();
            if left > 0 {
                return Err(format!(
                    "'{}' is in use by another client, which is away: it is given up in {left} s unless it comes back",
                    self.name
                ));
            }
        }
        tracing::warn!("'{}': its client does not come back and is given up", self.name);
        self.forget().await.map_err(|e| e.to_string())
    }

    /// Forgets the client, and the locks that it had.
    async fn forget(self: &Arc<Self>) -> Result<(), FsError> {
        let _moving = self.moving();
        self.state.lock().mds = LocalMds::new(self.mdt.clone());
        self.mdt.dismiss().await
    }

    /// Takes the dataset from its client, whatever that has not made durable.
    pub async fn give_up(self: &Arc<Self>) -> Result<(), FsError> {
        self.state.lock().end.cancel();
        let ended = tokio::time::timeout(ENDING, self.turn.lock()).await;
        let _turn = ended.map_err(|_| FsError::Io("the client's connection does not end".into()))?;
        self.forget().await
    }

    pub fn connected(&self) -> bool {
        self.state.lock().connected
    }

    /// A client has the dataset, whether it is connected or not, or is being let in, or has not left altogether.
    pub fn taken(&self) -> bool {
        self.state.lock().moving > 0 || self.mdt.client().is_some()
    }
}

/// Held by the connections of one client, one after the other.
struct Kept(Arc<Exported>);

impl Session for Kept {
    fn instance(&self) -> u64 {
        self.0.instance
    }

    fn durable(&self) -> Txg {
        self.0.mdt.durable()
    }

    fn done(&self, number: u64) -> Option<Done> {
        self.0.mdt.done(number)
    }

    fn failing(&self) -> bool {
        self.0.pool.failing().is_some()
    }

    fn recall(&self, segments: Vec<SegmentId>) -> BoxFuture<'static, Result<(), FsError>> {
        let pool = self.0.pool.clone();
        async move {
            for segment in segments {
                if let Err(BucketError::NotFound(object)) = pool.guest_recall(segment).await {
                    return Err(FsError::Io(format!("{object} was lost with the server that had taken it")));
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn resumed(&self, opens: Vec<(Ino, u32)>) -> BoxFuture<'static, Result<(), FsError>> {
        let mdt = self.0.mdt.clone();
        async move { mdt.resumed(opens).await }.boxed()
    }

    fn leave(&self) -> BoxFuture<'static, Result<(), FsError>> {
        let export = self.0.clone();
        async move { export.forget().await }.boxed()
    }
}
