//! Properties of a pool: what there is, what is allowed, what it means.

use crate::text::{parse_duration, parse_size};
use crate::{Error, Result};
use tarn_base::block::SEGMENT_SIZE_MAX;

/// Who may set a property, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Editable {
    Always,
    /// Only by `pool create -o`.
    AtCreation,
    Never,
}

/// One property that a pool has.
#[derive(Debug, Clone, Copy)]
pub struct PropertyInfo {
    pub name: &'static str,
    /// The value of a pool in which nobody set it; `None` for what is computed.
    pub default: Option<&'static str>,
    pub editable: Editable,
    /// The values allowed, for the message that refuses another.
    pub values: &'static str,
    pub help: &'static str,
    valid: fn(&str) -> bool,
}

fn never(_: &str) -> bool {
    false
}

const fn computed(name: &'static str, help: &'static str) -> PropertyInfo {
    PropertyInfo { name, default: None, editable: Editable::Never, values: "-", help, valid: never }
}

/// Every property, in the order in which they are shown.
pub const PROPERTIES: &[PropertyInfo] = &[
    computed("guid", "the pool's identity"),
    computed("size", "bytes that the buckets hold in all"),
    computed("allocated", "bytes stored"),
    computed("free", "bytes that new data may still take"),
    computed("capacity", "part of the size that is not free, in percent"),
    computed("health", "the pool's state"),
    computed("generation", "counts the changes of the pool's configuration"),
    PropertyInfo {
        name: "authority",
        default: Some("host"),
        editable: Editable::AtCreation,
        values: "host | bucket | bucket:URL",
        help: "where it is decided which host may write: a lock on this host's disks, or objects in a bucket",
        valid: |v| v == "host" || v == "bucket" || (v.starts_with("bucket:") && v.len() > 7),
    },
    PropertyInfo {
        name: "comment",
        default: Some(""),
        editable: Editable::Always,
        values: "up to 1024 bytes without control characters",
        help: "for people",
        valid: |v| v.len() <= 1024 && !v.contains(char::is_control),
    },
    PropertyInfo {
        name: "deadline",
        default: Some("60s"),
        editable: Editable::Always,
        values: "1s to 1h",
        help: "how long a bucket may take to answer, retries included, before that is an error",
        valid: |v| parse_duration(v).is_some_and(|d| (1..=3600).contains(&d.as_secs())),
    },
    PropertyInfo {
        name: "failmode",
        default: Some("wait"),
        editable: Editable::Always,
        values: "wait | continue",
        help: "whether calls wait for buckets that fail past the deadline, or get an error",
        valid: |v| v == "wait" || v == "continue",
    },
    PropertyInfo {
        name: "l2arc_write_max",
        default: Some("256M"),
        editable: Editable::Always,
        values: "1M to 64G",
        help: "bytes that are written to each cache a second at most",
        valid: |v| parse_size(v).is_some_and(|n| (1 << 20..=64 << 30).contains(&n)),
    },
    PropertyInfo {
        name: "rewind",
        default: Some("10m"),
        editable: Editable::Always,
        values: "0 to 30d",
        help: "how long freed segments are kept, so that the pool can go back to an earlier moment",
        valid: |v| parse_duration(v).is_some_and(|d| d.as_secs() <= 30 * 86_400),
    },
    PropertyInfo {
        name: "secondarycache",
        default: Some("nostreams"),
        editable: Editable::Always,
        values: "all | nostreams | none",
        help: "which records that were fetched go into caches: all, all but those of streams, or none",
        valid: |v| ["all", "nostreams", "none"].contains(&v),
    },
    PropertyInfo {
        name: "segment_size",
        default: Some("4M"),
        editable: Editable::Always,
        values: "256K to 64M",
        help: "bytes that are packed into one object",
        valid: |v| parse_size(v).is_some_and(|n| (256 << 10..=SEGMENT_SIZE_MAX).contains(&n)),
    },
];

/// Looks a property up.
pub fn property_info(name: &str) -> Result<&'static PropertyInfo> {
    PROPERTIES.iter().find(|p| p.name == name).ok_or_else(|| {
        let settable: Vec<_> =
            PROPERTIES.iter().filter(|p| p.editable != Editable::Never).map(|p| p.name).collect();
        Error::Usage(format!("unknown pool property '{name}' (there are: {})", settable.join(", ")))
    })
}

/// Checks a value that somebody wants to set, at the pool's creation or later.
pub fn check_property(name: &str, value: &str, creating: bool) -> Result<()> {
    let info = property_info(name)?;
    match info.editable {
        Editable::Never => return Err(Error::Usage(format!("pool property '{name}' is read-only"))),
        Editable::AtCreation if !creating => {
            return Err(Error::Usage(format!(
                "pool property '{name}' can only be set when the pool is created"
            )));
        }
        _ => {}
    }
    if !(info.valid)(value) {
        return Err(Error::Usage(format!(
            "bad value '{value}' for pool property '{name}' (allowed: {})",
            info.values
        )));
    }
    Ok(())
}

/// A property as it stands.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PropertyValue {
    pub name: &'static str,
    pub value: String,
    /// `-` for what is computed, `default`, or `local` when somebody set it.
    pub source: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_allowed_and_nonsense_is_not() {
        for p in PROPERTIES {
            if let Some(default) = p.default {
                check_property(p.name, default, true).unwrap();
            }
        }
        for (name, value) in [
            ("rewind", "31d"),
            ("deadline", "0"),
            ("failmode", "panic"),
            ("segment_size", "4"),
            ("secondarycache", "metadata"),
            ("l2arc_write_max", "0"),
            ("guid", "5"),
            ("x", ""),
        ] {
            assert!(check_property(name, value, true).is_err(), "{name}={value}");
        }
        assert!(check_property("authority", "bucket", false).is_err());
    }
}
