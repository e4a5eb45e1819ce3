use crate::context::Context;
use crate::control::report::HistoryEntry;
use crate::control::{Reply, Request};
use crate::moment;
use crate::table::{Cell, Style, Table, choose, printable, report};
use anyhow::{Result, bail};
use serde::Serialize;

/// Show every command that changed a pool
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With -H or -o there is one line for each command. Columns: pool, time (with -p in seconds since 1970), command, user, host,
internal.

Example:
  tarn pool history tank
  tarn pool history -H -p -o time,user,command tank")]
pub struct Args {
    /// Show Tarn's own entries too
    #[arg(short = 'i')]
    internal: bool,
    /// Show who ran a command, and where
    #[arg(short = 'l')]
    long: bool,
    #[command(flatten)]
    style: Style,
    /// Columns, separated by commas
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    /// Pools; all when none is named
    pools: Vec<String>,
}

const COLUMNS: &[&[&str]] = &[&["pool"], &["time"], &["command"], &["user"], &["host"], &["internal"]];
const DEFAULT: &[&str] = &["pool", "time", "command"];
const LONG: &[&str] = &["pool", "time", "command", "user", "host"];

/// An entry of one of several pools.
#[derive(Serialize)]
struct Entry<'a> {
    pool: &'a str,
    #[serde(flatten)]
    entry: &'a HistoryEntry,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let default = if self.long { LONG } else { DEFAULT };
        let columns = choose(self.columns.as_deref(), default, COLUMNS)?;
        let pools = context.pool_names(&self.pools)?;
        let (mut histories, status) =
            context.of_each(&pools, |pool| match context.ask(pool, Request::History)? {
                Reply::History(entries) => Ok((pool.to_string(), entries)),
                _ => bail!("the node of pool '{pool}' answered something else"),
            })?;
        for (_, entries) in &mut histories {
            entries.retain(|e| self.internal || !e.internal);
        }
        let text = if self.style.scripted || self.columns.is_some() {
            self.table(&histories, columns).render(&self.style)
        } else if self.style.json {
            let all = histories.iter().flat_map(|(pool, entries)| entries.iter().map(move |e| (pool, e)));
            let all: Vec<Entry> = all.map(|(pool, entry)| Entry { pool, entry }).collect();
            report(&all)?
        } else {
            histories.iter().map(|(pool, entries)| self.text(pool, entries)).collect()
        };
        context.print(&text);
        Ok(status)
    }

    /// The history of one pool as zpool lays it out.
    fn text(&self, pool: &str, entries: &[HistoryEntry]) -> String {
        let mut text = format!("History for '{pool}':\n");
        for entry in entries {
            let internal = if entry.internal { "[internal] " } else { "" };
            text += &format!("{} {internal}{}", self.time(entry).show(self.style.exact), entry.command);
            if self.long {
                text += &format!(" [user {} on {}]", entry.user, entry.host);
            }
            text.push('\n');
        }
        text
    }

    fn table(&self, histories: &[(String, Vec<HistoryEntry>)], columns: Vec<String>) -> Table {
        let mut table = Table::new(columns.clone());
        for (pool, entries) in histories {
            for entry in entries {
                let cell = |column: &String| match column.as_str() {
                    "pool" => Cell::text(pool),
                    "time" => self.time(entry),
                    "command" => Cell::text(printable(&entry.command)),
                    "user" if entry.user.is_empty() => Cell::None,
                    "user" => Cell::text(printable(&entry.user)),
                    "host" => Cell::text(printable(&entry.host)),
                    _ => Cell::text(if entry.internal { "yes" } else { "no" }),
                };
                table.row(columns.iter().map(cell).collect());
            }
        }
        table
    }

    /// To the second, as zpool shows it.
    fn time(&self, entry: &HistoryEntry) -> Cell {
        match self.style.exact || self.style.json {
            true => Cell::Time(entry.time_ms),
            false => Cell::text(moment::history(entry.time_ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(style: Style, columns: Option<&str>) -> String {
        let entry = HistoryEntry {
            time_ms: 1_700_000_000_999,
            command: "tarn pool create tank /a\tb".into(),
            user: String::new(),
            host: "here".into(),
            internal: true,
        };
        let columns = choose(columns, DEFAULT, COLUMNS).unwrap();
        let args = Args { internal: true, long: false, style, columns: None, pools: Vec::new() };
        args.table(&[("tank".into(), vec![entry])], columns).render(&args.style)
    }

    #[test]
    fn scripts_get_a_line_for_each_command() {
        let style = Style { scripted: true, exact: true, json: false };
        assert_eq!(shown(style.clone(), None), "tank\t1700000000\ttarn pool create tank /a\\tb\n");
        assert_eq!(shown(style, Some("user,host,internal")), "-\there\tyes\n");
        let style = Style { json: true, ..Style::default() };
        let value: serde_json::Value = serde_json::from_str(&shown(style, Some("time"))).unwrap();
        assert_eq!(value, serde_json::json!([{ "time": 1_700_000_000 }]));
    }
}
