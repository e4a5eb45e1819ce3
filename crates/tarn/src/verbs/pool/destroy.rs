use crate::context::Context;
use crate::control::Request;
use anyhow::Result;

/// Destroy a pool and everything in it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Asks nothing. Refuses while a dataset of the pool is mounted, unless -f.

Example:
  tarn pool destroy tank")]
pub struct Args {
    /// Unmount what is mounted, even while it is in use
    #[arg(short = 'f')]
    force: bool,
    /// Name of the pool
    pool: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let known = context.state.pool(&self.pool)?;
        context.ask(&self.pool, Request::DestroyPool { force: self.force })?;
        context.state.forget(known.guid)?;
        Ok(0)
    }
}
