//! A node: the one process of this host that has a pool open.
//!
//! It owns the pool and its open datasets (metadata target, server and client of each) and holds their mounts. A
//! daemon serves requests from a socket until its last mount is gone; a command that finds no daemon makes a node
//! of its own, has it carry out one request, and closes it. Both go through [`Node::handle`].
//!
//! # Phases
//! `Serving` -> `Closing` -> `Closed`, never back. A daemon starts closing when its last mount goes away, by a
//! request, by umount(8) or by a signal. Whoever asks something from then on is told to wait and to ask again: by
//! then the pool has been released, and the lock of the pool, which the node holds from before it opens the pool
//! until after it has released it, is free.
//!
//! # Order
//! `admin` is held by whatever changes mounts, open datasets or the configuration, so these happen one after the
//! other. The short locks below it are never held across an await.

mod answer;
mod check;
mod daemon;
mod flush;
mod fs;
pub mod memory;
mod mounts;
mod open;
mod place;
mod pool;
pub mod profile;
mod remount;
mod serve;
pub mod start;
pub mod takeover;
mod telemetry;

pub use memory::{Memory, Part};

use crate::address::Address;
use crate::control::{Call, MountRequest, Reply, Request, VERSION};
use crate::error::Closing;
use crate::progress::Sink;
use crate::state::{KnownPool, PoolLock, StateDir};
use crate::telemetry::Endpoint;
use crate::wiring::{self, Dataset};
use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_base::DatasetId;
use tarn_base::job::Jobs;
use tarn_pool::{HostId, Pool};
use tokio::sync::{MutexGuard, broadcast, watch};

/// How a node is run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub memory: Memory,
    /// It serves mounts, and closes when the last is gone.
    pub daemon: bool,
}

impl Settings {
    /// For the length of one command.
    pub fn for_command() -> Settings {
        Settings { memory: Memory::split(256 << 20), daemon: false }
    }

    /// For a process that serves mounts, with this many bytes of memory or the default.
    pub fn for_daemon(memory: Option<u64>) -> Settings {
        Settings { memory: Memory::split(memory.unwrap_or_else(memory::default_bytes)), daemon: true }
    }
}

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Serving,
    Closing,
    Closed,
}

/// Where a node has its pool from.
pub enum Origin {
    /// A pool of this host.
    Own(KnownPool),
    /// One dataset of a pool that another host serves.
    Server(Address, Box<MountRequest>),
}

impl Origin {
    /// A name for the lock, the socket and the log.
    pub fn key(&self) -> String {
        match self {
            Origin::Own(known) => known.name.clone(),
            Origin::Server(address, _) => address.key(),
        }
    }
}

pub struct Node {
    /// As people call what it has open.
    name: String,
    /// The host that serves it, if this one does not have the pool.
    server: Option<Address>,
    state: StateDir,
    pool: Arc<Pool>,
    settings: Settings,
    opened: std::time::Instant,
    admin: tokio::sync::Mutex<()>,
    open: Mutex<BTreeMap<DatasetId, Arc<Dataset>>>,
    mounts: Mutex<Vec<mounts::Mount>>,
    /// Datasets that are not mounted any more and are still being written out, once for each mount that they had.
    ending: Mutex<Vec<DatasetId>>,
    /// Where clients on other hosts come in.
    door: Mutex<Option<serve::OpenDoor>>,
    phase: watch::Sender<Phase>,
    /// How far flushing has come at the end, for those who wait for it.
    closing: answer::Latest,
    /// Where scrapes are answered.
    metrics: Mutex<Option<Endpoint>>,
    jobs: Arc<Jobs>,
    /// Profiles that are told to end, by their numbers.
    profile_ends: broadcast::Sender<u64>,
    _lock: PoolLock,
}

/// Who this host is, to pools.
pub fn host(state: &StateDir) -> Result<HostId> {
    let name = nix::unistd::gethostname().map(|n| n.to_string_lossy().into_owned());
    Ok(HostId { id: state.host_id()?, name: name.unwrap_or_else(|_| "localhost".into()) })
}

