use super::by_pool;
use crate::context::Context;
use crate::control::Request;
use crate::error::usage;
use crate::properties;
use anyhow::Result;

/// Clear a property of datasets, so that the value of the parent holds
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn fs inherit -r compression tank/home")]
pub struct Args {
    /// Clear it in what lies below too
    #[arg(short = 'r')]
    recursive: bool,
    property: String,
    #[arg(required = true)]
    datasets: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let property = properties::dataset(&self.property)?;
        let name = properties::alias(&self.property).to_string();
        if property.read_only() {
            return Err(usage(format!("'{name}' is read-only")));
        }
        if !property.inherit {
            return Err(usage(format!(
                "'{name}' is not inherited: set it, as in {name}={}",
                property.default
            )));
        }
        for (pool, names) in by_pool(&self.datasets)? {
            let request = Request::Inherit { names, property: name.clone(), recursive: self.recursive };
            context.ask(&pool, request)?;
        }
        Ok(0)
    }
}
