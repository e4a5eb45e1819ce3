//! How a node comes to run as a process of its own, and how a command reaches it.
//!
//! A command that wants a mount takes the pool's lock and starts this program anew, in a session of its own, with
//! the lock's descriptor inherited: between the two nobody else can take the pool. The first request goes to the
//! child's standard input, and its answer comes from the child's standard output in the lines that a socket would
//! carry. When the first request fails, so does the child.

use super::answer::{Latest, answer};
use super::daemon::{Listener, Signals, serve};
use super::{Node, Origin, Settings};
use crate::address::Address;
use crate::context::Context;
use crate::control::{self, Call, Door, Reply, Request, wire};
use crate::progress::Sink;
use crate::state::PoolLock;
use anyhow::{Context as _, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::BufReader;
use tokio::net::unix::pipe;

/// Where a node of this name has its pool from: its first request may name a server.
fn origin(context: &Context, name: &str, first: &Request) -> Result<Origin> {
    if let Request::Mount { dataset, options, .. } = first
        && let Some(address) = Address::parse(dataset)
    {
        return Ok(Origin::Server(address?, Box::new(options.clone())));
    }
    Ok(Origin::Own(context.state.pool(name)?))
}

/// Has a daemon carry out `request`, and starts one if there is none.
pub fn ask_daemon(context: &Context, pool: &str, request: Request, memory: Option<u64>) -> Result<Reply> {
    let result = context.block_on(async {
        origin(context, pool, &request)?;
        let call = Call::new(&context.command, request);
        loop {
            let reply = match control::find(&context.state, pool).await? {
                Door::Daemon(stream) => control::ask(stream, &call, &context.screen).await?,
                Door::Own(lock) => Some(start(context, pool, lock, &call, memory).await?),
            };
            if let Some(reply) = reply {
                return Ok(reply);
            }
        }
    });
    context.screen.clear();
    result
}

/// Asks the daemon of `pool`; `None` when there is none.
pub fn ask_running(context: &Context, pool: &str, request: Request) -> Result<Option<Reply>> {
    let result = context.block_on(asked_running(context, pool, request));
    context.screen.clear();
    result
}

/// As [`ask_running`], for who does something else meanwhile.
pub async fn asked_running(context: &Context, pool: &str, request: Request) -> Result<Option<Reply>> {
    let call = Call::new(&context.command, request);
    loop {
        let Door::Daemon(stream) = control::find(&context.state, pool).await? else { return Ok(None) };
        if let Some(reply) = control::ask(stream, &call, &context.screen).await? {
            return Ok(Some(reply));
        }
    }
}

/// Starts a daemon with `call` as its first request.
async fn start(
    context: &Context,
    pool: &str,
    lock: PoolLock,
    call: &Call,
    memory: Option<u64>,
) -> Result<Reply> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tarn").arg("--state-dir").arg(context.state.path());
    command.arg("node").arg("--lock-fd").arg(lock.pass_on()?.to_string());
    if let Some(memory) = memory {
        command.arg("--memory").arg(memory.to_string());
    }
    command.arg("--").arg(pool).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    let log = log_file(context, pool)?;
    let logged_at = log.is_some().then(|| context.state.log(pool));
    command.stderr(log.map_or_else(Stdio::inherit, Stdio::from));
    // SAFETY: setsid is safe to call between fork and exec, and nothing else is done there.
    unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(Into::into)) };
    let mut child = command.spawn().context("cannot start the pool's process")?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        bail!("cannot talk to the pool's process");
    };
    let mut line = serde_json::to_vec(call)?;
    line.push(b'\n');
    stdin.write_all(&line).context("the pool's process ended at once")?;
    drop(stdin);
    let receiver = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?;
    let reply = control::follow(&mut BufReader::new(receiver), &context.screen).await;
    if reply.is_err() {
        // It is on its way out; what it holds is free when it has ended.
        let _ = tokio::task::spawn_blocking(move || child.wait()).await;
    }
    let reply = match logged_at {
        Some(path) => reply.map_err(|e| hint(e, &path))?,
        None => reply?,
    };
    reply.context("the pool's process ended before it answered")
}

