//! `tarn bench`: how fast the buckets are by themselves, how fast files on them are, and what holds them back.

mod buckets;
mod files;
mod meter;
mod outage;

use crate::address::Address;
use crate::context::Context;
use crate::ending;
use crate::mounts_table;
use crate::progress::{Progress, Sink, Unit};
use crate::table::{Cell, Style, Table, choose};
use crate::verbs::target::{mount_of, nearest};
use crate::{names, size};
use anyhow::{Context as _, Result, anyhow, bail};
use buckets::Buckets;
use files::Files;
use meter::Meter;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Measure files beside the buckets that they are in, and say what holds them back
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The same is done with objects in the buckets and with files in DIR, which is in a mounted dataset: a stream of --size
bytes is written and synced, single reads and writes of 4 KiB are made one after the other, and many small files at once.
Files are read past the kernel's page cache. RATIO is what the file system reaches of its buckets, LIMIT what keeps it
from more: the buckets, the processor, or round trips, which are waited for one after the other. What is written is
deleted again; the requests cost what requests cost: 'tarn cost'.

Example:
  tarn bench /mnt
  tarn bench --size 4G --json /mnt")]
pub struct Args {
    /// Bytes of the stream, as in 4G
    #[arg(long, default_value = "512M", value_parser = stream)]
    size: u64,
    /// Columns, separated by commas
    #[arg(short = 'o', value_name = "COLUMN,...")]
    columns: Option<String>,
    #[command(flatten)]
    style: Style,
    /// Directory in a mounted dataset
    dir: PathBuf,
}

const COLUMNS: &[&[&str]] =
    &[&["name"], &["buckets"], &["files"], &["ratio"], &["processor", "cpu"], &["limit"]];
const DEFAULT: &[&str] = &["name", "buckets", "files", "ratio", "processor", "limit"];

/// One measurement may take so long.
const STEP_LIMIT: Duration = Duration::from_secs(900);
/// Objects are deleted in so long while a bucket fails, or not.
const TIDY_LIMIT: Duration = Duration::from_secs(5);
/// From these on, in percent, the buckets or the processor are what holds it back.
const NEAR_BUCKETS: u64 = 90;
const BUSY: u64 = 85;

fn stream(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).filter(|n| (buckets::OBJECT..=1 << 40).contains(n));
    bytes.ok_or_else(|| "write a size from 4M to 1T, as in 512M".to_string())
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Bytes a second.
    Write,
    Read,
    /// Nanoseconds of one of 4 KiB, the median.
    SmallWrite,
    SmallRead,
    /// Files a second.
    Many,
}

impl What {
    /// A read needs what was written.
    const ALL: [What; 5] = [What::Write, What::SmallRead, What::Read, What::SmallWrite, What::Many];

    fn name(self) -> &'static str {
        match self {
            What::Write => "write",
            What::Read => "read",
            What::SmallWrite => "write-4k-sync",
            What::SmallRead => "read-4k",
            What::Many => "small-files",
        }
    }

    fn cell(self, value: f64) -> Cell {
        let value = value as u64;
        match self {
            What::Write | What::Read => Cell::Bytes(value),
            What::SmallWrite | What::SmallRead => Cell::Nanos(value),
            What::Many => Cell::Count(value),
        }
    }

    /// What files reach of their buckets, in percent.
    fn ratio(self, buckets: f64, files: f64) -> u64 {
        let ratio = match self {
            What::SmallWrite | What::SmallRead => buckets / files,
            _ => files / buckets,
        };
        if ratio.is_finite() { (ratio * 100.0).round() as u64 } else { 0 }
    }
}

/// One line: what buckets and files do, in the unit of `what`, and how busy the host was with the latter, in percent.
struct Line {
    what: What,
    buckets: f64,
    files: f64,
    processor: u64,
}

impl Line {
    fn cell(&self, column: &str) -> Cell {
        match column {
            "name" => Cell::text(self.what.name()),
            "buckets" => self.what.cell(self.buckets),
            "files" => self.what.cell(self.files),
            "ratio" => Cell::Percent(self.ratio()),
            "processor" => Cell::Percent(self.processor),
            "limit" => Cell::text(self.limit()),
            _ => Cell::None,
        }
    }

    fn ratio(&self) -> u64 {
        self.what.ratio(self.buckets, self.files)
    }

