//! `tarn stats`: what a pool does now, live on a terminal and in lines elsewhere.

mod figures;
mod screen;

use crate::context::Context;
use crate::control::{Reply, Request};
use crate::error::usage;
use crate::node::start::ask_running;
use crate::table::{self, Cell, Style, Table, choose};
use crate::telemetry::Sample;
use crate::verbs::interval::{check_named, plan};
use crate::verbs::target::Target;
use anyhow::{Result, bail};
use figures::Figures;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two looks where nobody says how long.
const LIVE: Duration = Duration::from_secs(1);

/// Show what a pool does: throughput, latencies, cache, dirty data, transaction groups, requests
#[derive(Debug, clap::Args)]
#[command(after_help = "\
On a terminal it is drawn anew each second, or INTERVAL, until COUNT or Ctrl-C. Elsewhere, or with -H, -p, -o or
--json, it is one line a report: the first one averages since the pool was opened, the next ones of each interval.

Columns (-o): name, reads, writes, read, write, read_p50, read_p99, write_p50, write_p99, hit, arc, l2hit, l2read,
dirty, txg, sync_p50, sync_p99, get, put, delete, list, errors, pending, active, limit; with --jobs name, operations,
reads, writes, read, write, get, put, delete, list, sent, received. All are by the second but those that count what is
there.

Example:
  tarn stats tank
  tarn stats tank/home 5
  tarn stats -v -H -p -o name,get,put,errors tank 1 10
  tarn stats --jobs tank")]
pub struct Args {
    /// Show every vdev
    #[arg(short = 'v')]
    vdevs: bool,
    /// Show whom work is done for, the busiest first
    #[arg(long)]
    jobs: bool,
    /// Columns, separated by commas
    #[arg(short = 'o', value_name = "COLUMN,...")]
    columns: Option<String>,
    #[command(flatten)]
    style: Style,
    /// Print every counter as it is, as JSON, once
    #[arg(long, conflicts_with_all = ["vdevs", "jobs", "columns", "scripted", "exact", "json"])]
    raw: bool,
    /// A pool, a dataset or a directory in one; then seconds between reports, then how many
    #[arg(value_name = "POOL|DATASET|DIR [INTERVAL [COUNT]]", required = true)]
    words: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        check_named(&self.words)?;
        let plan = plan(&self.words)?;
        let [name] = plan.names.as_slice() else {
            return Err(usage("name one pool, dataset or directory, then INTERVAL and COUNT"));
        };
        let target = Target::parse(context, name)?;
        let take = || sample(context, &target);
        if self.raw {
            context.print(&table::report(&take()?)?);
            return Ok(0);
        }
        let plain = self.style.scripted || self.style.exact || self.style.json || self.columns.is_some();
        let live = !plain && std::io::stdout().is_terminal();
        let interval = plan.interval.or(live.then_some(LIVE));
        // A pool that nobody serves does nothing, and would be opened anew for each page.
        let served = ask_running(context, &target.node, Request::Mounts)?.is_some();
        let once = interval.is_none() || (plan.interval.is_none() && !served);
        let last = if once { Some(1) } else { plan.count };
        let mut screen = live.then(screen::Screen::default);
        let mut before: Option<(Sample, Instant)> = None;
        let mut shown = 0;
        while last.is_none_or(|last| shown < last) {
            if let (Some((_, taken)), Some(interval)) = (&before, interval) {
                std::thread::sleep(interval.saturating_sub(taken.elapsed()));
            }
            let now = take()?;
            let taken = Instant::now();
            let old = before.as_ref().map(|(sample, _)| sample);
            let text = match (&screen, self.jobs) {
                (_, true) => self.jobs(&now, old)?,
                (Some(_), false) => screen::page(&now, old),
                (None, false) => self.lines(&now, old)?,
            };
            match &mut screen {
                Some(screen) => screen.show(context, &text),
                None => context.print(&text),
            }
            before = Some((now, taken));
            shown += 1;
        }
        Ok(0)
    }

    /// The report as a listing.
    fn lines(&self, now: &Sample, before: Option<&Sample>) -> Result<String> {
        let columns = choose(self.columns.as_deref(), figures::DEFAULT, figures::COLUMNS)?;
        let figures = Figures::between(before, now);
        let mut table = Table::new(columns.clone());
        let row = |of: &dyn Fn(&str) -> Cell| columns.iter().map(|column| of(column)).collect();
        table.row(row(&|column| figures.pool(column)));
        for vdev in figures.vdevs.iter().filter(|_| self.vdevs) {
            table.row(row(&|column| vdev.cell(column)));
        }
        Ok(table.render(&self.style))
    }

    fn jobs(&self, now: &Sample, before: Option<&Sample>) -> Result<String> {
        let columns = choose(self.columns.as_deref(), figures::JOB_DEFAULT, figures::JOB_COLUMNS)?;
        let mut table = Table::new(columns.clone());
        for job in figures::jobs(before, now) {
            table.row(columns.iter().map(|column| job.cell(column)).collect());
        }
        Ok(table.render(&self.style))
    }
}

/// The counters of what is looked at. A pool that nobody serves is opened for them.
fn sample(context: &Context, target: &Target) -> Result<Sample> {
    let reply = match target.far {
        true => ask_running(context, &target.node, Request::Stats)?,
        false => Some(context.ask(&target.node, Request::Stats)?),
    };
    let mut sample = match reply {
        Some(Reply::Stats(sample)) => sample,
        Some(_) => bail!("the node of '{}' answered something else", target.name),
        None => bail!("'{}' is not mounted here: 'tarn fs mount' shows what is", target.name),
    };
    if let Some(name) = &target.dataset {
        sample.datasets.retain(|dataset, _| dataset == name);
        if sample.datasets.is_empty() {
            target.check_there(context)?;
            bail!("dataset '{name}' is not in use, and has no figures: 'tarn mount {name} DIR' mounts it");
        }
    }
    Ok(*sample)
}
