//! Properties of datasets: which there are, what they may be set to, and what holds where.
//!
//! A value is kept in one canonical form (`128K` as `131072`, `on` for `compression` as `lz4`), and shown as zfs
//! shows it. Inheritance is worked out here, from the dataset rows of the pool's configuration, and nowhere else: a
//! dataset is opened with the values that hold for it.

mod inherit;
mod value;

pub use inherit::{Source, effective, effective_all, mountpoint};
pub use value::{Kind, canonical};

use crate::error::usage;
use anyhow::Result;
use std::collections::BTreeMap;

/// One property.
#[derive(Debug)]
pub struct Property {
    pub name: &'static str,
    pub kind: Kind,
    /// Canonical; empty for one that only reports.
    pub default: &'static str,
    /// Children take the value of their parent.
    pub inherit: bool,
}

impl Property {
    /// It reports, and cannot be set.
    pub fn read_only(&self) -> bool {
        matches!(self.kind, Kind::Report)
    }
}

const fn property(name: &'static str, kind: Kind, default: &'static str, inherit: bool) -> Property {
    Property { name, kind, default, inherit }
}

const ON_OFF: Kind = Kind::Choice(&["on", "off"]);

/// Properties of datasets, in the order of `fs get all`.
pub const DATASET: &[Property] = &[
    property("type", Kind::Report, "", false),
    property("creation", Kind::Report, "", false),
    property("guid", Kind::Report, "", false),
    property("used", Kind::Report, "", false),
    property("available", Kind::Report, "", false),
    property("referenced", Kind::Report, "", false),
    property("inodes", Kind::Report, "", false),
    property("mounted", Kind::Report, "", false),
    property("quota", Kind::SizeOrNone, "none", false),
    property("recordsize", Kind::PowerOfTwo { min: 4 << 10, max: 16 << 20 }, "131072", true),
    property("mountpoint", Kind::Mountpoint, "", true),
    property("canmount", Kind::Choice(&["on", "off", "noauto"]), "on", false),
    property("checksum", Kind::Checksum, "xxh3", true),
    property("compression", Kind::Compression, "lz4", true),
    property("atime", ON_OFF, "on", true),
    property("relatime", ON_OFF, "on", true),
    property("devices", ON_OFF, "on", true),
    property("exec", ON_OFF, "on", true),
    property("setuid", ON_OFF, "on", true),
    property("readonly", ON_OFF, "off", true),
];

/// The dataset property of this name; also a user's own, whose name has a `:` as in zfs.
pub fn dataset(name: &str) -> Result<&'static Property> {
    const USER: &Property = &property("", Kind::Text, "", true);
    if name.contains(':') {
        return Ok(USER);
    }
    let name = alias(name);
    let found = DATASET.iter().find(|p| p.name == name);
    found.ok_or_else(|| usage(format!("'{name}' is no property of a dataset: there are {}", names(DATASET))))
}

/// The full name behind zfs's short ones.
pub fn alias(name: &str) -> &str {
    match name {
        "avail" => "available",
        "refer" => "referenced",
        "recsize" => "recordsize",
        "compress" => "compression",
        "rdonly" => "readonly",
        "alloc" => "allocated",
        "cap" => "capacity",
        other => other,
    }
}

fn names(properties: &[Property]) -> String {
    properties.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
}

/// Splits `PROP=VALUE`.
pub fn split(text: &str) -> Result<(&str, &str)> {
    text.split_once('=').ok_or_else(|| usage(format!("'{text}': write PROPERTY=VALUE")))
}

/// Properties of a pool that somebody wants to set. What they may be is the pool's to say.
pub fn pool_assignments(texts: &[String]) -> Result<BTreeMap<String, String>> {
    texts.iter().map(|text| split(text).map(|(name, value)| (alias(name).into(), value.into()))).collect()
}

/// `PROP=VALUE` of a dataset, name and value in canonical form.
pub fn assignment(text: &str) -> Result<(String, String)> {
    let (name, value) = split(text)?;
    let property = dataset(name)?;
    let name = alias(name);
    if property.read_only() {
        return Err(usage(format!("'{name}' is read-only")));
    }
    let value = canonical(&property.kind, value)
        .map_err(|allowed| usage(format!("'{value}' is no value for '{name}': {allowed}")))?;
    Ok((name.to_string(), value))
}

/// [`assignment`] for each of several.
pub fn assignments(texts: &[String]) -> Result<BTreeMap<String, String>> {
    texts.iter().map(|text| assignment(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_are_checked_and_made_canonical() {
        let set = |text: &str| assignment(text).map_err(|e| e.to_string());
        assert_eq!(set("recordsize=1M").unwrap(), ("recordsize".into(), "1048576".into()));
        assert_eq!(set("recsize=128K").unwrap(), ("recordsize".into(), "131072".into()));
        assert_eq!(set("compression=on").unwrap().1, "lz4");
        assert_eq!(set("site:owner=ann").unwrap(), ("site:owner".into(), "ann".into()));
        for (text, needle) in [
            ("recordsize", "PROPERTY=VALUE"),
            ("recordsize=3000", "power of two"),
            ("recordsize=32M", "4K to 16M"),
            ("compression=gzip", "lz4"),
            ("compression=zstd-99", "zstd-1"),
            ("used=5", "read-only"),
            ("quota=10", "with its unit, as in 10G"),
            ("quota=1B", "at least 4K"),
            ("quota=10Q", "with its unit"),
            ("quota=-5G", "with its unit"),
            ("recrdsize=1M", "recordsize"),
            ("mountpoint=relative/path", "absolute"),
            ("atime=maybe", "on, off"),
        ] {
            let error = set(text).unwrap_err();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }

    #[test]
    fn every_default_is_canonical() {
        for p in DATASET.iter().filter(|p| !p.default.is_empty()) {
            assert_eq!(canonical(&p.kind, p.default).as_deref(), Ok(p.default), "{}", p.name);
        }
    }
}
