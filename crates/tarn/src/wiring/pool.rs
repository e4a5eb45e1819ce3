//! The pool in the binary's own words.

use crate::control::report::{HistoryEntry, IoReport, PoolReport, PropertyReport, QueueReport, VdevReport};
use crate::error::usage;
use crate::node::{Memory, Part};
use crate::state::KnownPool;
use anyhow::Result;
use serde::Serialize;
use std::sync::Arc;
use tarn_base::{HistogramStats, PoolGuid};
use tarn_bucket::{Operation, StatsSnapshot};
use tarn_pool::{CacheStatus, CreateSpec, Error, FoundPool, HostId, ImportOptions, Pool, VdevStatus};

/// Bytes of the ARC while a command only creates or imports.
const SMALL_ARC: u64 = 64 << 20;

/// A wrong argument is the user's to correct.
fn told(error: Error) -> anyhow::Error {
    match error {
        Error::Usage(text) => usage(text),
        other => other.into(),
    }
}

/// A pool that was made.
pub struct Created {
    pub guid: u64,
    /// Of its vdevs.
    pub urls: Vec<String>,
    /// What the administrator should know of its buckets.
    pub cautions: Vec<String>,
}

/// Makes a pool and lets go of it.
pub async fn create_pool(spec: CreateSpec, command: &str) -> Result<Created> {
    let pool = Pool::create(spec).await.map_err(told)?;
    let cautions = pool.cautions(&[]).await;
    let (guid, urls) = finish(pool, command).await?;
    Ok(Created { guid, urls, cautions })
}

/// Brings a pool to this host and lets go of it. Gives the URLs of its vdevs.
pub async fn import(
    urls: &[String],
    guid: u64,
    host: HostId,
    force: bool,
    new_name: Option<&str>,
    command: &str,
) -> Result<Vec<String>> {
    let options = ImportOptions { host, force, new_name: new_name.map(String::from), memory: SMALL_ARC };
    let pool = Pool::import(urls, Some(&guid.to_string()), options).await.map_err(told)?;
    Ok(finish(pool, command).await?.1)
}

async fn finish(pool: Arc<Pool>, command: &str) -> Result<(u64, Vec<String>)> {
    let logged = log_history(&pool, command, nix::unistd::getuid().as_raw()).await;
    let config = pool.config();
    pool.release().await?;
    logged?;
    Ok((config.guid.0, config.vdevs.iter().map(|v| v.url.clone()).collect()))
}

/// A pool that could be imported.
#[derive(Clone, Debug, Serialize)]
pub struct Importable {
    pub name: String,
    pub guid: u64,
    /// `ONLINE`, or `UNAVAIL` when it cannot be imported as it is.
    pub state: String,
    pub problem: Option<String>,
    pub action: String,
    /// Where each vdev is, or was, and its state.
    pub vdevs: Vec<(String, String)>,
}

/// What a search came upon.
pub struct Found {
    pub pools: Vec<Importable>,
    /// Why buckets could not be used, a line each.
    pub problems: Vec<String>,
}

/// Pools in these buckets, and in directories of buckets. Those that this host has imported already are left out, unless
/// another host has taken them over.
pub async fn scan(urls: &[String], imported: &[KnownPool], host: &HostId) -> Result<Found> {
    let (found, problems) = Pool::scan(urls).await.map_err(told)?;
    let here = |pool: &FoundPool| {
        imported.iter().any(|k| k.guid == pool.config.guid.0 && !k.exported)
            && pool.holder.as_ref().is_none_or(|holder| holder.id == host.id)
    };
    Ok(Found { pools: found.iter().filter(|pool| !here(pool)).map(importable).collect(), problems })
}

fn importable(found: &FoundPool) -> Importable {
    let vdev = |(guid, url): &(tarn_base::VdevGuid, Option<String>)| match url {
        Some(url) => (short(url), "ONLINE".to_string()),
        None => {
            let last = found.config.vdevs.iter().find(|v| v.guid == *guid);
            (last.map_or_else(|| guid.to_string(), |v| short(&v.url)), "UNAVAIL".to_string())
        }
    };
    let (problem, action) = match (&found.problem, &found.holder) {
        (Some(problem), _) => (Some(problem.clone()), "the pool cannot be imported as it is".to_string()),
        (None, Some(holder)) if !found.exported => (
            Some(format!("the pool was last used by host {} and was not exported", holder.name)),
            "if that host no longer uses it, import it by name or guid with -f".to_string(),
        ),
        _ => (None, "the pool can be imported by its name or guid".to_string()),
    };
    Importable {
        name: found.config.name.clone(),
        guid: found.config.guid.0,
        state: if found.problem.is_some() { "UNAVAIL" } else { "ONLINE" }.into(),
        problem,
        action,
        vdevs: found.urls.iter().map(vdev).collect(),
    }
}

