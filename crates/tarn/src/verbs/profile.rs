use crate::context::Context;
use crate::control::report::ProfileReport;
use crate::control::{ProfileRequest, Reply, Request};
use crate::ending;
use crate::error::usage;
use crate::node::profile::{LONGEST, not_mounted};
use crate::node::start::asked_running;
use crate::table::{Cell, Style, Table, choose};
use crate::verbs::interval::{check_named, seconds};
use crate::verbs::target::Target;
use anyhow::{Result, bail};
use serde_json::json;
use std::time::Duration;
use tarn_base::profile::{OperationProfile, SLOWEST_MAX, SlowRequest};
use tarn_base::stopwatch::Layer;

/// Where nobody says how long.
const TIME: Duration = Duration::from_secs(10);

/// Show where operations spend their time: in the client, the metadata target, the pool or the buckets
#[derive(Debug, clap::Args)]
#[command(after_help = "\
For SECONDS (10) each request of the kernel to what is mounted is timed. Then there is a line for each operation, the one
that took the most time in all first, with the share of each layer in it, and a line for each of the slowest requests.
Ctrl-C ends it early, and shows what came until then. What nobody profiles is not slower for it.

Columns (-o): operation, count, total, mean, p50, p99, max, client, mdt, pool, bucket (percent), client_time, mdt_time,
pool_time, bucket_time.

Example:
  tarn profile tank
  tarn profile tank/home 60
  tarn profile --slowest 30 /mnt
  tarn profile -H -p --slowest 0 -o operation,count,bucket_time tank 5")]
pub struct Args {
    /// Columns of operations, separated by commas
    #[arg(short = 'o', value_name = "COLUMN,...")]
    columns: Option<String>,
    #[command(flatten)]
    style: Style,
    /// How many of the slowest requests are shown
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(..=SLOWEST_MAX as u64)
    )]
    slowest: u64,
    /// A pool, a dataset or a directory in one; then seconds
    #[arg(value_name = "POOL|DATASET|DIR [SECONDS]", required = true)]
    words: Vec<String>,
}

const COLUMNS: &[&[&str]] = &[
    &["operation", "name"],
    &["count"],
    &["total"],
    &["mean"],
    &["p50"],
    &["p99"],
    &["max"],
    &["client"],
    &["mdt"],
    &["pool"],
    &["bucket"],
    &["client_time"],
    &["mdt_time"],
    &["pool_time"],
    &["bucket_time"],
];
const DEFAULT: &[&str] =
    &["operation", "count", "total", "mean", "p50", "p99", "max", "client", "mdt", "pool", "bucket"];
const SLOWEST: &[&str] = &["at", "operation", "inode", "took", "client", "mdt", "pool", "bucket"];

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        check_named(&self.words)?;
        let (name, time) = match self.words.as_slice() {
            [name] => (name, TIME),
            [name, time] => (name, seconds(time, "a profile takes", LONGEST)?),
            _ => return Err(usage("name one pool, dataset or directory, then SECONDS")),
        };
        let columns = choose(self.columns.as_deref(), DEFAULT, COLUMNS)?;
        let target = Target::parse(context, name)?;
        let report = context.block_on(profile(context, &target, time));
        context.screen.clear();
        let report = match report {
            Ok(Some(report)) => report,
            failed => {
                target.check_there(context)?;
                failed?;
                bail!(not_mounted(&target.name));
            }
        };
        context.print(&self.text(&report, columns));
        Ok(0)
    }

    fn text(&self, report: &ProfileReport, columns: Vec<String>) -> String {
        let mut operations = Table::new(columns.clone());
        for operation in &report.found.operations {
            operations.row(columns.iter().map(|column| operation_cell(operation, column)).collect());
        }
        let mut slowest = Table::new(SLOWEST.iter().copied());
        for request in report.found.slowest.iter().take(self.slowest as usize) {
            slowest.row(SLOWEST.iter().map(|column| request_cell(request, column)).collect());
        }
        if self.style.json {
            let (operations, slowest) = (operations.json(), slowest.json());
            let all = json!({
                "took_ms": report.took_ms,
                "waiting": report.waiting,
                "operations": operations,
                "slowest": slowest,
            });
            return format!("{all:#}\n");
        }
        let (operations, slowest) = (operations.render(&self.style), slowest.render(&self.style));
        let gap = if operations.is_empty() || slowest.is_empty() { "" } else { "\n" };
        let notes = if self.style.scripted { String::new() } else { notes(report) };
        format!("{operations}{gap}{slowest}{notes}")
    }
}

/// What is in no line of the listings.
fn notes(report: &ProfileReport) -> String {
    let mut text = String::new();
    if report.found.operations.is_empty() {
        text += &format!("nothing was asked for in {:.1} s\n", report.took_ms as f64 / 1000.0);
    }
    match report.waiting {
        0 => {}
        1 => text += "1 request still waits for its answer, and is in none of these lines\n",
        n => text += &format!("{n} requests still wait for their answers, and are in none of these lines\n"),
    }
    text
}

/// A layer by the name of its column.
fn layer(column: &str) -> Option<usize> {
    Layer::ALL.iter().position(|layer| layer.name() == column)
}

