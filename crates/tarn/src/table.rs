//! The one place that renders listings: columns with a header for people, tabs without one for scripts (`-H`),
//! exact numbers (`-p`), chosen columns (`-o`) and JSON.

use crate::error::usage;
use crate::size;
use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// One value of a listing; each knows how it looks to a person, to a script and in JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    /// The name of what belongs to the line above it.
    Below(String),
    /// A number of bytes.
    Bytes(u64),
    /// A number of things, or things a second.
    Count(u64),
    /// A number that is a name, and never shortened.
    Number(u64),
    /// 0 to 100.
    Percent(u64),
    /// A price, in billionths of the currency's unit.
    Money(u64),
    /// A latency in nanoseconds; 0 is none.
    Nanos(u64),
    /// A moment in milliseconds since 1970.
    Time(i64),
    /// Nothing to say.
    None,
}

/// Text of others, such as names of files, on one line and with nothing that a terminal would obey.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// What stands in a column; `exact` is `-p`.
    pub fn show(&self, exact: bool) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Below(text) => format!("  {text}"),
            Cell::Bytes(n) | Cell::Count(n) | Cell::Nanos(n) if exact => n.to_string(),
            Cell::Percent(n) if exact => n.to_string(),
            Cell::Money(n) if exact => format!("{}.{:09}", n / 1_000_000_000, n % 1_000_000_000),
            Cell::Money(n) => size::money(*n),
            Cell::Bytes(n) => size::bytes(*n),
            Cell::Count(n) => size::count(*n),
            Cell::Number(n) => n.to_string(),
            Cell::Percent(n) => format!("{n}%"),
            Cell::Nanos(n) => size::nanoseconds(*n),
            Cell::Time(ms) if exact => (ms / 1000).to_string(),
            Cell::Time(ms) => crate::moment::local(*ms),
            Cell::None => "-".into(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Text(text) | Cell::Below(text) => json!(text),
            Cell::Bytes(n) | Cell::Count(n) | Cell::Number(n) | Cell::Percent(n) | Cell::Nanos(n) => json!(n),
            Cell::Money(n) => json!(*n as f64 / 1e9),
            Cell::Time(ms) => json!(ms / 1000),
            Cell::None => Value::Null,
        }
    }

    fn is_number(&self) -> bool {
        !matches!(self, Cell::Text(_) | Cell::Below(_) | Cell::Time(_))
    }
}

/// How a listing is wanted.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Style {
    /// For scripts: no header, columns separated by one tab
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    pub exact: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "scripted")]
    pub json: bool,
}

/// A listing. Column names are as a user writes them after `-o`: lower case.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Table {
        Table { columns: columns.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; it has one cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The listing as text that ends in a newline, or the empty string when there is nothing to show.
    pub fn render(&self, style: &Style) -> String {
        if style.json {
            return format!("{:#}\n", self.json());
        }
        if style.scripted {
            return self.lines(style).into_iter().map(|row| row.join("\t") + "\n").collect();
        }
        if self.rows.is_empty() {
            return String::new();
        }
        self.aligned(style)
    }

    /// The listing as an array of objects.
    pub fn json(&self) -> Value {
        let object = |row: &Vec<Cell>| {
            Value::Object(self.columns.iter().cloned().zip(row.iter().map(Cell::json)).collect::<Map<_, _>>())
        };
        Value::Array(self.rows.iter().map(object).collect())
    }

    fn lines(&self, style: &Style) -> Vec<Vec<String>> {
        self.rows.iter().map(|row| row.iter().map(|c| c.show(style.exact)).collect()).collect()
    }

    fn aligned(&self, style: &Style) -> String {
        let mut lines = vec![self.columns.iter().map(|c| header(c)).collect::<Vec<_>>()];
        lines.extend(self.lines(style));
        let right: Vec<bool> =
            (0..self.columns.len()).map(|i| self.rows.iter().all(|row| row[i].is_number())).collect();
        columns(&lines, &right)
    }
}

/// A report as JSON, in a text that ends in a newline. Guids are text there, as in listings: many readers of JSON keep no
/// whole number above 2^53.
pub fn report(report: &impl Serialize) -> Result<String> {
    let mut value = serde_json::to_value(report)?;
    guids_as_text(&mut value);
    Ok(format!("{value:#}\n"))
}

