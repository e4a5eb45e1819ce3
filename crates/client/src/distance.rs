//! How far ahead of a stream to fetch: it climbs while that makes the stream faster.
//!
//! Too short, and the reader waits for buckets that could have been asked earlier; too long, and buffers are spread
//! over more memory than the processor's caches hold, and a reader that stops leaves much behind. What is right follows
//! from the stores' latency and bandwidth, which nobody has to know: whenever the reader had to wait, the distance is
//! doubled, and it is halved again if that did not make the stream faster by a tenth. After that the question rests
//! for a while, because a stream that is bound by the network or a processor waits whatever the distance is, and fresh
//! memory for more buffers only makes it slower.

use std::time::Duration;

/// Epochs for which a distance that was found too long is not tried again.
const REST: u32 = 32;
/// Epochs before the first trial: a stream's beginning tells little, and three segments for each vdev are enough for most.
const FIRST: u32 = 8;
/// A longer distance must be faster by this factor.
const FASTER: f64 = 1.1;
/// An epoch is a distance read, and takes this long at least: rates over a moment tell nothing.
const EPOCH: Duration = Duration::from_millis(200);

pub(crate) struct Distance {
    /// Bytes; 0 until the first read says how long a segment is.
    bytes: u64,
    /// Where and when the epoch began.
    from: u64,
    since: Duration,
    /// The reader had to wait in this epoch.
    waited: bool,
    trial: Trial,
}

enum Trial {
    /// Epochs left to rest.
    Resting(u32),
    /// The distance was doubled; the first epoch after that still lives on what was fetched before.
    Settling { rate: f64 },
    /// This epoch shows what it brought over bytes per second before.
    Measuring { rate: f64 },
}

impl Default for Distance {
    fn default() -> Distance {
        Distance { bytes: 0, from: 0, since: Duration::ZERO, waited: false, trial: Trial::Resting(FIRST) }
    }
}

impl Distance {
    /// A sequence begins at `offset`. What was learned of the stores stays.
    pub fn begin(&mut self, offset: u64, now: Duration) {
        self.from = offset;
        self.since = now;
        self.waited = false;
    }

    /// A read had to wait for what was on its way.
    pub fn waited(&mut self) {
        self.waited = true;
    }

    /// The distance in bytes now that the stream has come to `offset`; between `least` and `most`.
    pub fn at(&mut self, offset: u64, now: Duration, least: u64, most: u64) -> u64 {
        self.bytes = self.bytes.clamp(least.min(most), most);
        let (read, time) = (offset.saturating_sub(self.from), now.saturating_sub(self.since));
        if read >= self.bytes && time >= EPOCH {
            self.epoch(read as f64 / time.as_secs_f64(), least, most);
            self.begin(offset, now);
        }
        self.bytes
    }

    fn epoch(&mut self, rate: f64, least: u64, most: u64) {
        self.trial = match self.trial {
            Trial::Settling { rate } => Trial::Measuring { rate },
            Trial::Measuring { rate: before } if rate < before * FASTER => {
                self.bytes = (self.bytes / 2).max(least.min(most));
                Trial::Resting(REST)
            }
            Trial::Resting(left) if left > 0 => Trial::Resting(left - 1),
            _ if self.waited && self.bytes < most => {
                self.bytes = (self.bytes * 2).min(most);
                Trial::Settling { rate }
            }
            _ => Trial::Resting(0),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 4 << 20;
    const MOST: u64 = 64 * UNIT;

    /// Reads on and on; `rate` says how many bytes a second come at a distance. Gives where the distance ends up.
    fn after(epochs: usize, waits: bool, rate: impl Fn(u64) -> f64) -> u64 {
        let mut distance = Distance::default();
        let (mut offset, mut now, mut bytes) = (0, Duration::ZERO, 2 * UNIT);
        for _ in 0..epochs {
            offset += bytes;
            now += Duration::from_secs_f64(bytes as f64 / rate(bytes));
            if waits {
                distance.waited();
            }
            bytes = distance.at(offset, now, 2 * UNIT, MOST);
        }
        bytes
    }

    #[test]
    fn it_climbs_as_long_as_that_helps() {
        // A store with latency: what comes is what was asked for ahead.
        assert_eq!(after(40, true, |distance| distance as f64 * 2.0), MOST);
        // One that has no more to give than a certain distance brings.
        let best = after(20, true, |distance| distance.min(8 * UNIT) as f64 * 2.0);
        assert_eq!(best, 8 * UNIT);
        // A reader that is slower than the store never waits.
        assert_eq!(after(40, false, |_| 1e7), 2 * UNIT);
        // Bound by something else.
        assert_eq!(after(20, true, |_| 1e7), 2 * UNIT);
    }
}
