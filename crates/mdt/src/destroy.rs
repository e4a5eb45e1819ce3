//! Destroying a dataset: its segments first, then its metadata, so that a crash between leaves what is needed to
//! go on.

use crate::db::Database;
use crate::key::{self, table};
use crate::memory::Shares;
use crate::phys::{self, GrantPhys};
use crate::{Stop, pool_error};
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use std::sync::Arc;
use tarn_base::{DatasetId, FsError, SegmentId};
use tarn_pool::Pool;

const BATCH: usize = 1000;
/// Bytes of memory for it.
const MEMORY: u64 = 16 << 20;

/// Deletes every segment and every metadata object of a dataset that nobody has open. The caller has marked it
/// as being destroyed, and drops its row from the configuration afterwards. May be run again after a failure.
pub async fn destroy(pool: &Arc<Pool>, dataset: DatasetId) -> Result<(), FsError> {
    let config = pool.config();
    let row = config.datasets.iter().find(|row| row.id == dataset).ok_or(FsError::NotFound)?;
    let store = pool.metadata_store(row).map_err(pool_error)?;
    let db = Database::open(pool.clone(), row, Shares::of(MEMORY)).await?;
    let segments = |key: &key::Key| match key.first() {
        Some(&table::SEGMENT) => SegmentId::from_bytes(&key[1..]),
        _ => key::reclaim_of(key).map(|(_, id)| id),
    };
    for table in [table::SEGMENT, table::RECLAIM] {
        let (mut from, end) = key::whole_table(table);
        loop {
            let rows = db.scan(&from, &end, BATCH).await?;
            let ids: Vec<SegmentId> = rows.iter().filter_map(|(key, _)| segments(key)).collect();
            pool.delete_segments(&ids).await.map_err(pool_error)?;
            let Some((last, _)) = rows.last() else { break };
            from = last.clone();
            from.push(0);
        }
    }
    let (start, end) = key::whole_table(table::GRANT);
    for (_, row) in db.scan(&start, &end, usize::MAX).await? {
        let grant = match phys::decode::<GrantPhys>("grant", &row) {
            Ok(row) => row.grant,
            Err(Stop::Fail(error)) => return Err(error),
            Err(Stop::Missing(_)) => continue,
        };
        let listed = pool.list_grant(grant).await.map_err(pool_error)?;
        let ids: Vec<SegmentId> = listed.into_iter().map(|(id, _)| id).collect();
        pool.delete_segments(&ids).await.map_err(pool_error)?;
    }
    db.close().await?;
    let failed = |error: object_store::Error| FsError::Io(format!("metadata: {error}"));
    let objects: Vec<_> = store.list(None).try_collect().await.map_err(failed)?;
    futures::stream::iter(objects)
        .map(|object| {
            let store = store.clone();
            async move {
                match store.delete(&object.location).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                    Err(error) => Err(failed(error)),
                }
            }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}
