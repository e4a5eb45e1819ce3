use crate::context::Context;
use crate::control::{Request, Unmount};
use crate::error::usage;
use crate::names;
use crate::node::start;
use crate::verbs::mount::directory;
use crate::verbs::umount::unmount;
use anyhow::{Result, bail};

/// Unmount datasets, by name or mountpoint
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn fs unmount tank/home
  tarn fs unmount -a")]
pub struct Args {
    /// Everything that is mounted
    #[arg(short = 'a', conflicts_with = "targets")]
    all: bool,
    /// Unmount even while it is in use, and give up on data that cannot be written
    #[arg(short = 'f')]
    force: bool,
    #[arg(value_name = "DATASET|DIR")]
    targets: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        if self.all {
            for pool in context.pool_names(&[])? {
                if start::ask_running(context, &pool, Request::Mounts)?.is_some() {
                    unmount(context, &pool, Unmount::All, self.force)?;
                }
            }
            return Ok(0);
        }
        if self.targets.is_empty() {
            return Err(usage("name the datasets to unmount, or use -a"));
        }
        for target in &self.targets {
            if target.starts_with('/') {
                let dir = directory(target.as_ref())?;
                let Some(mount) = crate::mounts_table::at(&dir)? else {
                    bail!("{} is no mountpoint of Tarn's", dir.display());
                };
                unmount(context, names::pool_of(&mount.dataset)?, Unmount::Dir(dir), self.force)?;
            } else {
                unmount(context, names::pool_of(target)?, Unmount::Dataset(target.clone()), self.force)?;
            }
        }
        Ok(0)
    }
}
