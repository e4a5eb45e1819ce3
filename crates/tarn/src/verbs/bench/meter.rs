//! How long something takes, and how busy this host is meanwhile.

use std::fs;
use std::time::{Duration, Instant};

/// Runs from when it is made.
pub struct Watch(Instant);

impl Watch {
    pub fn start() -> Watch {
        Watch(Instant::now())
    }

    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// `n` things in that time, a second.
    pub fn rate(&self, n: u64) -> f64 {
        n as f64 / self.elapsed().as_secs_f64()
    }
}

/// The kernel's columns of time that nothing was done: idle, and waiting for a disk.
const IDLE: [usize; 2] = [3, 4];

/// Counts from its start.
pub struct Meter(Option<Ticks>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Meter {
    pub fn start() -> Meter {
        Meter(now())
    }

    /// Percent of all cores' time in which they had work; 0 where the kernel does not tell.
    pub fn busy(&self) -> u64 {
        let (Some(before), Some(now)) = (self.0, now()) else { return 0 };
        let (all, idle) = (now.all.saturating_sub(before.all), now.idle.saturating_sub(before.idle));
        100u64.saturating_sub(idle * 100 / all.max(1))
    }
}

fn now() -> Option<Ticks> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// `cpu user nice system idle iowait irq softirq steal guest guest_nice`: the last two are in the first two too.
fn parse(text: &str) -> Option<Ticks> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
    let idle = IDLE.iter().filter_map(|&column| ticks.get(column)).sum();
    (ticks.len() >= 4).then(|| Ticks { all: ticks.iter().sum(), idle })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let text = "cpu  10 1 20 300 40 2 3 4 5 6\ncpu0 1 2 3 4\n";
        assert_eq!(parse(text), Some(Ticks { all: 380, idle: 340 }));
        assert_eq!(parse("cpu0 1 2 3 4\n"), None);
        assert_eq!(parse("cpu  nothing\n"), None);
        assert!(Meter::start().busy() <= 100);
    }
}
