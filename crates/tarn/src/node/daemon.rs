//! A node that listens: the socket, the signals, and the end.

use super::answer::{Latest, answer};
use super::{Node, Phase};
use crate::control::{Call, Message, Reach, wire};
use crate::state::StateDir;
use anyhow::{Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::BufReader;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A caller sends its request within this time.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// At the end, answers under way have this long to go out.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Callers at a time; more wait in the socket's queue.
const CALLERS: usize = 64;

/// The socket at which a node listens; removed when dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens for requests on `pool`, whose lock the caller holds: a socket that lies there is a leftover.
    pub fn bind(state: &StateDir, pool: &str) -> Result<Listener> {
        let path = state.socket(pool);
        let bind = || -> Result<UnixListener> {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
            // The directory is the owner's alone, so nobody gets in before the mode is set.
            let listener = UnixListener::bind(Reach::new(&path)?.path())?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let listener = bind().with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Listener { listener, path })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// SIGTERM and SIGINT, caught from the moment this is made.
pub struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    pub fn catch() -> Result<Signals> {
        Ok(Signals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

/// Answers requests until the node begins to close or a signal comes; then flushes, unmounts and releases, while
/// those who ask are told to wait.
pub async fn serve(node: Arc<Node>, listener: Listener, mut signals: Signals) -> Result<()> {
    let accepting = tokio::spawn(accept(node.clone(), listener));
    let resuming = tokio::spawn({
        let node = node.clone();
        async move { node.resume_destroys().await }
    });
    let mut phase = node.phase();
    tokio::select! {
        _ = phase.wait_for(|p| *p != Phase::Serving) => {}
        name = signals.next() => {
            tracing::info!("{name}: flushing and unmounting");
            node.begin_closing();
        }
    }
    let result = {
        let mut close = std::pin::pin!(node.close(&node.closing));
        loop {
            tokio::select! {
                result = &mut close => break result,
                name = signals.next() => {
                    tracing::warn!("{name} once more: what cannot be written is given up");
                    node.give_up();
                }
            }
        }
    };
    let _ = resuming.await;
    let _ = accepting.await;
    match &result {
        Ok(()) => tracing::info!("pool '{}' released", node.name),
        Err(e) => tracing::error!("pool '{}': {}", node.name, crate::error::one_line(e)),
    }
    result
}

/// Takes callers until the pool is released, and lets those that are there hear their answers.
async fn accept(node: Arc<Node>, listener: Listener) {
    let callers = Arc::new(tokio::sync::Semaphore::new(CALLERS));
    let mut tasks = tokio::task::JoinSet::new();
    let mut phase = node.phase();
    loop {
        let next = async {
            let permit = callers.clone().acquire_owned().await.ok();
            (listener.listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            _ = phase.wait_for(|p| *p == Phase::Closed) => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let node = node.clone();
                tasks.spawn(async move {
                    if let Err(e) = converse(&node, stream).await {
                        tracing::debug!("a caller was not answered: {e:#}");
                    }
                    drop(permit);
                });
            }
            Err(e) => {
                tracing::warn!("cannot accept a caller: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    drop(listener);
    let answered = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_ANSWERS, answered).await;
}

/// One caller: one request, one answer.
async fn converse(node: &Arc<Node>, stream: UnixStream) -> Result<()> {
    let uid = stream.peer_cred()?.uid();
    let (reading, mut writing) = stream.into_split();
    let mut reader = BufReader::new(reading);
    let call = match wire::read::<Call>(&mut reader, wire::REQUEST_MAX, REQUEST_TIME).await {
        Ok(Some(call)) => call,
        Ok(None) => return Ok(()),
        Err(e) => {
            let text = format!("the request cannot be read: {e:#}");
            return wire::write(&mut writing, &Message::Failed { text, usage: true }).await;
        }
    };
    let mut phase = node.phase();
    if *phase.borrow_and_update() != Phase::Serving {
        return wait_for_end(node, &mut writing).await;
    }
    let latest = Latest::default();
    answer(&mut writing, &latest, node.handle(&call, uid, &latest)).await;
    Ok(())
}

/// Tells a caller how the flush goes on, until the pool is released and the connection ends.
async fn wait_for_end(node: &Arc<Node>, writing: &mut (impl tokio::io::AsyncWrite + Unpin)) -> Result<()> {
    let mut phase = node.phase();
    loop {
        wire::write(writing, &Message::Closing(node.closing.newest())).await?;
        let end = phase.wait_for(|p| *p == Phase::Closed);
        if tokio::time::timeout(Duration::from_millis(500), end).await.is_ok() {
            return Ok(());
        }
    }
}
