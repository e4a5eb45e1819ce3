//! Open datasets: opening them when they are needed, and telling them of changed properties.

use super::Node;
use crate::control::Reply;
use crate::control::report::{DatasetReport, Usage};
use crate::progress::Sink;
use crate::properties;
use crate::wiring::{self, Budget, Dataset};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_pool::DatasetConfig;

impl Node {
    /// The rows of datasets that are not being destroyed, in name order.
    pub(super) fn rows(&self) -> Vec<DatasetConfig> {
        let mut rows: Vec<_> =
            self.pool.config().datasets.iter().filter(|d| !d.destroying).cloned().collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows
    }

    pub(super) fn row(&self, name: &str) -> Result<DatasetConfig> {
        let found = self.rows().into_iter().find(|d| d.name == name);
        found.with_context(|| {
            format!("no dataset '{name}': 'tarn fs list -r {}' shows those there are", self.name)
        })
    }

    /// The dataset, opened if it is not; called with `admin` held.
    pub(super) async fn dataset(&self, row: &DatasetConfig) -> Result<Arc<Dataset>> {
        let open = self.open.lock().get(&row.id).cloned();
        match open {
            Some(open) if open.closing() => self.finish_close(row, &open).await?,
            Some(open) => return Ok(open),
            None => {}
        }
        let rows = self.rows();
        let values = properties::effective_all(&rows, &row.name);
        let memory = &self.settings.memory;
        let budget = Budget {
            dirty: Budget::share(memory.dirty, rows.len()),
            flights: Budget::share(memory.flights, rows.len()),
            metadata: Budget::share(memory.metadata, rows.len()),
        };
        let dataset = wiring::Dataset::open(&self.pool, row, &values, budget).await;
        let dataset = dataset.with_context(|| format!("cannot open '{}'", row.name))?;
        self.open.lock().insert(row.id, dataset.clone());
        Ok(dataset)
    }

    /// Closes what an earlier close has left half closed, so that it can be opened anew; never mounted.
    async fn finish_close(&self, row: &DatasetConfig, dataset: &Arc<Dataset>) -> Result<()> {
        let unfinished = || format!("'{}' is not closed yet since it was last unmounted", row.name);
        if let Some(why) = self.pool.suspended() {
            return Err(anyhow!("the pool is suspended: {why}").context(unfinished()));
        }
        dataset.close(&crate::progress::Silent).await.with_context(unfinished)?;
        self.open.lock().remove(&row.id);
        // Another host's is had by a mount of its own.
        dataset.exported().map(drop).with_context(|| format!("'{}' has just been unmounted", row.name))
    }

    /// Flushes and closes a dataset if it is open and not mounted; called with `admin` held.
    pub(super) async fn close_unmounted(&self, row: &DatasetConfig, sink: &dyn Sink) -> Result<()> {
        if self.mounted_at(&row.name).is_some() {
            return Ok(());
        }
        if self.door.lock().is_some() && self.open.lock().get(&row.id).is_some_and(|dataset| dataset.taken())
        {
            return Ok(());
        }
        let Some(dataset) = self.open.lock().remove(&row.id) else { return Ok(()) };
        if let Err(e) = dataset.close(sink).await {
            // What could not be written is still in its memory: keep it, so that it can be tried again.
            self.open.lock().insert(row.id, dataset);
            return Err(e.context(format!("'{}' could not be written to its buckets", row.name)));
        }
        Ok(())
    }

    /// Fails if a client on another host has the dataset.
    pub(super) fn refuse_taken(&self, row: &DatasetConfig) -> Result<()> {
        match self.open.lock().get(&row.id) {
            Some(dataset) if dataset.taken() => bail!(
                "a client on another host has '{0}': unmount it there, or use 'tarn serve --give-up {0}'",
                row.name
            ),
            _ => Ok(()),
        }
    }

    /// The same, also where the dataset is not open: a client that this host has not heard of since it has the pool may
    /// come back. Where it cannot be opened nobody knows, and `force` decides. Called with `admin` held.
    pub(super) async fn refuse_claimed(
        &self,
        row: &DatasetConfig,
        force: bool,
        sink: &dyn Sink,
    ) -> Result<()> {
        let was_open = self.open.lock().contains_key(&row.id);
        match self.dataset(row).await {
            Ok(_) => {}
            Err(e) if force => {
                tracing::warn!("{e:#}: whether a client on another host has it is not known");
                return Ok(());
            }
            Err(e) => {
                let unknown = "a client on another host may have it: if not, destroy it with -f";
                return Err(e.context(format!("'{}': {unknown}", row.name)));
            }
        }
        let claimed = self.refuse_taken(row);
        if !was_open {
            self.close_unmounted(row, sink).await?;
        }
        claimed
    }

    /// The values that hold for a dataset: its properties, and above them what its mount was asked to do.
    pub(super) fn values(&self, row: &DatasetConfig) -> BTreeMap<String, String> {
        let mut values = properties::effective_all(&self.rows(), &row.name);
        let mounts = self.mounts.lock();
        if let Some(mount) = mounts.iter().find(|m| m.dataset == row.name) {
            mount.options.lay_over(&mut values);
        }
        values
    }

    /// Lets every open dataset have the values that hold for it now.
    pub(super) fn refresh_properties(&self) -> Result<()> {
        let rows = self.rows();
        let open: Vec<_> = self.open.lock().iter().map(|(id, d)| (*id, d.clone())).collect();
        for (id, dataset) in open {
            if let Some(row) = rows.iter().find(|d| d.id == id) {
                dataset.set_properties(&self.values(row))?;
            }
        }
        Ok(())
    }

    /// All datasets; with `usage`, what each uses, for which those that are closed are opened for a moment.
    pub(super) async fn datasets(&self, usage: bool) -> Result<Reply> {
        let mut reports = Vec::new();
        let pool_free = self.pool.space().free;
        for row in self.rows() {
            let used = match usage {
                true => Some(self.usage(&row, pool_free).await?),
                false => None,
            };
            let mounted = self.mounted_at(&row.name);
            reports.push(DatasetReport { config: row, usage: used, mounted });
        }
        Ok(Reply::Datasets(reports))
    }

    async fn usage(&self, row: &DatasetConfig, pool_free: u64) -> Result<Usage> {
        let open = self.open.lock().get(&row.id).cloned();
        if let Some(open) = open {
            return open.usage(pool_free).await;
        }
        let _admin = self.admin.lock().await;
        self.check_serving()?;
        let usage = self.dataset(row).await?.usage(pool_free).await?;
        self.close_unmounted(row, &crate::progress::Silent).await?;
        Ok(usage)
    }
}
