use crate::cli::Cli;
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::path::PathBuf;

/// Write manual pages, one a verb
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "\
Example:
  tarn man /usr/share/man/man1"
)]
pub struct Args {
    dir: PathBuf,
}

impl Args {
    pub fn run(self) -> Result<u8> {
        let written = clap_mangen::generate_to(Cli::command(), &self.dir);
        written.with_context(|| format!("cannot write manual pages to {}", self.dir.display()))?;
        Ok(0)
    }
}
