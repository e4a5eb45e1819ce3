use crate::context::Context;
use crate::control::Unmount;
use crate::error::{self, usage};
use crate::verbs::mounted::mounted;
use crate::verbs::umount::{leave, unmount_target};
use anyhow::Result;

/// Unmount datasets, by name or mountpoint, also those that another host serves
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn fs unmount tank/home
  tarn fs unmount server:/tank/home /mnt
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
            return self.everything(context);
        }
        if self.targets.is_empty() {
            return Err(usage("name the datasets to unmount, or use -a"));
        }
        for target in &self.targets {
            unmount_target(context, target, self.force, false)?;
        }
        Ok(0)
    }

    /// One that cannot be unmounted does not keep the others.
    fn everything(&self, context: &Context) -> Result<u8> {
        let (mut nodes, mut status) = mounted(context)?;
        // What is mounted in a mount of another's goes before that.
        nodes.sort_by_key(|node| std::cmp::Reverse(node.depth()));
        for node in nodes {
            if let Err(e) = leave(context, &node.node, Unmount::All, self.force) {
                context.warn(&error::one_line(&e));
                status = 1;
            }
        }
        Ok(status)
    }
}
