use super::get::value;
use crate::context::Context;
use crate::control::report::{PoolReport, VdevReport};
use crate::size;
use crate::table::{Cell, Style, Table, choose, columns, printable, report};
use anyhow::Result;

/// Show the state of pools and their vdevs, with errors
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With -H or -o there is one line for each vdev. Columns: pool, health (the pool's), vdev, kind (bucket, cache), state, read,
write, cksum, problem, size, allocated, free, guid, url. --json has all that is known of each pool; with -o, the lines.

Example:
  tarn pool status
  tarn pool status -v tank
  tarn pool status -H -p -o pool,vdev,state,cksum")]
pub struct Args {
    /// Name every damaged file and say what is wrong with each vdev
    #[arg(short = 'v')]
    verbose: bool,
    /// Only pools that are not healthy
    #[arg(short = 'x')]
    unhealthy: bool,
    #[command(flatten)]
    style: Style,
    /// Columns of vdevs, separated by commas
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    /// Pools; all when none is named
    pools: Vec<String>,
}

const COLUMNS: &[&[&str]] = &[
    &["pool"],
    &["health"],
    &["vdev", "name"],
    &["kind"],
    &["state"],
    &["read"],
    &["write"],
    &["cksum", "checksum"],
    &["problem"],
    &["size"],
    &["allocated", "alloc"],
    &["free"],
    &["guid"],
    &["url"],
];
const DEFAULT: &[&str] = &["pool", "vdev", "state", "read", "write", "cksum", "problem"];

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let columns = choose(self.columns.as_deref(), DEFAULT, COLUMNS)?;
        let pools = context.pool_names(&self.pools)?;
        let (mut reports, status) = context.of_each(&pools, |pool| context.pool_report(pool))?;
        if self.unhealthy {
            reports.retain(|r| r.state != "ONLINE" || !r.errors.is_empty());
        }
        let lines = self.style.scripted || self.columns.is_some();
        if self.style.json && !lines {
            context.print(&json(&reports)?);
        } else if reports.is_empty() && status == 0 && !self.style.scripted && !self.style.json {
            let text = if self.unhealthy { "all pools are healthy\n" } else { "no pools available\n" };
            context.print(text);
        } else if lines {
            context.print(&table(&reports, columns).render(&self.style));
        } else {
            let texts: Vec<String> = reports.iter().map(|r| self.text(r)).collect();
            context.print(&texts.join("\n"));
        }
        Ok(status)
    }

    /// The report as zpool lays it out.
    fn text(&self, pool: &PoolReport) -> String {
        let mut text = format!("  pool: {}\n state: {}\n", pool.name, pool.state);
        if let Some(status) = &pool.status {
            text += &format!("status: {status}\n");
        }
        if let Some(action) = &pool.action {
            text += &format!("action: {action}\n");
        }
        text += "config:\n\n";
        for line in columns(&self.tree(pool), &[false, false, true, true, true, false]).lines() {
            text += &format!("\t{line}\n");
        }
        text += &match (pool.errors.len(), self.verbose) {
            (0, _) => "\nerrors: No known data errors\n".to_string(),
            (n, false) => format!("\nerrors: {n} data errors, use '-v' for a list\n"),
            (_, true) => {
                format!(
                    "\nerrors: Permanent errors have been detected in the following files:\n\n{}",
                    list(&pool.errors)
                )
            }
        };
        text += &match (pool.repaired.len(), self.verbose) {
            (0, _) => String::new(),
            (n, false) => format!("repaired: {n} from another copy, use '-v' for a list\n"),
            (_, true) => format!("\nrepaired from another copy:\n\n{}", list(&pool.repaired)),
        };
        text
    }

    fn tree(&self, pool: &PoolReport) -> Vec<Vec<String>> {
        let count = |n: u64| if self.style.exact { n.to_string() } else { size::count(n) };
        let words = ["NAME", "STATE", "READ", "WRITE", "CKSUM", ""];
        let mut lines = vec![words.map(String::from).to_vec()];
        let sum = |f: fn(&VdevReport) -> u64| count(pool.vdevs.iter().map(f).sum());
        lines.push(vec![
            pool.name.clone(),
            pool.state.clone(),
            sum(|v| v.read_errors),
            sum(|v| v.write_errors),
            sum(|v| v.checksum_errors),
            String::new(),
        ]);
        let caches = pool.caches.iter().map(|cache| (cache, true));
        let mut above = false;
        for (vdev, cache) in pool.vdevs.iter().map(|vdev| (vdev, false)).chain(caches) {
            if cache && !above {
                above = true;
                lines.push(std::iter::once("cache".into()).chain((1..6).map(|_| String::new())).collect());
            }
            let problem = vdev.problem.clone().filter(|_| self.verbose || vdev.state != "ONLINE");
            lines.push(vec![
                format!("  {}", vdev.name),
                vdev.state.clone(),
                count(vdev.read_errors),
                count(vdev.write_errors),
                count(vdev.checksum_errors),
                problem.unwrap_or_default(),
            ]);
        }
        lines
    }
}

