use crate::context::Context;
use crate::control::report::{IoReport, PoolReport, QueueReport, VdevReport};
use crate::table::{Cell, Style, Table, choose, columns};
use crate::verbs::interval::plan;
use anyhow::Result;
use std::time::Instant;

/// Show capacity, operations and bandwidth of pools and vdevs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first figures are averages since the pool was opened, the next ones of each interval. Requests (-r) are counted,
not averaged.

Columns (-o), whatever the other flags: name, allocated, free, read_operations, write_operations, read_bytes, write_bytes;
read_mean, write_mean, read_p50, write_p50, read_p99, write_p99; and for each of get, put, delete, list, sync as in
get_requests, get_pending, get_active.

Example:
  tarn pool iostat tank
  tarn pool iostat -v tank 2 5
  tarn pool iostat -H -p -o name,read_bytes,write_bytes tank 1")]
pub struct Args {
    /// Show every vdev
    #[arg(short = 'v')]
    vdevs: bool,
    /// Show latencies
    #[arg(short = 'l')]
    latency: bool,
    /// Show requests by class: how many wait for their turn, and how many are under way
    #[arg(short = 'q')]
    queues: bool,
    /// Show how many requests were made, by class: what a store charges for
    #[arg(short = 'r')]
    requests: bool,
    #[command(flatten)]
    style: Style,
    /// Columns, separated by commas
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    /// Leave out the averages since the pool was opened
    #[arg(short = 'y')]
    skip_first: bool,
    /// Pools; all when none is named. Then seconds between reports, then how many
    #[arg(value_name = "POOL... [INTERVAL [COUNT]]")]
    words: Vec<String>,
}

/// When a column is shown, unless columns are chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    Always,
    Latency,
    Requests,
    Queues,
}

/// For each column: the upper header, its name, the lower header. [`Args::row`] has the cells in this order.
const COLUMNS: &[(Set, &str, &str, &str)] = &[
    (Set::Always, "", "name", "pool"),
    (Set::Always, "capacity", "allocated", "alloc"),
    (Set::Always, "", "free", "free"),
    (Set::Always, "operations", "read_operations", "read"),
    (Set::Always, "", "write_operations", "write"),
    (Set::Always, "bandwidth", "read_bytes", "read"),
    (Set::Always, "", "write_bytes", "write"),
    (Set::Latency, "mean_wait", "read_mean_ns", "read"),
    (Set::Latency, "", "write_mean_ns", "write"),
    (Set::Latency, "p50_wait", "read_p50_ns", "read"),
    (Set::Latency, "", "write_p50_ns", "write"),
    (Set::Latency, "p99_wait", "read_p99_ns", "read"),
    (Set::Latency, "", "write_p99_ns", "write"),
    (Set::Requests, "requests", "get_requests", "get"),
    (Set::Requests, "", "put_requests", "put"),
    (Set::Requests, "", "delete_requests", "del"),
    (Set::Requests, "", "list_requests", "list"),
    (Set::Requests, "", "sync_requests", "sync"),
    (Set::Queues, "get", "get_pending", "pend"),
    (Set::Queues, "", "get_active", "activ"),
    (Set::Queues, "put", "put_pending", "pend"),
    (Set::Queues, "", "put_active", "activ"),
    (Set::Queues, "delete", "delete_pending", "pend"),
    (Set::Queues, "", "delete_active", "activ"),
    (Set::Queues, "list", "list_pending", "pend"),
    (Set::Queues, "", "list_active", "activ"),
    (Set::Queues, "sync", "sync_pending", "pend"),
    (Set::Queues, "", "sync_active", "activ"),
];

