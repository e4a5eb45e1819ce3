//! Tarn: a POSIX parallel file system over object-storage buckets. The one binary: arguments, configuration, wiring.
//!
//! Where what is:
//! - `cli`, `verbs`: the command line, one file per verb. `mount_helper`, `options`: as mount(8) calls it.
//! - `context`: what every verb has at hand. `state`: what this host remembers between commands.
//! - `node`: the process that has a pool open. `control`: what is asked of it, and the socket.
//! - `wiring`: the only place that puts pool, metadata target, server, client and FUSE together.
//! - `properties`, `names`, `size`, `table`, `progress`, `moment`: words and figures as zpool and zfs show them.

mod address;
mod cli;
mod context;
mod control;
mod ending;
mod error;
mod log;
mod moment;
mod mount_helper;
mod mounts_table;
mod names;
mod node;
mod options;
mod progress;
mod properties;
mod size;
mod state;
mod table;
mod telemetry;
mod verbs;
mod wiring;

use anyhow::Result;
use clap::Parser;
use clap::error::ErrorKind;
use cli::Cli;
use context::Context;
use mount_helper::Helper;
use state::StateDir;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            eprintln!("tarn: {}", error::one_line(&e));
            ExitCode::from(error::status(&e))
        }
    }
}

fn run() -> Result<u8> {
    node::memory::few_arenas();
    let words: Vec<String> = std::env::args_os().map(|w| w.to_string_lossy().into_owned()).collect();
    let line = match mount_helper::helper(&words) {
        Some(helper) => match helper? {
            Helper::Run(line) => line.into_iter().map(OsString::from).collect(),
            Helper::Nothing => return Ok(0),
        },
        None => std::env::args_os().collect::<Vec<_>>(),
    };
    let cli = match Cli::try_parse_from(line) {
        Ok(cli) => cli,
        // Help and the version, asked for or instead of nothing at all, are no errors of one line.
        Err(e) if !e.use_stderr() || e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            e.exit()
        }
        Err(e) => return Err(error::usage(error::wrong_line(&e))),
    };
    log::begin(&cli.verb);
    cli.verb.run(|| {
        let path = match cli.state_dir {
            Some(path) => path,
            None => StateDir::usual_path()?,
        };
        Context::new(StateDir::open(path)?, command_line(&words))
    })
}

/// The command as a pool's history keeps it: without the path of the program.
fn command_line(words: &[String]) -> String {
    let program = words.first().and_then(|w| w.rsplit('/').next()).unwrap_or("tarn");
    std::iter::once(program).chain(words.iter().skip(1).map(String::as_str)).collect::<Vec<_>>().join(" ")
}
