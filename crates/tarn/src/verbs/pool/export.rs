use crate::context::Context;
use crate::control::Request;
use crate::error::one_line;
use anyhow::Result;
use tarn_base::point::{self, Point};

/// Let go of pools so that another host can import them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A pool that cannot be opened, because buckets are lost or another host has taken it, is only taken off this host's list
by -f: nothing in its buckets changes, and 'tarn pool import' finds it again where they are found.

Example:
  tarn pool export tank")]
pub struct Args {
    /// Unmount what is mounted, even while it is in use; let go of a pool that cannot be opened
    #[arg(short = 'f')]
    force: bool,
    /// Pools
    #[arg(required = true)]
    pools: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        for pool in &self.pools {
            let known = context.state.pool(pool)?;
            match context.ask(pool, Request::Export { force: self.force }) {
                Ok(_) => point::pass(Point::ExportReleased),
                Err(e) if self.force && !context.is_open(pool)? => context.warn(&format!(
                    "pool '{pool}' could not be exported, so it is only taken off this host's list: {}",
                    one_line(&e)
                )),
                Err(e) => return Err(e),
            }
            context.state.exported(known.guid)?;
        }
        Ok(0)
    }
}