fn operation_cell(operation: &OperationProfile, column: &str) -> Cell {
    let (times, total) = (&operation.times, operation.total_ns());
    match column {
        "operation" => Cell::text(operation.name.clone()),
        "count" => Cell::Count(times.count),
        "total" => Cell::Nanos(total),
        "mean" => Cell::Nanos(total.checked_div(times.count).unwrap_or(0)),
        // A part of the histogram ends behind the longest of it.
        "p50" => Cell::Nanos((times.quantile_us(0.5) * 1000).min(operation.longest_ns)),
        "p99" => Cell::Nanos((times.quantile_us(0.99) * 1000).min(operation.longest_ns)),
        "max" => Cell::Nanos(operation.longest_ns),
        column => match (layer(column), column.strip_suffix("_time").and_then(layer)) {
            (Some(layer), _) => Cell::Percent(percent(operation.layers_ns[layer], total)),
            (_, Some(layer)) => Cell::Nanos(operation.layers_ns[layer]),
            _ => Cell::None,
        },
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 { 0 } else { (part as f64 / whole as f64 * 100.0).round() as u64 }
}

fn request_cell(request: &SlowRequest, column: &str) -> Cell {
    match column {
        "at" => Cell::Nanos(request.came_ns),
        "operation" => Cell::text(request.operation.clone()),
        "inode" if request.ino == 0 => Cell::None,
        "inode" => Cell::Number(request.ino),
        "took" => Cell::Nanos(request.took_ns()),
        column => layer(column).map_or(Cell::None, |layer| Cell::Nanos(request.layers_ns[layer])),
    }
}

/// Has the node profile what it has mounted; `None` when there is no node.
async fn profile(context: &Context, target: &Target, time: Duration) -> Result<Option<ProfileReport>> {
    let id = rand::random();
    let request = ProfileRequest { id, dataset: target.dataset.clone(), time_ms: time.as_millis() as u64 };
    let mut asked = std::pin::pin!(asked_running(context, &target.node, Request::Profile(request)));
    let reply = loop {
        tokio::select! {
            reply = &mut asked => break reply?,
            told = ending::told() => {
                told?;
                // The answer to the first request comes then.
                asked_running(context, &target.node, Request::EndProfile { id }).await?;
            }
        }
    };
    match reply {
        Some(Reply::Profile(report)) => Ok(Some(*report)),
        Some(_) => bail!("the node of '{}' answered something else", target.name),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::HistogramStats;
    use tarn_base::profile::ProfileStats;

    fn args(style: Style, slowest: u64) -> Args {
        Args { columns: None, style, slowest, words: Vec::new() }
    }

    fn report() -> ProfileReport {
        let times = HistogramStats { count: 4, sum_us: 8000, buckets: vec![(2048, 3), (4096, 1)] };
        let layers_ns = [1_000_000, 2_000_000, 0, 5_000_000];
        let fsync = OperationProfile { name: "fsync".into(), times, longest_ns: 3_500_000, layers_ns };
        let (operation, ino, came_ns) = ("fsync".to_string(), 12345, 1_500_000_000);
        let slow = SlowRequest { operation, ino, came_ns, layers_ns: [0, 500_000, 0, 3_000_000] };
        let found = ProfileStats { operations: vec![fsync], slowest: vec![slow.clone(), slow] };
        ProfileReport { took_ms: 2000, waiting: 1, found }
    }

    fn default_columns() -> Vec<String> {
        DEFAULT.iter().map(|column| column.to_string()).collect()
    }

    #[test]
    fn people_see_both_listings() {
        let text = args(Style::default(), 1).text(&report(), default_columns());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            ["fsync", "4", "8ms", "2ms", "2ms", "3ms", "3ms", "13%", "25%", "0%", "63%"],
            "{text}"
        );
        assert!(lines[2].is_empty());
        assert_eq!(lines[4], ["1.50s", "fsync", "12345", "3ms", "-", "500us", "-", "3ms"], "{text}");
        assert_eq!((lines.len(), lines[5][0]), (6, "1"));
    }

    #[test]
    fn scripts_get_numbers() {
        let style = Style { scripted: true, exact: true, json: false };
        let columns = vec!["operation".to_string(), "bucket_time".into(), "mdt".into()];
        assert_eq!(args(style, 0).text(&report(), columns), "fsync\t5000000\t25\n");
        let style = Style { json: true, ..Style::default() };
        let text = args(style, 2).text(&report(), default_columns());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["operations"][0]["max"], &value["waiting"]), (&json!(3_500_000), &json!(1)));
        assert_eq!(
            (&value["slowest"][1]["inode"], &value["slowest"][1]["bucket"]),
            (&json!(12345), &json!(3_000_000))
        );
    }

    #[test]
    fn nothing_to_show_is_told() {
        let nothing = ProfileReport { took_ms: 2000, waiting: 0, found: ProfileStats::default() };
        let text = args(Style::default(), 10).text(&nothing, default_columns());
        assert_eq!(text, "nothing was asked for in 2.0 s\n");
    }

    #[test]
    fn every_column_has_a_cell() {
        let report = report();
        for column in COLUMNS.iter().map(|names| names[0]) {
            assert_ne!(operation_cell(&report.found.operations[0], column), Cell::None, "{column}");
        }
        for column in SLOWEST {
            assert_ne!(request_cell(&report.found.slowest[0], column), Cell::None, "{column}");
        }
    }
}
