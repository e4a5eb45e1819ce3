//! A sample in the text that Prometheus reads (OpenMetrics). docs/MONITORING.md has a line for every metric.

use super::Sample;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::NoLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::Error;
use tarn_base::HistogramStats;
use tarn_bucket::guard::OperationStats;
use tarn_pool::UNLIMITED;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bounds of histograms, as powers of two of microseconds: a request to a store from 1 ms to 67 s, what the kernel asks
/// from 4 us to 67 s.
const REQUEST_BOUNDS: &[u32] = &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26];
const CALL_BOUNDS: &[u32] = &[2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26];

/// The page that a scrape gets.
pub fn exposition(sample: Sample) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposed(sample)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Exposed(Sample);

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;

/// Writes one metric after the other. What nobody has a value for is left out.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
    pool: String,
}

type Rows<T> = Vec<(Labels, T)>;

impl Page<'_> {
    fn labels(&self, own: Labels) -> Labels {
        let own = own.into_iter().map(|(name, value)| (name, escaped(&value)));
        std::iter::once(("pool", escaped(&self.pool))).chain(own).collect()
    }

    fn counter(&mut self, name: &str, unit: Option<Unit>, help: &str, rows: Rows<u64>) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Rows<u64> = rows.into_iter().map(|(own, value)| (self.labels(own), value)).collect();
        let name = format!("tarn_{name}");
        let mut metric = self.encoder.encode_descriptor(&name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in &rows {
            metric.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, unit: Option<Unit>, help: &str, rows: Rows<u64>) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Rows<u64> = rows.into_iter().map(|(own, value)| (self.labels(own), value)).collect();
        let name = format!("tarn_{name}");
        let mut metric = self.encoder.encode_descriptor(&name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in &rows {
            // Space without a limit.
            let value = if *value >= UNLIMITED / 2 { f64::INFINITY } else { *value as f64 };
            metric.encode_family(labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn times(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[u32],
        rows: Rows<&HistogramStats>,
    ) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = rows.into_iter().map(|(own, value)| (self.labels(own), value)).collect();
        let name = format!("tarn_{name}");
        let kind = MetricType::Histogram;
        let mut metric = self.encoder.encode_descriptor(&name, help, Some(&Unit::Seconds), kind)?;
        for (labels, times) in &rows {
            let mut below = 0;
            let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(bounds.len() + 1);
            for power in bounds {
                let up_to = times.below(*power);
                buckets.push(((1u64 << power) as f64 / 1e6, up_to - below));
                below = up_to;
            }
            buckets.push((f64::MAX, times.count - below));
            let sum = times.sum_us as f64 / 1e6;
            metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, times.count, &buckets, None)?;
        }
        Ok(())
    }
}

/// A label's value as it stands between quotes: the library writes it as it is.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Collector for Exposed {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let sample = &self.0;
        let mut page = Page { encoder, pool: sample.pool.name.clone() };
        pool(&mut page, sample)?;
        vdevs(&mut page, sample)?;
        queues(&mut page, sample)?;
        charges(&mut page, sample)?;
        arc(&mut page, sample)?;
        caches(&mut page, sample)?;
        client(&mut page, sample)?;
        txg(&mut page, sample)?;
        datasets(&mut page, sample)?;
        fuse(&mut page, sample)?;
        jobs(&mut page, sample)?;
        memory(&mut page, sample)
    }
}

const BYTES: Option<Unit> = Some(Unit::Bytes);

/// One value of the whole pool.
fn one(value: u64) -> Rows<u64> {
    vec![(vec![], value)]
}

fn pool(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    let version = env!("CARGO_PKG_VERSION").to_string();
    page.gauge(
        "build_info",
        None,
        "1, with the version that serves the pool",
        vec![(vec![("version", version)], 1)],
    )?;
    page.gauge(
        "open",
        Some(Unit::Seconds),
        "Since the pool was opened: counters count from there",
        one(sample.open_ms / 1000),
    )?;
    let states = ["ONLINE", "DEGRADED", "SUSPENDED", "FENCED"]
        .map(|state| (vec![("state", state.to_string())], u64::from(sample.pool.state.to_string() == state)));
    page.gauge("pool_state", None, "1 for the state that the pool is in", states.into())?;
    page.gauge("pool_size", BYTES, "What the pool can hold", one(sample.pool.total))?;
    page.gauge("pool_allocated", BYTES, "What is stored", one(sample.pool.allocated))?;
    page.gauge("pool_free", BYTES, "What new data may take", one(sample.pool.free))?;
    let damage = one(sample.pool.errors.len() as u64);
    page.gauge("pool_damage", None, "Objects that were found damaged and are not forgotten", damage)
}

