//! Figures of an interval: what two samples say together, by the second.

use crate::table::Cell;
use crate::telemetry::{DatasetSample, Sample};
use tarn_base::{HistogramStats, JobStats};
use tarn_bucket::guard::OperationStats;
use tarn_bucket::{Operation, StatsSnapshot};
use tarn_pool::PoolStatus;

/// Columns of pools and vdevs.
pub const COLUMNS: &[&[&str]] = &[
    &["name"],
    &["reads"],
    &["writes"],
    &["read"],
    &["write"],
    &["read_p50"],
    &["read_p99"],
    &["write_p50"],
    &["write_p99"],
    &["hit"],
    &["arc"],
    &["l2hit"],
    &["l2read"],
    &["dirty"],
    &["txg"],
    &["sync_p50"],
    &["sync_p99"],
    &["get"],
    &["put"],
    &["delete", "del"],
    &["list"],
    &["errors"],
    &["pending"],
    &["active"],
    &["limit"],
];
pub const DEFAULT: &[&str] = &[
    "name",
    "reads",
    "writes",
    "read",
    "write",
    "read_p99",
    "write_p99",
    "hit",
    "dirty",
    "txg",
    "get",
    "put",
    "active",
];
pub const JOB_COLUMNS: &[&[&str]] = &[
    &["name", "job"],
    &["operations", "ops"],
    &["reads"],
    &["writes"],
    &["read"],
    &["write"],
    &["get"],
    &["put"],
    &["delete", "del"],
    &["list"],
    &["sent"],
    &["received"],
];
pub const JOB_DEFAULT: &[&str] =
    &["name", "operations", "reads", "writes", "read", "write", "get", "put", "delete"];

/// What happened to counters in a time.
#[derive(Clone, Copy)]
struct Rate {
    seconds: f64,
}

impl Rate {
    fn of(self, n: u64) -> u64 {
        (n as f64 / self.seconds.max(0.001)).round() as u64
    }

    fn count(self, n: u64) -> Cell {
        Cell::Count(self.of(n))
    }

    fn bytes(self, n: u64) -> Cell {
        Cell::Bytes(self.of(n))
    }
}

fn nanos(times: &HistogramStats, part: f64) -> Cell {
    Cell::Nanos(times.quantile_us(part) * 1000)
}

/// One vdev, or all together.
pub struct VdevFigures {
    pub name: String,
    rate: Rate,
    pub state: String,
    /// Requests by class: get and head, put and create, delete, list.
    pub get: u64,
    pub put: u64,
    pub delete: u64,
    pub list: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub errors: u64,
    pub pending: u64,
    pub active: u64,
    pub limit: u64,
    pub get_times: HistogramStats,
    pub put_times: HistogramStats,
}

impl VdevFigures {
    fn new(name: &str, state: String, rate: Rate) -> VdevFigures {
        VdevFigures {
            name: name.into(),
            rate,
            state,
            get: 0,
            put: 0,
            delete: 0,
            list: 0,
            read_bytes: 0,
            write_bytes: 0,
            errors: 0,
            pending: 0,
            active: 0,
            limit: 0,
            get_times: HistogramStats::default(),
            put_times: HistogramStats::default(),
        }
    }

    fn add(&mut self, before: Option<&StatsSnapshot>, now: &StatsSnapshot) {
        self.pending += now.queued;
        self.active += now.busy;
        self.limit += now.concurrency as u64;
        for (operation, stats) in &now.operations {
            let old = before.and_then(|before| before.operations.get(operation));
            let since = |of: fn(&OperationStats) -> u64| of(stats).saturating_sub(old.map_or(0, of));
            let (requests, bytes) = (since(|o| o.requests), since(|o| o.bytes));
            let times = old.map_or_else(|| stats.latency.clone(), |old| stats.latency.since(&old.latency));
            self.errors += since(|o| o.errors);
            match operation {
                Operation::Get => {
                    self.get += requests;
                    self.read_bytes += bytes;
                    self.get_times = self.get_times.and(&times);
                }
                Operation::Head => self.get += requests,
                Operation::Put | Operation::Create => {
                    self.put += requests;
                    self.write_bytes += bytes;
                    self.put_times = self.put_times.and(&times);
                }
                Operation::Delete => self.delete += requests,
                Operation::List => self.list += requests,
                Operation::Sync => {}
            }
        }
    }

    pub fn cell(&self, column: &str) -> Cell {
        match column {
            "name" => Cell::text(&self.name),
            "read" => self.rate.bytes(self.read_bytes),
            "write" => self.rate.bytes(self.write_bytes),
            "read_p50" => nanos(&self.get_times, 0.5),
            "read_p99" => nanos(&self.get_times, 0.99),
            "write_p50" => nanos(&self.put_times, 0.5),
            "write_p99" => nanos(&self.put_times, 0.99),
            "get" => self.rate.count(self.get),
            "put" => self.rate.count(self.put),
            "delete" => self.rate.count(self.delete),
            "list" => self.rate.count(self.list),
            "errors" => Cell::Count(self.errors),
            "pending" => Cell::Count(self.pending),
            "active" => Cell::Count(self.active),
            "limit" => Cell::Count(self.limit),
            _ => Cell::None,
        }
    }
}