/// Opens a pool that this host has created or imported.
pub async fn open_pool(known: &KnownPool, host: HostId, memory: &Memory) -> Result<Arc<Pool>> {
    let options = ImportOptions { host, force: false, new_name: None, memory: memory.records };
    Ok(Pool::open_cached(&known.urls, PoolGuid(known.guid), options).await?)
}

pub async fn release(pool: &Pool) -> Result<()> {
    Ok(pool.release().await?)
}

pub async fn export(pool: &Pool) -> Result<()> {
    Ok(pool.export().await?)
}

pub async fn destroy_pool(pool: &Pool) -> Result<()> {
    Ok(pool.destroy().await?)
}

/// Gives what the administrator should know of the new buckets.
pub async fn add_vdevs(pool: &Pool, urls: &[String], force: bool) -> Result<Vec<String>> {
    let added = pool.add_vdevs(urls, force).await.map_err(told)?;
    Ok(pool.cautions(&added).await)
}

/// Makes directories cache vdevs.
pub async fn add_caches(pool: &Pool, dirs: &[String], size: Option<u64>, force: bool) -> Result<()> {
    pool.add_caches(dirs, size, force).await.map_err(told)
}

/// Takes cache vdevs away.
pub async fn remove_caches(pool: &Pool, names: &[String]) -> Result<()> {
    pool.remove_caches(names).await.map_err(told)
}

pub async fn set_property(pool: &Pool, name: &str, value: &str) -> Result<()> {
    pool.set_property(name, value).await.map_err(told)
}

/// URLs of the pool's vdevs as they are now.
pub fn urls(pool: &Pool) -> Vec<String> {
    pool.config().vdevs.iter().map(|v| v.url.clone()).collect()
}

/// Between a command and who gave it, in a line of the history.
const USER: &str = " [user ";

/// Writes a command of the user `uid` into the pool's history.
pub async fn log_history(pool: &Pool, command: &str, uid: u32) -> Result<()> {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten().map(|u| u.name);
    let user = user.map_or_else(|| uid.to_string(), |name| format!("{uid} ({name})"));
    Ok(pool.log_history(&format!("{command}{USER}{user}]")).await?)
}

pub async fn history(pool: &Pool) -> Result<Vec<HistoryEntry>> {
    let entry = |e: tarn_pool::HistoryEntry| {
        let (command, user) =
            match e.text.rsplit_once(USER).and_then(|(c, u)| Some((c, u.strip_suffix(']')?))) {
                Some((command, user)) => (command.to_string(), Some(user.to_string())),
                None => (e.text, None),
            };
        let internal = user.is_none();
        HistoryEntry {
            time_ms: e.time_ms,
            command,
            user: user.unwrap_or_default(),
            host: e.host.name,
            internal,
        }
    };
    Ok(pool.history().await?.into_iter().map(entry).collect())
}

/// The pool as `pool list`, `status`, `iostat` and `get` show it.
pub async fn report(pool: &Pool, open_ms: u64) -> Result<PoolReport> {
    pool.refresh_space().await;
    if let Err(e) = pool.probe().await {
        // The state tells; the text goes with the vdev.
        tracing::warn!("{e}");
    }
    let status = pool.status();
    let property = |p: tarn_pool::PropertyValue| PropertyReport {
        name: p.name.into(),
        value: p.value,
        source: p.source.into(),
    };
    Ok(PoolReport {
        name: status.name,
        guid: status.guid.0,
        state: status.state.to_string(),
        status: status.status,
        action: status.action,
        size: status.total,
        allocated: status.allocated,
        free: status.free,
        properties: pool.properties().into_iter().map(property).collect(),
        open_ms,
        vdevs: status.vdevs.iter().map(vdev).collect(),
        caches: status.caches.iter().map(cache).collect(),
        errors: status.errors,
        repaired: status.repaired,
    })
}

