use crate::context::Context;
use crate::control::Request;
use crate::error::one_line;
use anyhow::{Result, bail};

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
        match context.ask(&self.pool, Request::DestroyPool { force: self.force }) {
            Ok(_) => {}
            // Where it is open, the node has said what is in the way.
            Err(e) if context.is_open(&self.pool)? => return Err(e),
            Err(e) => bail!(
                "{}; 'tarn pool export -f {}' takes a pool that is lost off this host's list",
                one_line(&e),
                self.pool
            ),
        }
        context.state.forget(known.guid)?;
        Ok(0)
    }
}
