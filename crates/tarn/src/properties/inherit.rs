//! Which value holds for a dataset, and where it comes from.

use super::{DATASET, Kind, Property};
use std::collections::BTreeMap;
use std::fmt;
use tarn_pool::DatasetConfig;

/// Where a value comes from: the SOURCE column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Local,
    Default,
    /// From the dataset of this name.
    Inherited(String),
    /// It reports, or is a user's and not set.
    Nothing,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Local => f.write_str("local"),
            Source::Default => f.write_str("default"),
            Source::Inherited(from) => write!(f, "inherited from {from}"),
            Source::Nothing => f.write_str("-"),
        }
    }
}

/// A canonical value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Valued {
    pub value: String,
    pub source: Source,
}

/// `tank/a/b`, `tank/a`, `tank`.
fn lineage(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |n| n.rsplit_once('/').map(|(parent, _)| parent))
}

fn row<'a>(rows: &'a [DatasetConfig], name: &str) -> Option<&'a DatasetConfig> {
    rows.iter().find(|d| d.name == name && !d.destroying)
}

/// The value of `property` (called `key`, which differs for a user's own) that holds for the dataset `name`.
pub fn effective(rows: &[DatasetConfig], name: &str, property: &Property, key: &str) -> Valued {
    if matches!(property.kind, Kind::Mountpoint) {
        return mountpoint(rows, name);
    }
    for (depth, ancestor) in lineage(name).enumerate() {
        if depth > 0 && !property.inherit {
            break;
        }
        if let Some(value) = row(rows, ancestor).and_then(|d| d.properties.get(key)) {
            let source = if depth == 0 { Source::Local } else { Source::Inherited(ancestor.into()) };
            return Valued { value: value.clone(), source };
        }
    }
    let source = if property.default.is_empty() { Source::Nothing } else { Source::Default };
    Valued { value: property.default.into(), source }
}

/// Every settable value that holds for the dataset, by name: what it is opened with.
pub fn effective_all(rows: &[DatasetConfig], name: &str) -> BTreeMap<String, String> {
    let settable = DATASET.iter().filter(|p| !p.read_only());
    settable.map(|p| (p.name.to_string(), effective(rows, name, p, p.name).value)).collect()
}

/// The mountpoint: the nearest one set, and below it the rest of the name; `/NAME` when none is set.
pub fn mountpoint(rows: &[DatasetConfig], name: &str) -> Valued {
    for ancestor in lineage(name) {
        let Some(value) = row(rows, ancestor).and_then(|d| d.properties.get("mountpoint")) else { continue };
        if ancestor == name {
            return Valued { value: value.clone(), source: Source::Local };
        }
        let source = Source::Inherited(ancestor.into());
        if value == "none" || value == "legacy" {
            return Valued { value: value.clone(), source };
        }
        let suffix = &name[ancestor.len()..];
        return Valued { value: format!("{}{suffix}", value.trim_end_matches('/')), source };
    }
    Valued { value: format!("/{name}"), source: Source::Default }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::dataset;
    use tarn_base::DatasetId;

    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)]);

    fn rows(rows: &[Row]) -> Vec<DatasetConfig> {
        let row = |(i, (name, properties)): (usize, &Row)| DatasetConfig {
            id: DatasetId(i as u32),
            name: name.to_string(),
            guid: 1,
            created_ms: 0,
            properties: properties.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            metadata_vdevs: Vec::new(),
            stored: Default::default(),
            destroying: false,
        };
        rows.iter().enumerate().map(row).collect()
    }

    fn get(rows: &[DatasetConfig], name: &str, key: &str) -> (String, String) {
        let found = effective(rows, name, dataset(key).unwrap(), key);
        (found.value, found.source.to_string())
    }

    fn pair(value: &str, source: &str) -> (String, String) {
        (value.into(), source.into())
    }

    #[test]
    fn values_come_from_the_nearest_ancestor() {
        let rows = rows(&[
            ("tank", &[("compression", "zstd"), ("quota", "1024"), ("site:owner", "ann")]),
            ("tank/a", &[("compression", "off")]),
            ("tank/a/b", &[]),
            ("tank/ab", &[]),
        ]);
        assert_eq!(get(&rows, "tank/a", "compression"), pair("off", "local"));
        assert_eq!(get(&rows, "tank/a/b", "compression"), pair("off", "inherited from tank/a"));
        assert_eq!(get(&rows, "tank/ab", "compression"), pair("zstd", "inherited from tank"));
        assert_eq!(get(&rows, "tank/a/b", "recordsize"), pair("131072", "default"));
        assert_eq!(get(&rows, "tank/a", "quota"), pair("none", "default"));
        assert_eq!(get(&rows, "tank/a", "site:owner"), pair("ann", "inherited from tank"));
        assert_eq!(get(&rows, "tank/a", "site:other"), pair("", "-"));
        assert_eq!(effective_all(&rows, "tank/a/b")["compression"], "off");
    }

    #[test]
    fn mountpoints_are_inherited_with_the_rest_of_the_name() {
        let rows = rows(&[
            ("tank", &[]),
            ("tank/a", &[("mountpoint", "/srv")]),
            ("tank/a/b", &[]),
            ("tank/root", &[("mountpoint", "/")]),
            ("tank/root/x", &[]),
            ("tank/none", &[("mountpoint", "none")]),
            ("tank/none/y", &[]),
        ]);
        assert_eq!(get(&rows, "tank", "mountpoint"), pair("/tank", "default"));
        assert_eq!(get(&rows, "tank/a", "mountpoint"), pair("/srv", "local"));
        assert_eq!(get(&rows, "tank/a/b", "mountpoint"), pair("/srv/b", "inherited from tank/a"));
        assert_eq!(get(&rows, "tank/root/x", "mountpoint"), pair("/x", "inherited from tank/root"));
        assert_eq!(get(&rows, "tank/none/y", "mountpoint"), pair("none", "inherited from tank/none"));
    }
}
