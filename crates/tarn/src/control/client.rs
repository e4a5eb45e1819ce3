//! The way to a pool: through the process that has it open, or by opening it here.

use super::{Call, Message, Reply, Request, wire};
use crate::error::usage;
use crate::progress::{Progress, Sink, Unit};
use crate::state::{PoolLock, StateDir};
use anyhow::{Context, Result, anyhow, bail};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::BufReader;
use tokio::net::UnixStream;

/// A node answers, or says that it is working, within this time.
const SILENCE: Duration = Duration::from_secs(30);
/// Another command may have the pool for this long before one gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(25);

/// How a pool is reached.
pub enum Door {
    /// A process has it open and listens.
    Daemon(UnixStream),
    /// Nobody has it open on this host: the right to do so.
    Own(PoolLock),
}

/// Finds the way to `pool`, waiting while another command has it open.
pub async fn find(state: &StateDir, pool: &str) -> Result<Door> {
    let start = Instant::now();
    loop {
        if let Some(lock) = state.try_lock(pool)? {
            return Ok(Door::Own(lock));
        }
        if let Some(stream) = connect(&state.socket(pool)).await? {
            return Ok(Door::Daemon(stream));
        }
        if start.elapsed() > PATIENCE {
            let holder = state.lock_holder(pool).map_or_else(String::new, |pid| format!(" (process {pid})"));
            bail!("pool '{pool}' is busy with another tarn command{holder}: try again when it has ended");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// A connection to whoever listens at `socket`; `None` when nobody does.
pub async fn connect(socket: &Path) -> Result<Option<UnixStream>> {
    use ErrorKind::{ConnectionRefused, ConnectionReset, NotFound};
    let reach = Reach::new(socket)?;
    match UnixStream::connect(reach.path()).await {
        Ok(stream) => Ok(Some(stream)),
        // The last two: nobody listens any more, or stopped listening while we stood in the queue.
        Err(e) if matches!(e.kind(), NotFound | ConnectionRefused | ConnectionReset) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot reach {}", socket.display())),
    }
}

/// A name for a socket that fits the 107 bytes a socket address has, however deep its directory lies.
pub struct Reach {
    path: PathBuf,
    _dir: Option<File>,
}

impl Reach {
    pub fn new(socket: &Path) -> Result<Reach> {
        const LONGEST: usize = 100;
        let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
            bail!("{} is no place for a socket", socket.display());
        };
        if socket.as_os_str().len() <= LONGEST {
            return Ok(Reach { path: socket.into(), _dir: None });
        }
        let dir = File::open(dir).with_context(|| dir.display().to_string())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
        Ok(Reach { path, _dir: Some(dir) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Sends `call` and follows the answer to its end. `None`: the node was letting go of the pool, ask again.
pub async fn ask(mut stream: UnixStream, call: &Call, sink: &dyn Sink) -> Result<Option<Reply>> {
    if wire::write(&mut stream, call).await.is_err() {
        // It closed the door between our knock and our word.
        return Ok(None);
    }
    follow(&mut BufReader::new(stream), sink).await
}

/// Follows the lines of an answer to its last. `None` when the node said that it is closing.
pub async fn follow(
    lines: &mut (impl tokio::io::AsyncBufRead + Unpin),
    sink: &dyn Sink,
) -> Result<Option<Reply>> {
    let mut closing = false;
    loop {
        match wire::read::<Message>(lines, wire::ANSWER_MAX, SILENCE).await {
            Ok(Some(Message::Progress(progress))) => sink.progress(progress),
            Ok(Some(Message::Working)) => {}
            Ok(Some(Message::Closing(progress))) => {
                closing = true;
                let idle =
                    || Progress { what: "waiting for the pool".into(), done: 0, total: 0, unit: Unit::Bytes };
                sink.progress(progress.unwrap_or_else(idle));
            }
            Ok(Some(Message::Done(reply))) => return Ok(Some(*reply)),
            Ok(Some(Message::Failed { text, usage: true })) => return Err(usage(text)),
            Ok(Some(Message::Failed { text, usage: false })) => return Err(anyhow!(text)),
            Ok(None) | Err(_) if closing => return Ok(None),
            Err(e) if never_heard(&e) => return Ok(None),
            Ok(None) => bail!("the pool's node ended before it answered: its log says why"),
            Err(e) => return Err(e.context("the pool's node does not answer as it should")),
        }
    }
}

/// A connection is reset when it is closed with our words unread: the node shut its door while we stood in front
/// of it, so nothing of what we asked for was done.
fn never_heard(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Returns when no process has `pool` open, or one goes on with it: after what may have been its last mount.
pub async fn wait_released(state: &StateDir, pool: &str, sink: &dyn Sink) -> Result<()> {
    loop {
        match find(state, pool).await? {
            Door::Own(_) => return Ok(()),
            Door::Daemon(stream) => {
                if ask(stream, &Call::new("", Request::Mounts), sink).await?.is_some() {
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    async fn followed(lines: &str) -> Result<Option<Reply>> {
        follow(&mut lines.as_bytes(), &Silent).await
    }

    #[tokio::test]
    async fn answers_are_followed_to_their_end() {
        let working = "\"working\"\n";
        let done = "{\"done\":\"ok\"}\n";
        assert!(matches!(followed(&format!("{working}{done}")).await, Ok(Some(Reply::Ok))));
        let failed = "{\"failed\":{\"text\":\"no such dataset\",\"usage\":false}}\n";
        assert_eq!(followed(failed).await.unwrap_err().to_string(), "no such dataset");
        assert!(matches!(followed("{\"closing\":null}\n").await, Ok(None)));
        assert!(followed(working).await.unwrap_err().to_string().contains("ended"));
        assert!(followed("gibberish\n").await.is_err());
    }

    #[tokio::test]
    async fn sockets_deep_down_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(90)).join("e".repeat(60));
        std::fs::create_dir_all(&deep).unwrap();
        let socket = deep.join("tank.sock");
        assert!(connect(&socket).await.unwrap().is_none());
        let reach = Reach::new(&socket).unwrap();
        let _listener = tokio::net::UnixListener::bind(reach.path()).unwrap();
        assert!(connect(&socket).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_free_pool_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path().into()).unwrap();
        assert!(matches!(find(&state, "tank").await.unwrap(), Door::Own(_)));
    }
}
