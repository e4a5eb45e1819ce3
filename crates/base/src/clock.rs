//! Time comes from here and from nowhere else, so that a test can replay a run.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file time: seconds since 1970 (negative before it) and nanoseconds in `0..1_000_000_000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: u32,
}

impl Timespec {
    pub fn from_system(time: SystemTime) -> Timespec {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timespec { sec: after.as_secs() as i64, nsec: after.subsec_nanos() },
            Err(e) => {
                let before = e.duration();
                let carry = i64::from(before.subsec_nanos() > 0);
                let nsec = if carry == 1 { 1_000_000_000 - before.subsec_nanos() } else { 0 };
                Timespec { sec: -(before.as_secs() as i64) - carry, nsec }
            }
        }
    }

    pub fn to_system(self) -> SystemTime {
        let nanos = Duration::from_nanos(u64::from(self.nsec));
        if self.sec >= 0 {
            UNIX_EPOCH + Duration::from_secs(self.sec as u64) + nanos
        } else {
            UNIX_EPOCH - Duration::from_secs(self.sec.unsigned_abs()) + nanos
        }
    }
}

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time, for what users see.
    fn now(&self) -> Timespec;
    /// Time since some fixed moment; never goes back. For deadlines and intervals.
    fn monotonic(&self) -> Duration;
}

/// The machine's own clock.
pub struct SystemClock {
    start: std::time::Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: std::time::Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timespec {
        Timespec::from_system(SystemTime::now())
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_survive() {
        for t in [
            Timespec { sec: -1, nsec: 999_999_999 },
            Timespec { sec: -5, nsec: 0 },
            Timespec { sec: 0, nsec: 1 },
            Timespec { sec: 1 << 33, nsec: 5 },
        ] {
            assert_eq!(Timespec::from_system(t.to_system()), t);
        }
    }
}
