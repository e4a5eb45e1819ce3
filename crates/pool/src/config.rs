//! The pool's configuration as every label carries it.

use crate::label::HostId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
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
    /// Cache vdevs, of all hosts. Nothing lies in them alone, so who does not know them may pass over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheConfig>,
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

/// One cache vdev: a directory of one host, which is nothing to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheConfig {
    pub guid: u64,
    /// Whose directory it is.
    pub host: HostId,
    /// Absolute, without symbolic links.
    pub path: String,
    /// Most bytes that it takes.
    pub size: u64,
    /// Milliseconds since 1970.
    pub added_ms: i64,
}

/// Numbers that are counted on from, and sums of bytes, stay below this.
pub(crate) const COUNT_MAX: u64 = 1 << 62;
/// Longest name of a dataset with its pool's, in bytes.
const DATASET_NAME_MAX: usize = 255;

impl PoolConfig {
    /// Says what in a configuration that came from a bucket cannot be; `None` when it can be worked with. Names
    /// become parts of paths, and numbers are counted on from, so neither is taken on trust.
    pub(crate) fn problem(&self) -> Option<String> {
        if let Some(problem) = name_problem(&self.name) {
            return Some(problem);
        }
        if self.generation >= COUNT_MAX || self.epoch.0 >= COUNT_MAX {
            return Some("its generation or epoch is too high".into());
        }
        let ids: HashSet<_> = self.vdevs.iter().map(|v| v.id).collect();
        let guids: HashSet<_> = self.vdevs.iter().map(|v| v.guid).collect();
        let twice = ids.len() < self.vdevs.len() || guids.len() < self.vdevs.len();
        if ids.is_empty() || twice || ids.iter().any(|id| id.0 >= self.next_vdev) {
            return Some("its list of vdevs contradicts itself".into());
        }
        let caches: HashSet<_> = self.caches.iter().map(|cache| cache.guid).collect();
        let sound = |cache: &CacheConfig| cache.path.starts_with('/') && cache.size < COUNT_MAX;
        if caches.len() < self.caches.len() || !self.caches.iter().all(sound) {
            return Some("its list of caches contradicts itself".into());
        }
        let mut names = HashSet::new();
        let mut numbers = HashSet::new();
        for dataset in &self.datasets {
            let name = &dataset.name;
            if !self.may_have(name) || !(dataset.destroying || names.insert(name)) {
                return Some(format!("dataset {name:?} cannot be in pool '{}'", self.name));
            }
            let id = dataset.id.0;
            if id == 0 || id >= self.next_dataset || self.next_dataset == u32::MAX || !numbers.insert(id) {
                return Some(format!("the number of dataset '{name}' is not its own"));
            }
            let places = &dataset.metadata_vdevs;
            if places.is_empty() || places.iter().any(|guid| !guids.contains(guid)) {
                return Some(format!("the metadata of dataset '{name}' is on no vdev of the pool"));
            }
            if dataset.stored.values().any(|bytes| *bytes >= COUNT_MAX) {
                return Some(format!("dataset '{name}' is larger than can be"));
            }
        }
        None
    }

    /// Whether a dataset of the pool may have this name.
    fn may_have(&self, name: &str) -> bool {
        let part = |part: &str| {
            !matches!(part, "" | "." | "..")
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c))
        };
        let below = name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('/'));
        name.len() <= DATASET_NAME_MAX && (name == self.name || below.is_some_and(|b| b.split('/').all(part)))
    }

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
    let shown: String = name.chars().take(64).collect();
    Some(format!("invalid pool name '{shown}': {problem}"))
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

    fn config() -> PoolConfig {
        let text = r#"{"guid":1,"name":"tank","generation":1,"epoch":1,"created_ms":0,"next_dataset":3,"next_vdev":2,
            "vdevs":[{"id":0,"guid":7,"url":"/a","added_ms":0},{"id":1,"guid":8,"url":"/b","added_ms":0}],
            "datasets":[{"id":1,"name":"tank","guid":1,"created_ms":0,"metadata_vdevs":[7,8]},
                        {"id":2,"name":"tank/a","guid":2,"created_ms":0,"metadata_vdevs":[7]}]}"#;
        serde_json::from_str(text).unwrap()
    }

    fn cache(guid: u64, path: &str) -> CacheConfig {
        let host = HostId { id: 1, name: "a".into() };
        CacheConfig { guid, host, path: path.into(), size: 1 << 30, added_ms: 0 }
    }

    #[test]
    fn caches_are_written_where_there_are_any_and_older_programs_see_none() {
        let mut changed = config();
        assert!(!serde_json::to_string(&changed).unwrap().contains("caches"));
        changed.caches = vec![cache(1, "/a"), cache(2, "/a")];
        assert_eq!(changed.problem(), None);
        let text = serde_json::to_string(&changed).unwrap();
        assert_eq!(serde_json::from_str::<PoolConfig>(&text).unwrap(), changed);
    }

    #[test]
    fn a_configuration_that_cannot_be_is_refused() {
        assert_eq!(config().problem(), None);
        type Change = fn(&mut PoolConfig);
        let wrong: [(&str, Change); 14] = [
            ("name", |c| c.name = "../tank".into()),
            ("epoch", |c| c.epoch = Epoch(u64::MAX)),
            ("generation", |c| c.generation = u64::MAX),
            ("vdevs", |c| c.vdevs.clear()),
            ("vdevs", |c| c.next_vdev = 1),
            ("vdevs", |c| c.vdevs[1].guid = c.vdevs[0].guid),
            ("tank/../x", |c| c.datasets[1].name = "tank/../x".into()),
            ("other", |c| c.datasets[1].name = "other".into()),
            ("tank", |c| c.datasets[1].name = "tank".into()),
            ("number", |c| c.next_dataset = 2),
            ("no vdev", |c| c.datasets[1].metadata_vdevs = vec![VdevGuid(9)]),
            ("caches", |c| c.caches = vec![cache(1, "nvme")]),
            ("caches", |c| c.caches = vec![cache(1, "/a"), cache(1, "/b")]),
            ("larger", |c| c.datasets[1].stored = BTreeMap::from([(VdevId(0), u64::MAX)])),
        ];
        for (word, change) in wrong {
            let mut changed = config();
            change(&mut changed);
            let problem = changed.problem().unwrap_or_default();
            assert!(problem.contains(word), "{word}: {problem:?}");
        }
    }
}
