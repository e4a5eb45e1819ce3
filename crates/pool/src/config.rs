//! The pool's configuration as every label carries it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_base::{DatasetId, Epoch, PoolGuid, VdevGuid, VdevId};

/// One dataset as the pool's configuration keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetConfig {
    pub id: DatasetId,
    /// Full name with the pool's: `tank/home/ann`. The pool's own dataset is `tank`.
    pub name: String,
    pub guid: u64,
    /// Milliseconds since 1970.
    pub created_ms: i64,
    /// Properties set here (not inherited), by name.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Leaf vdevs that hold the dataset's metadata objects: placement is by hash over this list, in this order,
    /// and never changes when vdevs are added.
    pub metadata_vdevs: Vec<VdevGuid>,
    /// Bytes of its segments by vdev, when it was last closed.
    #[serde(default)]
    pub stored: BTreeMap<VdevId, u64>,
    /// A destroyed dataset whose segments are still being freed.
    #[serde(default)]
    pub destroying: bool,
}

/// What every label carries of the pool: written whole, with a higher generation, at each change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolConfig {
    pub guid: PoolGuid,
    pub name: String,
    /// Counts up with every label write.
    pub generation: u64,
    pub epoch: Epoch,
    /// Milliseconds since 1970.
    pub created_ms: i64,
    /// Pool properties that were set, by name.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    #[serde(default)]
    pub datasets: Vec<DatasetConfig>,
    pub next_dataset: u32,
    pub vdevs: Vec<VdevConfig>,
    pub next_vdev: u16,
}

/// One top-level vdev; today always a single bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevConfig {
    pub id: VdevId,
    pub guid: VdevGuid,
    /// Where it was last seen.
    pub url: String,
    /// Milliseconds since 1970.
    pub added_ms: i64,
}

impl PoolConfig {
    /// Gives the pool, and with it every dataset, another first name.
    pub(crate) fn rename(&mut self, name: &str) {
        for dataset in &mut self.datasets {
            if dataset.name == self.name {
                dataset.name = name.to_string();
            } else if let Some(rest) = dataset.name.strip_prefix(&format!("{}/", self.name)) {
                dataset.name = format!("{name}/{rest}");
            }
        }
        self.name = name.to_string();
    }
}

/// Says what is wrong with `name` as a pool's name, by zpool's rules; `None` when nothing is.
pub fn name_problem(name: &str) -> Option<String> {
    const RESERVED: [&str; 7] = ["mirror", "raidz", "draid", "spare", "log", "cache", "special"];
    let problem = if name.is_empty() {
        "it is empty".to_string()
    } else if name.len() > 255 {
        "it is longer than 255 bytes".to_string()
    } else if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        "it must begin with a letter".to_string()
    } else if let Some(c) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.:".contains(*c))) {
        format!("character {c:?} is not allowed (letters, digits, '-', '_', '.' and ':' are)")
    } else if RESERVED.iter().any(|r| name == *r || (name.starts_with(r) && *r != "log" && *r != "cache")) {
        "the name is reserved for a kind of vdev".to_string()
    } else {
        return None;
    };
    Some(format!("invalid pool name '{name}': {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_zpool() {
        for good in ["tank", "T1", "a-b_c.d:e", "logs", "cached"] {
            assert_eq!(name_problem(good), None, "{good}");
        }
        for bad in
            ["", "1tank", "mirror", "mirror-0", "raidz2", "log", "ta nk", "tank/x", "-t", &"a".repeat(256)]
        {
            assert!(name_problem(bad).is_some(), "{bad}");
        }
    }
}
