//! `tarn bucket`: verbs that concern a bucket by itself, whether a pool has it or not.

pub mod check;

use crate::context::Context;
use anyhow::Result;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Verb {
    Check(check::Args),
}

impl Verb {
    pub fn run(self, context: &Context) -> Result<u8> {
        match self {
            Verb::Check(args) => args.run(context),
        }
    }
}
