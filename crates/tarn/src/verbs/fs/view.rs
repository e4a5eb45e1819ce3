//! Datasets as `fs list` and `fs get` show them: every property as a cell with its source.

use crate::context::Context;
use crate::control::report::{DatasetReport, Usage};
use crate::error::usage;
use crate::names;
use crate::properties::{self, Kind, Source};
use crate::table::Cell;
use anyhow::{Result, bail};
use tarn_pool::DatasetConfig;

/// The datasets of one pool.
pub struct View {
    reports: Vec<DatasetReport>,
    rows: Vec<DatasetConfig>,
}

/// Which datasets a command names.
pub struct Chosen<'a> {
    pub names: &'a [String],
    /// What lies below them too.
    pub recursive: bool,
}

/// Whether any of these columns needs to ask the datasets themselves.
pub fn needs_usage(columns: &[String]) -> bool {
    columns.iter().any(|c| matches!(c.as_str(), "used" | "available" | "referenced" | "inodes"))
}

/// Checks `-t`: only file systems exist so far.
pub fn check_types(types: Option<&str>) -> Result<()> {
    for kind in types.unwrap_or("filesystem").split(',') {
        if !matches!(kind, "filesystem" | "fs" | "all") {
            return Err(usage(format!("'{kind}' is no type of dataset: use filesystem or all")));
        }
    }
    Ok(())
}

/// Datasets of one pool, by name.
pub type Picked = (View, Vec<String>);

/// The datasets that `chosen` names, each with the view of its pool, in name order; all when none is named. And the
/// command's status: see [`Context::of_each`].
pub fn collect(context: &Context, chosen: &Chosen, usage: bool) -> Result<(Vec<Picked>, u8)> {
    let mut pools = Vec::new();
    for name in chosen.names {
        let pool = names::pool_of(name)?.to_string();
        if !pools.contains(&pool) {
            pools.push(pool);
        }
    }
    if chosen.names.is_empty() {
        pools = context.pool_names(&[])?;
    }
    context.of_each(&pools, |pool| {
        let view = View::new(context.datasets(pool, usage)?);
        let mut picked: Vec<String> = Vec::new();
        for name in chosen.names.iter().filter(|n| names::pool_of(n).is_ok_and(|p| p == pool)) {
            if !view.rows.iter().any(|d| d.name == *name) {
                bail!("no dataset '{name}': 'tarn fs list -r {pool}' shows those there are");
            }
            picked.extend(view.below(name, chosen.recursive));
        }
        if chosen.names.is_empty() {
            picked = view.below(pool, true);
        }
        picked.sort();
        picked.dedup();
        Ok((view, picked))
    })
}

impl View {
    pub fn new(reports: Vec<DatasetReport>) -> View {
        let rows = reports.iter().map(|r| r.config.clone()).collect();
        View { reports, rows }
    }

    fn below(&self, name: &str, recursive: bool) -> Vec<String> {
        let within = |d: &&DatasetConfig| d.name == name || recursive && names::is_within(&d.name, name);
        self.rows.iter().filter(within).map(|d| d.name.clone()).collect()
    }

    /// Names of the properties that `fs get all` shows for a dataset: the known ones, and the user's own.
    pub fn all_properties(&self, name: &str) -> Vec<String> {
        let mut all: Vec<String> = properties::DATASET.iter().map(|p| p.name.to_string()).collect();
        let mut own: Vec<&String> = self
            .rows
            .iter()
            .filter(|d| names::is_within(name, &d.name))
            .flat_map(|d| d.properties.keys())
            .filter(|k| k.contains(':'))
            .collect();
        own.sort();
        own.dedup();
        all.extend(own.into_iter().cloned());
        all
    }

