use crate::context::Context;
use crate::control::Request;
use anyhow::Result;

/// Forget the errors that were counted and noted since a pool was opened
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn pool clear tank")]
pub struct Args {
    pool: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        context.ask(&self.pool, Request::ClearErrors)?;
        Ok(0)
    }
}
