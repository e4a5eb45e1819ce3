use crate::context::Context;
use crate::control::Request;
use crate::error::usage;
use crate::node::start;
use crate::table::{Cell, Style, Table};
use crate::verbs::mount::memory;
use crate::verbs::mounted::mounted;
use crate::{names, options};
use anyhow::Result;

/// Mount datasets where their mountpoint property says; list what is mounted when none is named
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn fs mount tank/home
  tarn fs mount -a")]
pub struct Args {
    /// Every dataset of every pool of this host that has canmount=on
    #[arg(short = 'a', conflicts_with = "datasets")]
    all: bool,
    /// Mount options, separated by commas, as for 'tarn mount'
    #[arg(short = 'o', value_name = "OPTION")]
    options: Vec<String>,
    /// Memory for caches and data not yet written, as in 4G
    #[arg(long, value_name = "SIZE", value_parser = memory, env = "TARN_MEMORY")]
    memory: Option<u64>,
    #[command(flatten)]
    style: Style,
    datasets: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let mut options = options::parse(&self.options, false)?;
        options.memory = options.memory.or(self.memory);
        let memory = options.memory;
        let mount = |pool: &str, dataset: Option<String>| {
            let request = Request::MountOwn { dataset, options: options.clone() };
            start::ask_daemon(context, pool, request, memory)
        };
        if self.all {
            let mut status = 0;
            for pool in context.pool_names(&[])? {
                if let Err(e) = mount(&pool, None) {
                    context.warn(&crate::error::one_line(&e));
                    status = 1;
                }
            }
            return Ok(status);
        }
        for dataset in &self.datasets {
            mount(names::pool_of(dataset)?, Some(dataset.clone()))?;
        }
        if !self.datasets.is_empty() {
            return Ok(0);
        }
        if !self.options.is_empty() {
            return Err(usage("name the datasets to mount, or use -a"));
        }
        self.list(context)
    }

    fn list(&self, context: &Context) -> Result<u8> {
        let mut table = Table::new(["name", "directory"]);
        let (nodes, status) = mounted(context)?;
        for mount in nodes.into_iter().flat_map(|node| node.mounts) {
            table.row(vec![Cell::text(mount.dataset), Cell::text(mount.dir.display().to_string())]);
        }
        context.print(&table.render(&self.style));
        Ok(status)
    }
}
