//! Datasets for clients on other hosts.
//!
//! A door is opened at a port, and whoever comes in names a dataset, which is opened for them as if it were mounted. What
//! a client has stays its own while it is away, also when this process ends: see `tarn_server::Exported`.

use super::Node;
use crate::control::report::{DoorReport, VisitorReport};
use crate::control::{Certificates, Reply, ServeRequest};
use crate::progress::{Silent, Sink};
use crate::wiring::{Dataset, far};
use anyhow::{Context, Result, bail};
use futures::future::BoxFuture;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tarn_proto::wire::{self, Broken, Hello, Refusal, Served};
use tarn_server::Moving;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Connections at a time, those included that have not said what they want; more wait.
const CALLERS: usize = 4096;
/// Connections that are to end do so within this time.
const ENDING: Duration = Duration::from_secs(10);

/// An open door.
pub struct OpenDoor {
    at: SocketAddr,
    tls: bool,
    end: CancellationToken,
    task: JoinHandle<()>,
}

/// What comes in at a door is led to the node's datasets.
struct Visitors {
    node: Arc<Node>,
    peer: SocketAddr,
}

impl wire::Export for Visitors {
    fn admit<'a>(&'a self, hello: &'a Hello) -> BoxFuture<'a, Result<Served, Refusal>> {
        Box::pin(async move {
            let told = |e: anyhow::Error| Refusal::Not(crate::error::one_line(&e));
            let (dataset, _moving) = self.node.open_for_visitor(&hello.dataset).await.map_err(told)?;
            let served = dataset.exported().map_err(told)?.admit(hello).await?;
            tracing::info!("{}: has '{}'", self.peer, hello.dataset);
            Ok(served)
        })
    }
}

impl Node {
    /// Opens the door.
    pub(super) async fn serve(self: &Arc<Self>, request: ServeRequest, sink: &dyn Sink) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        if let Some(door) = &*self.door.lock() {
            bail!(
                "'{}' is served at {} already: stop that first with 'tarn serve --stop'",
                self.name,
                door.at
            );
        }
        let ServeRequest { listen, certificates, metrics } = request;
        let door = far::Door::open(listen, &certificates).await?;
        if let Some(at) = metrics {
            self.serve_metrics(at).await?;
        }
        let mut cautions = Vec::new();
        if door.is_open_to_all(&certificates) {
            cautions.push(format!(
                "whoever reaches {} can mount the datasets of '{}' as any user: give --cert, --key and --client-ca",
                door.at, self.name
            ));
        }
        let (at, tls, end) = (door.at, certificates != Certificates::default(), CancellationToken::new());
        let task = tokio::spawn(receive(self.clone(), door, end.clone()));
        *self.door.lock() = Some(OpenDoor { at, tls, end, task });
        tracing::info!("serving '{}' at {at}", self.name);
        Ok(Reply::Serving { at, cautions })
    }

    /// Closes the door. Clients keep what they have, and wait for it to be opened again.
    pub(super) async fn stop_serving(self: &Arc<Self>, sink: &dyn Sink) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        self.close_door().await.with_context(|| format!("'{}' is not served", self.name))?;
        for row in self.rows() {
            self.close_unmounted(&row, &Silent).await?;
        }
        self.close_if_idle();
        Ok(Reply::Ok)
    }

    /// Sends everybody away; called with `admin` held. `None`: there is no door.
    pub(super) async fn close_door(&self) -> Option<()> {
        let door = self.door.lock().take()?;
        door.end.cancel();
        if tokio::time::timeout(ENDING, door.task).await.is_err() {
            tracing::warn!("a client's calls do not end");
        }
        Some(())
    }

    /// Gives up a client, wherever it is: what it has not made durable is lost.
    pub(super) async fn give_up_client(self: &Arc<Self>, name: &str, sink: &dyn Sink) -> Result<Reply> {
        let _admin = self.turn(sink).await?;
        let row = self.row(name)?;
        let dataset = self.dataset(&row).await?;
        let given_up = dataset.give_up_client().await;
        self.close_unmounted(&row, &Silent).await?;
        if !given_up? {
            bail!("no client on another host has '{name}'");
        }
        Ok(Reply::Ok)
    }

    pub(super) fn door_report(&self) -> Option<DoorReport> {
        let open: Vec<_> = self.open.lock().values().cloned().collect();
        let visitors = open.iter().filter(|dataset| dataset.taken()).map(|dataset| VisitorReport {
            dataset: dataset.name().to_string(),
            connected: dataset.visited(),
        });
        let door = self.door.lock();
        door.as_ref().map(|door| DoorReport { at: door.at, tls: door.tls, visitors: visitors.collect() })
    }

    /// Opens a dataset for a client that may come in. For as long as the second value lives, nobody mounts it here and
    /// nobody closes it.
    async fn open_for_visitor(self: &Arc<Self>, name: &str) -> Result<(Arc<Dataset>, Moving)> {
        let _admin = self.admin.lock().await;
        self.check_serving()?;
        let row = self.row(name)?;
        if let Some(dir) = self.mounted_at(name) {
            bail!("'{name}' is mounted on the server itself, at {}: unmount it there", dir.display());
        }
        let dataset = self.dataset(&row).await?;
        if self.ending.lock().contains(&row.id) || dataset.dirty_bytes() > 0 {
            bail!(
                "'{name}' was mounted on the server itself, and is still being written out: try again later"
            );
        }
        let moving = dataset.exported()?.moving();
        Ok((dataset, moving))
    }

    /// Closes what a client has left.
    async fn close_left(self: &Arc<Self>) {
        let _admin = self.admin.lock().await;
        if self.check_serving().is_err() {
            return;
        }
        for row in self.rows() {
            if let Err(e) = self.close_unmounted(&row, &Silent).await {
                tracing::warn!("{e:#}");
            }
        }
    }
}

/// Lets callers in until the door is closed.
async fn receive(node: Arc<Node>, door: far::Door, end: CancellationToken) {
    let callers = Arc::new(Semaphore::new(CALLERS));
    let mut tasks = JoinSet::new();
    loop {
        let next = async {
            let permit = callers.clone().acquire_owned().await.ok();
            (door.next().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            _ = end.cancelled() => break,
            next = next => next,
        };
        match accepted {
            Ok((caller, peer)) => {
                let (node, end) = (node.clone(), end.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        met = meet(&node, caller, peer) => match met {
                            Ok(()) => tracing::debug!("{peer}: hung up"),
                            Err(why) => tracing::info!("{peer}: {why}"),
                        },
                        _ = end.cancelled() => {}
                    }
                    node.close_left().await;
                    drop(permit);
                });
            }
            Err(e) => {
                tracing::warn!("cannot let a caller in: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
}

async fn meet(node: &Arc<Node>, caller: far::Caller, peer: SocketAddr) -> Result<(), Broken> {
    let (reader, writer) = caller.greet().await?;
    wire::serve(&Visitors { node: node.clone(), peer }, reader, writer).await
}
