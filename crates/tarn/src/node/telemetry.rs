//! What the node knows of itself, and the port at which it tells Prometheus.

use super::Node;
use crate::telemetry::{Endpoint, Sample, exposition};
use crate::wiring;
use anyhow::{Result, bail};
use std::net::SocketAddr;
use std::sync::Arc;

impl Node {
    /// All counters as they are now. Asks no bucket, and waits for nobody.
    pub(super) fn sample(&self) -> Sample {
        let open: Vec<_> = self.open.lock().values().cloned().collect();
        let mut parts = wiring::pool_memory(&self.pool);
        parts.extend(open.iter().flat_map(|dataset| dataset.memory()));
        let mut datasets: std::collections::BTreeMap<_, _> =
            open.iter().map(|dataset| (dataset.name().to_string(), dataset.sample())).collect();
        for mount in self.mounts.lock().iter() {
            if let Some(dataset) = datasets.get_mut(&mount.dataset) {
                dataset.fuse = Some(mount.fuse.stats());
            }
        }
        Sample {
            time_ms: wiring::now_ms(),
            open_ms: self.opened.elapsed().as_millis() as u64,
            pool: self.pool.status(),
            arc: self.pool.memory(),
            memory: super::memory::report(&self.settings.memory, parts),
            datasets,
            jobs: self.jobs.snapshot(),
        }
    }

    /// Answers scrapes at `address` from now on, until the node closes. Gives whether that is new; called with `admin`
    /// held.
    pub(super) async fn serve_metrics(self: &Arc<Self>, address: SocketAddr) -> Result<bool> {
        if let Some(there) = self.metrics.lock().as_ref().map(Endpoint::address) {
            if there == address {
                return Ok(false);
            }
            bail!("pool '{}' serves its metrics at {there} already: leave metrics={address} away", self.name);
        }
        let node = Arc::downgrade(self);
        let page = move || exposition(node.upgrade()?.sample()).ok();
        let endpoint = Endpoint::open(address, page).await?;
        tracing::info!("metrics at http://{}/metrics", endpoint.address());
        *self.metrics.lock() = Some(endpoint);
        Ok(true)
    }
}
