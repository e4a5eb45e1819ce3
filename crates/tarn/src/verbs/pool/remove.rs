use crate::context::Context;
use crate::control::Request;
use crate::names;
use anyhow::Result;

/// Take caches away from a pool, at once and while it is in use
#[derive(Debug, clap::Args)]
#[command(after_help = "\
No data moves: what a cache holds is in the buckets too. A cache of another host is named by its guid.

Example:
  tarn pool remove tank /nvme/tarn")]
pub struct Args {
    /// Name of the pool
    pool: String,
    /// Directories of caches
    #[arg(required = true)]
    caches: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let name = |text: &String| match text.parse::<u64>() {
            Ok(_) => Ok(text.clone()),
            Err(_) => names::directory(text),
        };
        let names = self.caches.iter().map(name).collect::<Result<Vec<_>>>()?;
        context.ask(&self.pool, Request::RemoveVdevs { names })?;
        Ok(0)
    }
}
