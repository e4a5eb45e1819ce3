//! The dataset's database: SlateDB on the pool's metadata store, opened so that an idle dataset costs almost
//! nothing and memory is bounded, and opened anew when a failure closed it.

use crate::Stop;
use crate::key::Key;
use crate::rows::Row;
use bytes::Bytes;
use object_store::ObjectStore;
use parking_lot::RwLock;
use slatedb::config::{
    CompactorOptions, FlushOptions, FlushType, GarbageCollectorDirectoryOptions, GarbageCollectorOptions,
    GarbageCollectorScheduleOptions, Settings,
};
use slatedb::{CloseReason, Db, ErrorKind, WriteBatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tarn_base::FsError;

/// Where in the metadata store the database lies.
const PATH: &str = "db";

pub struct Database {
    store: Arc<dyn ObjectStore>,
    cache_bytes: u64,
    db: RwLock<Arc<Db>>,
    /// Opening it anew: one at a time, as each opening fences the one before.
    reopening: tokio::sync::Mutex<()>,
    /// Point gets and scans, for the proof that hot calls make none.
    pub reads: AtomicU64,
}

/// How a database call ended that did not succeed.
#[derive(Debug)]
pub enum DbError {
    /// Another owner opened the database.
    Fenced,
    /// The database closed itself over a failure, or the store failed: open it anew and try again.
    Failed(String),
}

impl From<slatedb::Error> for DbError {
    fn from(error: slatedb::Error) -> DbError {
        match error.kind() {
            ErrorKind::Closed(CloseReason::Fenced) => DbError::Fenced,
            _ => DbError::Failed(error.to_string()),
        }
    }
}

impl From<DbError> for FsError {
    fn from(error: DbError) -> FsError {
        match error {
            DbError::Fenced => FsError::Fenced,
            DbError::Failed(text) => FsError::Io(format!("metadata: {text}")),
        }
    }
}

impl From<DbError> for Stop {
    fn from(error: DbError) -> Stop {
        Stop::Fail(error.into())
    }
}

fn settings() -> Settings {
    let sweep = |age| {
        Some(GarbageCollectorDirectoryOptions {
            interval: Some(Duration::from_secs(60)),
            min_age: Duration::from_secs(age),
            dry_run: false,
        })
    };
    Settings {
        // Txgs are flushed by hand: one WAL object for each.
        flush_interval: None,
        manifest_poll_interval: Duration::from_secs(60),
        min_filter_keys: 1000,
        max_unflushed_bytes: 64 << 20,
        l0_sst_size_bytes: 16 << 20,
        l0_flush_parallelism: 2,
        compactor_options: Some(CompactorOptions {
            poll_interval: Duration::from_secs(30),
            max_concurrent_compactions: 1,
            ..CompactorOptions::default()
        }),
        garbage_collector_options: Some(GarbageCollectorOptions {
            manifest_options: sweep(60),
            wal_options: sweep(60),
            wal_fence_options: None,
            compacted_options: sweep(60),
            compactions_options: sweep(60),
            detach_options: Some(GarbageCollectorScheduleOptions {
                interval: Some(Duration::from_secs(600)),
            }),
            ..GarbageCollectorOptions::default()
        }),
        // The vdevs below retry within their own deadline; for ever is the txg engine's decision.
        object_store_max_retries: Some(3),
        ..Settings::default()
    }
}

impl Database {
    /// Opens the database, which fences every earlier owner. `cache_bytes` bounds its block cache.
    pub async fn open(store: Arc<dyn ObjectStore>, cache_bytes: u64) -> Result<Database, DbError> {
        let db = Self::build(&store, cache_bytes).await?;
        let (db, reopening) = (RwLock::new(Arc::new(db)), Default::default());
        Ok(Database { store, cache_bytes, db, reopening, reads: AtomicU64::new(0) })
    }

    async fn build(store: &Arc<dyn ObjectStore>, cache_bytes: u64) -> Result<Db, DbError> {
        use slatedb::db_cache::foyer::{FoyerCache, FoyerCacheOptions};
        let cache =
            FoyerCache::new_with_opts(FoyerCacheOptions { max_capacity: cache_bytes, ..Default::default() });
        let builder = Db::builder(PATH, store.clone()).with_settings(settings());
        Ok(builder.with_db_cache(Arc::new(cache), 0).build().await?)
    }

    fn db(&self) -> Arc<Db> {
        self.db.read().clone()
    }

    /// Whether a failure has closed the database: nothing can be read or written until [`Database::reopen`].
    pub fn is_closed(&self) -> bool {
        self.db().status().close_reason.is_some()
    }

    /// Opens the database anew after [`DbError::Failed`] closed it.
    pub async fn reopen(&self) -> Result<(), DbError> {
        let _one = self.reopening.lock().await;
        let old = self.db();
        if old.status().close_reason.is_none() {
            return Ok(());
        }
        // It is closed already; this only waits for its tasks.
        let _ = old.close().await;
        let new = Self::build(&self.store, self.cache_bytes).await?;
        *self.db.write() = Arc::new(new);
        Ok(())
    }

    pub async fn get(&self, key: &Key) -> Result<Row, DbError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(self.db().get(key).await?)
    }

    /// Up to `limit` rows of `start..end`, in order.
    pub async fn scan(&self, start: &Key, end: &Key, limit: usize) -> Result<Vec<(Key, Bytes)>, DbError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut rows = self.db().scan(start.to_vec()..end.to_vec()).await?;
        let mut out = Vec::new();
        while out.len() < limit {
            let Some(row) = rows.next().await? else { break };
            out.push((Key::from_slice(&row.key), Bytes::copy_from_slice(&row.value)));
        }
        Ok(out)
    }

    /// Writes one txg, atomically, and returns when it is durable.
    pub async fn commit(&self, rows: &[(Key, Row)]) -> Result<(), DbError> {
        let mut batch = WriteBatch::new();
        for (key, row) in rows {
            match row {
                Some(value) => batch.put_bytes(Bytes::copy_from_slice(key), value.clone()),
                None => batch.delete(key),
            }
        }
        let db = self.db();
        let written = db.write(batch).await?;
        // Two halves of one wait: the flush starts the PUT, the handle says that this batch is in it.
        let flush = db.flush_with_options(FlushOptions { flush_type: FlushType::Wal });
        let (flushed, durable) = futures::join!(flush, written.await_durable());
        flushed?;
        Ok(durable?)
    }

    pub async fn close(&self) -> Result<(), DbError> {
        Ok(self.db().close().await?)
    }
}

