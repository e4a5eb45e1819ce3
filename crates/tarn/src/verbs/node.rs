use crate::context::Context;
use crate::control::{MountRequest, Request};
use crate::names;
use crate::node::start;
use crate::verbs::mount::memory;
use anyhow::Result;
use std::os::fd::RawFd;

/// Have a pool open and serve its mounts; 'tarn mount' and the systemd unit start it
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "\
Example:
  tarn node --mount tank"
)]
pub struct Args {
    /// Mount every dataset of the pool where its mountpoint says, in the foreground
    #[arg(long)]
    mount: bool,
    /// The first request comes on standard input, its answer goes to standard output, and this descriptor is the
    /// lock of the pool
    #[arg(long, hide = true, conflicts_with = "mount")]
    lock_fd: Option<RawFd>,
    /// Memory for caches and data not yet written, as in 4G
    #[arg(long, value_name = "SIZE", value_parser = memory, env = "TARN_MEMORY")]
    memory: Option<u64>,
    pool: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        if let Some(fd) = self.lock_fd {
            return start::child(context, &self.pool, fd, self.memory);
        }
        names::check_pool(&self.pool)?;
        let options = MountRequest { memory: self.memory, ..MountRequest::default() };
        let first = self.mount.then_some(Request::MountOwn { dataset: None, options });
        start::foreground(context, &self.pool, first, self.memory)
    }
}
