use crate::context::Context;
use crate::control::report::{PoolReport, PropertyReport};
use crate::error::usage;
use crate::properties;
use crate::table::{Cell, Style, Table, choose};
use anyhow::Result;

/// Show properties of pools
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn pool get all tank
  tarn pool get -H -o value rewind tank")]
pub struct Args {
    #[command(flatten)]
    style: Style,
    /// Columns, separated by commas: name, property, value, source
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    /// Properties, separated by commas, or 'all'
    properties: String,
    /// Pools; all when none is named
    pools: Vec<String>,
}

const COLUMNS: &[&[&str]] = &[&["name"], &["property"], &["value"], &["source"]];

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let columns = choose(self.columns.as_deref(), &["name", "property", "value", "source"], COLUMNS)?;
        let wanted: Option<Vec<&str>> = match self.properties.as_str() {
            "all" => None,
            list => Some(list.split(',').map(|name| properties::alias(name.trim())).collect()),
        };
        let mut table = Table::new(columns.clone());
        let pools = context.pool_names(&self.pools)?;
        let (reports, status) = context.of_each(&pools, |pool| context.pool_report(pool))?;
        for report in reports {
            for property in chosen(&report, wanted.as_deref())? {
                let cell = |column: &String| match column.as_str() {
                    "name" => Cell::text(&report.name),
                    "property" => Cell::text(&property.name),
                    "value" => value(property),
                    _ => Cell::text(&property.source),
                };
                table.row(columns.iter().map(cell).collect());
            }
        }
        context.print(&table.render(&self.style));
        Ok(status)
    }
}

/// The properties that were asked for, in that order; all when none was.
fn chosen<'a>(pool: &'a PoolReport, wanted: Option<&[&str]>) -> Result<Vec<&'a PropertyReport>> {
    let Some(wanted) = wanted else { return Ok(pool.properties.iter().collect()) };
    let find = |name: &&str| {
        pool.properties.iter().find(|p| p.name == *name).ok_or_else(|| {
            let names: Vec<&str> = pool.properties.iter().map(|p| p.name.as_str()).collect();
            usage(format!("'{name}' is no property of a pool: there are {}", names.join(", ")))
        })
    };
    wanted.iter().map(find).collect()
}

/// Sizes are numbers.
pub fn value(property: &PropertyReport) -> Cell {
    match (property.name.as_str(), property.value.parse()) {
        ("size" | "allocated" | "free", Ok(n)) => Cell::Bytes(n),
        ("capacity", Ok(n)) => Cell::Percent(n),
        _ if property.value.is_empty() => Cell::None,
        _ => Cell::text(&property.value),
    }
}