/// Says where the log is when the child did not say itself what went wrong.
fn hint(error: anyhow::Error, log: &std::path::Path) -> anyhow::Error {
    if format!("{error:#}").contains("its log says why") {
        return error.context(format!("see {}", log.display()));
    }
    error
}

/// Where a daemon logs: a file, or what it inherits when that is the journal.
fn log_file(context: &Context, pool: &str) -> Result<Option<File>> {
    if crate::log::to_journal() {
        return Ok(None);
    }
    let path = context.state.log(pool);
    let options = OpenOptions::new().create(true).append(true).mode(0o600).to_owned();
    options.open(&path).map(Some).with_context(|| format!("cannot write the log {}", path.display()))
}

/// The daemon's side of [`start`].
pub fn child(context: &Context, pool: &str, lock_fd: RawFd, memory: Option<u64>) -> Result<u8> {
    context.block_on(async {
        let lock = PoolLock::inherited(lock_fd)?;
        let signals = Signals::catch()?;
        let (mut first, mut answers) = standard_pipes()?;
        let call = wire::read::<Call>(&mut first, wire::REQUEST_MAX, Duration::from_secs(10)).await?;
        let call = call.context("no first request")?;
        let origin = origin(context, pool, &call.request)?;
        let latest = Latest::default();
        let mut opened = None;
        let begun = answer(&mut answers, &latest, async {
            let (node, listener, reply) = begin(context, origin, lock, &call, memory, &latest).await?;
            opened = Some((node, listener));
            Ok(reply)
        });
        let succeeded = begun.await;
        drop((first, answers));
        match opened {
            Some((node, listener)) if succeeded => serve(node, listener, signals).await.map(|()| 0),
            _ => Ok(1),
        }
    })
}

/// Opens the pool, listens, and carries out the first request; undoes it all when that fails.
async fn begin(
    context: &Context,
    origin: Origin,
    lock: PoolLock,
    call: &Call,
    memory: Option<u64>,
    sink: &dyn Sink,
) -> Result<(Arc<Node>, Listener, Reply)> {
    let key = origin.key();
    let node = Node::open(&context.state, origin, lock, Settings::for_daemon(memory)).await?;
    let begun = async {
        let listener = Listener::bind(&context.state, &key)?;
        let reply = node.handle(call, nix::unistd::getuid().as_raw(), sink).await?;
        Ok((listener, reply))
    };
    match begun.await {
        Ok((listener, reply)) => Ok((node, listener, reply)),
        Err(e) => {
            if let Err(e) = node.close(sink).await {
                tracing::error!("{e:#}");
            }
            Err(e)
        }
    }
}

/// Standard input and output as pipes, with `/dev/null` put in their places.
fn standard_pipes() -> Result<(BufReader<pipe::Receiver>, pipe::Sender)> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let receiver = pipe::Receiver::from_owned_fd(input.as_fd().try_clone_to_owned()?)?;
    let sender = pipe::Sender::from_owned_fd(output.as_fd().try_clone_to_owned()?)?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    Ok((BufReader::new(receiver), sender))
}

/// Runs a node in this process until its last mount is gone, or a signal comes.
pub fn foreground(context: &Context, pool: &str, first: Option<Request>, memory: Option<u64>) -> Result<u8> {
    context.block_on(async {
        let first = first.unwrap_or(Request::Mounts);
        let origin = origin(context, pool, &first)?;
        let signals = Signals::catch()?;
        let lock = loop {
            match control::find(&context.state, pool).await? {
                Door::Own(lock) => break lock,
                Door::Daemon(stream) => {
                    let probe = Call::new("", Request::Mounts);
                    if control::ask(stream, &probe, &context.screen).await?.is_some() {
                        bail!("pool '{pool}' is served by another process: leave -f away to mount there");
                    }
                }
            }
        };
        let call = Call::new(&context.command, first);
        let begun = begin(context, origin, lock, &call, memory, &context.screen).await;
        context.screen.clear();
        let (node, listener, _) = begun?;
        tell_systemd();
        serve(node, listener, signals).await.map(|()| 0)
    })
}

/// Tells systemd that the service is ready, where it asked for that (`Type=notify`).
fn tell_systemd() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> std::io::Result<usize> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)
    };
    if let Err(e) = send() {
        tracing::warn!("cannot tell systemd that the pool is ready: {e}");
    }
}
