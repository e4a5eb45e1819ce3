//! `tarn cost`: requests as stores charge for them, and their price at list.

mod prices;

use crate::context::Context;
use crate::control::{Reply, Request};
use crate::names;
use crate::table::{Cell, Style, Table, choose};
use crate::telemetry::Sample;
use anyhow::{Result, bail};
use prices::Prices;
use std::path::PathBuf;
use tarn_base::{Provider, TallyStats};

/// Show what a pool's requests and its stored data cost at list prices
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests are those that went out since the pool was opened (mounted), counted as stores do: each part of an upload and
each page of a listing is one. `month` is what it costs to keep what is stored for a month. Data that leaves the
provider costs too: --internet adds what was received at the price for that. Directories cost nothing. Prices change:
compare those that Tarn knows with the pages it names, and give your own with --prices.

Columns (-o): name, provider, put, list, get, head, delete, requests, sent, received, price, stored, month.

Example:
  tarn cost tank
  tarn cost -v --internet tank
  tarn cost --jobs -o name,put,get,price tank
  tarn cost --show-prices > my-prices.json
  tarn cost --prices my-prices.json --json tank")]
pub struct Args {
    /// Show every vdev
    #[arg(short = 'v', conflicts_with = "jobs")]
    vdevs: bool,
    /// Show what each job caused, the dearest first; what nobody in particular caused stands last
    #[arg(long)]
    jobs: bool,
    /// Add what was received at the price of data that leaves the provider
    #[arg(long)]
    internet: bool,
    /// Prices of your own, in the shape that --show-prices gives
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Print the prices that Tarn knows, and where to compare them
    #[arg(long, conflicts_with = "pool")]
    show_prices: bool,
    /// Columns, separated by commas
    #[arg(short = 'o', value_name = "COLUMN,...")]
    columns: Option<String>,
    #[command(flatten)]
    style: Style,
    #[arg(required_unless_present = "show_prices")]
    pool: Option<String>,
}

const COLUMNS: &[&[&str]] = &[
    &["name"],
    &["provider"],
    &["put"],
    &["list"],
    &["get"],
    &["head"],
    &["delete", "del"],
    &["requests"],
    &["sent"],
    &["received"],
    &["price"],
    &["stored"],
    &["month"],
];
const DEFAULT: &[&str] = &[
    "name", "provider", "put", "list", "get", "head", "delete", "sent", "received", "price", "stored",
    "month",
];
const JOB_DEFAULT: &[&str] = &["name", "put", "list", "get", "head", "delete", "sent", "received", "price"];

/// What nobody in particular caused: metadata, reclaiming, the pool's own.
const NOBODY: &str = "(metadata and background)";

/// One line: what it is, and what it cost.
#[derive(Clone, Debug, Default)]
struct Line {
    name: String,
    provider: Option<String>,
    tally: TallyStats,
    price: u64,
    stored: Option<u64>,
    month: Option<u64>,
}

impl Line {
    fn cell(&self, column: &str) -> Cell {
        let t = &self.tally;
        match column {
            "name" => Cell::text(&self.name),
            "provider" => self.provider.as_ref().map_or(Cell::None, Cell::text),
            "put" => Cell::Count(t.put),
            "list" => Cell::Count(t.list),
            "get" => Cell::Count(t.get),
            "head" => Cell::Count(t.head),
            "delete" => Cell::Count(t.delete),
            "requests" => Cell::Count(t.requests()),
            "sent" => Cell::Bytes(t.sent_bytes),
            "received" => Cell::Bytes(t.received_bytes),
            "price" => Cell::Money(self.price),
            "stored" => self.stored.map_or(Cell::None, Cell::Bytes),
            "month" => self.month.map_or(Cell::None, Cell::Money),
            _ => Cell::None,
        }
    }
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let Some(pool) = &self.pool else {
            context.print(Prices::built_in());
            return Ok(0);
        };
        let prices = Prices::read(self.prices.as_deref())?;
        let pool = names::pool_of(pool)?.to_string();
        let Reply::Stats(sample) = context.ask(&pool, Request::Stats)? else {
            bail!("the node of pool '{pool}' answered something else");
        };
        let default = if self.jobs { JOB_DEFAULT } else { DEFAULT };
        let columns = choose(self.columns.as_deref(), default, COLUMNS)?;
        let vdevs = vdevs(&sample, &prices, self.internet);
        let total = total(&sample, &vdevs);
        let mut lines = Vec::new();
        if self.jobs {
            lines = jobs(&sample, &prices, self.internet, &total);
        }
        lines.push(total);
        if self.vdevs {
            lines.extend(vdevs.iter().map(|vdev| Line { name: format!("  {}", vdev.name), ..vdev.clone() }));
        }
        let mut table = Table::new(columns.clone());
        for line in &lines {
            table.row(columns.iter().map(|column| line.cell(column)).collect());
        }
        context.print(&table.render(&self.style));
        if !self.style.scripted && !self.style.json {
            context.print(&sources(&sample, &prices));
        }
        Ok(0)
    }
}