/// A vdev's name without what is only needed to reach it.
fn short(url: &str) -> String {
    url.split('?').next().unwrap_or(url).to_string()
}

/// Values of each vdev.
fn by_vdev<T>(sample: &Sample, value: impl Fn(&tarn_pool::VdevStatus) -> Vec<(Labels, T)>) -> Rows<T> {
    let rows = sample.pool.vdevs.iter().flat_map(|vdev| {
        let own = |(labels, value): (Labels, T)| {
            (std::iter::once(("vdev", short(&vdev.url))).chain(labels).collect(), value)
        };
        value(vdev).into_iter().map(own).collect::<Vec<_>>()
    });
    rows.collect()
}

/// Values of each kind of request to each vdev.
fn by_operation<'a, T>(sample: &'a Sample, value: impl Fn(&'a OperationStats) -> Option<T>) -> Rows<T> {
    let mut rows = Vec::new();
    for vdev in &sample.pool.vdevs {
        for (operation, stats) in vdev.stats.iter().flat_map(|stats| &stats.operations) {
            let labels = vec![("vdev", short(&vdev.url)), ("op", operation.name().to_string())];
            rows.extend(value(stats).map(|value| (labels, value)));
        }
    }
    rows
}

fn vdevs(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    let states = by_vdev(sample, |vdev| {
        let now = format!("{:?}", vdev.state).to_uppercase();
        let all = ["ONLINE", "DEGRADED", "FAULTED"].into_iter();
        all.map(|state| (vec![("state", state.to_string())], u64::from(now == state))).collect()
    });
    page.gauge("vdev_state", None, "1 for the state that the vdev is in", states)?;
    let allocated = by_vdev(sample, |vdev| one(vdev.allocated));
    page.gauge("vdev_allocated", BYTES, "What is stored there", allocated)?;
    let size = by_vdev(sample, |vdev| vdev.capacity.into_iter().flat_map(one).collect());
    page.gauge("vdev_size", BYTES, "What it can hold, where it has a limit", size)?;
    let free = by_vdev(sample, |vdev| vdev.free.into_iter().flat_map(one).collect());
    page.gauge("vdev_free", BYTES, "What new data may take there, where it has a limit", free)?;
    let requests = by_operation(sample, |stats| Some(stats.requests));
    page.counter("vdev_requests", None, "Requests, repeated ones too", requests)?;
    let bytes = by_operation(sample, |stats| Some(stats.bytes));
    page.counter("vdev", BYTES, "Bytes of bodies, of calls that succeeded", bytes)?;
    let retries = by_operation(sample, |stats| Some(stats.retries));
    page.counter("vdev_retries", None, "Requests that repeated one that failed", retries)?;
    let hedged = by_vdev(sample, |vdev| vdev.stats.iter().flat_map(|stats| one(stats.hedged)).collect());
    page.counter("vdev_hedged", None, "Reads that were late and were sent again", hedged)?;
    let won = by_vdev(sample, |vdev| vdev.stats.iter().flat_map(|stats| one(stats.hedges_won)).collect());
    page.counter("vdev_hedges_won", None, "Of those, the ones that were answered first", won)?;
    let failures = by_operation(sample, |stats| Some(stats.failures));
    page.counter("vdev_failures", None, "Calls that failed in the end", failures)?;
    let errors = by_vdev(sample, |vdev| {
        let kinds = vdev.stats.iter().flat_map(|stats| &stats.errors);
        kinds.map(|(kind, count)| (vec![("kind", kind.clone())], *count)).collect()
    });
    page.counter("vdev_errors", None, "Requests that failed, by the kind of error", errors)?;
    let zpool = by_vdev(sample, |vdev| {
        let counts =
            [("read", vdev.read_errors), ("write", vdev.write_errors), ("checksum", vdev.checksum_errors)];
        counts.map(|(kind, count)| (vec![("type", kind.to_string())], count)).into()
    });
    page.counter("vdev_status_errors", None, "The errors of tarn pool status", zpool)?;
    let times = by_operation(sample, |stats| Some(&stats.latency).filter(|times| times.count > 0));
    page.times("vdev_duration", "From a request's sending to its answer", REQUEST_BOUNDS, times)
}