    fn limit(&self) -> &'static str {
        match (self.ratio(), self.processor) {
            (NEAR_BUCKETS.., _) => "buckets",
            (_, BUSY..) => "processor",
            _ => "round trips",
        }
    }
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let columns = choose(self.columns.as_deref(), DEFAULT, COLUMNS)?;
        self.refuse_suspended(context)?;
        let mount = mount_of(&self.dir)?;
        if Address::parse(&mount.dataset).is_some() {
            bail!("{} is another host's: measure it where its pool is", mount.dataset);
        }
        let pool = names::pool_of(&mount.dataset)?;
        let urls = context.state.pool(pool)?.urls;
        let lines = context.block_on(self.measure(context, pool, &urls))?;
        let mut table = Table::new(columns.clone());
        for line in &lines {
            table.row(columns.iter().map(|column| line.cell(column)).collect());
        }
        context.print(&table.render(&self.style));
        Ok(0)
    }

    /// Fails when the pool that DIR is in is suspended. To look at DIR itself may mean to wait then.
    fn refuse_suspended(&self, context: &Context) -> Result<()> {
        let dir = std::path::absolute(&self.dir).with_context(|| self.dir.display().to_string())?;
        match nearest(mounts_table::mounted()?, &dir) {
            Some(mount) if Address::parse(&mount.dataset).is_none() => {
                let result = context.block_on(outage::check(context, names::pool_of(&mount.dataset)?));
                result.context("nothing was measured")
            }
            _ => Ok(()),
        }
    }

    async fn measure(&self, context: &Context, pool: &str, urls: &[String]) -> Result<Vec<Line>> {
        let buckets = Buckets::open(urls, self.size)?;
        let mut outage = std::pin::pin!(outage::comes(context, pool));
        let (dir, size) = (self.dir.clone(), self.size);
        let files = tokio::select! {
            files = beside(move || Files::new(&dir, size)) => Arc::new(files?),
            why = &mut outage => return Err(why.context("nothing was measured")),
        };
        let measured = tokio::select! {
            lines = all(context, &buckets, &files) => lines,
            _ = ending::told() => Err(anyhow!("interrupted; what was written is deleted")),
            why = &mut outage => return Err(given_up(why, &buckets, &files).await),
        };
        files.stop();
        let objects = buckets.tidy().await;
        let tidied = files.clone();
        let folder = tokio::select! {
            folder = beside(move || tidied.tidy()) => folder,
            why = &mut outage => return Err(given_up(why, &buckets, &files).await),
        };
        let lines = measured?;
        objects?;
        folder?;
        Ok(lines)
    }
}

/// What is told when a bucket began to fail in the middle: files cannot be deleted then, and objects perhaps.
async fn given_up(why: anyhow::Error, buckets: &Buckets, files: &Files) -> anyhow::Error {
    files.stop();
    let objects = match tokio::time::timeout(TIDY_LIMIT, buckets.tidy()).await {
        Ok(Ok(())) => String::new(),
        _ => format!(", and in its buckets {}", buckets.folder()),
    };
    let left = files.folder().display();
    anyhow!("{why:#}; when it goes on, delete {left}{objects}, which is left")
}

/// Does what may wait in the kernel for as long as a bucket does, in a thread that does not keep the program from ending.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("files".into()).spawn(move || tell.send(work()).is_ok())?;
    told.await?
}

async fn all(context: &Context, buckets: &Buckets, files: &Arc<Files>) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (n, what) in What::ALL.into_iter().enumerate() {
        let progress = |done| Progress {
            what: "measuring".into(),
            done,
            total: 2 * What::ALL.len() as u64,
            unit: Unit::Items,
        };
        context.screen.progress(progress(2 * n as u64));
        let of_buckets = limited(what, buckets.measure(what)).await?;
        context.screen.progress(progress(2 * n as u64 + 1));
        let (meter, files) = (Meter::start(), files.clone());
        let of_files = limited(what, beside(move || files.measure(what))).await?;
        lines.push(Line { what, buckets: of_buckets, files: of_files, processor: meter.busy() });
    }
    Ok(lines)
}

async fn limited(what: What, work: impl Future<Output = Result<f64>>) -> Result<f64> {
    let late = || format!("{}: not done after {} s", what.name(), STEP_LIMIT.as_secs());
    tokio::time::timeout(STEP_LIMIT, work).await.with_context(late)?.with_context(|| what.name())
}

/// The middle of times, in nanoseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_nanos() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_it_back_is_told() {
        let line = |what, buckets, files, processor| Line { what, buckets, files, processor };
        assert_eq!(line(What::Read, 100.0, 95.0, 100).limit(), "buckets");
        assert_eq!(line(What::Read, 100.0, 60.0, 97).limit(), "processor");
        // A call that takes two round trips reaches half of what a request does.
        let twice = line(What::SmallWrite, 20e6, 40e6, 10);
        assert_eq!((twice.ratio(), twice.limit()), (50, "round trips"));
        assert_eq!(What::Many.ratio(0.0, 5.0), 0);
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!((stream("1G"), stream("4M")), (Ok(1 << 30), Ok(4 << 20)));
        assert!(stream("1M").is_err() && stream("2T").is_err() && stream("fast").is_err());
    }
}
