use crate::context::Context;
use crate::control::report::{CheckReport, CheckedDataset};
use crate::control::{Reply, Request};
use crate::table::{self, printable};
use crate::{names, size};
use anyhow::{Result, bail};

/// Walk metadata and segments, and say what is missing, leaked or wrong
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ends with status 0 when nothing is wrong, 1 when something is.

Example:
  tarn check tank
  tarn check --data tank/home
  tarn check --repair tank")]
pub struct Args {
    /// Read and verify every record too
    #[arg(long)]
    data: bool,
    /// Free the segments that are proven leaked
    #[arg(long)]
    repair: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[arg(value_name = "POOL[/DATASET]")]
    target: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let pool = names::pool_of(&self.target)?.to_string();
        let dataset = Some(self.target.clone()).filter(|t| *t != pool);
        let Reply::Check(report) =
            context.ask(&pool, Request::Check { dataset, data: self.data, repair: self.repair })?
        else {
            bail!("the node of pool '{pool}' answered something else");
        };
        let in_datasets: usize = report.datasets.iter().map(|d| d.problems.len()).sum();
        let problems = in_datasets + report.labels_wrong.len();
        if self.json {
            context.print(&table::report(&report)?);
        } else {
            context.print(&text(&report, problems));
        }
        Ok(u8::from(problems > 0))
    }
}

fn text(report: &CheckReport, problems: usize) -> String {
    let repaired = report.labels_repaired.iter().map(|vdev| format!("{vdev}: its label was written anew\n"));
    let wrong = report.labels_wrong.iter().map(|vdev| {
        format!(
            "{vdev}: its label is wrong and cannot be written: see what keeps the bucket from taking it\n"
        )
    });
    let mut text: String = repaired.chain(wrong).chain(report.datasets.iter().map(dataset)).collect();
    text += &match problems {
        0 => "no problems found\n".to_string(),
        1 => "1 problem found\n".to_string(),
        n => format!("{n} problems found\n"),
    };
    text
}

fn dataset(d: &CheckedDataset) -> String {
    let mut text = format!(
        "{}: {} inodes, {} names, {} records in {} segments\n",
        d.name, d.inodes, d.names, d.records, d.segments
    );
    if d.bytes_verified > 0 {
        text += &format!("  {} read and verified\n", size::bytes(d.bytes_verified));
    }
    if d.freed > 0 {
        text += &format!("  {} leaked segment{} freed\n", d.freed, if d.freed == 1 { "" } else { "s" });
    }
    for repaired in &d.repaired {
        text += &format!("  repaired from the other copy: {}\n", printable(repaired));
    }
    for problem in &d.problems {
        text += &format!("  {}\n", printable(problem));
    }
    text
}
