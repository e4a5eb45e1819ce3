use crate::context::Context;
use crate::control::report::{PoolReport, VdevReport};
use crate::table::{Cell, Style, Table, choose};
use anyhow::Result;

/// List pools, their size and health
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Columns: name, size, allocated, free, capacity, health, guid.

Example:
  tarn pool list
  tarn pool list -Hp -o name,free tank")]
pub struct Args {
    #[command(flatten)]
    style: Style,
    /// Columns, separated by commas
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    /// Show every vdev
    #[arg(short = 'v')]
    vdevs: bool,
    /// Show whole URLs of vdevs
    #[arg(short = 'L')]
    long: bool,
    /// Pools; all when none is named
    pools: Vec<String>,
}

const COLUMNS: &[&[&str]] = &[
    &["name"],
    &["size"],
    &["allocated", "alloc"],
    &["free"],
    &["capacity", "cap"],
    &["health", "state"],
    &["guid"],
];
const DEFAULT: &[&str] = &["name", "size", "allocated", "free", "capacity", "health"];

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let columns = choose(self.columns.as_deref(), DEFAULT, COLUMNS)?;
        let mut table = Table::new(columns.clone());
        let mut status = 0;
        let pools = context.pool_names(&self.pools)?;
        for pool in &pools {
            match context.pool_report(pool) {
                Ok(report) => {
                    table.row(columns.iter().map(|c| pool_cell(&report, c)).collect());
                    // Caches as zpool shows them, below the vdevs that they stand before.
                    for vdev in report.vdevs.iter().chain(&report.caches).filter(|_| self.vdevs) {
                        table.row(columns.iter().map(|c| vdev_cell(vdev, c, self.long)).collect());
                    }
                }
                Err(e) => {
                    status = 1;
                    context.warn(&crate::error::one_line(&e.context(format!("pool '{pool}'"))));
                    table.row(columns.iter().map(|c| absent_cell(pool, c)).collect());
                }
            }
        }
        if pools.is_empty() && !self.style.scripted && !self.style.json {
            context.print("no pools available\n");
        } else {
            context.print(&table.render(&self.style));
        }
        Ok(status)
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

fn pool_cell(pool: &PoolReport, column: &str) -> Cell {
    match column {
        "name" => Cell::text(&pool.name),
        "size" => Cell::Bytes(pool.size),
        "allocated" => Cell::Bytes(pool.allocated),
        "free" => Cell::Bytes(pool.free),
        "capacity" => Cell::Percent(percent(pool.allocated, pool.size)),
        "health" => Cell::text(&pool.state),
        "guid" => Cell::text(pool.guid.to_string()),
        _ => Cell::None,
    }
}

fn vdev_cell(vdev: &VdevReport, column: &str, long: bool) -> Cell {
    let name = if long { &vdev.url } else { &vdev.name };
    match column {
        "name" => Cell::Below(name.clone()),
        "size" => vdev.size.map_or(Cell::None, Cell::Bytes),
        "allocated" => Cell::Bytes(vdev.allocated),
        "free" => vdev.free.map_or(Cell::None, Cell::Bytes),
        "capacity" => vdev.size.map_or(Cell::None, |size| Cell::Percent(percent(vdev.allocated, size))),
        "health" => Cell::text(&vdev.state),
        "guid" => Cell::text(vdev.guid.to_string()),
        _ => Cell::None,
    }
}

fn absent_cell(pool: &str, column: &str) -> Cell {
    match column {
        "name" => Cell::text(pool),
        "health" => Cell::text("UNAVAIL"),
        _ => Cell::None,
    }
}
