use super::by_pool;
use crate::context::Context;
use crate::control::Request;
use crate::error::usage;
use crate::properties;
use anyhow::Result;

/// Set properties of datasets
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A mounted dataset follows at once; recordsize holds for files made from then on.

Properties: quota, recordsize, mountpoint, canmount, checksum, compression, atime, relatime, devices, exec, setuid,
readonly, and your own with a ':' in the name.

Example:
  tarn fs set compression=zstd-3 atime=off tank/home")]
pub struct Args {
    #[arg(required = true, value_name = "PROPERTY=VALUE... DATASET")]
    words: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let (assignments, datasets): (Vec<String>, Vec<String>) =
            self.words.into_iter().partition(|w| w.contains('='));
        if assignments.is_empty() || datasets.is_empty() {
            return Err(usage("write PROPERTY=VALUE and then the datasets to set it for"));
        }
        let properties = properties::assignments(&assignments)?;
        for (pool, names) in by_pool(&datasets)? {
            context.ask(&pool, Request::Set { names, properties: properties.clone() })?;
        }
        Ok(0)
    }
}