/// Each vdev.
fn vdevs(sample: &Sample, prices: &Prices, internet: bool) -> Vec<Line> {
    let line = |vdev: &tarn_pool::VdevStatus| {
        let stats = vdev.stats.as_ref()?;
        Some(Line {
            name: vdev.url.split('?').next().unwrap_or(&vdev.url).to_string(),
            provider: Some(stats.provider.name().to_string()),
            tally: stats.charged,
            price: prices.requests(stats.provider, &stats.charged, internet),
            stored: Some(vdev.allocated),
            month: Some(prices.month(stats.provider, vdev.allocated)),
        })
    };
    sample.pool.vdevs.iter().filter_map(line).collect()
}

/// All of them together.
fn total(sample: &Sample, vdevs: &[Line]) -> Line {
    let first = vdevs.first().and_then(|vdev| vdev.provider.clone());
    Line {
        name: sample.pool.name.clone(),
        provider: first.filter(|first| vdevs.iter().all(|vdev| vdev.provider.as_ref() == Some(first))),
        tally: vdevs.iter().fold(TallyStats::default(), |sum, vdev| sum.and(&vdev.tally)),
        price: vdevs.iter().map(|vdev| vdev.price).sum(),
        stored: Some(vdevs.iter().filter_map(|vdev| vdev.stored).sum()),
        month: Some(vdevs.iter().filter_map(|vdev| vdev.month).sum()),
    }
}

/// What each job caused, and what is left: together they are the total.
fn jobs(sample: &Sample, prices: &Prices, internet: bool, total: &Line) -> Vec<Line> {
    let price = |job: &tarn_base::JobStats| {
        let each = Provider::ALL.iter().zip(&job.tallies);
        each.map(|(provider, tally)| prices.requests(*provider, tally, internet)).sum()
    };
    let line = |job: &tarn_base::JobStats| Line {
        name: job.name.clone(),
        tally: job.requests(),
        price: price(job),
        ..Line::default()
    };
    let mut lines: Vec<Line> =
        sample.jobs.iter().map(line).filter(|line| line.tally.requests() > 0).collect();
    lines.sort_by_key(|line| std::cmp::Reverse((line.price, line.tally.requests())));
    let caused = lines.iter().fold(TallyStats::default(), |sum, line| sum.and(&line.tally));
    lines.push(Line {
        name: NOBODY.into(),
        tally: total.tally.since(&caused),
        price: total.price.saturating_sub(lines.iter().map(|line| line.price).sum()),
        ..Line::default()
    });
    lines
}

/// Where the prices are from, a line for each provider that the pool has.
fn sources(sample: &Sample, prices: &Prices) -> String {
    let stats = || sample.pool.vdevs.iter().filter_map(|vdev| vdev.stats.as_ref());
    let lines =
        Provider::ALL.into_iter().filter(|p| stats().any(|s| s.provider == *p)).filter_map(|provider| {
            let list = prices.of(provider)?;
            let (date, currency) = (&prices.date, &prices.currency);
            Some(format!(
                "{}: {currency}, {}, as of {date}; compare {}\n",
                provider.name(),
                list.what,
                list.source
            ))
        });
    lines.collect()
}