/// A column's name, and a shorter one if it has one.
fn names(name: &'static str) -> Vec<&'static str> {
    let short = match name {
        "allocated" => Some("alloc"),
        name => name.strip_suffix("_ns"),
    };
    std::iter::once(name).chain(short).collect()
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let plan = plan(&self.words)?;
        let shown = self.shown()?;
        let pools = context.pool_names(&plan.names)?;
        let (mut before, status) = context.of_each(&pools, |pool| context.pool_report(pool))?;
        let pools: Vec<String> = before.iter().map(|pool| pool.name.clone()).collect();
        let take = || pools.iter().map(|p| context.pool_report(p)).collect::<Result<Vec<_>>>();
        let last = match (plan.interval, plan.count) {
            (None, _) => Some(1),
            (Some(_), count) => count,
        };
        let mut taken = Instant::now();
        if !self.skip_first || plan.interval.is_none() {
            let rows = before.iter().map(|pool| (pool, pool.clone(), pool.open_ms as f64 / 1000.0));
            self.show(context, &shown, rows);
        }
        let mut reports = 1;
        while let Some(interval) = plan.interval
            && last.is_none_or(|last| reports < last)
        {
            std::thread::sleep(interval.saturating_sub(taken.elapsed()));
            let now = take()?;
            let seconds = taken.elapsed().as_secs_f64();
            taken = Instant::now();
            let rows = now.iter().zip(&before).map(|(now, before)| (now, difference(now, before), seconds));
            self.show(context, &shown, rows);
            before = now;
            reports += 1;
        }
        Ok(status)
    }

    /// Shows one report: for each pool its state, the counters to show, and the seconds that they cover.
    fn show<'a>(
        &self,
        context: &Context,
        shown: &[usize],
        pools: impl Iterator<Item = (&'a PoolReport, PoolReport, f64)>,
    ) {
        let mut rows = Vec::new();
        for (pool, counters, seconds) in pools {
            let room = (pool.allocated, Some(pool.free));
            rows.push(row(Cell::text(&pool.name), &total(&counters), seconds, room));
            for vdev in counters.vdevs.iter().filter(|_| self.vdevs) {
                let room = (vdev.allocated, vdev.free);
                rows.push(row(Cell::Below(vdev.name.clone()), vdev, seconds, room));
            }
            if self.vdevs && !counters.caches.is_empty() {
                // As zpool has it; for scripts the caches alone.
                if !self.plain() {
                    let blank = (1..COLUMNS.len()).map(|_| Cell::None);
                    rows.push([Cell::text("cache")].into_iter().chain(blank).collect());
                }
                for cache in &counters.caches {
                    let room = (cache.allocated, cache.free);
                    rows.push(row(Cell::Below(cache.name.clone()), cache, seconds, room));
                }
            }
        }
        context.print(&self.render(shown, &rows));
    }

    /// A table as other listings have it, not the two headers and the caches' own line that zpool has.
    fn plain(&self) -> bool {
        self.style.json || self.style.scripted || self.columns.is_some()
    }

    /// Which of [`COLUMNS`] are shown.
    fn shown(&self) -> Result<Vec<usize>> {
        let set = |set| match set {
            Set::Always => true,
            Set::Latency => self.latency,
            Set::Requests => self.requests,
            Set::Queues => self.queues,
        };
        let default: Vec<&str> = COLUMNS.iter().filter(|c| set(c.0)).map(|c| c.2).collect();
        let names: Vec<Vec<&str>> = COLUMNS.iter().map(|c| names(c.2)).collect();
        let names: Vec<&[&str]> = names.iter().map(Vec::as_slice).collect();
        let chosen = choose(self.columns.as_deref(), &default, &names)?;
        Ok(chosen.iter().filter_map(|name| COLUMNS.iter().position(|c| c.2 == name)).collect())
    }

    fn render(&self, shown: &[usize], rows: &[Vec<Cell>]) -> String {
        let cells = |row: &Vec<Cell>| shown.iter().map(|&i| row[i].clone()).collect::<Vec<_>>();
        if self.plain() {
            let mut table = Table::new(shown.iter().map(|&i| COLUMNS[i].2));
            rows.iter().for_each(|row| table.row(cells(row)));
            return table.render(&self.style);
        }
        let mut lines = vec![
            shown.iter().map(|&i| COLUMNS[i].1.to_string()).collect(),
            shown.iter().map(|&i| COLUMNS[i].3.to_string()).collect(),
        ];
        let shown_row = |row| cells(row).iter().map(|c| c.show(self.style.exact)).collect::<Vec<_>>();
        lines.extend(rows.iter().map(shown_row));
        let right: Vec<bool> = (0..shown.len()).map(|i| i > 0).collect();
        columns(&lines, &right)
    }
}

/// All cells of a line, in the order of [`COLUMNS`].
fn row(name: Cell, io: &VdevReport, seconds: f64, (allocated, free): (u64, Option<u64>)) -> Vec<Cell> {
    let rate = |n: u64| (n as f64 / seconds.max(0.001)).round() as u64;
    let mut row = vec![
        name,
        Cell::Bytes(allocated),
        free.map_or(Cell::None, Cell::Bytes),
        Cell::Count(rate(io.read.operations)),
        Cell::Count(rate(io.write.operations)),
        Cell::Bytes(rate(io.read.bytes)),
        Cell::Bytes(rate(io.write.bytes)),
    ];
    let (read, write) = (&io.read, &io.write);
    let waits = [read.mean_ns, write.mean_ns, read.p50_ns, write.p50_ns, read.p99_ns, write.p99_ns];
    row.extend(waits.map(Cell::Nanos));
    row.extend(io.queues.iter().map(|q| Cell::Count(q.requests)));
    row.extend(io.queues.iter().flat_map(|q| [Cell::Count(q.pending), Cell::Count(q.active)]));
    row
}

/// Counters of all vdevs as one; latencies are weighted by operations, percentiles are the worst.
fn total(pool: &PoolReport) -> VdevReport {
    let sum = |side: fn(&VdevReport) -> &IoReport| {
        let all = || pool.vdevs.iter().map(side);
        let operations: u64 = all().map(|io| io.operations).sum();
        let waited: u128 = all().map(|io| u128::from(io.mean_ns) * u128::from(io.operations)).sum();
        IoReport {
            operations,
            bytes: all().map(|io| io.bytes).sum(),
            mean_ns: waited.checked_div(u128::from(operations)).unwrap_or(0) as u64,
            p50_ns: all().map(|io| io.p50_ns).max().unwrap_or(0),
            p99_ns: all().map(|io| io.p99_ns).max().unwrap_or(0),
        }
    };
    let mut queues = [QueueReport::default(); 5];
    for (class, one) in pool.vdevs.iter().flat_map(|vdev| vdev.queues.iter().enumerate()) {
        queues[class].requests += one.requests;
        queues[class].pending += one.pending;
        queues[class].active += one.active;
    }
    VdevReport { read: sum(|v| &v.read), write: sum(|v| &v.write), queues, ..VdevReport::default() }
}

