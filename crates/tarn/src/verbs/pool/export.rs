use crate::context::Context;
use crate::control::Request;
use anyhow::Result;
use tarn_base::point::{self, Point};

/// Let go of pools so that another host can import them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn pool export tank")]
pub struct Args {
    /// Unmount what is mounted, even while it is in use
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
            context.ask(pool, Request::Export { force: self.force })?;
            point::pass(Point::ExportReleased);
            context.state.exported(known.guid)?;
        }
        Ok(0)
    }
}
