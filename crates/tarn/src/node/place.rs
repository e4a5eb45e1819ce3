//! Where a dataset belongs: below where its parent is mounted, else where its mountpoint property says.

use crate::properties::{self, Source};
use std::path::PathBuf;
use tarn_pool::DatasetConfig;

/// The directory at which `name` is to be mounted. `mounted` tells where a dataset is mounted now. `None` when its
/// mountpoint is `none` or `legacy`.
///
/// A dataset whose mountpoint is inherited follows its nearest ancestor that is mounted, wherever that is.
pub fn place(
    rows: &[DatasetConfig],
    mounted: impl Fn(&str) -> Option<PathBuf>,
    name: &str,
) -> Option<PathBuf> {
    let own = properties::mountpoint(rows, name);
    let set_at = match &own.source {
        Source::Local => name.to_string(),
        Source::Inherited(from) => from.clone(),
        _ => String::new(),
    };
    let mut ancestor = name;
    while ancestor != set_at
        && let Some((parent, _)) = ancestor.rsplit_once('/')
    {
        if let Some(dir) = mounted(parent) {
            return Some(dir.join(&name[parent.len() + 1..]));
        }
        ancestor = parent;
    }
    (own.value != "none" && own.value != "legacy").then(|| own.value.into())
}

/// Whether `canmount` lets the dataset be mounted: by name, or (`all`) together with others.
pub fn can_mount(rows: &[DatasetConfig], name: &str, all: bool) -> bool {
    let row = rows.iter().find(|d| d.name == name && !d.destroying);
    match row.and_then(|d| d.properties.get("canmount")).map(String::as_str) {
        Some("off") => false,
        Some("noauto") => !all,
        _ => row.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::DatasetId;

    fn row(name: &str, properties: &[(&str, &str)]) -> DatasetConfig {
        DatasetConfig {
            id: DatasetId(1),
            name: name.into(),
            guid: 1,
            created_ms: 0,
            properties: properties.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            metadata_vdevs: vec![],
            stored: Default::default(),
            destroying: false,
        }
    }

    #[test]
    fn datasets_follow_a_mounted_ancestor_or_their_property() {
        let rows = [
            row("tank", &[]),
            row("tank/a", &[]),
            row("tank/a/b", &[]),
            row("tank/srv", &[("mountpoint", "/srv")]),
            row("tank/srv/x", &[]),
            row("tank/none", &[("mountpoint", "none")]),
        ];
        let at = |mounts: &[(&str, &str)], name: &str| {
            let find = |n: &str| mounts.iter().find(|(m, _)| *m == n).map(|(_, dir)| PathBuf::from(dir));
            place(&rows, find, name).map(|p| p.display().to_string())
        };
        assert_eq!(at(&[], "tank/a/b").as_deref(), Some("/tank/a/b"));
        assert_eq!(at(&[("tank", "/mnt")], "tank/a/b").as_deref(), Some("/mnt/a/b"));
        assert_eq!(at(&[("tank", "/mnt"), ("tank/a", "/x")], "tank/a/b").as_deref(), Some("/x/b"));
        assert_eq!(at(&[("tank", "/mnt")], "tank/srv").as_deref(), Some("/srv"));
        assert_eq!(at(&[("tank", "/mnt")], "tank/srv/x").as_deref(), Some("/srv/x"));
        assert_eq!(at(&[("tank/srv", "/y")], "tank/srv/x").as_deref(), Some("/y/x"));
        assert_eq!(at(&[("tank", "/mnt")], "tank/none"), None);
    }

    #[test]
    fn canmount_is_heeded() {
        let rows = [
            row("tank", &[]),
            row("tank/off", &[("canmount", "off")]),
            row("tank/n", &[("canmount", "noauto")]),
        ];
        assert!(can_mount(&rows, "tank", true));
        assert!(!can_mount(&rows, "tank/off", false));
        assert!(can_mount(&rows, "tank/n", false) && !can_mount(&rows, "tank/n", true));
        assert!(!can_mount(&rows, "tank/gone", false));
    }
}
