use crate::context::Context;
use crate::control::{Reply, Request};
use crate::names;
use anyhow::Result;

/// Add buckets to a pool, at once and while it is in use
#[derive(Debug, clap::Args)]
#[command(after_help = "\
No data moves; new writes use the new buckets at once.

Example:
  tarn pool add tank /disk13")]
pub struct Args {
    /// Use buckets that look as if they were in use
    #[arg(short = 'f')]
    force: bool,
    /// Name of the pool
    pool: String,
    /// Buckets, as for 'pool create'
    #[arg(required = true)]
    urls: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let urls = names::urls(&self.urls)?;
        let reply = context.ask(&self.pool, Request::AddVdevs { urls, force: self.force })?;
        if let Reply::Added { cautions } = reply {
            cautions.iter().for_each(|text| context.warn(&format!("warning: {text}")));
        }
        Ok(0)
    }
}