/// All of a pool, or of one dataset where the sample has no other.
pub struct Figures {
    name: String,
    rate: Rate,
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub arc: u64,
    pub arc_max: u64,
    /// Records that caches had and had not, of those that were not in memory.
    l2_hits: u64,
    l2_misses: u64,
    l2_read_bytes: u64,
    pub dirty: u64,
    pub dirty_max: u64,
    pub flights: u64,
    /// Of the dataset whose is the highest.
    pub txg: u64,
    pub open_rows: u64,
    pub txgs: u64,
    pub rows: u64,
    pub sync_times: HistogramStats,
    pub read_times: HistogramStats,
    pub write_times: HistogramStats,
    /// Requests of the kernel by operation, the most frequent first.
    pub calls: Vec<(String, u64)>,
    pub calls_waiting: u64,
    pub vdevs: Vec<VdevFigures>,
    pub all: VdevFigures,
}

impl Figures {
    /// What happened between two samples, or since the pool was opened.
    pub fn between(before: Option<&Sample>, now: &Sample) -> Figures {
        // A pool that was opened anew meanwhile counts from nothing.
        let before = before.filter(|before| before.open_ms <= now.open_ms);
        let seconds = (now.open_ms - before.map_or(0, |before| before.open_ms)) as f64 / 1000.0;
        let rate = Rate { seconds };
        let mut vdevs = Vec::new();
        let mut all = VdevFigures::new("total", now.pool.state.to_string(), rate);
        for vdev in &now.pool.vdevs {
            let short = vdev.url.split('?').next().unwrap_or(&vdev.url);
            let mut figures = VdevFigures::new(short, format!("{:?}", vdev.state).to_uppercase(), rate);
            if let Some(stats) = &vdev.stats {
                let old =
                    before.and_then(|before| before.pool.vdevs.iter().find(|old| old.guid == vdev.guid));
                let old = old.and_then(|old| old.stats.as_ref());
                figures.add(old, stats);
                all.add(old, stats);
            }
            vdevs.push(figures);
        }
        let mut out = Figures::empty(now, rate, vdevs, all);
        out.add_caches(before.map(|before| &before.pool), &now.pool);
        for (name, dataset) in &now.datasets {
            out.add(before.and_then(|before| before.datasets.get(name)), dataset);
        }
        out.calls.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        out
    }

    fn empty(now: &Sample, rate: Rate, vdevs: Vec<VdevFigures>, all: VdevFigures) -> Figures {
        let only = now.datasets.keys().next().filter(|_| now.datasets.len() == 1);
        Figures {
            name: only.cloned().unwrap_or_else(|| now.pool.name.clone()),
            rate,
            reads: 0,
            writes: 0,
            read_bytes: 0,
            write_bytes: 0,
            hits: 0,
            misses: 0,
            arc: now.arc.arc,
            arc_max: now.arc.arc_max,
            l2_hits: 0,
            l2_misses: 0,
            l2_read_bytes: 0,
            dirty: 0,
            dirty_max: 0,
            flights: 0,
            txg: 0,
            open_rows: 0,
            txgs: 0,
            rows: 0,
            sync_times: HistogramStats::default(),
            read_times: HistogramStats::default(),
            write_times: HistogramStats::default(),
            calls: Vec::new(),
            calls_waiting: 0,
            vdevs,
            all,
        }
    }

    fn add_caches(&mut self, before: Option<&PoolStatus>, now: &PoolStatus) {
        self.l2_misses = now.cache_misses.saturating_sub(before.map_or(0, |before| before.cache_misses));
        for cache in &now.caches {
            let old = before.and_then(|before| before.caches.iter().find(|old| old.guid == cache.guid));
            self.l2_hits += cache.hits.saturating_sub(old.map_or(0, |old| old.hits));
            self.l2_read_bytes += cache.read_bytes.saturating_sub(old.map_or(0, |old| old.read_bytes));
        }
    }

