//! `tarn fs`: verbs that concern datasets.

pub mod create;
pub mod destroy;
pub mod get;
pub mod inherit;
pub mod list;
pub mod mount;
pub mod rename;
pub mod set;
pub mod unmount;
mod view;

use crate::context::Context;
use anyhow::Result;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Verb {
    Create(create::Args),
    List(list::Args),
    Destroy(destroy::Args),
    Rename(rename::Args),
    Get(get::Args),
    Set(set::Args),
    Inherit(inherit::Args),
    Mount(mount::Args),
    #[command(visible_alias = "umount")]
    Unmount(unmount::Args),
}

impl Verb {
    pub fn run(self, context: &Context) -> Result<u8> {
        match self {
            Verb::Create(args) => args.run(context),
            Verb::List(args) => args.run(context),
            Verb::Destroy(args) => args.run(context),
            Verb::Rename(args) => args.run(context),
            Verb::Get(args) => args.run(context),
            Verb::Set(args) => args.run(context),
            Verb::Inherit(args) => args.run(context),
            Verb::Mount(args) => args.run(context),
            Verb::Unmount(args) => args.run(context),
        }
    }
}

/// Datasets by their pools, in the order they were named.
fn by_pool(datasets: &[String]) -> Result<Vec<(String, Vec<String>)>> {
    let mut out: Vec<(String, Vec<String>)> = Vec::new();
    for name in datasets {
        let pool = crate::names::pool_of(name)?;
        match out.iter_mut().find(|(p, _)| p == pool) {
            Some((_, names)) => names.push(name.clone()),
            None => out.push((pool.into(), vec![name.clone()])),
        }
    }
    Ok(out)
}