/// Whether a request cannot be carried out while a bucket that calls wait for fails: an administrator is told so, and need
/// not wait. What lets go of the pool, or of its calls, is not among them.
fn waits_for_buckets(request: &Request) -> bool {
    matches!(
        request,
        Request::AddVdevs { .. }
            | Request::Create { .. }
            | Request::Destroy { dry_run: false, .. }
            | Request::Rename { .. }
            | Request::Set { .. }
            | Request::Inherit { .. }
            | Request::Serve(_)
            | Request::GiveUpClient { .. }
            | Request::History
            | Request::Check { .. }
            | Request::DestroyPool { force: false }
    )
}

impl Node {
    /// Opens a pool. `lock` is the right to do so.
    pub async fn open(
        state: &StateDir,
        origin: Origin,
        lock: PoolLock,
        settings: Settings,
    ) -> Result<Arc<Node>> {
        let mut open = BTreeMap::new();
        let (pool, name, server) = match origin {
            Origin::Own(known) => {
                let pool = wiring::open_pool(&known, host(state)?, &settings.memory).await?;
                if settings.daemon {
                    pool.start_caches().await;
                }
                let name = pool.config().name.clone();
                (pool, name, None)
            }
            Origin::Server(address, request) => {
                let dataset = Dataset::visit(&address, &request, &settings.memory).await;
                let dataset = dataset.with_context(|| format!("cannot have '{address}'"))?;
                let pool = dataset.pool().clone();
                open.insert(dataset.id(), dataset);
                (pool, address.to_string(), Some(address))
            }
        };
        Ok(Arc::new(Node {
            name,
            server,
            state: state.clone(),
            pool,
            settings,
            opened: std::time::Instant::now(),
            admin: tokio::sync::Mutex::default(),
            open: Mutex::new(open),
            mounts: Mutex::default(),
            ending: Mutex::default(),
            door: Mutex::default(),
            phase: watch::Sender::new(Phase::Serving),
            closing: answer::Latest::default(),
            metrics: Mutex::default(),
            jobs: Arc::default(),
            profile_ends: broadcast::Sender::new(profile::WORDS),
            _lock: lock,
        }))
    }

    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Carries out one request for the user `uid`.
    pub async fn handle(self: &Arc<Self>, call: &Call, uid: u32, sink: &dyn Sink) -> Result<Reply> {
        if call.version != VERSION {
            bail!(
                "pool '{}' is served by a tarn of another version: unmount it, then use one version",
                self.name
            );
        }
        let reply = self.dispatch(call, uid, sink).await?;
        if matches!(
            call.request,
            Request::AddVdevs { .. }
                | Request::AddCaches { .. }
                | Request::RemoveVdevs { .. }
                | Request::SetPool { .. }
                | Request::Create { .. }
                | Request::Destroy { dry_run: false, .. }
                | Request::Rename { .. }
                | Request::Set { .. }
                | Request::Inherit { .. }
        ) {
            self.log(call, uid).await;
        }
        Ok(reply)
    }

    async fn dispatch(self: &Arc<Self>, call: &Call, uid: u32, sink: &dyn Sink) -> Result<Reply> {
        if let Some(address) = &self.server {
            use Request::{Datasets, EndProfile, Mount, Mounts, Pool, Profile, Stats, Unmount};
            let here = matches!(
                call.request,
                Pool | Datasets { .. }
                    | Mounts
                    | Stats
                    | Mount { .. }
                    | Unmount { .. }
                    | Profile(_)
                    | EndProfile { .. }
            );
            if !here {
                bail!("'{address}' is served by another host: do that there");
            }
        }
        if waits_for_buckets(&call.request)
            && let Some(why) = self.pool.suspended()
        {
            bail!("nothing was done, as the pool is suspended: {why}");
        }
        match call.request.clone() {
            Request::Pool => self.report().await,
            Request::Datasets { usage } => self.datasets(usage).await,
            Request::History => self.history().await,
            Request::Mounts => Ok(Reply::Mounts(self.mount_reports())),
            Request::Stats => Ok(Reply::Stats(Box::new(self.sample()))),
            Request::AddVdevs { urls, force } => self.add_vdevs(urls, force, sink).await,
            Request::AddCaches { dirs, size, force } => self.add_caches(dirs, size, force, sink).await,
            Request::RemoveVdevs { names } => self.remove_vdevs(names, sink).await,
            Request::SetPool { properties } => self.set_pool(properties, sink).await,
            Request::ClearErrors => self.clear_errors(),
            Request::Export { force } => self.export(force, call, uid, sink).await,
            Request::DestroyPool { force } => self.destroy_pool(force, sink).await,
            Request::Create { name, parents, properties } => {
                self.create(&name, parents, properties, sink).await
            }
            Request::Destroy { name, recursive, force, dry_run } => {
                self.destroy(&name, fs::Destroy { recursive, force, dry_run }, sink).await
            }
            Request::Rename { from, to, parents, force } => {
                self.rename(&from, &to, parents, force, sink).await
            }
            Request::Set { names, properties } => self.set(&names, properties, sink).await,
            Request::Inherit { names, property, recursive } => {
                self.inherit(&names, &property, recursive, sink).await
            }
            Request::Mount { dataset, dir, options } => self.mount_at(&dataset, dir, options, sink).await,
            Request::MountOwn { dataset, options } => self.mount_own(dataset.as_deref(), options, sink).await,
            Request::Unmount { what, force } => self.unmount(what, force, sink).await,
            Request::Serve(request) => self.serve(request, sink).await,
            Request::StopServing => self.stop_serving(sink).await,
            Request::GiveUpClient { dataset } => self.give_up_client(&dataset, sink).await,
            Request::Door => Ok(Reply::Door(self.door_report())),
            Request::Check { dataset, data, repair } => {
                self.check(dataset.as_deref(), crate::wiring::Checking { data, repair }, sink).await
            }
            Request::Profile(asked) => self.profile(&asked, sink).await,
            Request::EndProfile { id } => Ok(self.end_profile(id)),
        }
    }

