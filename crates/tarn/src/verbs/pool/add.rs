use crate::context::Context;
use crate::control::{Reply, Request};
use crate::error::usage;
use crate::{names, size};
use anyhow::Result;

/// Add buckets or caches to a pool, at once and while it is in use
#[derive(Debug, clap::Args)]
#[command(after_help = "\
No data moves; new writes use the new buckets at once. After the word 'cache' come directories of a fast local file
system, which keep what was read from the buckets.

Example:
  tarn pool add tank /disk13
  tarn pool add --size 500G tank cache /nvme/tarn")]
pub struct Args {
    /// Use buckets that look as if they were in use, and directories that are another pool's caches
    #[arg(short = 'f')]
    force: bool,
    /// Most bytes that each cache takes; half of what is free there if it is not said
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Name of the pool
    pool: String,
    /// Buckets, as for 'pool create', and directories after the word 'cache'
    #[arg(required = true, value_name = "BUCKET... [cache DIR...]")]
    vdevs: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let (urls, dirs) = names::split_caches(&self.vdevs)?;
        if self.size.is_some() && dirs.is_empty() {
            return Err(usage("--size is for caches: name them after the word 'cache'"));
        }
        let parse =
            |text: &str| size::parse(text).ok_or_else(|| usage(format!("--size: '{text}' is no size")));
        let size = self.size.as_deref().map(parse).transpose()?;
        if !dirs.is_empty() {
            let dirs = dirs.iter().map(|dir| names::directory(dir)).collect::<Result<Vec<_>>>()?;
            context.ask(&self.pool, Request::AddCaches { dirs, size, force: self.force })?;
        }
        if !urls.is_empty() {
            let urls = names::urls(urls)?;
            let reply = context.ask(&self.pool, Request::AddVdevs { urls, force: self.force })?;
            if let Reply::Added { cautions } = reply {
                cautions.iter().for_each(|text| context.warn(&format!("warning: {text}")));
            }
        }
        Ok(0)
    }
}
