//! How the pool does, in zpool's words.

use crate::damage::DamageRecord;
use crate::l2arc::CacheStatus;
use crate::pool::Space;
use crate::text::format_time;
use crate::vdev::{Vdev, VdevState};
use crate::{Pool, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tarn_base::{PoolGuid, VdevGuid, VdevId};
use tarn_bucket::StatsSnapshot;

/// Who asks for the status waits no longer for a vdev.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// State of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PoolState {
    Online,
    /// A vdev is not ONLINE.
    Degraded,
    /// Calls wait for a bucket that fails, or no vdev takes writes.
    Suspended,
    /// Another host has taken the pool over; this one writes no more.
    Fenced,
}

impl std::fmt::Display for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PoolState::Online => "ONLINE",
            PoolState::Degraded => "DEGRADED",
            PoolState::Suspended => "SUSPENDED",
            PoolState::Fenced => "FENCED",
        })
    }
}

/// One vdev in a [`PoolStatus`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VdevStatus {
    pub id: VdevId,
    pub guid: VdevGuid,
    pub url: String,
    pub state: VdevState,
    /// Bytes stored, as far as the books know.
    pub allocated: u64,
    /// Bytes in all: this vdev's part of its file system. `None` for a store without a limit.
    pub capacity: Option<u64>,
    /// Bytes that new data may still take.
    pub free: Option<u64>,
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    /// What is wrong with it now.
    pub outage: Option<OutageStatus>,
    /// What its bucket did since it was opened.
    pub stats: Option<StatsSnapshot>,
}

/// A bucket that fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutageStatus {
    /// Milliseconds since 1970.
    pub since_ms: i64,
    /// The failure that began it.
    pub why: String,
    /// It still answers reads.
    pub writes_only: bool,
    /// It does not take the credentials.
    pub locked_out: bool,
    /// Calls that wait for its end.
    pub waiting: u64,
}

impl OutageStatus {
    fn of(vdev: &Vdev) -> Option<OutageStatus> {
        let outage = vdev.outages.now()?;
        let (since_ms, why, locked_out) = (outage.since_ms, outage.why, outage.locked_out);
        let (writes_only, waiting) = (!outage.whole, vdev.outages.waiting());
        Some(OutageStatus { since_ms, why, writes_only, locked_out, waiting })
    }

    fn line(&self, url: &str) -> String {
        let what = match self {
            OutageStatus { locked_out: true, .. } => "does not take the credentials",
            OutageStatus { writes_only: true, .. } => "refuses writes",
            _ => "does not answer",
        };
        let line = format!("{} {what} since {}", short(url), format_time(self.since_ms));
        // What the store says of them is the only hint at which they are.
        if self.locked_out { format!("{line}: {}", self.why) } else { line }
    }
}

/// A bucket's name without what is only needed to reach it.
fn short(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

/// A bucket that asks to be asked less, in words.
fn slowed(stats: &StatsSnapshot) -> Option<String> {
    let seconds = stats.slowed_ms? / 1000;
    let (now, most) = (stats.concurrency, stats.concurrency_most);
    Some(format!(
        "{} asks to be asked less, and has {now} of {most} requests at once for {seconds} s",
        short(&stats.url)
    ))
}

/// What `pool status` and `pool iostat` show.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolStatus {
    pub name: String,
    pub guid: PoolGuid,
    pub state: PoolState,
    /// What is wrong, if something is.
    pub status: Option<String>,
    /// What to do about it.
    pub action: Option<String>,
    pub epoch: u64,
    pub generation: u64,
    /// Bytes in all, and what new data may still take.
    pub total: u64,
    pub free: u64,
    pub allocated: u64,
    pub vdevs: Vec<VdevStatus>,
    /// This host's.
    #[serde(default)]
    pub caches: Vec<CacheStatus>,
    /// Records that were neither in the ARC nor in a cache, where there is one.
    #[serde(default)]
    pub cache_misses: u64,
    /// What was found damaged, a line each.
    pub errors: Vec<String>,
    /// The same of what was replaced from another copy.
    pub repaired: Vec<String>,
}

fn error_line(record: &DamageRecord) -> String {
    let mut line = record.file.as_ref().map(|file| format!("{file}: ")).unwrap_or_default();
    line.push_str(&format!("{}: {}", record.vdev, record.object));
    if let Some(offset) = record.offset {
        line.push_str(&format!(" at {offset}"));
    }
    line.push_str(&format!(": {}", record.problem));
    if let Some(owner) = &record.owner {
        line.push_str(&format!(" (dataset {}, inode {}, record {})", owner.dataset, owner.ino, owner.record));
    }
    line
}

impl Pool {
    pub(crate) fn state(&self) -> PoolState {
        if self.gate.fenced() {
            return PoolState::Fenced;
        }
        let vdevs = self.vdevs();
        let faulted = vdevs.iter().filter(|v| v.state() == VdevState::Faulted).count();
        if faulted == vdevs.len() || vdevs.iter().any(|v| v.outages.waiting() > 0) {
            PoolState::Suspended
        } else if vdevs.iter().any(|v| v.state() != VdevState::Online) {
            PoolState::Degraded
        } else {
            PoolState::Online
        }
    }

    /// Which bucket fails and since when, in words, if one does.
    pub fn failing(&self) -> Option<String> {
        self.vdevs().iter().find_map(|v| Some(OutageStatus::of(v)?.line(v.url())))
    }

    /// Where calls wait for buckets: which bucket fails and since when, in words. `None` when none does, or calls do not
    /// wait.
    pub fn suspended(&self) -> Option<String> {
        let vdevs = self.vdevs();
        let line = |v: &Arc<Vdev>| Some(OutageStatus::of(v)?.line(v.url()));
        vdevs.iter().filter(|v| v.outages.waits()).find_map(line)
    }

