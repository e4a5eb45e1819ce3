use crate::context::print;
use anyhow::Result;

/// Print the version
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn version")]
pub struct Args {}

impl Args {
    pub fn run(self) -> Result<u8> {
        print(&format!("tarn {}\n", env!("CARGO_PKG_VERSION")));
        Ok(0)
    }
}
