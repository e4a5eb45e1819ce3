use crate::context::print;
use anyhow::Result;
use tarn_base::point::Point;

/// Print the names of the points at which a test can have this program end or stop
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "\
Example:
  tarn points"
)]
pub struct Args {}

impl Args {
    pub fn run(self) -> Result<u8> {
        let names: String = Point::ALL.iter().map(|point| format!("{}\n", point.name())).collect();
        print(&names);
        Ok(0)
    }
}
