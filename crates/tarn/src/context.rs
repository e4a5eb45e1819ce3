//! What every verb has at hand: the state directory, a runtime, the screen, and the way to a pool.

use crate::control::report::{DatasetReport, PoolReport};
use crate::control::{self, Call, Door, Reply, Request};
use crate::error;
use crate::node::{Node, Origin, Settings};
use crate::progress::{Screen, Sink};
use crate::state::StateDir;
use anyhow::{Result, bail};
use std::future::Future;
use std::io::Write;
use tokio::runtime::Runtime;

pub struct Context {
    pub state: StateDir,
    /// The command line as it was typed, for a pool's history.
    pub command: String,
    pub screen: Screen,
    runtime: Runtime,
}

impl Context {
    pub fn new(state: StateDir, command: String) -> Result<Context> {
        Ok(Context { state, command, screen: Screen::default(), runtime: runtime()? })
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Has `request` carried out on `pool`: by the process that has it open, else by opening it here for as long
    /// as that takes.
    pub fn ask(&self, pool: &str, request: Request) -> Result<Reply> {
        let result = self.block_on(self.ask_async(pool, request));
        self.screen.clear();
        result
    }

    async fn ask_async(&self, pool: &str, request: Request) -> Result<Reply> {
        let known = self.state.pool(pool)?;
        let call = Call::new(&self.command, request);
        loop {
            match control::find(&self.state, pool).await? {
                Door::Daemon(stream) => match control::ask(stream, &call, &self.screen).await? {
                    Some(reply) => return Ok(reply),
                    None => continue,
                },
                Door::Own(lock) => {
                    let node =
                        Node::open(&self.state, Origin::Own(known), lock, Settings::for_command()).await?;
                    return carry_out(node, &call, &self.screen).await;
                }
            }
        }
    }

    /// Whether a process of this host has `pool` open.
    pub fn is_open(&self, pool: &str) -> Result<bool> {
        Ok(matches!(self.block_on(control::find(&self.state, pool))?, Door::Daemon(_)))
    }

    /// The pools that `names` name, or all that are imported here.
    pub fn pool_names(&self, names: &[String]) -> Result<Vec<String>> {
        if !names.is_empty() {
            for name in names {
                self.state.pool(name)?;
            }
            return Ok(names.to_vec());
        }
        Ok(self.state.pools()?.into_iter().filter(|p| !p.exported).map(|p| p.name).collect())
    }

    /// What `ask` gives of each of these pools, and the command's status. Of several one that fails is warned of, and the
    /// others are shown without it: one that is broken must not hide those that are not. A wrong command is an error.
    pub fn of_each<T>(
        &self,
        pools: &[String],
        mut ask: impl FnMut(&str) -> Result<T>,
    ) -> Result<(Vec<T>, u8)> {
        let (mut found, mut status) = (Vec::new(), 0);
        for pool in pools {
            match ask(pool) {
                Ok(one) => found.push(one),
                Err(e) if pools.len() == 1 || error::status(&e) > 1 => return Err(e),
                Err(e) => {
                    status = 1;
                    self.warn(&error::one_line(&e.context(format!("pool '{pool}'"))));
                }
            }
        }
        Ok((found, status))
    }

    /// The state of `pool`.
    pub fn pool_report(&self, pool: &str) -> Result<PoolReport> {
        match self.ask(pool, Request::Pool)? {
            Reply::Pool(report) => Ok(report),
            other => bail!("the node of pool '{pool}' answered something else: {other:?}"),
        }
    }

    /// The datasets of `pool`, with what they use when `usage`.
    pub fn datasets(&self, pool: &str, usage: bool) -> Result<Vec<DatasetReport>> {
        match self.ask(pool, Request::Datasets { usage })? {
            Reply::Datasets(list) => Ok(list),
            other => bail!("the node of pool '{pool}' answered something else: {other:?}"),
        }
    }

    /// Prints to standard output; a reader that went away (`| head`) ends the program quietly.
    pub fn print(&self, text: &str) {
        self.screen.clear();
        print(text);
    }

    /// Prints a warning to standard error.
    pub fn warn(&self, text: &str) {
        self.screen.clear();
        eprintln!("tarn: {text}");
    }
}

/// Carries out one call on a node of our own, and closes it whatever came of the call.
async fn carry_out(node: std::sync::Arc<Node>, call: &Call, sink: &dyn Sink) -> Result<Reply> {
    let result = node.handle(call, nix::unistd::geteuid().as_raw(), sink).await;
    let closed = node.close(sink).await;
    let reply = result?;
    closed?;
    Ok(reply)
}

/// Prints to standard output; a reader that went away (`| head`) ends the program quietly.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// As many workers as cores, at least two: one that compresses must not hold up one that sends.
fn runtime() -> Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.max(2))
        .thread_name("tarn")
        .enable_all()
        .build()?;
    Ok(runtime)
}