fn guids_as_text(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match value {
                    Value::Number(guid) if name == "guid" => *value = json!(guid.to_string()),
                    _ => guids_as_text(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(guids_as_text),
        _ => {}
    }
}

/// Aligns lines of cells two spaces apart, each column to the right where `right` says so.
pub fn columns(lines: &[Vec<String>], right: &[bool]) -> String {
    let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..right.len()).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let mut text = String::new();
        for (i, cell) in line.iter().enumerate() {
            let pad = " ".repeat(widths[i] - cell.chars().count());
            let gap = if i == 0 { "" } else { "  " };
            if right[i] {
                text += &format!("{gap}{pad}{cell}");
            } else {
                text += &format!("{gap}{cell}{pad}");
            }
        }
        out += text.trim_end();
        out.push('\n');
    }
    out
}

/// A column's header: short for the words that zfs shortens.
fn header(column: &str) -> String {
    match column {
        "available" => "AVAIL".into(),
        "referenced" => "REFER".into(),
        "allocated" => "ALLOC".into(),
        "capacity" => "CAP".into(),
        other => other.to_uppercase(),
    }
}

/// Columns that `-o a,b` names, each by its full name or an alias, checked against `known`.
///
/// `known` has the full name first in each group. Without `-o`, `default` it is.
pub fn choose(wanted: Option<&str>, default: &[&str], known: &[&[&str]]) -> Result<Vec<String>> {
    let Some(wanted) = wanted else {
        return Ok(default.iter().map(|c| c.to_string()).collect());
    };
    let find = |name: &str| {
        let lower = name.trim().to_lowercase();
        known.iter().find(|group| group.contains(&lower.as_str())).map(|group| group[0].to_string())
    };
    let mut columns = Vec::new();
    for name in wanted.split(',') {
        match find(name) {
            Some(column) => columns.push(column),
            None => {
                let names: Vec<&str> = known.iter().map(|group| group[0]).collect();
                return Err(usage(format!("'{name}' is no column: choose from {}", names.join(", "))));
            }
        }
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(["name", "allocated", "health"]);
        table.row(vec![Cell::text("tank"), Cell::Bytes(3 << 29), Cell::text("ONLINE")]);
        table.row(vec![Cell::text("archive"), Cell::Bytes(0), Cell::None]);
        table
    }

    #[test]
    fn people_get_aligned_columns() {
        let text = sample().render(&Style::default());
        assert_eq!(text, "NAME     ALLOC  HEALTH\ntank     1.50G  ONLINE\narchive     0B  -\n");
    }

    #[test]
    fn scripts_get_tabs_and_exact_numbers() {
        let style = Style { scripted: true, exact: true, json: false };
        assert_eq!(sample().render(&style), "tank\t1610612736\tONLINE\narchive\t0\t-\n");
    }

    #[test]
    fn json_has_numbers_and_null() {
        let text = sample().render(&Style { json: true, ..Style::default() });
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value[0]["allocated"], json!(1610612736u64));
        assert_eq!(value[1]["health"], Value::Null);
    }

    #[test]
    fn guids_in_reports_are_text() {
        #[derive(Serialize)]
        struct Vdev {
            guid: u64,
            size: u64,
        }
        let text = report(&vec![(7, Vdev { guid: u64::MAX, size: 9 })]).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, json!([[7, { "guid": "18446744073709551615", "size": 9 }]]));
    }

    #[test]
    fn an_empty_listing_prints_nothing() {
        assert_eq!(Table::new(["name"]).render(&Style::default()), "");
        assert_eq!(Table::new(["name"]).render(&Style { json: true, ..Style::default() }), "[]\n");
    }

    #[test]
    fn chosen_columns_are_checked() {
        let known: &[&[&str]] = &[&["name"], &["available", "avail"]];
        assert_eq!(choose(None, &["name"], known).unwrap(), ["name"]);
        assert_eq!(choose(Some("AVAIL,name"), &[], known).unwrap(), ["available", "name"]);
        let error = choose(Some("name,nope"), &[], known).unwrap_err().to_string();
        assert!(error.contains("'nope'") && error.contains("available"), "{error}");
    }
}
