use crate::context::Context;
use crate::error::usage;
use crate::node::host;
use crate::state::KnownPool;
use crate::wiring::{self, Created};
use crate::{names, properties};
use anyhow::{Context as _, Result, bail};
use tarn_pool::CreateSpec;

/// Make a pool of buckets and directories
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn pool create tank /disk1 /disk2
  tarn pool create -o failmode=continue -O compression=zstd tank s3://bucket/prefix?region=eu-central-1")]
pub struct Args {
    /// Use buckets that look as if they were in use
    #[arg(short = 'f')]
    force: bool,
    /// Show what would be made, and make nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Set a property of the pool
    #[arg(short = 'o', value_name = "POOLPROP=VALUE")]
    pool_properties: Vec<String>,
    /// Set a property of the pool's own dataset
    #[arg(short = 'O', value_name = "FSPROP=VALUE")]
    root_properties: Vec<String>,
    /// Name of the pool
    name: String,
    /// Buckets: a directory, s3://BUCKET/PREFIX?endpoint=URL&region=REGION, gs://BUCKET/PREFIX or
    /// az://CONTAINER/PREFIX?account=NAME
    #[arg(required = true)]
    urls: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        names::check_pool(&self.name)?;
        let (urls, caches) = names::split_caches(&self.urls)?;
        if !caches.is_empty() {
            return Err(usage("make the pool first, then 'tarn pool add POOL cache DIR'"));
        }
        let urls = names::urls(urls)?;
        let properties = properties::pool_assignments(&self.pool_properties)?;
        let root_properties = properties::assignments(&self.root_properties)?;
        if context.state.pools()?.iter().any(|p| p.name == self.name && !p.exported) {
            bail!("cannot create '{}': this host has a pool of that name: choose another", self.name);
        }
        if self.dry_run {
            let lines: String = urls.iter().map(|url| format!("\t  {url}\n")).collect();
            context.print(&format!(
                "would create '{}' with the following layout:\n\n\t{}\n{lines}",
                self.name, self.name
            ));
            return Ok(0);
        }
        let Some(_lock) = context.state.try_lock(&self.name)? else {
            bail!(
                "cannot create '{}': another tarn command is making or using a pool of that name",
                self.name
            );
        };
        let host = host(&context.state)?;
        let spec = CreateSpec {
            name: self.name.clone(),
            urls,
            properties,
            root_properties,
            host,
            force: self.force,
        };
        let created = context.block_on(wiring::create_pool(spec, &context.command));
        let Created { guid, urls, cautions } =
            created.with_context(|| format!("cannot create '{}'", self.name))?;
        context.state.remember(KnownPool { name: self.name, guid, urls, exported: false })?;
        cautions.iter().for_each(|text| context.warn(&format!("warning: {text}")));
        Ok(0)
    }
}