    fn add(&mut self, before: Option<&DatasetSample>, now: &DatasetSample) {
        let since = |of: fn(&DatasetSample) -> u64| of(now).saturating_sub(before.map_or(0, of));
        self.reads += since(|d| d.client.reads);
        self.writes += since(|d| d.client.writes);
        self.read_bytes += since(|d| d.client.read_bytes);
        self.write_bytes += since(|d| d.client.write_bytes);
        self.hits += since(|d| d.client.record_hits);
        self.misses += since(|d| d.client.record_misses);
        self.txgs += since(|d| d.target.as_ref().map_or(0, |t| t.mdt.txgs));
        self.rows += since(|d| d.target.as_ref().map_or(0, |t| t.mdt.rows_synced));
        self.dirty += now.client.dirty_bytes;
        self.dirty_max += now.dirty_max;
        self.flights += now.client.segments_in_flight;
        if let Some(target) = &now.target {
            let before = before.and_then(|before| before.target.as_ref());
            self.txg = self.txg.max(target.mdt.txg);
            self.open_rows += target.mdt.open_rows;
            let times = &target.mdt.txg_sync;
            let sync = before.map_or_else(|| times.clone(), |before| times.since(&before.mdt.txg_sync));
            self.sync_times = self.sync_times.and(&sync);
        }
        let Some(fuse) = &now.fuse else { return };
        self.calls_waiting += fuse.waiting;
        for (name, stats) in &fuse.operations {
            let old = before.and_then(|before| before.fuse.as_ref()?.operations.get(name));
            let times = old.map_or_else(|| stats.times.clone(), |old| stats.times.since(&old.times));
            match name.as_str() {
                "read" => self.read_times = self.read_times.and(&times),
                "write" => self.write_times = self.write_times.and(&times),
                _ => {}
            }
            match self.calls.iter_mut().find(|(known, _)| known == name) {
                Some((_, count)) => *count += times.count,
                None => self.calls.push((name.clone(), times.count)),
            }
        }
    }

    pub fn rate(&self, n: u64) -> u64 {
        self.rate.of(n)
    }

    /// Seconds that the figures cover.
    pub fn seconds(&self) -> f64 {
        self.rate.seconds.max(0.001)
    }

    /// Percent of records that were in memory.
    pub fn hit(&self) -> Option<u64> {
        (self.hits * 100).checked_div(self.hits + self.misses)
    }

    /// A column of the line for all.
    pub fn pool(&self, column: &str) -> Cell {
        match column {
            "name" => Cell::text(&self.name),
            "reads" => self.rate.count(self.reads),
            "writes" => self.rate.count(self.writes),
            "read" => self.rate.bytes(self.read_bytes),
            "write" => self.rate.bytes(self.write_bytes),
            "read_p50" => nanos(&self.read_times, 0.5),
            "read_p99" => nanos(&self.read_times, 0.99),
            "write_p50" => nanos(&self.write_times, 0.5),
            "write_p99" => nanos(&self.write_times, 0.99),
            "hit" => self.hit().map_or(Cell::None, Cell::Percent),
            "arc" => Cell::Bytes(self.arc),
            "l2hit" => (self.l2_hits * 100)
                .checked_div(self.l2_hits + self.l2_misses)
                .map_or(Cell::None, Cell::Percent),
            "l2read" => self.rate.bytes(self.l2_read_bytes),
            "dirty" => Cell::Bytes(self.dirty),
            "txg" => Cell::Number(self.txg),
            "sync_p50" => nanos(&self.sync_times, 0.5),
            "sync_p99" => nanos(&self.sync_times, 0.99),
            other => self.all.cell(other),
        }
    }
}

/// One job in an interval.
pub struct JobFigures {
    job: JobStats,
    rate: Rate,
}

/// Every job that did something, the busiest first.
pub fn jobs(before: Option<&Sample>, now: &Sample) -> Vec<JobFigures> {
    let before = before.filter(|before| before.open_ms <= now.open_ms);
    let rate = Rate { seconds: (now.open_ms - before.map_or(0, |before| before.open_ms)) as f64 / 1000.0 };
    let mut jobs: Vec<JobFigures> = now
        .jobs
        .iter()
        .map(|job| {
            let old = before.and_then(|before| before.jobs.iter().find(|old| old.name == job.name));
            JobFigures { job: old.map_or_else(|| job.clone(), |old| job.since(old)), rate }
        })
        .collect();
    jobs.sort_by_key(|figures| {
        let job = &figures.job;
        std::cmp::Reverse((job.read_bytes + job.write_bytes, job.operations))
    });
    jobs
}

impl JobFigures {
    pub fn cell(&self, column: &str) -> Cell {
        let (job, rate) = (&self.job, self.rate);
        let requests = job.requests();
        match column {
            "name" => Cell::text(&job.name),
            "operations" => rate.count(job.operations),
            "reads" => rate.count(job.reads),
            "writes" => rate.count(job.writes),
            "read" => rate.bytes(job.read_bytes),
            "write" => rate.bytes(job.write_bytes),
            "get" => rate.count(requests.get + requests.head),
            "put" => rate.count(requests.put),
            "delete" => rate.count(requests.delete),
            "list" => rate.count(requests.list),
            "sent" => rate.bytes(requests.sent_bytes),
            "received" => rate.bytes(requests.received_bytes),
            _ => Cell::None,
        }
    }
}