fn vdev(status: &VdevStatus) -> VdevReport {
    let operations = |kinds: &[Operation]| status.stats.as_ref().map(|s| io(s, kinds)).unwrap_or_default();
    let last = status.stats.as_ref().and_then(|s| s.last_error.as_ref());
    let problem = match (&status.outage, last) {
        (Some(outage), _) => Some(format!(
            "{} since {}, {} calls wait: {}",
            if outage.writes_only { "refuses writes" } else { "does not answer" },
            tarn_pool::format_time(outage.since_ms),
            outage.waiting,
            outage.why
        )),
        (None, Some((text, ago_ms))) => Some(format!("{text} ({} s ago)", ago_ms / 1000)),
        (None, None) => None,
    };
    VdevReport {
        name: short(&status.url),
        guid: status.guid.0,
        url: status.url.clone(),
        state: format!("{:?}", status.state).to_uppercase(),
        problem,
        size: status.capacity,
        allocated: status.allocated,
        free: status.free,
        read_errors: status.read_errors,
        write_errors: status.write_errors,
        checksum_errors: status.checksum_errors,
        read: operations(READS),
        write: operations(WRITES),
        queues: CLASSES.map(|kinds| status.stats.as_ref().map(|s| queue(s, kinds)).unwrap_or_default()),
    }
}

fn cache(status: &CacheStatus) -> VdevReport {
    let io = |operations, bytes| IoReport { operations, bytes, ..IoReport::default() };
    VdevReport {
        name: status.path.clone(),
        guid: status.guid,
        url: status.path.clone(),
        state: status.state.to_string(),
        problem: status.problem.clone(),
        size: Some(status.size),
        allocated: status.used,
        free: Some(status.size.saturating_sub(status.used)),
        read_errors: status.read_errors,
        write_errors: status.write_errors,
        checksum_errors: status.checksum_errors,
        read: io(status.hits, status.read_bytes),
        write: io(status.writes, status.write_bytes),
        ..VdevReport::default()
    }
}

const READS: &[Operation] = &[Operation::Get, Operation::Head, Operation::List];
const WRITES: &[Operation] = &[Operation::Put, Operation::Create, Operation::Delete];

/// The classes of requests of `VdevReport::queues`.
const CLASSES: [&[Operation]; 5] = [
    &[Operation::Get],
    &[Operation::Put, Operation::Create],
    &[Operation::Delete],
    &[Operation::List, Operation::Head],
    &[Operation::Sync],
];

fn queue(stats: &StatsSnapshot, kinds: &[Operation]) -> QueueReport {
    let of = || kinds.iter().filter_map(|kind| stats.operations.get(kind));
    QueueReport {
        requests: of().map(|o| o.requests).sum(),
        pending: of().map(|o| o.waiting).sum(),
        active: of().map(|o| o.in_flight).sum(),
    }
}

/// Several kinds of requests as one.
fn io(stats: &StatsSnapshot, kinds: &[Operation]) -> IoReport {
    let mut out = IoReport::default();
    let mut times = HistogramStats::default();
    for operation in kinds.iter().filter_map(|kind| stats.operations.get(kind)) {
        out.operations += operation.requests;
        out.bytes += operation.bytes;
        times = times.and(&operation.latency);
    }
    out.mean_ns = times.mean_us() * 1000;
    out.p50_ns = times.quantile_us(0.5) * 1000;
    out.p99_ns = times.quantile_us(0.99) * 1000;
    out
}

/// A URL without its query, for columns.
fn short(url: &str) -> String {
    url.split('?').next().unwrap_or(url).to_string()
}

/// Memory in use for records, by purpose.
pub fn pool_memory(pool: &Pool) -> Vec<Part> {
    let memory = pool.memory();
    let part = |name, used, limit| Part { name, used: Some(used), limit };
    vec![
        part("arc", memory.arc - memory.streams.min(memory.arc), memory.arc_max - memory.streams_max),
        part("arc_streams", memory.streams, memory.streams_max),
        part("reading", memory.reading, memory.reading_max),
        part("buffers_idle", memory.idle, memory.idle_max),
    ]
}
