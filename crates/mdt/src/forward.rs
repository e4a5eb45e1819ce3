//! Time that never goes back, for the database: SlateDB writes the time beside each row, and refuses to write anything
//! earlier than the last. But a host's clock is set back sometimes, and the next host's may be behind the last one's.
//! Then time stands still for the database until the clock has caught up.

use chrono::{DateTime, Utc};
use std::sync::atomic::{AtomicI64, Ordering};

/// What SlateDB says of a time that is earlier than the last, with the last behind it in milliseconds.
const REFUSAL: &str = "invalid clock tick";
const LAST: &str = "last_tick=`";

/// The latest time there was, in milliseconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Forward(AtomicI64);

impl Forward {
    /// The time where the clock says `now`.
    pub fn time(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        let ms = now.timestamp_millis();
        match self.0.fetch_max(ms, Ordering::SeqCst) {
            latest if latest > ms => DateTime::from_timestamp_millis(latest).unwrap_or(now),
            _ => now,
        }
    }

    /// Whether a failure came from a clock that is behind the database's rows; then it is so no more.
    pub fn learns(&self, failure: &str) -> bool {
        let last = failure.split_once(REFUSAL).and_then(|(_, rest)| rest.split_once(LAST));
        let last = last.and_then(|(_, rest)| rest.split('`').next()?.parse::<i64>().ok());
        last.is_some_and(|last| self.0.fetch_max(last, Ordering::SeqCst) < last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_until_the_clock_has_caught_up() {
        let (forward, at) = (Forward::default(), |ms| DateTime::from_timestamp_millis(ms).unwrap());
        assert_eq!(forward.time(at(5000)), at(5000));
        assert_eq!(forward.time(at(3000)), at(5000));
        // As SlateDB 0.18 words it.
        let failure =
            "Invalid error: invalid clock tick, must be monotonic. last_tick=`9000`, next_tick=`5001`";
        assert!(forward.learns(failure) && !forward.learns(failure));
        assert_eq!((forward.time(at(8000)), forward.time(at(9001))), (at(9000), at(9001)));
        assert!(!forward.learns("invalid clock tick") && !forward.learns("no such object"));
    }
}
