//! Whether what is to be measured answers at all: in a pool that waits for a bucket, every call on a file waits too.

use crate::context::Context;
use crate::control::{Reply, Request};
use crate::node::start::asked_running;
use anyhow::{Error, Result, anyhow, bail};
use std::time::Duration;
use tarn_pool::{PoolState, PoolStatus};

/// How often a measurement looks.
const LOOK: Duration = Duration::from_secs(1);

/// Fails when a bucket of the pool fails so that calls wait for it, or would. Asks no bucket.
pub async fn check(context: &Context, pool: &str) -> Result<()> {
    match asked_running(context, pool, Request::Stats).await? {
        Some(Reply::Stats(sample)) => told(&sample.pool),
        Some(_) => bail!("the node of pool '{pool}' answered something else"),
        // Its end is seen by who uses its files.
        None => Ok(()),
    }
}

/// Comes when [`check`] fails because of the pool.
pub async fn comes(context: &Context, pool: &str) -> Error {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Ok(Some(Reply::Stats(sample))) = asked_running(context, pool, Request::Stats).await
            && let Err(e) = told(&sample.pool)
        {
            return e;
        }
    }
}

fn told(pool: &PoolStatus) -> Result<()> {
    if pool.state != PoolState::Suspended && pool.vdevs.iter().all(|vdev| vdev.outage.is_none()) {
        return Ok(());
    }
    let part = |text: &Option<String>| text.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
    let state = pool.state.to_string().to_lowercase();
    Err(anyhow!("pool '{}' is {state}{}{}", pool.name, part(&pool.status), part(&pool.action)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pool_that_waits_is_told_with_what_to_do() {
        let pool = |state: &str, outages: serde_json::Value| -> PoolStatus {
            let vdev = |outage: &serde_json::Value| {
                json!({
                    "id": 1, "guid": 1, "url": "/d1", "state": "ONLINE", "allocated": 0, "capacity": null, "free": null,
                    "read_errors": 0, "write_errors": 0, "checksum_errors": 0, "outage": outage, "stats": null,
                })
            };
            let vdevs: Vec<_> = outages.as_array().into_iter().flatten().map(vdev).collect();
            let pool = json!({
                "name": "tank", "guid": 1, "state": state, "status": "calls wait", "action": "mend it", "epoch": 1,
                "generation": 1, "total": 0, "free": 0, "allocated": 0, "vdevs": vdevs, "errors": [], "repaired": [],
            });
            serde_json::from_value(pool).unwrap()
        };
        let outage =
            json!({ "since_ms": 0, "why": "?", "writes_only": false, "locked_out": false, "waiting": 0 });
        assert!(
            told(&pool("ONLINE", json!([null]))).is_ok() && told(&pool("DEGRADED", json!([null]))).is_ok()
        );
        let error = told(&pool("SUSPENDED", json!([null]))).unwrap_err().to_string();
        assert_eq!(error, "pool 'tank' is suspended: calls wait: mend it");
        // Nobody waits yet: whoever begins to measure would.
        let error = told(&pool("DEGRADED", json!([null, outage]))).unwrap_err().to_string();
        assert!(error.starts_with("pool 'tank' is degraded"), "{error}");
    }
}
