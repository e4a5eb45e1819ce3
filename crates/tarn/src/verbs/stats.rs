use crate::context::Context;
use crate::control::{Reply, Request};
use crate::names;
use anyhow::{Result, bail};

/// Print raw counters of a pool that is in use, as JSON
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn stats tank")]
pub struct Args {
    pool: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let pool = names::pool_of(&self.pool)?.to_string();
        let Reply::Stats(value) = context.ask(&pool, Request::Stats)? else {
            bail!("the node of pool '{pool}' answered something else");
        };
        context.print(&format!("{value:#}\n"));
        Ok(0)
    }
}
