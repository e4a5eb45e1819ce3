//! Profiles of what is mounted, for those who ask for one and wait.
//!
//! A profile ends by itself, also when whoever asked for it is gone. Each has books of its own, so that several at a time
//! do not disturb one another.

use super::{Node, Phase};
use crate::control::report::ProfileReport;
use crate::control::{ProfileRequest, Reply};
use crate::progress::{Progress, Sink, Unit};
use crate::wiring::FuseMount;
use anyhow::{Result, bail};
use std::sync::Arc;
use std::time::Duration;
use tarn_base::profile::Profile;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

/// The longest profile.
pub const LONGEST: Duration = Duration::from_secs(3600);
/// How often its progress is told.
const TICK: Duration = Duration::from_millis(200);
/// Words to profiles that are kept for those who have not heard them yet.
pub(super) const WORDS: usize = 64;

impl Node {
    /// Gathers for some time what requests spend their time on.
    pub(super) async fn profile(&self, asked: &ProfileRequest, sink: &dyn Sink) -> Result<Reply> {
        let ended = self.profile_ends.subscribe();
        let mounts = self.profiled(asked.dataset.as_deref())?;
        let (profile, began) = (Arc::new(Profile::default()), Instant::now());
        let profiling: Vec<_> = mounts.iter().map(|fuse| fuse.profile(&profile)).collect();
        let time = Duration::from_millis(asked.time_ms).min(LONGEST);
        let mut phase = self.phase();
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = told(ended, asked.id) => {}
            () = self.show(began, time, sink) => {}
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => {}
        }
        drop(profiling);
        Ok(Reply::Profile(Box::new(ProfileReport {
            took_ms: began.elapsed().as_millis() as u64,
            waiting: mounts.iter().map(|fuse| fuse.stats().waiting).sum(),
            found: profile.stats(),
        })))
    }

    /// Ends a profile before its time; that it has ended already is fine.
    pub(super) fn end_profile(&self, id: u64) -> Reply {
        // Nobody may be listening any more.
        let _ = self.profile_ends.send(id);
        Reply::Ok
    }

    /// The mounts of a dataset, or all.
    fn profiled(&self, dataset: Option<&str>) -> Result<Vec<Arc<FuseMount>>> {
        let mounts = self.mounts.lock();
        let chosen = mounts.iter().filter(|mount| dataset.is_none_or(|name| mount.dataset == name));
        let chosen: Vec<_> = chosen.map(|mount| mount.fuse.clone()).collect();
        if chosen.is_empty() {
            bail!(not_mounted(dataset.unwrap_or(&self.name)));
        }
        Ok(chosen)
    }

    /// Tells how far it is, for ever.
    async fn show(&self, began: Instant, time: Duration, sink: &dyn Sink) {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            sink.progress(Progress {
                what: format!("profiling {}", self.name),
                done: began.elapsed().as_secs(),
                total: time.as_secs().max(1),
                unit: Unit::Items,
            });
        }
    }
}

/// Nothing can be seen of what nobody uses here.
pub fn not_mounted(name: &str) -> String {
    format!(
        "nothing of '{name}' is mounted here: mount it with 'tarn mount {name} DIR', and profile it in use"
    )
}

/// Returns when the profile `id` is told to end.
async fn told(mut ends: Receiver<u64>, id: u64) {
    loop {
        match ends.recv().await {
            Ok(ended) if ended == id => return,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            // Nobody can tell any more.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::broadcast;

    #[tokio::test(start_paused = true)]
    async fn each_profile_hears_its_own_end() {
        let ends = broadcast::Sender::new(WORDS);
        let (one, two) = (told(ends.subscribe(), 1), told(ends.subscribe(), 2));
        ends.send(1).unwrap();
        one.await;
        assert!(tokio::time::timeout(Duration::from_secs(60), two).await.is_err());
    }
}
