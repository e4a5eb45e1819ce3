//! Processors that stay awake while a mount is busy.
//!
//! A caller that waits for each of its answers leaves a processor with nothing to do during each. To wake one that sleeps
//! takes longer than most answers, above all in a virtual machine, whose host must be asked for it. How long that may take
//! the kernel can be told, by whoever keeps a device open (PM QoS, `/dev/cpu_dma_latency`). So a mount tells it while
//! requests come fast, and takes it back within moments of the last; when the process ends, however it does, the kernel does.

use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;

const DEVICE: &str = "/dev/cpu_dma_latency";
const PROCESSORS: &str = "/sys/devices/system/cpu";
/// What takes a request back.
const ANY: i32 = -1;
/// So many requests within so long are fast.
const BURST: u64 = 32;
const BURST_TIME: Duration = Duration::from_millis(4);
/// How often it is looked whether it still is busy, and how few requests since then are not.
const LOOK: Duration = Duration::from_millis(20);
const QUIET: u64 = 40;
/// Where an idle processor can only be kept awake by letting it spin, so many are few enough.
const SPINNING: usize = 8;

/// Whether processors are kept awake while a mount is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Awake {
    /// Where that keeps them from sleeping deeply. Where it makes them spin, as in a virtual machine, if they are 8 or less.
    #[default]
    Auto,
    On,
    Off,
}

impl FromStr for Awake {
    type Err = String;

    fn from_str(text: &str) -> Result<Awake, String> {
        match text {
            "auto" => Ok(Awake::Auto),
            "on" => Ok(Awake::On),
            "off" => Ok(Awake::Off),
            _ => Err(format!("awake={text}: write auto, on or off")),
        }
    }
}

/// What one mount tells the kernel.
pub struct Wakefulness {
    device: File,
    /// How long it may take to wake a processor, in microseconds.
    bound: i32,
    requests: AtomicU64,
    /// When the last [`BURST`] of them was complete, in microseconds.
    burst: AtomicU64,
    told: AtomicBool,
    busy: Notify,
}

impl Wakefulness {
    /// None where nothing can be gained, or where the kernel lets only root say so.
    pub fn new(awake: Awake) -> Option<Wakefulness> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let bound = bound(Path::new(PROCESSORS), cores, awake)?;
        match Wakefulness::over(Path::new(DEVICE), bound) {
            Ok(wakefulness) => Some(wakefulness),
            Err(error) => {
                tracing::debug!(%error, "processors sleep between requests: {DEVICE} cannot be opened");
                None
            }
        }
    }

    fn over(device: &Path, bound: i32) -> io::Result<Wakefulness> {
        Ok(Wakefulness {
            device: File::options().write(true).open(device)?,
            bound,
            requests: AtomicU64::new(0),
            burst: AtomicU64::new(0),
            told: AtomicBool::new(false),
            busy: Notify::new(),
        })
    }

    /// A request came at `now`, by a clock that never goes back.
    pub fn received(&self, now: Duration) {
        if !(self.requests.fetch_add(1, Relaxed) + 1).is_multiple_of(BURST) {
            return;
        }
        let now = now.as_micros() as u64;
        let fast = now.saturating_sub(self.burst.swap(now, Relaxed)) < BURST_TIME.as_micros() as u64;
        if fast && !self.told.load(Relaxed) {
            self.busy.notify_one();
        }
    }

    /// Tells the kernel whenever the mount gets busy, and when it is no more; for as long as it is there.
    pub async fn run(&self) {
        if let Err(error) = self.keep().await {
            tracing::warn!(%error, "processors are kept awake no more, or until it is unmounted: {DEVICE} takes no bound");
        }
    }

    async fn keep(&self) -> io::Result<()> {
        loop {
            self.busy.notified().await;
            self.tell(self.bound)?;
            self.told.store(true, Relaxed);
            let mut before = self.requests.load(Relaxed);
            loop {
                tokio::time::sleep(LOOK).await;
                let now = self.requests.load(Relaxed);
                if now - before < QUIET {
                    break;
                }
                before = now;
            }
            self.told.store(false, Relaxed);
            self.tell(ANY)?;
        }
    }

    fn tell(&self, bound: i32) -> io::Result<()> {
        (&self.device).write_all(&bound.to_ne_bytes())
    }
}

/// How long it may take to wake a processor, in microseconds, by what the kernel knows of how they sleep. None where that
/// would change nothing, or too much.
fn bound(processors: &Path, cores: usize, awake: Awake) -> Option<i32> {
    if awake == Awake::Off {
        return None;
    }
    let word = |name: &str| Some(fs::read_to_string(processors.join(name)).ok()?.trim().to_string());
    match word("cpuidle/current_driver")?.as_str() {
        "none" => None,
        // A guest that knows of no sleep but to hand the processor to its host, and takes that for quick.
        "haltpoll" => (awake == Awake::On || cores <= SPINNING).then_some(0),
        _ => {
            let latency = |state| word(&format!("cpu0/cpuidle/state{state}/latency"))?.parse::<i32>().ok();
            // The first may be to spin.
            let mut sleeps = (0..).map_while(latency).filter(|latency| *latency > 0);
            let lightest = sleeps.next()?;
            sleeps.next().map(|_| lightest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_lightest_sleep_is_allowed_and_spinning_only_where_there_is_none() {
        let processors = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = processors.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let bound = |cores, awake| bound(processors.path(), cores, awake);
        assert_eq!(bound(2, Awake::On), None);
        for (driver, few, many, forced) in [
            ("none", None, None, None),
            ("haltpoll", Some(0), None, Some(0)),
            ("intel_idle", None, None, None),
        ] {
            write("cpuidle/current_driver", &format!("{driver}\n"));
            write("cpu0/cpuidle/state0/latency", "0\n");
            write("cpu0/cpuidle/state1/latency", "2\n");
            assert_eq!(
                (bound(8, Awake::Auto), bound(9, Awake::Auto), bound(9, Awake::On)),
                (few, many, forced)
            );
        }
        write("cpu0/cpuidle/state2/latency", "133\n");
        assert_eq!((bound(96, Awake::Auto), bound(2, Awake::Off)), (Some(2), None));
    }

    #[tokio::test]
    async fn the_kernel_is_told_when_requests_come_fast_and_when_they_end() {
        let device = tempfile::NamedTempFile::new().unwrap();
        let awake = Arc::new(Wakefulness::over(device.path(), 3).unwrap());
        let running = tokio::spawn({
            let awake = awake.clone();
            async move { awake.run().await }
        });
        let told = || {
            let bytes = fs::read(device.path()).unwrap();
            bytes.chunks(4).map(|word| i32::from_ne_bytes(word.try_into().unwrap())).collect::<Vec<_>>()
        };
        // One in a millisecond is slow.
        for n in 0..4 * BURST {
            awake.received(Duration::from_millis(1000 + n));
        }
        tokio::time::sleep(LOOK).await;
        assert_eq!(told(), Vec::<i32>::new());
        for n in 0..2 * BURST {
            awake.received(Duration::from_micros(2_000_000 + n));
        }
        while told().len() < 2 {
            tokio::time::sleep(LOOK / 10).await;
        }
        assert_eq!(told(), [3, ANY]);
        running.abort();
    }
}