    /// Writes a command into the pool's history. That it failed there does not undo it.
    async fn log(&self, call: &Call, uid: u32) {
        if let Err(e) = wiring::log_history(&self.pool, &call.command, uid).await {
            tracing::warn!("the pool's history could not be written: {e:#}");
        }
    }

    /// The right to change mounts, open datasets or the configuration. Until it is had, whoever asked for it may go away.
    async fn turn(&self, sink: &dyn Sink) -> Result<MutexGuard<'_, ()>> {
        sink.waits(true);
        let turn = self.admin.lock().await;
        sink.waits(false);
        self.check_serving()?;
        Ok(turn)
    }

    /// Fails with [`Closing`] when the node has begun to close; called with `admin` held.
    fn check_serving(&self) -> Result<()> {
        match *self.phase.borrow() {
            Phase::Serving => Ok(()),
            _ => Err(Closing.into()),
        }
    }

    /// Lets a daemon close if nothing is mounted or served any more; called with `admin` held.
    fn close_if_idle(&self) {
        if self.settings.daemon && self.mounts.lock().is_empty() && self.door.lock().is_none() {
            self.begin_closing();
        }
    }

    /// From now on no request is taken.
    pub fn begin_closing(&self) {
        self.phase.send_if_modified(|phase| {
            let begin = *phase == Phase::Serving;
            if begin {
                *phase = Phase::Closing;
            }
            begin
        });
    }

    /// The host that serves what is open here does not answer.
    fn server_is_away(&self) -> bool {
        self.open.lock().values().any(|dataset| dataset.server_is_away())
    }

    /// From now on nothing waits for a bucket that fails, or for a server that is away.
    fn give_up(&self) {
        self.pool.give_up();
        self.open.lock().values().for_each(|dataset| dataset.give_up_server());
    }

    /// The pool was exported or destroyed: there is nothing left to close.
    fn let_go(&self) {
        self.phase.send_replace(Phase::Closed);
    }

    /// Unmounts what is mounted, flushes and closes every dataset, and releases the pool. The first error is
    /// reported when all has been tried.
    pub async fn close(self: &Arc<Self>, sink: &dyn Sink) -> Result<()> {
        self.begin_closing();
        let mut result = self.flush_all_to_end(sink).await;
        let _admin = self.admin.lock().await;
        if *self.phase.borrow() == Phase::Closed {
            return Ok(());
        }
        self.close_door().await;
        result = result.and(self.unmount_everything(sink).await);
        let datasets: Vec<Arc<Dataset>> = std::mem::take(&mut *self.open.lock()).into_values().collect();
        for dataset in datasets {
            let closed = dataset.close(sink).await;
            result = result.and(closed.with_context(|| format!("'{}'", dataset.name())));
        }
        let released = wiring::release(&self.pool).await.context("cannot release the pool");
        self.phase.send_replace(Phase::Closed);
        result.and(released)
    }
}
