use crate::context::Context;
use crate::ending;
use crate::names;
use crate::table::{Cell, Style, Table, choose, printable};
use anyhow::{Result, bail};
use serde_json::json;
use std::time::Duration;
use tarn_bucket::inspect::{Finding, Verdict, folder, inspect, tidy};
use tarn_bucket::{OpenOptions, open};

/// How long one request is tried again, at the most.
const DEADLINE: Duration = Duration::from_secs(20);

/// Try all that Tarn needs of a bucket, and say what is missing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ends with status 0 when nothing that Tarn needs is missing, 1 when something is. What it writes, some 90 MiB in
`tarn-check/`, it deletes again.

With -H or -o there is no last line. Columns: verdict, what, says, p50, p99 (times), speed (bytes a second).

Example:
  tarn bucket check s3://bucket/prefix?region=eu-central-1
  tarn bucket check -H -o verdict,what s3://bucket/prefix
  tarn bucket check --json gs://bucket/prefix")]
pub struct Args {
    #[command(flatten)]
    style: Style,
    /// Columns, separated by commas
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    /// Bucket: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX?account=NAME, or a directory
    url: String,
}

const COLUMNS: &[&[&str]] = &[&["verdict"], &["what"], &["says"], &["p50"], &["p99"], &["speed"]];
const DEFAULT: &[&str] = &["verdict", "what", "says"];

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let columns = choose(self.columns.as_deref(), DEFAULT, COLUMNS)?;
        let url = names::url(&self.url)?;
        let mut tell = |finding: &Finding| {
            // Widths are known at the end alone.
            if self.style.scripted {
                context.print(&table(std::slice::from_ref(finding), &columns).render(&self.style));
            } else if !self.style.json && self.columns.is_none() {
                context.print(&line(finding));
            }
        };
        let findings = context.block_on(findings(&url, &mut tell))?;
        let missing = findings.iter().filter(|finding| finding.verdict == Verdict::Missing).count();
        if self.style.scripted {
            // All is told.
        } else if self.columns.is_some() {
            context.print(&table(&findings, &columns).render(&self.style));
        } else if self.style.json {
            let value = json!({ "url": url, "ready": missing == 0, "findings": findings });
            context.print(&format!("{value:#}\n"));
        } else {
            context.print(&summary(missing));
        }
        Ok(u8::from(missing > 0))
    }
}

async fn findings(url: &str, tell: &mut impl FnMut(&Finding)) -> Result<Vec<Finding>> {
    let bucket = open(url, &OpenOptions { deadline: DEADLINE, ..OpenOptions::default() })?;
    let folder = folder();
    tokio::select! {
        findings = inspect(bucket.clone(), &folder, tell) => Ok(findings),
        _ = ending::told() => {
            tidy(&bucket, &folder).await?;
            bail!("interrupted; what was written is deleted")
        }
    }
}

fn verdict(finding: &Finding) -> &'static str {
    match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Missing => "missing",
    }
}

fn line(finding: &Finding) -> String {
    format!("{:8} {:10} {}\n", verdict(finding), finding.what, finding.says)
}

fn table(findings: &[Finding], columns: &[String]) -> Table {
    let mut table = Table::new(columns);
    for finding in findings {
        table.row(columns.iter().map(|column| cell(finding, column)).collect());
    }
    table
}

fn cell(finding: &Finding, column: &str) -> Cell {
    let figure = |name: &str, unit: f64| finding.figures.get(name).map(|n| (n * unit).round() as u64);
    match column {
        "verdict" => Cell::text(verdict(finding)),
        "what" => Cell::text(finding.what),
        "says" => Cell::text(printable(&finding.says)),
        "p50" => figure("p50_ms", 1e6).map_or(Cell::None, Cell::Nanos),
        "p99" => figure("p99_ms", 1e6).map_or(Cell::None, Cell::Nanos),
        "speed" => figure("mib_s", 1048576.0).map_or(Cell::None, Cell::Bytes),
        _ => Cell::None,
    }
}

fn summary(missing: usize) -> String {
    match missing {
        0 => "nothing that Tarn needs is missing\n".to_string(),
        1 => "1 thing that Tarn needs is missing\n".to_string(),
        n => format!("{n} things that Tarn needs are missing\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_have_columns() {
        let found = |what, figures: &[(&'static str, f64)]| Finding {
            what,
            verdict: Verdict::Warning,
            says: "set\tit".into(),
            figures: figures.iter().copied().collect(),
        };
        let findings =
            [found("get time", &[("p50_ms", 1.5), ("p99_ms", 20.0)]), found("get speed", &[("mib_s", 2.0)])];
        let style = Style { scripted: true, exact: true, json: false };
        let shown = |columns: Option<&str>| {
            table(&findings, &choose(columns, DEFAULT, COLUMNS).unwrap()).render(&style)
        };
        assert_eq!(shown(None), "warning\tget time\tset\\tit\nwarning\tget speed\tset\\tit\n");
        assert_eq!(shown(Some("p50,p99,speed")), "1500000\t20000000\t-\n-\t-\t2097152\n");
    }
}
