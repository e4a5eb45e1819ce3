use super::view::{Chosen, check_types, collect, needs_usage};
use crate::context::Context;
use crate::properties;
use crate::table::{Style, Table};
use anyhow::Result;

/// List datasets, what they use and where they are mounted
#[derive(Debug, clap::Args)]
#[command(after_help = "\
USED counts what lies below a dataset, REFER does not. A column is any property.

Example:
  tarn fs list
  tarn fs list -r -o name,used,compression tank/home")]
pub struct Args {
    /// What lies below the named datasets too
    #[arg(short = 'r')]
    recursive: bool,
    #[command(flatten)]
    style: Style,
    /// Columns, separated by commas: name, or any property
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    /// Types of datasets: filesystem, all
    #[arg(short = 't', value_name = "TYPES")]
    types: Option<String>,
    /// Datasets; all when none is named
    datasets: Vec<String>,
}

const DEFAULT: &str = "name,used,available,referenced,mountpoint";

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        check_types(self.types.as_deref())?;
        let mut columns = Vec::new();
        for column in self.columns.as_deref().unwrap_or(DEFAULT).split(',') {
            let column = properties::alias(column.trim());
            if column != "name" {
                properties::dataset(column)?;
            }
            columns.push(column.to_string());
        }
        let mut table = Table::new(columns.clone());
        let chosen = Chosen { names: &self.datasets, recursive: self.recursive };
        let mut any = false;
        let (found, status) = collect(context, &chosen, needs_usage(&columns))?;
        for (view, names) in found {
            for name in names {
                any = true;
                let cells = columns.iter().map(|c| view.cell(&name, c).map(|(cell, _)| cell));
                table.row(cells.collect::<Result<_>>()?);
            }
        }
        if !any && !self.style.scripted && !self.style.json {
            context.print("no datasets available\n");
        } else {
            context.print(&table.render(&self.style));
        }
        Ok(status)
    }
}
