use crate::context::Context;
use crate::control::report::{IoReport, PoolReport, QueueReport, VdevReport};
use crate::table::{Cell, columns};
use crate::verbs::interval::plan;
use anyhow::Result;
use serde_json::json;
use std::time::Instant;

/// Show capacity, operations and bandwidth of pools and vdevs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first figures are averages since the pool was opened, the next ones of each interval. Requests (-r) are counted,
not averaged.

Example:
  tarn pool iostat tank
  tarn pool iostat -v tank 2 5")]
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
    /// For scripts: no header, columns separated by one tab
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    exact: bool,
    /// Leave out the averages since the pool was opened
    #[arg(short = 'y')]
    skip_first: bool,
    /// Print JSON, one array a report
    #[arg(long)]
    json: bool,
    /// Pools; all when none is named. Then seconds between reports, then how many
    #[arg(value_name = "POOL... [INTERVAL [COUNT]]")]
    words: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let plan = plan(&self.words)?;
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
            self.show(context, before.iter().map(|pool| (pool, pool.clone(), pool.open_ms as f64 / 1000.0)))?;
        }
        let mut shown = 1;
        while let Some(interval) = plan.interval
            && last.is_none_or(|last| shown < last)
        {
            std::thread::sleep(interval.saturating_sub(taken.elapsed()));
            let now = take()?;
            let seconds = taken.elapsed().as_secs_f64();
            taken = Instant::now();
            let rows = now.iter().zip(&before).map(|(now, before)| (now, difference(now, before), seconds));
            self.show(context, rows)?;
            before = now;
            shown += 1;
        }
        Ok(status)
    }

    /// Shows one report: for each pool its state, the counters to show, and the seconds that they cover.
    fn show<'a>(
        &self,
        context: &Context,
        pools: impl Iterator<Item = (&'a PoolReport, PoolReport, f64)>,
    ) -> Result<()> {
        let mut rows = Vec::new();
        for (pool, counters, seconds) in pools {
            rows.push(self.row(&pool.name, &total(&counters), seconds, (pool.allocated, Some(pool.free))));
            for vdev in counters.vdevs.iter().filter(|_| self.vdevs) {
                let room = (vdev.allocated, vdev.free);
                rows.push(self.row(&format!("  {}", vdev.name), vdev, seconds, room));
            }
            if self.vdevs && !counters.caches.is_empty() {
                // As zpool has it; for scripts the caches alone.
                if !self.json && !self.scripted {
                    let blank = self.heads().len() - 1;
                    rows.push(
                        [Cell::text("cache")].into_iter().chain((0..blank).map(|_| Cell::None)).collect(),
                    );
                }
                for cache in &counters.caches {
                    let room = (cache.allocated, cache.free);
                    rows.push(self.row(&format!("  {}", cache.name), cache, seconds, room));
                }
            }
        }
        context.print(&self.render(&rows)?);
        Ok(())
    }

    fn row(
        &self,
        name: &str,
        io: &VdevReport,
        seconds: f64,
        (allocated, free): (u64, Option<u64>),
    ) -> Vec<Cell> {
        let rate = |n: u64| (n as f64 / seconds.max(0.001)).round() as u64;
        let mut row = vec![
            Cell::text(name),
            Cell::Bytes(allocated),
            free.map_or(Cell::None, Cell::Bytes),
            Cell::Count(rate(io.read.operations)),
            Cell::Count(rate(io.write.operations)),
            Cell::Bytes(rate(io.read.bytes)),
            Cell::Bytes(rate(io.write.bytes)),
        ];
        if self.latency {
            let waits = [
                io.read.mean_ns,
                io.write.mean_ns,
                io.read.p50_ns,
                io.write.p50_ns,
                io.read.p99_ns,
                io.write.p99_ns,
            ];
            row.extend(waits.map(Cell::Nanos));
        }
        if self.requests {
            row.extend(io.queues.iter().map(|q| Cell::Count(q.requests)));
        }
        if self.queues {
            row.extend(io.queues.iter().flat_map(|q| [Cell::Count(q.pending), Cell::Count(q.active)]));
        }
        row
    }

    fn render(&self, rows: &[Vec<Cell>]) -> Result<String> {
        let heads = self.heads();
        if self.json {
            let number = |cell: &Cell| cell.show(true).parse::<u64>().map_or(json!(null), |n| json!(n));
            let object = |row: &Vec<Cell>| {
                let mut object = serde_json::Map::new();
                object.insert("name".into(), json!(row[0].show(true).trim()));
                let named = heads.iter().zip(row).skip(1);
                object.extend(named.map(|((_, key, _), cell)| (key.to_string(), number(cell))));
                serde_json::Value::Object(object)
            };
            return Ok(format!("{:#}\n", json!(rows.iter().map(object).collect::<Vec<_>>())));
        }
        let mut lines: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|c| c.show(self.exact)).collect()).collect();
        if self.scripted {
            return Ok(lines.into_iter().map(|l| l.join("\t") + "\n").collect());
        }
        lines.insert(0, heads.iter().map(|(group, _, _)| group.to_string()).collect());
        lines.insert(1, heads.iter().map(|(_, _, head)| head.to_string()).collect());
        let right: Vec<bool> = (0..heads.len()).map(|i| i > 0).collect();
        Ok(columns(&lines, &right))
    }

    /// For each column: the upper header, the name in JSON, the lower header.
    fn heads(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        let mut heads = vec![
            ("", "name", "pool"),
            ("capacity", "allocated", "alloc"),
            ("", "free", "free"),
            ("operations", "read_operations", "read"),
            ("", "write_operations", "write"),
            ("bandwidth", "read_bytes", "read"),
            ("", "write_bytes", "write"),
        ];
        if self.latency {
            heads.extend([
                ("mean_wait", "read_mean_ns", "read"),
                ("", "write_mean_ns", "write"),
                ("p50_wait", "read_p50_ns", "read"),
                ("", "write_p50_ns", "write"),
                ("p99_wait", "read_p99_ns", "read"),
                ("", "write_p99_ns", "write"),
            ]);
        }
        if self.requests {
            heads.extend([
                ("requests", "get_requests", "get"),
                ("", "put_requests", "put"),
                ("", "delete_requests", "del"),
                ("", "list_requests", "list"),
                ("", "sync_requests", "sync"),
            ]);
        }
        if self.queues {
            heads.extend([
                ("get", "get_pending", "pend"),
                ("", "get_active", "activ"),
                ("put", "put_pending", "pend"),
                ("", "put_active", "activ"),
                ("delete", "delete_pending", "pend"),
                ("", "delete_active", "activ"),
                ("list", "list_pending", "pend"),
                ("", "list_active", "activ"),
                ("sync", "sync_pending", "pend"),
                ("", "sync_active", "activ"),
            ]);
        }
        heads
    }
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
        let args = Args {
            vdevs: false,
            latency: false,
            queues: true,
            requests: true,
            scripted: false,
            exact: true,
            skip_first: false,
            json: true,
            words: Vec::new(),
        };
        let row = args.row("tank", &total(&pool), 1.0, (0, None));
        let shown: serde_json::Value = serde_json::from_str(&args.render(&[row]).unwrap()).unwrap();
        for (n, class) in ["get", "put", "delete", "list", "sync"].into_iter().enumerate() {
            let n = n as u64 + 1;
            assert_eq!(shown[0][format!("{class}_pending")], 2 * n);
            assert_eq!(shown[0][format!("{class}_active")], 20 * n);
            assert_eq!(shown[0][format!("{class}_requests")], 200 * n);
        }
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
