use crate::context::Context;
use crate::control::report::PoolReport;
use crate::properties::{self, Kind, Property, shown};
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
        let wanted: Vec<&Property> = match self.properties.as_str() {
            "all" => properties::POOL.iter().collect(),
            list => list.split(',').map(properties::pool).collect::<Result<_>>()?,
        };
        let mut table = Table::new(columns.clone());
        for pool in context.pool_names(&self.pools)? {
            let report = context.pool_report(&pool)?;
            for property in &wanted {
                let (value, source) = value(&report, property);
                let cell = |column: &String| match column.as_str() {
                    "name" => Cell::text(&report.name),
                    "property" => Cell::text(property.name),
                    "value" => value.clone(),
                    _ => Cell::text(source),
                };
                table.row(columns.iter().map(cell).collect());
            }
        }
        context.print(&table.render(&self.style));
        Ok(0)
    }
}

fn value(pool: &PoolReport, property: &Property) -> (Cell, &'static str) {
    let cell = match property.name {
        "size" => Cell::Bytes(pool.size),
        "allocated" => Cell::Bytes(pool.allocated),
        "free" => Cell::Bytes(pool.free),
        "capacity" => {
            let used = u128::from(pool.allocated) * 100;
            Cell::Percent(used.checked_div(u128::from(pool.size)).unwrap_or(0) as u64)
        }
        "health" => Cell::text(&pool.state),
        "guid" => Cell::text(pool.guid.to_string()),
        name => {
            let set = pool.properties.get(name);
            let value = set.map_or(property.default, String::as_str);
            let source = match (&property.kind, value == property.default) {
                (Kind::Report, _) => "-",
                (_, true) => "default",
                (_, false) => "local",
            };
            return (Cell::text(shown(&property.kind, value, true)), source);
        }
    };
    (cell, "-")
}
