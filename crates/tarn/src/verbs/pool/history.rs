use crate::context::Context;
use crate::control::{Reply, Request};
use crate::moment;
use anyhow::{Result, bail};

/// Show every command that changed a pool
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn pool history tank")]
pub struct Args {
    /// Show Tarn's own entries too
    #[arg(short = 'i')]
    internal: bool,
    /// Show who ran a command, and where
    #[arg(short = 'l')]
    long: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Pools; all when none is named
    pools: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let pools = context.pool_names(&self.pools)?;
        let (histories, status) =
            context.of_each(&pools, |pool| match context.ask(pool, Request::History)? {
                Reply::History(entries) => Ok((pool.to_string(), entries)),
                _ => bail!("the node of pool '{pool}' answered something else"),
            })?;
        for (pool, mut entries) in histories {
            entries.retain(|e| self.internal || !e.internal);
            if self.json {
                context.print(&format!("{:#}\n", serde_json::to_value(&entries)?));
                continue;
            }
            let mut text = format!("History for '{pool}':\n");
            for entry in &entries {
                let internal = if entry.internal { "[internal] " } else { "" };
                text += &format!("{} {internal}{}", moment::history(entry.time_ms), entry.command);
                if self.long {
                    text += &format!(" [user {} on {}]", entry.user, entry.host);
                }
                text.push('\n');
            }
            context.print(&text);
        }
        Ok(status)
    }
}