    /// How the pool does now. Takes no request to any bucket.
    pub fn status(&self) -> PoolStatus {
        let (config, vdevs, space) = (self.config(), self.vdevs(), self.space());
        let damage = self.damage();
        let state = self.state();
        let failing: Vec<String> =
            vdevs.iter().filter_map(|v| Some(OutageStatus::of(v)?.line(v.url()))).collect();
        let lost: Option<String> =
            vdevs.iter().find_map(|v| Some(format!("a sync of {} failed: {}", v.url(), v.sync_failed()?)));
        let slowed = vdevs.iter().filter_map(|v| slowed(&v.guarded.as_ref()?.stats())).collect();
        let damaged = damage.iter().any(|d| !d.repaired);
        let lines =
            |repaired: bool| damage.iter().filter(|d| d.repaired == repaired).map(error_line).collect();
        let locked_out = vdevs.iter().any(|v| OutageStatus::of(v).is_some_and(|o| o.locked_out));
        let found = Found { failing, locked_out, slowed, lost, waits: self.waits(), damaged };
        let (status, action) = explain(state, &found);
        let vdev_status = |vdev: &Arc<Vdev>| {
            let sharing = vdevs.iter().filter(|v| Arc::ptr_eq(&v.device, &vdev.device)).count() as u64;
            let Space { total, free } = vdev.device.space();
            let limited = !vdev.device.unlimited();
            VdevStatus {
                id: vdev.id,
                guid: vdev.guid,
                url: vdev.url().to_string(),
                state: vdev.state(),
                allocated: vdev.allocated(),
                capacity: limited.then_some(total / sharing.max(1)),
                free: limited.then_some(free / sharing.max(1)),
                read_errors: vdev.read_errors.load(Relaxed),
                write_errors: vdev.write_errors.load(Relaxed),
                checksum_errors: vdev.checksum_errors.load(Relaxed),
                outage: OutageStatus::of(vdev),
                stats: vdev.guarded.as_ref().map(|g| g.stats()),
            }
        };
        PoolStatus {
            name: config.name.clone(),
            guid: config.guid,
            state,
            status,
            action,
            epoch: self.epoch().0,
            generation: config.generation,
            total: space.total,
            free: space.free,
            allocated: vdevs.iter().map(|v| v.allocated()).sum(),
            vdevs: vdevs.iter().map(vdev_status).collect(),
            caches: self.l2arc.status(),
            cache_misses: self.l2arc.misses(),
            errors: lines(false),
            repaired: lines(true),
        }
    }

    /// Asks every vdev whether it answers, so that the status is of now. Takes a few seconds at most.
    pub async fn probe(&self) -> Result<()> {
        self.probe_caches().await;
        let vdevs = self.vdevs();
        let heads = vdevs.iter().map(|vdev| async move {
            match tokio::time::timeout(PROBE_LIMIT, vdev.head_hasty(crate::label::KEY)).await {
                Ok(answer) => answer.map(drop),
                Err(_) => Err(tarn_bucket::Error::Timeout(format!(
                    "{}: no answer within {} s",
                    vdev.url(),
                    PROBE_LIMIT.as_secs()
                ))),
            }
        });
        futures::future::join_all(heads).await.into_iter().try_for_each(|r| r.map_err(Into::into))
    }
}

/// What the words of a status go by.
struct Found {
    /// Buckets that fail, a line each.
    failing: Vec<String>,
    /// One of them does not take the credentials.
    locked_out: bool,
    /// Buckets that ask to be asked less, a line each.
    slowed: Vec<String>,
    /// A sync that failed.
    lost: Option<String>,
    waits: bool,
    damaged: bool,
}

fn explain(state: PoolState, found: &Found) -> (Option<String>, Option<String>) {
    let said = |status: &str, action: &str| (Some(status.to_string()), Some(action.to_string()));
    let failing = found.failing.join("; ");
    match state {
        PoolState::Fenced => said(
            "another host has imported the pool; this one writes no more",
            "unmount here; what was not yet durable is lost",
        ),
        _ if found.locked_out && found.waits => said(
            &format!("calls wait, and nothing is lost: {failing}"),
            "renew the credentials where they were found: the pool goes on by itself",
        ),
        _ if !found.failing.is_empty() && found.waits => said(
            &format!("calls wait, and nothing is lost: {failing}"),
            "make it reachable again: the pool goes on by itself; 'tarn umount -f' gives up what is not written, \
             'tarn pool set failmode=continue' lets calls fail",
        ),
        _ if !found.failing.is_empty() => said(
            &format!("calls that need it fail: {failing}"),
            "make it reachable again: the pool goes on by itself; with failmode=wait calls would wait for it",
        ),
        PoolState::Suspended | PoolState::Degraded if found.lost.is_some() => said(
            found.lost.as_deref().unwrap_or_default(),
            "what was written since the last sync may be lost: check the disk, then unmount and mount the pool again",
        ),
        PoolState::Suspended | PoolState::Degraded => said(
            "a bucket has failed requests past the deadline",
            "see its last error in 'pool status -v' and make it reachable; 'pool clear' forgets the errors",
        ),
        PoolState::Online if found.damaged => said(
            "stored bytes were found that are not what was written",
            "restore the files that 'pool status -v' names from a copy",
        ),
        PoolState::Online if !found.slowed.is_empty() => said(
            &found.slowed.join("; "),
            "nothing fails: work goes on as fast as the bucket allows; more buckets, or another prefix, allow more",
        ),
        PoolState::Online => (None, None),
    }
}
