use crate::context::Context;
use crate::control::Request;
use crate::error::usage;
use crate::names;
use anyhow::Result;

/// Give a dataset another name, with all that lies below it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is mounted is unmounted and mounted again at its new place.

Example:
  tarn fs rename tank/home tank/users")]
pub struct Args {
    /// Make the datasets above the new name
    #[arg(short = 'p')]
    parents: bool,
    /// Unmount what is mounted, even while it is in use
    #[arg(short = 'f')]
    force: bool,
    from: String,
    to: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let (pool, other) = (names::pool_of(&self.from)?.to_string(), names::pool_of(&self.to)?);
        if pool != other {
            return Err(usage(format!("'{}' and '{}' are in different pools", self.from, self.to)));
        }
        if pool == self.from || pool == self.to {
            return Err(usage(
                "a pool's own dataset keeps its name: 'pool export', then 'pool import -N' renames a pool",
            ));
        }
        let request =
            Request::Rename { from: self.from, to: self.to, parents: self.parents, force: self.force };
        context.ask(&pool, request)?;
        Ok(0)
    }
}