/// What was counted between two reports. A pool that was opened anew meanwhile counts from nothing.
fn difference(now: &PoolReport, before: &PoolReport) -> PoolReport {
    let mut out = now.clone();
    if now.open_ms < before.open_ms {
        return out;
    }
    let known = || before.vdevs.iter().chain(&before.caches);
    for vdev in out.vdevs.iter_mut().chain(&mut out.caches) {
        if let Some(old) = known().find(|v| v.guid == vdev.guid) {
            for (new, old) in [(&mut vdev.read, &old.read), (&mut vdev.write, &old.write)] {
                new.operations = new.operations.saturating_sub(old.operations);
                new.bytes = new.bytes.saturating_sub(old.bytes);
            }
            for (new, old) in vdev.queues.iter_mut().zip(&old.queues) {
                new.requests = new.requests.saturating_sub(old.requests);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_have_a_column_for_each_class_and_add_up() {
        let queues = [1, 2, 3, 4, 5].map(|n| QueueReport { requests: 100 * n, pending: n, active: 10 * n });
        let vdev = VdevReport { queues, ..VdevReport::default() };
        let pool = pool(1000, vec![vdev.clone(), vdev]);
        let args = args(Style { json: true, ..Style::default() }, None);
        let args = Args { queues: true, requests: true, ..args };
        let row = row(Cell::text("tank"), &total(&pool), 1.0, (0, None));
        let shown = args.render(&args.shown().unwrap(), &[row]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert!(shown[0].get("read_p50_ns").is_none());
        for (n, class) in ["get", "put", "delete", "list", "sync"].into_iter().enumerate() {
            let n = n as u64 + 1;
            assert_eq!(shown[0][format!("{class}_pending")], 2 * n);
            assert_eq!(shown[0][format!("{class}_active")], 20 * n);
            assert_eq!(shown[0][format!("{class}_requests")], 200 * n);
        }
    }

    fn args(style: Style, columns: Option<&str>) -> Args {
        Args {
            vdevs: false,
            latency: false,
            queues: false,
            requests: false,
            style,
            columns: columns.map(String::from),
            skip_first: false,
            words: Vec::new(),
        }
    }

    #[test]
    fn columns_are_chosen_by_name() {
        let vdev = VdevReport {
            read: IoReport { p99_ns: 7000, ..IoReport::default() },
            queues: [QueueReport { requests: 3, ..QueueReport::default() }; 5],
            ..VdevReport::default()
        };
        let rows = [row(Cell::Below("/d1".into()), &vdev, 1.0, (5, None))];
        assert_eq!(rows[0].len(), COLUMNS.len());
        let shown = |style: Style, columns| {
            let args = args(style, columns);
            args.shown().map(|shown| args.render(&shown, &rows))
        };
        let style = Style { scripted: true, exact: true, json: false };
        let chosen = Some("name,put_requests,read_p99,alloc");
        assert_eq!(shown(style, chosen).unwrap(), "  /d1\t3\t7000\t5\n");
        let text = shown(Style::default(), Some("free,alloc")).unwrap();
        assert_eq!(text, "FREE  ALLOC\n   -     5B\n");
        assert!(shown(Style::default(), None).unwrap().trim_start().starts_with("capacity"));
        let json = shown(Style { json: true, ..Style::default() }, Some("name")).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()[0]["name"], "/d1");
        assert!(shown(Style::default(), Some("nope")).is_err());
    }

    fn pool(open_ms: u64, vdevs: Vec<VdevReport>) -> PoolReport {
        PoolReport {
            name: "tank".into(),
            guid: 1,
            state: "ONLINE".into(),
            status: None,
            action: None,
            size: 0,
            allocated: 0,
            free: 0,
            properties: vec![],
            open_ms,
            vdevs,
            caches: vec![],
            errors: vec![],
            repaired: vec![],
        }
    }

    #[test]
    fn totals_and_differences_add_up() {
        let vdev = |guid, operations, mean_ns| VdevReport {
            guid,
            read: IoReport { operations, bytes: operations * 10, mean_ns, p50_ns: mean_ns, p99_ns: mean_ns },
            ..VdevReport::default()
        };
        let before = pool(1000, vec![vdev(1, 100, 50)]);
        let now = pool(2000, vec![vdev(1, 130, 50), vdev(2, 10, 250)]);
        let sum = total(&difference(&now, &before));
        assert_eq!((sum.read.operations, sum.read.bytes, sum.read.mean_ns), (40, 400, 100));
        let reopened = pool(10, vec![vdev(1, 5, 1)]);
        assert_eq!(total(&difference(&reopened, &before)).read.operations, 5);
    }
}
