use crate::cli::Cli;
use crate::context::print;
use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn completions bash > /usr/share/bash-completion/completions/tarn")]
pub struct Args {
    shell: Shell,
}

impl Args {
    pub fn run(self) -> Result<u8> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "tarn", &mut text);
        print(&String::from_utf8_lossy(&text));
        Ok(0)
    }
}