/// Rows to a page of [`Snapshot::page`].
const PAGE: usize = 1000;

/// The database as it was at one moment.
pub struct Snapshot(Arc<slatedb::DbSnapshot>);

impl Snapshot {
    /// The next rows from `from`, which moves on; `None` at `end`.
    pub async fn page(&self, from: &mut Key, end: &Key) -> Result<Option<Vec<(Key, Bytes)>>, FsError> {
        if *from >= *end {
            return Ok(None);
        }
        let mut rows = self.0.scan(from.to_vec()..end.to_vec()).await.map_err(DbError::from)?;
        let mut out = Vec::new();
        while out.len() < PAGE {
            match rows.next().await.map_err(DbError::from)? {
                Some(row) => out.push((Key::from_slice(&row.key), row.value)),
                None => break,
            }
        }
        match out.last() {
            Some((last, _)) => {
                *from = last.clone();
                from.push(0);
                Ok(Some(out))
            }
            None => Ok(None),
        }
    }

    /// Every row of a table, in order.
    pub async fn each(
        &self,
        table: u8,
        mut visit: impl FnMut(&Key, &[u8]) -> Result<(), Stop>,
    ) -> Result<(), FsError> {
        let (mut from, end) = crate::key::whole_table(table);
        while let Some(rows) = self.page(&mut from, &end).await? {
            for (key, row) in rows {
                match visit(&key, &row) {
                    Ok(()) | Err(Stop::Missing(_)) => {}
                    Err(Stop::Fail(error)) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Database {
    pub async fn snapshot(&self) -> Result<Snapshot, FsError> {
        Ok(Snapshot(self.db().snapshot().map_err(DbError::from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;

    #[tokio::test]
    async fn several_may_open_it_anew_at_once() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let database = Database::open(store, 1 << 20).await.expect("a new database");
        let row = (key::super_row(), Some(Bytes::from_static(b"row")));
        database.commit(std::slice::from_ref(&row)).await.expect("a row");
        database.db().close().await.expect("closed behind its back");
        assert!(database.is_closed() && database.get(&row.0).await.is_err());
        let (first, second) = tokio::join!(database.reopen(), database.reopen());
        first.and(second).expect("open again");
        assert!(!database.is_closed());
        assert_eq!(database.get(&row.0).await.expect("a read"), row.1);
        database.commit(&[row]).await.expect("nobody was fenced");
    }
}
