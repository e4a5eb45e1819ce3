use super::view::{Chosen, collect, needs_usage};
use crate::context::Context;
use crate::error::usage;
use crate::properties::{self, Source};
use crate::table::{Cell, Style, Table, choose};
use anyhow::Result;

/// Show properties of datasets and where their values come from
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn fs get all tank/home
  tarn fs get -r -s local compression,recordsize tank")]
pub struct Args {
    /// What lies below the named datasets too
    #[arg(short = 'r')]
    recursive: bool,
    #[command(flatten)]
    style: Style,
    /// Columns, separated by commas: name, property, value, source
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    /// Only values from these sources: local, default, inherited, none
    #[arg(short = 's', value_name = "SOURCES")]
    sources: Option<String>,
    /// Properties, separated by commas, or 'all'
    properties: String,
    /// Datasets; all when none is named
    datasets: Vec<String>,
}

const COLUMNS: &[&[&str]] = &[&["name"], &["property"], &["value"], &["source"]];

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let columns = choose(self.columns.as_deref(), &["name", "property", "value", "source"], COLUMNS)?;
        let sources = self.sources.as_deref().map(check_sources).transpose()?;
        let wanted = match self.properties.as_str() {
            "all" => None,
            list => Some(check_properties(list)?),
        };
        let mut table = Table::new(columns.clone());
        let chosen = Chosen { names: &self.datasets, recursive: self.recursive };
        let (found, status) = collect(context, &chosen, wanted.as_deref().is_none_or(needs_usage))?;
        for (view, names) in found {
            for name in names {
                for key in wanted.clone().unwrap_or_else(|| view.all_properties(&name)) {
                    let (value, source) = view.cell(&name, &key)?;
                    if sources.as_ref().is_some_and(|s| !s.iter().any(|s| s == word(&source))) {
                        continue;
                    }
                    let cell = |column: &String| match column.as_str() {
                        "name" => Cell::text(&name),
                        "property" => Cell::text(&key),
                        "value" => value.clone(),
                        _ => Cell::text(source.to_string()),
                    };
                    table.row(columns.iter().map(cell).collect());
                }
            }
        }
        context.print(&table.render(&self.style));
        Ok(status)
    }
}

fn check_properties(list: &str) -> Result<Vec<String>> {
    let check = |name: &str| properties::dataset(name).map(|_| properties::alias(name).to_string());
    list.split(',').map(check).collect()
}

/// The word for a source after `-s`.
fn word(source: &Source) -> &'static str {
    match source {
        Source::Local => "local",
        Source::Default => "default",
        Source::Inherited(_) => "inherited",
        Source::Nothing => "none",
    }
}

fn check_sources(list: &str) -> Result<Vec<String>> {
    let check = |s: &str| match s {
        "local" | "default" | "inherited" | "none" => Ok(s.to_string()),
        _ => Err(usage(format!("'{s}' is no source: use local, default, inherited or none"))),
    };
    list.split(',').map(check).collect()
}