/// All of the reports. Sizes among the properties are numbers, as `pool get` has them.
fn json(pools: &[PoolReport]) -> Result<String> {
    let one = |pool: &PoolReport| {
        let mut value = serde_json::to_value(pool)?;
        value["properties"] = properties(pool).json();
        Ok(value)
    };
    report(&pools.iter().map(one).collect::<Result<Vec<_>>>()?)
}

fn properties(pool: &PoolReport) -> Table {
    let mut table = Table::new(["name", "value", "source"]);
    for property in &pool.properties {
        table.row(vec![Cell::text(&property.name), value(property), Cell::text(&property.source)]);
    }
    table
}

/// A line for each vdev.
fn table(pools: &[PoolReport], columns: Vec<String>) -> Table {
    let mut table = Table::new(columns.clone());
    for pool in pools {
        let buckets = pool.vdevs.iter().map(|vdev| (vdev, "bucket"));
        for (vdev, kind) in buckets.chain(pool.caches.iter().map(|cache| (cache, "cache"))) {
            table.row(columns.iter().map(|column| cell(pool, vdev, kind, column)).collect());
        }
    }
    table
}

fn cell(pool: &PoolReport, vdev: &VdevReport, kind: &str, column: &str) -> Cell {
    match column {
        "pool" => Cell::text(&pool.name),
        "health" => Cell::text(&pool.state),
        "vdev" => Cell::text(&vdev.name),
        "kind" => Cell::text(kind),
        "state" => Cell::text(&vdev.state),
        "read" => Cell::Count(vdev.read_errors),
        "write" => Cell::Count(vdev.write_errors),
        "cksum" => Cell::Count(vdev.checksum_errors),
        "problem" => vdev.problem.as_deref().map_or(Cell::None, |problem| Cell::text(printable(problem))),
        "size" => vdev.size.map_or(Cell::None, Cell::Bytes),
        "allocated" => Cell::Bytes(vdev.allocated),
        "free" => vdev.free.map_or(Cell::None, Cell::Bytes),
        "guid" => Cell::text(vdev.guid.to_string()),
        "url" => Cell::text(&vdev.url),
        _ => Cell::None,
    }
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("        {}\n", printable(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn degraded() -> PoolReport {
        let vdev = |name: &str, state: &str| VdevReport {
            name: name.into(),
            state: state.into(),
            checksum_errors: 2,
            problem: Some("bucket does not answer".into()),
            ..VdevReport::default()
        };
        PoolReport {
            name: "tank".into(),
            guid: 7,
            state: "DEGRADED".into(),
            status: Some("a vdev does not answer".into()),
            action: None,
            size: 0,
            allocated: 0,
            free: 0,
            properties: vec![],
            open_ms: 1,
            vdevs: vec![vdev("/d1", "ONLINE"), vdev("/d2", "FAULTED")],
            caches: vec![],
            errors: vec!["tank:/a/file".into()],
            repaired: vec![],
        }
    }

    #[test]
    fn status_is_laid_out_as_zpools() {
        let args = Args {
            verbose: false,
            unhealthy: false,
            style: Style::default(),
            columns: None,
            pools: Vec::new(),
        };
        let expected = "  pool: tank
 state: DEGRADED
status: a vdev does not answer
config:

\tNAME   STATE     READ  WRITE  CKSUM
\ttank   DEGRADED     0      0      4
\t  /d1  ONLINE       0      0      2
\t  /d2  FAULTED      0      0      2  bucket does not answer

errors: 1 data errors, use '-v' for a list
";
        assert_eq!(args.text(&degraded()), expected);
        let cache = VdevReport { name: "/nvme".into(), state: "UNAVAIL".into(), ..VdevReport::default() };
        let with_cache = args.text(&PoolReport { caches: vec![cache], ..degraded() });
        assert!(with_cache.contains("\n\tcache\n\t  /nvme  UNAVAIL      0      0      0\n"), "{with_cache}");
        let args = Args { verbose: true, ..args };
        assert!(args.text(&degraded()).contains("        tank:/a/file\n"));
        // Whoever may name files must not write to an administrator's terminal.
        let forged = vec!["tank:/x\n\u{1b}[31m".to_string()];
        let healed = args.text(&PoolReport { errors: vec![], repaired: forged, ..degraded() });
        let end =
            "errors: No known data errors\n\nrepaired from another copy:\n\n        tank:/x\\n\\u{1b}[31m\n";
        assert!(healed.ends_with(end), "{healed}");
    }

    #[test]
    fn json_has_guids_as_text_and_sizes_as_numbers() {
        use crate::control::report::PropertyReport;
        let property = |name: &str, value: &str| PropertyReport {
            name: name.into(),
            value: value.into(),
            source: "-".into(),
        };
        let properties = vec![property("size", "4096"), property("guid", "7"), property("comment", "5")];
        let pool = PoolReport { guid: u64::MAX, properties, ..degraded() };
        let value: serde_json::Value = serde_json::from_str(&json(&[pool]).unwrap()).unwrap();
        assert_eq!(
            (&value[0]["guid"], &value[0]["vdevs"][1]["guid"]),
            (&"18446744073709551615".into(), &"0".into())
        );
        assert_eq!(value[0]["properties"][0]["value"], 4096);
        assert_eq!(value[0]["properties"][1]["value"], "7");
        assert_eq!(value[0]["properties"][2]["value"], "5");
    }

    #[test]
    fn scripts_get_a_line_for_each_vdev() {
        let cache = VdevReport { name: "/nvme".into(), state: "UNAVAIL".into(), ..VdevReport::default() };
        let pools = [PoolReport { caches: vec![cache], ..degraded() }];
        let style = Style { scripted: true, ..Style::default() };
        let default = choose(None, DEFAULT, COLUMNS).unwrap();
        let expected = "tank\t/d1\tONLINE\t0\t0\t2\tbucket does not answer\n\
                        tank\t/d2\tFAULTED\t0\t0\t2\tbucket does not answer\n\
                        tank\t/nvme\tUNAVAIL\t0\t0\t0\t-\n";
        assert_eq!(table(&pools, default).render(&style), expected);
        let chosen = choose(Some("health,kind,checksum"), DEFAULT, COLUMNS).unwrap();
        let text = table(&pools, chosen).render(&Style::default());
        assert_eq!(text.lines().nth(3), Some("DEGRADED  cache       0"), "{text}");
        for column in COLUMNS.iter().map(|names| names[0]).filter(|name| !matches!(*name, "size" | "free")) {
            assert_ne!(cell(&pools[0], &pools[0].vdevs[0], "bucket", column), Cell::None, "{column}");
        }
    }
}