    /// The value of a property of the dataset, and where it comes from.
    pub fn cell(&self, name: &str, key: &str) -> Result<(Cell, Source)> {
        let Some(report) = self.reports.iter().find(|r| r.config.name == name) else {
            return Ok((Cell::None, Source::Nothing));
        };
        if key == "name" {
            return Ok((Cell::text(name), Source::Nothing));
        }
        let property = properties::dataset(key)?;
        if !property.read_only() {
            let found = properties::effective(&self.rows, name, property, key);
            let size = matches!(property.kind, Kind::PowerOfTwo { .. } | Kind::SizeOrNone);
            let cell = match found.value.parse() {
                Ok(n) if size => Cell::Count(n),
                _ if found.value.is_empty() => Cell::None,
                _ => Cell::Text(found.value),
            };
            return Ok((cell, found.source));
        }
        let usage = report.usage;
        let cell = match property.name {
            "type" => Cell::text("filesystem"),
            "creation" => Cell::Time(report.config.created_ms),
            "guid" => Cell::text(report.config.guid.to_string()),
            "mounted" => Cell::text(if report.mounted.is_some() { "yes" } else { "no" }),
            "used" => usage.map_or(Cell::None, |_| Cell::Bytes(self.sum(name, |u| u.used))),
            "available" => usage.map_or(Cell::None, |u| Cell::Bytes(self.available(name, u.pool_free))),
            "referenced" => usage.map_or(Cell::None, |u| Cell::Bytes(u.referenced)),
            "inodes" => usage.map_or(Cell::None, |u| Cell::Count(u.inodes)),
            _ => Cell::None,
        };
        Ok((cell, Source::Nothing))
    }

    /// A figure of the dataset and those below it in all.
    fn sum(&self, name: &str, figure: fn(&Usage) -> u64) -> u64 {
        let within = self.reports.iter().filter(|r| names::is_within(&r.config.name, name));
        within.filter_map(|r| r.usage.as_ref()).map(figure).sum()
    }

    /// Bytes that can still be written: what the pool has free, less where a quota is nearer.
    fn available(&self, name: &str, pool_free: u64) -> u64 {
        let above = self.rows.iter().filter(|d| names::is_within(name, &d.name));
        let room = |d: &DatasetConfig| {
            let quota = d.properties.get("quota")?.parse::<u64>().ok()?;
            Some(quota.saturating_sub(self.sum(&d.name, |u| u.referenced)))
        };
        above.filter_map(room).fold(pool_free, u64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::DatasetId;

    fn report(name: &str, used: u64, properties: &[(&str, &str)]) -> DatasetReport {
        DatasetReport {
            config: DatasetConfig {
                id: DatasetId(1),
                name: name.into(),
                guid: 1,
                created_ms: 0,
                properties: properties.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
                metadata_vdevs: vec![],
                stored: Default::default(),
                destroying: false,
            },
            usage: Some(Usage { used, referenced: used, pool_free: 1000, inodes: 1 }),
            mounted: None,
        }
    }

    #[test]
    fn use_counts_children_and_quotas_limit_room() {
        let view = View::new(vec![
            report("tank", 10, &[]),
            report("tank/a", 20, &[("quota", "100")]),
            report("tank/a/b", 30, &[("site:x", "1")]),
            report("tank/ab", 40, &[]),
        ]);
        let cell = |name, key| view.cell(name, key).unwrap().0;
        assert_eq!(cell("tank", "used"), Cell::Bytes(100));
        assert_eq!(cell("tank/a", "used"), Cell::Bytes(50));
        assert_eq!(cell("tank/a", "referenced"), Cell::Bytes(20));
        assert_eq!(cell("tank/a/b", "available"), Cell::Bytes(50));
        assert_eq!(cell("tank/ab", "available"), Cell::Bytes(1000));
        assert_eq!(cell("tank/a", "quota"), Cell::Count(100));
        assert_eq!(cell("tank", "quota"), Cell::text("none"));
        assert!(view.all_properties("tank/a/b").contains(&"site:x".to_string()));
        assert!(!view.all_properties("tank/a").contains(&"site:x".to_string()));
        assert!(view.cell("tank", "nonsense").is_err());
    }
}
