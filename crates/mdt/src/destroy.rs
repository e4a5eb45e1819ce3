//! Destroying a dataset: its segments first, then its metadata, so that a crash between leaves what is needed to
//! go on. A database of which objects are gone already cannot be opened any more. So an object is made between the two,
//! which says that there is no segment any more and the database is not needed; it is deleted last.

use crate::db::Database;
use crate::key::{self, table};
use crate::memory::Shares;
use crate::phys::{self, GrantPhys};
use crate::{Stop, pool_error};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use tarn_base::{DatasetId, FsError, SegmentId};
use tarn_pool::{DatasetConfig, Pool};

const BATCH: usize = 1000;
/// The object in the metadata store that says that all segments are gone.
const FREED: &str = "freed";
/// How often the metadata is listed while some of it is still there.
const LISTINGS: u32 = 10;
/// Bytes of memory for it.
const MEMORY: u64 = 16 << 20;

/// Deletes every segment and every metadata object of a dataset that nobody has open. The caller has marked it
/// as being destroyed, and drops its row from the configuration afterwards. May be run again after a failure.
pub async fn destroy(pool: &Arc<Pool>, dataset: DatasetId) -> Result<(), FsError> {
    let config = pool.config();
    let row = config.datasets.iter().find(|row| row.id == dataset).ok_or(FsError::NotFound)?;
    let store = pool.metadata_store(row).map_err(pool_error)?;
    free(pool, row, &store).await?;
    delete_metadata(&store).await
}

/// Deletes every segment, unless that was done before, and notes that it is done.
async fn free(pool: &Arc<Pool>, row: &DatasetConfig, store: &Arc<dyn ObjectStore>) -> Result<(), FsError> {
    let freed = Path::from(FREED);
    match store.head(&freed).await {
        Ok(_) => return Ok(()),
        Err(object_store::Error::NotFound { .. }) => {}
        Err(error) => return Err(failed(error)),
    }
    free_segments(pool, row).await?;
    store.put(&freed, FREED.into()).await.map_err(failed)?;
    Ok(())
}

fn failed(error: object_store::Error) -> FsError {
    FsError::Io(format!("metadata: {error}"))
}

/// Deletes every segment that the database tells of. Whether that was possible or not, the database is closed after it:
/// what it does by itself would go on, and write between the objects that are deleted.
async fn free_segments(pool: &Arc<Pool>, row: &DatasetConfig) -> Result<(), FsError> {
    let db = Database::open(pool.clone(), row, Shares::of(MEMORY)).await?;
    match free_all(pool, &db).await {
        Ok(()) => Ok(db.close().await?),
        Err(error) => {
            db.give_up().await;
            Err(error)
        }
    }
}

async fn free_all(pool: &Arc<Pool>, db: &Database) -> Result<(), FsError> {
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
    Ok(())
}

/// Deletes every object of the metadata, the one that says that nothing else is left at the end. What a host that was
/// cut off from the pool still had on its way may come in between: so it is listed until nothing is left.
async fn delete_metadata(store: &Arc<dyn ObjectStore>) -> Result<(), FsError> {
    let freed = Path::from(FREED);
    for _ in 0..LISTINGS {
        let mut objects: Vec<_> = store.list(None).try_collect().await.map_err(failed)?;
        objects.retain(|object| object.location != freed);
        if objects.is_empty() {
            return delete(store, freed).await;
        }
        futures::stream::iter(objects)
            .map(|object| delete(store, object.location))
            .buffer_unordered(16)
            .try_collect::<Vec<()>>()
            .await?;
    }
    Err(FsError::Io("metadata: somebody writes to the dataset that is destroyed; destroy it again".into()))
}

async fn delete(store: &Arc<dyn ObjectStore>, path: Path) -> Result<(), FsError> {
    match store.delete(&path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{DATASET, World};
    use tarn_base::Ino;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_destroy_that_was_cut_off_among_the_metadata_goes_on() {
        let mut w = World::new().await;
        let record = w.mdt.properties().record_size as usize;
        let file = w.file(Ino::ROOT, "file").await;
        w.write(&[(file, 0, 1)], record).await;
        let id = w.segment().await;
        w.mdt.close().await.expect("close");
        let config = w.pool.config();
        let row = config.datasets.iter().find(|row| row.id == DATASET).expect("dataset");
        let store = w.pool.metadata_store(row).expect("store");
        let is_compacted = |path: &Path| path.as_ref().contains("compacted/");
        let holds_rows = |path: &Path| is_compacted(path) || path.as_ref().contains("wal/");
        let list = async || store.list(None).try_collect::<Vec<_>>().await.expect("list");
        let db = Database::open(w.pool.clone(), row, Shares::of(MEMORY)).await.expect("database");
        // Rows enough for some tables.
        for n in 0.. {
            let row = vec![n as u8; 256 << 10];
            db.commit(&[(key::segment(SegmentId { seq: n, ..id }), Some(row.into()))]).await.expect("commit");
            // The last of them may not be in the manifest yet.
            if list().await.iter().filter(|object| is_compacted(&object.location)).count() > 3 {
                break;
            }
            assert!(n < 1000, "no tables were written");
        }
        db.close().await.expect("close");
        free(&w.pool, row, &store).await.expect("segments");
        for object in list().await.into_iter().filter(|object| holds_rows(&object.location)) {
            delete(&store, object.location).await.expect("delete");
        }
        free_segments(&w.pool, row).await.expect_err("the database lacks its tables");
        destroy(&w.pool, DATASET).await.expect("destroy");
        assert_eq!(list().await, Vec::new());
        assert_eq!(w.pool.list_segments(DATASET).await.expect("list").len(), 0);
    }
}
