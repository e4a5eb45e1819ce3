//! What a pool does with the metadata stores of its datasets.

use super::{Changed, MetadataStore, ScrubbedMetadata};
use crate::{DatasetConfig, Error, Pool, Result};
use futures::future::try_join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_base::DatasetId;
use tokio::sync::watch;

impl Pool {
    /// The store in which a dataset keeps its metadata: two copies of each object where there are two vdevs.
    /// Everything it acknowledges is durable.
    pub fn metadata_store(&self, dataset: &DatasetConfig) -> Result<Arc<dyn object_store::ObjectStore>> {
        Ok(self.metadata(dataset)?)
    }

    /// Bounds the memory for objects of that store that were read; in bytes.
    pub fn limit_metadata(&self, dataset: &DatasetConfig, bytes: u64) -> Result<()> {
        self.metadata(dataset)?.set_memory(bytes);
        Ok(())
    }

    /// Bytes in memory of objects of a dataset's metadata store that were read, and at most.
    pub fn metadata_memory(&self, dataset: DatasetId) -> (u64, u64) {
        self.stores.lock().get(&dataset).map_or((0, 0), |store| store.memory())
    }

    /// Tells when an object of a dataset's metadata store was written or deleted last.
    pub fn metadata_changes(&self, dataset: &DatasetConfig) -> Result<watch::Receiver<Changed>> {
        Ok(self.metadata(dataset)?.changes())
    }

    pub(crate) fn metadata(&self, dataset: &DatasetConfig) -> Result<Arc<MetadataStore>> {
        // One for each dataset: its lock and its books must be shared.
        if let Some(store) = self.stores.lock().get(&dataset.id) {
            return Ok(store.clone());
        }
        let all = self.vdevs();
        let named = |guid| {
            all.iter().find(|v| v.guid == guid).cloned().ok_or_else(|| {
                Error::Missing(format!("dataset {} keeps metadata on a vdev that is not here", dataset.name))
            })
        };
        let vdevs = dataset.metadata_vdevs.iter().copied().map(named).collect::<Result<Vec<_>>>()?;
        if vdevs.is_empty() {
            return Err(Error::Usage(format!("dataset {} names no vdev for its metadata", dataset.name)));
        }
        let store = MetadataStore::new(self.guid, dataset, vdevs, self.gate.clone(), self.damage.clone());
        Ok(self.stores.lock().entry(dataset.id).or_insert(store).clone())
    }

    /// Reads and verifies every copy of a dataset's metadata, and puts right what is found wrong from a good one.
    /// `progress` takes how many objects were looked at, and how many there are.
    pub async fn scrub_metadata(
        &self,
        dataset: &DatasetConfig,
        progress: impl Fn(u64, u64),
    ) -> Result<ScrubbedMetadata> {
        let scrubbed = self.metadata(dataset)?.scrub(progress).await;
        scrubbed.map_err(|e| Error::Bucket(tarn_bucket::Error::Io(e.to_string())))
    }

    /// Enters what a dataset's metadata takes into the vdevs' books, by listing it. Once, after an import.
    pub async fn measure_metadata(&self, dataset: &DatasetConfig) -> Result<()> {
        let listed = self.metadata(dataset)?.list_below("").await;
        listed.map(drop).map_err(|e| Error::Bucket(tarn_bucket::Error::Io(e.to_string())))
    }

    /// Deletes a destroyed dataset's metadata from every vdev.
    pub async fn delete_metadata(&self, dataset: &DatasetConfig) -> Result<()> {
        self.gate.pass()?;
        let prefix = super::prefix(dataset.id);
        let deletes = self.vdevs().iter().cloned().collect::<Vec<_>>();
        let deletes = deletes.iter().map(|vdev| async {
            let keys: Vec<String> = vdev.list(&prefix).await?.into_iter().map(|o| o.key).collect();
            if keys.is_empty() { Ok(()) } else { vdev.delete(&keys).await }
        });
        try_join_all(deletes).await?;
        if let Some(store) = self.stores.lock().remove(&dataset.id) {
            store.forget_books();
        }
        self.set_booked(dataset.id, BTreeMap::new());
        Ok(())
    }
}
