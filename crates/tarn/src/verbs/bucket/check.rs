use crate::context::Context;
use crate::ending;
use crate::names;
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

Example:
  tarn bucket check s3://bucket/prefix?region=eu-central-1
  tarn bucket check --json gs://bucket/prefix")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Bucket: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX?account=NAME, or a directory
    url: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let url = names::url(&self.url)?;
        let mut tell = |finding: &Finding| {
            if !self.json {
                context.print(&line(finding));
            }
        };
        let findings = context.block_on(findings(&url, &mut tell))?;
        let missing = findings.iter().filter(|finding| finding.verdict == Verdict::Missing).count();
        if self.json {
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

fn line(finding: &Finding) -> String {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Missing => "missing",
    };
    format!("{verdict:8} {:10} {}\n", finding.what, finding.says)
}

fn summary(missing: usize) -> String {
    match missing {
        0 => "nothing that Tarn needs is missing\n".to_string(),
        1 => "1 thing that Tarn needs is missing\n".to_string(),
        n => format!("{n} things that Tarn needs are missing\n"),
    }
}