fn queues(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    let limit =
        by_vdev(sample, |vdev| vdev.stats.iter().flat_map(|stats| one(stats.concurrency as u64)).collect());
    page.gauge("queue_limit", None, "Requests that may be under way at once", limit)?;
    let in_flight = by_operation(sample, |stats| Some(stats.in_flight));
    page.gauge("queue_in_flight", None, "Requests under way", in_flight)?;
    let waiting = by_operation(sample, |stats| Some(stats.waiting));
    page.gauge("queue_waiting", None, "Calls that wait for their turn", waiting)?;
    let outage = by_vdev(sample, |vdev| one(vdev.outage.as_ref().map_or(0, |outage| outage.waiting)));
    page.gauge("queue_outage", None, "Calls that wait for the end of an outage", outage)?;
    let times = by_operation(sample, |stats| Some(&stats.queue).filter(|times| times.count > 0));
    page.times("queue_wait", "How long requests waited for their turn", REQUEST_BOUNDS, times)
}

fn charges(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    let of_store = |vdev: &tarn_pool::VdevStatus| {
        let stats = vdev.stats.as_ref()?;
        Some((("provider", stats.provider.name().to_string()), stats.charged))
    };
    let requests = by_vdev(sample, |vdev| {
        let Some((provider, tally)) = of_store(vdev) else { return Vec::new() };
        let row = |(class, count): (&str, u64)| (vec![provider.clone(), ("class", class.to_string())], count);
        classes(&tally).into_iter().map(row).collect()
    });
    page.counter("charged_requests", None, "Requests as stores count and charge them", requests)?;
    let sent = by_vdev(sample, |vdev| {
        of_store(vdev).map(|(provider, t)| (vec![provider], t.sent_bytes)).into_iter().collect()
    });
    page.counter("charged_sent", BYTES, "Bytes of bodies that were sent to a store", sent)?;
    let received = by_vdev(sample, |vdev| {
        of_store(vdev).map(|(provider, t)| (vec![provider], t.received_bytes)).into_iter().collect()
    });
    page.counter("charged_received", BYTES, "Bytes of bodies that came from a store", received)
}

