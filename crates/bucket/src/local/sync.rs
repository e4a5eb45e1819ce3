//! One `syncfs` for everyone who waits for one.
//!
//! A pool's local buckets often lie on one file system, and `syncfs` makes all of it durable, so that twelve
//! buckets syncing at once need one call and not twelve. Per file system (`st_dev`) and process there is one
//! [`Device`], and syncs go in rounds:
//!
//! - A round is one `syncfs`. At most one runs.
//! - Whoever asks while a round runs cannot use it: it may have passed what the asker wrote. Everyone who asked
//!   meanwhile shares the next one, which starts when the running one has ended and one of them leads it.
//! - A round belongs to the blocking thread that runs it, not to the one who led it: a leader that gives up
//!   leaves nobody behind.
//!
//! The kernel reports a lost write once per open file. So all rounds use the one file of the device, and a
//! failure counts for every bucket on it, for good: see [`Device::failures`].

use nix::unistd::syncfs;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, LazyLock, Weak};
use tokio::sync::watch;

static DEVICES: LazyLock<Mutex<HashMap<u64, Weak<Device>>>> = LazyLock::new(Mutex::default);

/// A file system that holds buckets of this process.
pub struct Device {
    /// Any directory of it.
    file: File,
    rounds: watch::Sender<Rounds>,
}

#[derive(Clone, Default)]
struct Rounds {
    /// Rounds begun; the last of them runs while this is one more than `ended`.
    begun: u64,
    ended: u64,
    failed: u64,
    failure: String,
}

impl Rounds {
    fn running(&self) -> bool {
        self.begun > self.ended
    }
}

/// A round that runs; it ends when this is dropped, and failed unless it was said how it went.
struct Round {
    device: Arc<Device>,
    outcome: Result<(), String>,
}

impl Round {
    fn run(mut self) {
        self.outcome = syncfs(&self.device.file).map_err(|e| e.desc().to_string());
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        self.device.rounds.send_modify(|rounds| {
            rounds.ended = rounds.begun;
            if let Err(failure) = outcome {
                rounds.failed += 1;
                rounds.failure = failure;
            }
        });
    }
}

impl Device {
    /// The device numbered `number`, on which `directory` lies.
    pub fn of(number: u64, directory: &File) -> std::io::Result<Arc<Device>> {
        let mut devices = DEVICES.lock();
        devices.retain(|_, device| device.strong_count() > 0);
        if let Some(device) = devices.get(&number).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let file = directory.try_clone()?;
        let device = Arc::new(Device { file, rounds: watch::Sender::new(Rounds::default()) });
        devices.insert(number, Arc::downgrade(&device));
        Ok(device)
    }

    /// Returns when a `syncfs` that began after the call has ended, well or not.
    pub async fn sync(self: &Arc<Self>) {
        let mut rounds = self.rounds.subscribe();
        let wanted = self.rounds.borrow().begun + 1;
        loop {
            let mut lead = false;
            self.rounds.send_if_modified(|rounds| {
                lead = rounds.ended < wanted && !rounds.running();
                rounds.begun += u64::from(lead);
                lead
            });
            if lead {
                let outcome = Err("the sync was not run".to_string());
                let round = Round { device: self.clone(), outcome };
                tokio::task::spawn_blocking(move || round.run());
            }
            match rounds.wait_for(|rounds| rounds.ended >= wanted || !rounds.running()).await {
                Ok(rounds) if rounds.ended >= wanted => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// How many rounds have failed, and what the last said. A bucket that remembers the number from when it was
    /// opened knows from a higher one that writes since then may be lost, its own among them.
    pub fn failures(&self) -> (u64, String) {
        let rounds = self.rounds.borrow();
        (rounds.failed, rounds.failure.clone())
    }

    #[cfg(test)]
    fn begun(&self) -> u64 {
        self.rounds.borrow().begun
    }

    #[cfg(test)]
    pub(super) fn fail(&self) {
        self.rounds.send_modify(|rounds| {
            rounds.failed += 1;
            rounds.failure = "a failure for the test".into();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(dir: &tempfile::TempDir) -> Arc<Device> {
        let file = File::open(dir.path()).unwrap();
        Arc::new(Device { file, rounds: watch::Sender::new(Rounds::default()) })
    }

    #[tokio::test]
    async fn waiting_syncs_share_a_round() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(&dir);
        let waiting: Vec<_> = (0..100).map(|_| device.sync()).collect();
        tokio::time::timeout(std::time::Duration::from_secs(30), futures::future::join_all(waiting))
            .await
            .unwrap();
        // The first may have begun its round before the others asked; all of those share one.
        assert!((1..=2).contains(&device.begun()), "{}", device.begun());
        assert_eq!(device.failures().0, 0);
    }

    #[tokio::test]
    async fn a_sync_uses_no_round_that_began_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(&dir);
        device.rounds.send_modify(|rounds| rounds.begun = 1);
        let late = tokio::spawn({
            let device = device.clone();
            async move { device.sync().await }
        });
        tokio::task::yield_now().await;
        assert!(!late.is_finished());
        drop(Round { device: device.clone(), outcome: Ok(()) });
        late.await.unwrap();
        assert_eq!(device.begun(), 2);
    }

    #[tokio::test]
    async fn a_leader_that_gives_up_leaves_nobody_behind() {
        let dir = tempfile::tempdir().unwrap();
        let device = device(&dir);
        {
            let mut leader = Box::pin(device.sync());
            let _ = futures::poll!(&mut leader);
        }
        tokio::time::timeout(std::time::Duration::from_secs(30), device.sync()).await.unwrap();
    }
}
