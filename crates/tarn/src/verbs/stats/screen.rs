//! A page of a terminal, drawn over the one before. A pool of 12 vdevs fits 80 columns and 24 lines.

use super::figures::{Figures, VdevFigures};
use crate::context::Context;
use crate::moment;
use crate::size::{bytes, count, nanoseconds};
use crate::telemetry::Sample;
use console::Term;
use tarn_base::HistogramStats;

/// Columns of a vdev's name.
const NAME: usize = 22;

/// The terminal.
#[derive(Default)]
pub struct Screen {
    drawn: bool,
}

impl Screen {
    pub fn show(&mut self, context: &Context, text: &str) {
        let (height, width) = Term::stdout().size();
        let mut out = String::from(if self.drawn { "\x1b[H" } else { "\x1b[2J\x1b[H" });
        self.drawn = true;
        for line in text.lines().take(usize::from(height).saturating_sub(1)) {
            out.extend(line.chars().take(usize::from(width)));
            out += "\x1b[K\n";
        }
        out += "\x1b[J";
        context.print(&out);
    }
}

/// What is drawn.
pub fn page(now: &Sample, before: Option<&Sample>) -> String {
    let f = Figures::between(before, now);
    let per = |n: u64| bytes(f.rate(n)) + "/s";
    let ops = |n: u64| count(f.rate(n)) + "/s";
    let p = |times: &HistogramStats| {
        let at = |part| nanoseconds(times.quantile_us(part) * 1000);
        format!("p50 {} p99 {}", at(0.5), at(0.99))
    };
    let hit = f.hit().map_or("-".into(), |hit| format!("{hit}%"));
    let pool = &now.pool;
    let free = if pool.free >= tarn_pool::UNLIMITED / 2 { "-".into() } else { bytes(pool.free) };
    let span = if before.is_some() { "" } else { "  since it was opened" };
    let mut out = format!(
        "{} {}  alloc {} free {}  {}{span}\n",
        pool.name,
        pool.state,
        bytes(pool.allocated),
        free,
        moment::local(now.time_ms)
    );
    out += &format!(
        "read  {:>8} {:>7}  {:<22} arc {} of {} hit {hit}\n",
        per(f.read_bytes),
        ops(f.reads),
        p(&f.read_times),
        bytes(f.arc),
        bytes(f.arc_max)
    );
    out += &format!(
        "write {:>8} {:>7}  {:<22} dirty {} of {} flying {}\n",
        per(f.write_bytes),
        ops(f.writes),
        p(&f.write_times),
        bytes(f.dirty),
        bytes(f.dirty_max),
        f.flights
    );
    out += &format!(
        "txg   {} open rows {}  synced {:.1}/s rows {}  {}\n",
        f.txg,
        count(f.open_rows),
        f.txgs as f64 / f.seconds(),
        ops(f.rows),
        p(&f.sync_times)
    );
    let calls = f.calls.iter().map(|(name, n)| (name, f.rate(*n))).filter(|(_, n)| *n > 0).take(5);
    let calls: Vec<String> = calls.map(|(name, n)| format!("{name} {}", count(n))).collect();
    let calls = if calls.is_empty() { "-".into() } else { calls.join("  ") };
    out += &format!("fuse  {calls}  waiting {}\n\n", f.calls_waiting);
    out + &vdevs(&f)
}

fn vdevs(f: &Figures) -> String {
    let line = |name: &str, c: [String; 10]| {
        let [get, put, del, read, write, get99, put99, err, wait, act] = c;
        format!(
            "{name:<NAME$} {get:>5} {put:>5} {del:>4} {read:>5} {write:>5} {get99:>6} {put99:>6} {err:>4} {wait:>4} {act:>4}\n"
        )
    };
    let head =
        ["get", "put", "del", "read", "write", "get99", "put99", "err", "wait", "act"].map(String::from);
    let mut out = line("vdev, by the second", head);
    for vdev in f.vdevs.iter().chain([&f.all]) {
        let shown =
            ["get", "put", "delete", "read", "write", "read_p99", "write_p99", "errors", "pending", "active"];
        out += &line(&name(vdev), shown.map(|column| vdev.cell(column).show(false)));
    }
    out
}

/// The end of a name tells vdevs apart; one that fails says so instead of where it is.
fn name(vdev: &VdevFigures) -> String {
    let state =
        if matches!(vdev.state.as_str(), "ONLINE") { String::new() } else { format!(" {}", vdev.state) };
    let room = NAME - state.len().min(NAME - 1);
    let len = vdev.name.chars().count();
    let short: String = match len > room {
        true => std::iter::once('~').chain(vdev.name.chars().skip(len + 1 - room)).collect(),
        false => vdev.name.clone(),
    };
    short + &state
}
