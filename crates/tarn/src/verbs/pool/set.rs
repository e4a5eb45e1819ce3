use crate::context::Context;
use crate::control::Request;
use crate::properties;
use anyhow::Result;

/// Set a property of pools
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Properties: comment, deadline, failmode, rewind.

Example:
  tarn pool set failmode=continue tank")]
pub struct Args {
    #[arg(value_name = "PROPERTY=VALUE")]
    property: String,
    /// Pools
    #[arg(required = true)]
    pools: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let properties = properties::pool_assignments(&[self.property])?;
        for pool in &self.pools {
            context.ask(pool, Request::SetPool { properties: properties.clone() })?;
        }
        Ok(0)
    }
}