/// What a tally counts, by the classes' names.
fn classes(tally: &tarn_base::TallyStats) -> [(&'static str, u64); 5] {
    [
        ("put", tally.put),
        ("list", tally.list),
        ("get", tally.get),
        ("head", tally.head),
        ("delete", tally.delete),
    ]
}

/// Values of each open dataset.
fn by_dataset<'a, T>(sample: &'a Sample, value: impl Fn(&'a super::DatasetSample) -> T) -> Rows<T> {
    let rows =
        sample.datasets.iter().map(|(name, dataset)| (vec![("dataset", name.clone())], value(dataset)));
    rows.collect()
}

/// For datasets whose metadata target is here.
fn by_target<'a, T>(sample: &'a Sample, value: impl Fn(&'a super::TargetSample) -> T) -> Rows<T> {
    let rows = sample.datasets.iter().filter_map(|(name, dataset)| {
        let target = dataset.target.as_ref()?;
        Some((vec![("dataset", name.clone())], value(target)))
    });
    rows.collect()
}

fn arc(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    page.gauge("arc", BYTES, "Records in memory", one(sample.arc.arc))?;
    page.gauge("arc_limit", BYTES, "Most that there may be", one(sample.arc.arc_max))?;
    page.gauge("arc_streams", BYTES, "Those of streams among them", one(sample.arc.streams))?;
    page.gauge("arc_reading", BYTES, "On their way from buckets into memory", one(sample.arc.reading))?;
    let hits = by_dataset(sample, |d| d.client.record_hits);
    page.counter("arc_hits", None, "Records that a read found in memory", hits)?;
    let misses = by_dataset(sample, |d| d.client.record_misses);
    page.counter("arc_misses", None, "Records that a read had to fetch or wait for", misses)?;
    let issued = by_dataset(sample, |d| d.client.prefetch_issued_bytes);
    page.counter("prefetch_issued", BYTES, "Bytes that were fetched ahead of readers", issued)?;
    let used = by_dataset(sample, |d| d.client.prefetch_used_bytes);
    page.counter("prefetch_used", BYTES, "Of these, what readers came to", used)?;
    let unused = by_dataset(sample, |d| d.client.prefetch_unused_bytes);
    page.counter("prefetch_unused", BYTES, "Of these, what was given up untouched", unused)
}

/// Values of each cache vdev.
fn by_cache(sample: &Sample, value: impl Fn(&tarn_pool::CacheStatus) -> Rows<u64>) -> Rows<u64> {
    let rows = sample.pool.caches.iter().flat_map(|cache| {
        let own = |(labels, value): (Labels, u64)| {
            (std::iter::once(("cache", cache.path.clone())).chain(labels).collect(), value)
        };
        value(cache).into_iter().map(own).collect::<Vec<_>>()
    });
    rows.collect()
}

fn caches(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    let states = by_cache(sample, |cache| {
        let now = cache.state.to_string();
        let all = ["ONLINE", "UNAVAIL", "FAULTED"].into_iter();
        all.map(|state| (vec![("state", state.to_string())], u64::from(now == state))).collect()
    });
    page.gauge("cache_state", None, "1 for the state that the cache is in", states)?;
    page.gauge("cache_size", BYTES, "Most that it takes", by_cache(sample, |cache| one(cache.size)))?;
    page.gauge("cache_used", BYTES, "What it takes on its file system", by_cache(sample, |c| one(c.used)))?;
    page.counter("cache_hits", None, "Records that it had", by_cache(sample, |cache| one(cache.hits)))?;
    let misses = sample.pool.caches.first().map_or_else(Vec::new, |_| one(sample.pool.cache_misses));
    page.counter("cache_misses", None, "Records that neither the ARC nor a cache had", misses)?;
    page.counter(
        "cache_read",
        BYTES,
        "Stored bytes of records that it had",
        by_cache(sample, |c| one(c.read_bytes)),
    )?;
    page.counter("cache_writes", None, "Records written to it", by_cache(sample, |cache| one(cache.writes)))?;
    let written = by_cache(sample, |cache| one(cache.write_bytes));
    page.counter("cache_written", BYTES, "Their stored bytes", written)?;
    let dropped = by_cache(sample, |cache| one(cache.dropped_bytes));
    page.counter("cache_dropped", BYTES, "Bytes not written to it, for it could not keep up", dropped)?;
    let errors = by_cache(sample, |cache| {
        let counts =
            [("read", cache.read_errors), ("write", cache.write_errors), ("checksum", cache.checksum_errors)];
        counts.map(|(kind, count)| (vec![("type", kind.to_string())], count)).into()
    });
    page.counter("cache_errors", None, "The errors of tarn pool status", errors)
}

fn client(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    page.gauge(
        "dirty",
        BYTES,
        "Written data that is not committed yet",
        by_dataset(sample, |d| d.client.dirty_bytes),
    )?;
    page.gauge("dirty_limit", BYTES, "Most that there may be", by_dataset(sample, |d| d.dirty_max))?;
    let reads = by_dataset(sample, |d| d.client.reads);
    page.counter("reads", None, "Read calls", reads)?;
    let waited = by_dataset(sample, |d| d.client.reads_pending);
    page.counter("reads_waited", None, "Read calls that had to wait", waited)?;
    page.counter("read", BYTES, "Bytes read", by_dataset(sample, |d| d.client.read_bytes))?;
    page.counter("writes", None, "Write calls", by_dataset(sample, |d| d.client.writes))?;
    let waited = by_dataset(sample, |d| d.client.writes_pending);
    page.counter("writes_waited", None, "Write calls that had to wait", waited)?;
    page.counter("written", BYTES, "Bytes written", by_dataset(sample, |d| d.client.write_bytes))?;
    let flying = by_dataset(sample, |d| d.client.segments_in_flight);
    page.gauge("segments_in_flight", None, "Segments on their way to a bucket", flying)?;
    page.counter("segments", None, "Segments written", by_dataset(sample, |d| d.client.segments_written))?;
    let bytes = by_dataset(sample, |d| d.client.segment_bytes);
    page.counter("segment", BYTES, "Logical bytes of the records in them", bytes)?;
    let failures = by_dataset(sample, |d| d.client.flush_failures);
    page.counter("flush_failures", None, "Segments that could not be written and are tried again", failures)
}

fn txg(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    page.gauge("txg_number", None, "The open transaction group", by_target(sample, |t| t.mdt.txg))?;
    page.gauge("txg_durable_number", None, "The last durable one", by_target(sample, |t| t.mdt.durable))?;
    page.gauge(
        "txg_open_rows",
        None,
        "Rows changed in the open one",
        by_target(sample, |t| t.mdt.open_rows),
    )?;
    page.gauge("txg_open", BYTES, "Memory that they take", by_target(sample, |t| t.mdt.open_bytes))?;
    page.counter("txg_syncs", None, "Transaction groups made durable", by_target(sample, |t| t.mdt.txgs))?;
    page.counter("txg_rows", None, "Rows in them", by_target(sample, |t| t.mdt.rows_synced))?;
    page.counter("txg", BYTES, "Bytes of rows in them", by_target(sample, |t| t.mdt.bytes_synced))?;
    page.counter(
        "txg_retries",
        None,
        "Attempts to make one durable that failed",
        by_target(sample, |t| t.mdt.txg_retries),
    )?;
    let times = by_target(sample, |t| &t.mdt.txg_sync);
    page.times("txg_sync", "From a transaction group's closing until it was durable", REQUEST_BOUNDS, times)
}

fn datasets(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    page.gauge("dataset_live", BYTES, "Bytes of live records", by_target(sample, |t| t.usage.live))?;
    let stored = by_target(sample, |t| t.usage.stored);
    page.gauge("dataset_stored", BYTES, "Bytes of records in all segments, dead ones included", stored)?;
    page.gauge("dataset_inodes", None, "Inodes", by_target(sample, |t| t.usage.inodes))?;
    let ready = by_target(sample, |t| t.mdt.ready);
    page.counter("metadata_ready", None, "Calls on metadata answered from memory", ready)?;
    let pending = by_target(sample, |t| t.mdt.pending);
    page.counter("metadata_waited", None, "Calls on metadata that had to wait", pending)?;
    let reads = by_target(sample, |t| t.mdt.database_reads);
    page.counter("metadata_database_reads", None, "Gets and scans of the database", reads)?;
    let deleted = by_target(sample, |t| t.mdt.segments_deleted);
    page.counter(
        "segments_deleted",
        None,
        "Segments that nothing pointed to and that were deleted",
        deleted,
    )?;
    let compacted = by_target(sample, |t| t.mdt.segments_compacted);
    page.counter("segments_compacted", None, "Segments whose live records were moved", compacted)?;
    page.counter(
        "compacted",
        BYTES,
        "Bytes of records that were moved",
        by_target(sample, |t| t.mdt.bytes_compacted),
    )
}

fn fuse(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    let rows = || {
        sample.datasets.iter().flat_map(|(name, dataset)| {
            dataset
                .fuse
                .iter()
                .flat_map(|fuse| &fuse.operations)
                .map(move |(op, stats)| (vec![("dataset", name.clone()), ("op", op.clone())], stats))
        })
    };
    let counts = rows().map(|(labels, stats)| (labels, stats.times.count)).collect();
    page.counter("fuse_operations", None, "Requests of the kernel that were answered", counts)?;
    let refused = rows().map(|(labels, stats)| (labels, stats.refused)).collect();
    page.counter("fuse_refused", None, "Requests of the kernel that were answered with an error", refused)?;
    let times = rows().map(|(labels, stats)| (labels, &stats.times)).collect();
    page.times("fuse_duration", "From a request's coming until it was answered", CALL_BOUNDS, times)?;
    let mounted = sample.datasets.iter().filter_map(|(name, d)| Some((name, d.fuse.as_ref()?.waiting)));
    let waiting = mounted.map(|(name, waiting)| (vec![("dataset", name.clone())], waiting)).collect();
    page.gauge(
        "fuse_waiting",
        None,
        "Requests of the kernel that wait for what memory does not have",
        waiting,
    )
}

fn jobs(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    let by_job = |value: fn(&tarn_base::JobStats) -> u64| -> Rows<u64> {
        sample.jobs.iter().map(|job| (vec![("job", job.name.clone())], value(job))).collect()
    };
    page.counter(
        "job_operations",
        None,
        "What a job asked of the file system",
        by_job(|job| job.operations),
    )?;
    page.counter("job_reads", None, "Read calls of a job", by_job(|job| job.reads))?;
    page.counter("job_read", BYTES, "Bytes that a job read", by_job(|job| job.read_bytes))?;
    page.counter("job_writes", None, "Write calls of a job", by_job(|job| job.writes))?;
    page.counter("job_written", BYTES, "Bytes that a job wrote", by_job(|job| job.write_bytes))?;
    let mut requests = Vec::new();
    for job in &sample.jobs {
        let row = |(class, count): (&str, u64)| {
            (vec![("job", job.name.clone()), ("class", class.to_string())], count)
        };
        requests.extend(classes(&job.requests()).map(row));
    }
    page.counter("job_requests", None, "Requests to stores that a job caused", requests)
}

fn memory(page: &mut Page, sample: &Sample) -> Result<(), Error> {
    page.gauge("memory_limit", BYTES, "Memory that the process may use", one(sample.memory.limit))?;
    let part = |name: &String| vec![("part", name.clone())];
    let parts = || sample.memory.parts.iter();
    let used = parts().filter_map(|(name, p)| Some((part(name), p.used?))).collect();
    page.gauge("memory_used", BYTES, "Memory in use, by what for", used)?;
    let limits = parts().map(|(name, p)| (part(name), p.limit)).collect();
    page.gauge("memory_part_limit", BYTES, "Most that each part may use", limits)?;
    let resident = sample.memory.resident.into_iter().flat_map(one).collect();
    page.gauge("process_resident", BYTES, "Memory that the process has, as the kernel says", resident)
}
