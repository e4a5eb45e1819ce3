//! `tarn pool`: verbs that concern a whole pool.

pub mod add;
pub mod clear;
pub mod create;
pub mod destroy;
pub mod export;
pub mod get;
pub mod history;
pub mod import;
pub mod iostat;
pub mod list;
pub mod remove;
pub mod set;
pub mod status;

use crate::context::Context;
use anyhow::Result;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Verb {
    Create(create::Args),
    Add(add::Args),
    Remove(remove::Args),
    List(list::Args),
    Status(status::Args),
    Iostat(iostat::Args),
    Import(import::Args),
    Export(export::Args),
    Destroy(destroy::Args),
    Get(get::Args),
    Set(set::Args),
    History(history::Args),
    Clear(clear::Args),
}

impl Verb {
    pub fn run(self, context: &Context) -> Result<u8> {
        match self {
            Verb::Create(args) => args.run(context),
            Verb::Add(args) => args.run(context),
            Verb::Remove(args) => args.run(context),
            Verb::List(args) => args.run(context),
            Verb::Status(args) => args.run(context),
            Verb::Iostat(args) => args.run(context),
            Verb::Import(args) => args.run(context),
            Verb::Export(args) => args.run(context),
            Verb::Destroy(args) => args.run(context),
            Verb::Get(args) => args.run(context),
            Verb::Set(args) => args.run(context),
            Verb::History(args) => args.run(context),
            Verb::Clear(args) => args.run(context),
        }
    }
}
