//! Moments as people read them.

use chrono::{DateTime, Local};

fn at(ms: i64) -> Option<DateTime<Local>> {
    DateTime::from_timestamp_millis(ms).map(|t| t.with_timezone(&Local))
}

/// `Fri Nov 21 20:30 2025`, as zfs shows a creation.
pub fn local(ms: i64) -> String {
    at(ms).map_or_else(|| "-".into(), |t| t.format("%a %b %e %H:%M %Y").to_string())
}

/// `2025-11-21.20:30:05`, as `zpool history` shows a moment.
pub fn history(ms: i64) -> String {
    at(ms).map_or_else(|| "-".into(), |t| t.format("%Y-%m-%d.%H:%M:%S").to_string())
}
