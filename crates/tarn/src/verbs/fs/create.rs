use crate::context::Context;
use crate::control::Request;
use crate::error::usage;
use crate::{names, properties};
use anyhow::Result;

/// Make a dataset
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It is mounted at once when its parent is.

Example:
  tarn fs create tank/home
  tarn fs create -p -o compression=zstd -o quota=10G tank/home/ann/archive")]
pub struct Args {
    /// Make the datasets above it too; it may exist
    #[arg(short = 'p')]
    parents: bool,
    /// Set a property
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Name: POOL/NAME
    dataset: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let pool = names::pool_of(&self.dataset)?.to_string();
        if pool == self.dataset {
            return Err(usage(format!("'{pool}' is a pool: name a dataset in it, as in {pool}/home")));
        }
        let properties = properties::assignments(&self.properties)?;
        context.ask(&pool, Request::Create { name: self.dataset, parents: self.parents, properties })?;
        Ok(0)
    }
}
