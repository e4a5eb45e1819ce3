//! Distributions of times, counted without a lock.
//!
//! Each power of two of microseconds is divided into eight parts, so that a quantile is right to an eighth. A time is one
//! atomic addition to its part and one to the sum.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Parts of each power of two, as a power of two.
const PART_BITS: u32 = 3;
const PARTS: u64 = 1 << PART_BITS;
/// The longest time that is told from a longer one is below this power of two of microseconds: 71 minutes.
const POWERS: u32 = 32;
const BUCKETS: usize = ((POWERS - PART_BITS + 1) as usize) << PART_BITS;

/// Counts times; many threads may at once.
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_us: AtomicU64::new(0) }
    }
}

/// Which bucket a time in whole microseconds falls into.
fn bucket_of(us: u64) -> usize {
    if us < PARTS {
        return us as usize;
    }
    let us = us.min((1 << POWERS) - 1);
    let power = us.ilog2();
    let part = (us >> (power - PART_BITS)) - PARTS;
    (u64::from(power - PART_BITS + 1) * PARTS + part) as usize
}

/// The time in microseconds that is just too long for a bucket.
fn end_of(bucket: usize) -> u64 {
    let (power, part) = (bucket as u64 >> PART_BITS, bucket as u64 % PARTS);
    match power {
        0 => part + 1,
        power => (PARTS + part + 1) << (power - 1),
    }
}

impl Histogram {
    pub fn record(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(us)].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    pub fn snapshot(&self) -> HistogramStats {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).enumerate();
        let buckets: Vec<(u64, u64)> =
            counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (end_of(bucket), count)).collect();
        HistogramStats {
            count: buckets.iter().map(|(_, count)| count).sum(),
            sum_us: self.sum_us.load(Relaxed),
            buckets,
        }
    }
}

/// A distribution of times at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramStats {
    pub count: u64,
    /// Of all times together, in microseconds.
    pub sum_us: u64,
    /// Where each bucket ends, in microseconds, and how many times fell into it; shorter ones first, empty ones left out.
    pub buckets: Vec<(u64, u64)>,
}

impl HistogramStats {
    /// The mean in microseconds, 0 where nothing was counted.
    pub fn mean_us(&self) -> u64 {
        self.sum_us.checked_div(self.count).unwrap_or(0)
    }

    /// The time in microseconds below which this part (0 to 1) of all times is, 0 where nothing was counted.
    pub fn quantile_us(&self, part: f64) -> u64 {
        let wanted = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (end, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return *end;
            }
        }
        0
    }

    /// How many times were shorter than 2 to the `power` microseconds.
    pub fn below(&self, power: u32) -> u64 {
        self.buckets.iter().take_while(|(end, _)| *end <= 1 << power).map(|(_, count)| count).sum()
    }

    /// What was counted after `before`, an earlier moment of the same histogram.
    pub fn since(&self, before: &HistogramStats) -> HistogramStats {
        let old = |end: u64| {
            let at = before.buckets.binary_search_by_key(&end, |(end, _)| *end);
            at.map_or(0, |at| before.buckets[at].1)
        };
        let more = self.buckets.iter().map(|(end, count)| (*end, count.saturating_sub(old(*end))));
        let buckets: Vec<(u64, u64)> = more.filter(|(_, count)| *count > 0).collect();
        HistogramStats {
            count: buckets.iter().map(|(_, count)| count).sum(),
            sum_us: self.sum_us.saturating_sub(before.sum_us),
            buckets,
        }
    }

    /// Both together.
    pub fn and(&self, other: &HistogramStats) -> HistogramStats {
        let mut buckets = std::collections::BTreeMap::new();
        for (end, count) in self.buckets.iter().chain(&other.buckets) {
            *buckets.entry(*end).or_insert(0) += count;
        }
        HistogramStats {
            count: self.count + other.count,
            sum_us: self.sum_us + other.sum_us,
            buckets: buckets.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_that_ends_behind_it() {
        for us in
            (0..5000).chain((12..POWERS).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + (1 << (p - 2))]))
        {
            let bucket = bucket_of(us);
            assert!(us < end_of(bucket), "{us}");
            assert!(bucket == 0 || us >= end_of(bucket - 1), "{us}");
            assert!(end_of(bucket) - us <= (us / PARTS).max(1) + 1, "{us}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(end_of(BUCKETS - 1), 1 << POWERS);
    }

    #[test]
    fn quantiles_sums_and_differences() {
        let times = Histogram::default();
        assert_eq!((times.snapshot().quantile_us(0.5), times.snapshot().mean_us()), (0, 0));
        for us in 1..=1000 {
            times.record(Duration::from_micros(us));
        }
        let first = times.snapshot();
        assert_eq!((first.count, first.sum_us, first.mean_us()), (1000, 500_500, 500));
        assert!((500..=576).contains(&first.quantile_us(0.5)), "{}", first.quantile_us(0.5));
        assert!((990..=1024).contains(&first.quantile_us(0.99)));
        assert_eq!((first.below(9), first.below(10), first.below(0)), (511, 1000, 0));
        times.record(Duration::from_secs(2));
        let later = times.snapshot().since(&first);
        assert_eq!((later.count, later.sum_us), (1, 2_000_000));
        assert!((2_000_000..2_260_000).contains(&later.quantile_us(0.5)));
        assert_eq!(first.and(&later), times.snapshot());
    }
}
