use crate::context::Context;
use crate::control::{Reply, Request};
use crate::error::usage;
use crate::names;
use anyhow::Result;

/// Destroy a dataset and everything in it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn fs destroy -nv -r tank/home
  tarn fs destroy tank/scratch")]
pub struct Args {
    /// What lies below it too
    #[arg(short = 'r')]
    recursive: bool,
    /// Unmount what is mounted, even while it is in use; destroy what cannot be opened too
    #[arg(short = 'f')]
    force: bool,
    /// Destroy nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Name what is destroyed
    #[arg(short = 'v')]
    verbose: bool,
    dataset: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let pool = names::pool_of(&self.dataset)?.to_string();
        if pool == self.dataset {
            return Err(usage(format!("'{pool}' is a pool: use 'tarn pool destroy {pool}'")));
        }
        let request = Request::Destroy {
            name: self.dataset,
            recursive: self.recursive,
            force: self.force,
            dry_run: self.dry_run,
        };
        if let Reply::Destroyed(names) = context.ask(&pool, request)?
            && self.verbose
        {
            let word = if self.dry_run { "would destroy" } else { "destroyed" };
            context.print(&names.iter().map(|n| format!("{word} {n}\n")).collect::<String>());
        }
        Ok(0)
    }
}
