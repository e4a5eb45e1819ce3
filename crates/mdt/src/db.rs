//! The dataset's database: SlateDB on the pool's metadata store, opened so that an idle dataset costs almost
//! nothing and memory is bounded, and opened anew when a failure closed it.

use crate::forward::Forward;
use crate::idle::IdleClock;
use crate::key::Key;
use crate::memory::Shares;
use crate::phys::Value;
use crate::rows::Row;
use crate::{Stop, pool_error};
use bytes::{Bytes, BytesMut};
use object_store::ObjectStore;
use parking_lot::RwLock;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, FlushOptions, FlushType, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, GarbageCollectorScheduleOptions, Settings,
};
use slatedb::db_cache::foyer::FoyerCache;
use slatedb::db_cache::{CachedEntry, CachedKey};
use slatedb::{CloseReason, Db, ErrorKind, WriteBatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tarn_base::point::{self, Point};
use tarn_base::{DatasetId, FsError};
use tarn_pool::{Changed, DatasetConfig, Pool};
use tokio::sync::watch;

/// Where in the metadata store the database lies.
const PATH: &str = "db";

/// How often a database is opened once more because somebody else opened it meanwhile.
const OPENINGS: u32 = 5;

/// What a database that closed itself still does ends within this time, or is left to itself.
const CLOSING: Duration = Duration::from_secs(3);

/// Tables that may wait for compaction; where memory is short they are small, and soon many.
const L0_MOST: usize = 32;

/// Shards of the block cache, and what a block costs there beside its bytes.
const BLOCK_SHARDS: usize = 4;
const BLOCK: usize = 256;

pub struct Database {
    opener: Opener,
    dataset: DatasetId,
    /// Which of this process's openings of it this is.
    number: u64,
    db: RwLock<Arc<Db>>,
    /// One opening at a time: a second one would fence the first. Keeps why the last one failed.
    opening: tokio::sync::Mutex<Option<String>>,
    /// How often that was tried.
    tries: AtomicU64,
    /// It was closed for good.
    closed: AtomicBool,
    /// Point gets and scans, for the proof that hot calls make none.
    pub reads: AtomicU64,
}

/// How a database call ended that did not succeed.
#[derive(Debug)]
pub enum DbError {
    /// Another host has the pool.
    Fenced,
    /// Somebody opened the database after us. Only the pool's authority can tell whether that was its new owner, or an
    /// old one that woke up and did not know yet: see [`Database::instead_of`].
    Overtaken,
    /// The database closed itself over a failure, or the store failed: open it anew and try again.
    Failed(String),
}

impl From<slatedb::Error> for DbError {
    fn from(error: slatedb::Error) -> DbError {
        match error.kind() {
            ErrorKind::Closed(CloseReason::Fenced) => DbError::Overtaken,
            _ => DbError::Failed(error.to_string()),
        }
    }
}

impl From<DbError> for FsError {
    fn from(error: DbError) -> FsError {
        match error {
            DbError::Fenced => FsError::Fenced,
            DbError::Overtaken => FsError::Io("metadata: the database was opened by another process".into()),
            DbError::Failed(text) => FsError::Io(format!("metadata: {text}")),
        }
    }
}

impl From<DbError> for Stop {
    fn from(error: DbError) -> Stop {
        Stop::Fail(error.into())
    }
}

/// Asks the authority whether this host has the pool.
async fn confirm(pool: &Pool) -> Result<(), DbError> {
    pool.confirm_authority().await.map_err(|error| match error {
        tarn_pool::Error::Fenced => DbError::Fenced,
        error => DbError::Failed(error.to_string()),
    })
}

fn settings(shares: &Shares) -> Settings {
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
        // Polls are made less and less often while nothing changes: see the module `idle`.
        manifest_poll_interval: Duration::from_secs(30),
        min_filter_keys: 1000,
        max_unflushed_bytes: shares.unflushed as usize,
        l0_sst_size_bytes: shares.table as usize,
        l0_flush_parallelism: 1,
        l0_max_ssts: L0_MOST,
        l0_max_ssts_per_key: L0_MOST,
        compactor_options: Some(CompactorOptions {
            poll_interval: Duration::from_secs(10),
            max_concurrent_compactions: 1,
            worker: Some(CompactionWorkerOptions {
                max_concurrent_compactions: 1,
                max_subcompactions: 1,
                max_sst_size: shares.compacted as usize,
                max_fetch_tasks: 1,
                bytes_to_fetch: shares.fetch as usize,
                ..CompactionWorkerOptions::default()
            }),
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

/// What it takes to open the database, each time anew.
struct Opener {
    /// Says whether the database may be opened.
    pool: Arc<Pool>,
    store: Arc<dyn ObjectStore>,
    shares: Shares,
    /// When the store was changed last.
    changed: watch::Receiver<Changed>,
    forward: Arc<Forward>,
    /// Blocks of the database; they outlive one that closed itself.
    blocks: foyer::Cache<CachedKey, CachedEntry>,
}

impl Opener {
    /// Opens the database for the host that has the pool.
    ///
    /// Opening it fences whoever has it open. Nobody may have, but another host that has the pool by now: so the
    /// authority is asked before. But this process may sleep between the question and the opening, for as long as it
    /// takes another host to take the pool over and to write. Then the wrong one is fenced, which nothing can prevent,
    /// and two rules make it do no harm:
    /// - the authority is asked once more before anything is read or written. If it says yes, whoever takes the pool
    ///   takes it after that, and opens the database after us;
    /// - who is fenced asks the authority, and opens the database anew if the pool is still theirs.
    async fn open(&self) -> Result<Db, DbError> {
        let mut tries = 0;
        let db = loop {
            confirm(&self.pool).await?;
            point::pass(Point::OpenConfirmed);
            match self.build().await {
                // Two open it at once: the authority knows which of them is to try again.
                Err(DbError::Overtaken) if tries < OPENINGS => tries += 1,
                Ok(db) => break db,
                // Who has taken the pool meanwhile may be why.
                Err(error) => match confirm(&self.pool).await {
                    Err(DbError::Fenced) => return Err(DbError::Fenced),
                    _ => return Err(error),
                },
            }
        };
        point::pass(Point::OpenBuilt);
        if let Err(error) = confirm(&self.pool).await {
            // What it has read back it may write out; that is nothing of ours.
            let _ = tokio::time::timeout(CLOSING, db.close()).await;
            return Err(error);
        }
        Ok(db)
    }

    /// Opens it without asking.
    async fn build(&self) -> Result<Db, DbError> {
        let builder = Db::builder(PATH, self.store.clone())
            .with_settings(settings(&self.shares))
            .with_system_clock(Arc::new(IdleClock::new(self.changed.clone(), self.forward.clone())))
            .with_db_cache(Arc::new(FoyerCache::new_with_cache(self.blocks.clone())), 0);
        Ok(builder.build().await?)
    }
}

impl Database {
    /// Opens the database of a dataset, which fences every earlier owner.
    pub async fn open(pool: Arc<Pool>, row: &DatasetConfig, shares: Shares) -> Result<Database, FsError> {
        let store = pool.metadata_store(row).map_err(pool_error)?;
        let changed = pool.metadata_changes(row).map_err(pool_error)?;
        pool.limit_metadata(row, shares.regions).map_err(pool_error)?;
        let blocks = foyer::CacheBuilder::new(shares.blocks as usize)
            .with_name("metadata blocks")
            .with_shards(BLOCK_SHARDS)
            .with_weighter(|_: &CachedKey, block: &CachedEntry| block.size() + BLOCK)
            .build();
        let number = pool.count_opening(row.id);
        let opener = Opener { pool, store, shares, changed, forward: Arc::default(), blocks };
        let db = opener.open().await?;
        Ok(Database {
            opener,
            dataset: row.id,
            number,
            db: RwLock::new(Arc::new(db)),
            opening: tokio::sync::Mutex::default(),
            tries: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            reads: AtomicU64::new(0),
        })
    }

    /// Bytes of database blocks that are cached now, and at most.
    pub fn blocks(&self) -> (u64, u64) {
        (self.opener.blocks.usage() as u64, self.opener.blocks.capacity() as u64)
    }

    fn db(&self) -> Arc<Db> {
        self.db.read().clone()
    }

    /// The database to use where `failed` did not do: one that was opened anew, here or meanwhile by somebody else.
    /// `None`: nothing has closed it. Those who come while one tries have its failure for theirs: one after the other
    /// they would wait for ever longer.
    async fn instead_of(&self, failed: &Arc<Db>) -> Result<Option<Arc<Db>>, DbError> {
        let tries = self.tries.load(Ordering::Acquire);
        let mut last = self.opening.lock().await;
        let now = self.db();
        if !Arc::ptr_eq(failed, &now) {
            return Ok(Some(now));
        }
        if self.tries.load(Ordering::Acquire) != tries
            && let Some(text) = &*last
        {
            return Err(DbError::Failed(text.clone()));
        }
        let opened = self.open_anew(failed).await;
        self.tries.fetch_add(1, Ordering::AcqRel);
        *last = match &opened {
            Err(DbError::Failed(text)) => Some(text.clone()),
            _ => None,
        };
        opened
    }

    async fn open_anew(&self, old: &Db) -> Result<Option<Arc<Db>>, DbError> {
        let Some(reason) = old.status().close_reason else { return Ok(None) };
        // Nobody wants it any more, or this very process has opened it once more.
        if self.closed.load(Ordering::Acquire) || self.opener.pool.newest_opening(self.dataset) != self.number
        {
            return Err(DbError::Fenced);
        }
        if let Some(why) = self.opener.pool.failing().filter(|_| !self.opener.pool.waits()) {
            return Err(DbError::Failed(why));
        }
        confirm(&self.opener.pool).await?;
        // It is closed already; this only waits for its tasks, which may be waiting for a bucket themselves.
        let _ = tokio::time::timeout(CLOSING, old.close()).await;
        let new = Arc::new(self.opener.open().await?);
        if reason == CloseReason::Fenced {
            tracing::warn!("a host that had the pool before had opened the database: opened anew");
        }
        *self.db.write() = new.clone();
        Ok(Some(new))
    }

    /// Reads; once more if a failure had closed the database, which may have been long ago and about something else.
    async fn reading<T, F: Future<Output = Result<T, DbError>>>(
        &self,
        read: impl Fn(Arc<Db>) -> F,
    ) -> Result<T, DbError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let db = self.db();
        match read(db.clone()).await {
            Err(error @ (DbError::Failed(_) | DbError::Overtaken)) => match self.instead_of(&db).await? {
                Some(now) => read(now).await,
                None => Err(error),
            },
            other => other,
        }
    }

    pub async fn get(&self, key: &Key) -> Result<Row, DbError> {
        // A copy: a value from the database keeps the whole block alive that it came in.
        self.reading(|db| async move { Ok(db.get(key).await?.map(|value| value[..].into())) }).await
    }

    /// Up to `limit` rows of `start..end`, in order.
    pub async fn scan(&self, start: &Key, end: &Key, limit: usize) -> Result<Vec<(Key, Value)>, DbError> {
        self.reading(|db| async move {
            let mut rows = db.scan(start.to_vec()..end.to_vec()).await?;
            let mut out = Vec::new();
            while out.len() < limit {
                let Some(row) = rows.next().await? else { break };
                out.push((Key::from_slice(&row.key), row.value[..].into()));
            }
            Ok(out)
        })
        .await
    }

    /// Writes one txg, atomically, and returns when it is durable. [`DbError::Fenced`] only when another host has the pool:
    /// who was fenced by one that had it before opens the database anew. After any other failure it is open for the next
    /// try.
    pub async fn commit(&self, rows: &[(Key, Row)]) -> Result<(), DbError> {
        let db = self.db();
        let Err(error) = write(&db, rows).await else { return Ok(()) };
        let behind = matches!(&error, DbError::Failed(why) if self.opener.forward.learns(why));
        if behind {
            tracing::warn!("this host's clock is behind that of the host that wrote last: set it");
        }
        match self.instead_of(&db).await? {
            Some(now) if behind || matches!(error, DbError::Overtaken) => write(&now, rows).await,
            _ => Err(error),
        }
    }

    /// It is not opened again, whatever closes it.
    pub fn abandon(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Closes a database that could not be used, so that what it does by itself ends too.
    pub async fn give_up(&self) {
        self.abandon();
        let _ = tokio::time::timeout(CLOSING, self.db().close()).await;
    }

    pub async fn close(&self) -> Result<(), DbError> {
        self.abandon();
        loop {
            let db = self.db();
            // What is committed lies in the log. Unless another host has the pool, nothing is amiss.
            if db.status().close_reason.is_some() {
                let _ = tokio::time::timeout(CLOSING, db.close()).await;
                return confirm(&self.opener.pool).await;
            }
            let closed = db.close().await;
            // Something else closed it meanwhile.
            if closed.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Closed(_))) {
                return confirm(&self.opener.pool).await;
            }
            match closed.map_err(DbError::from) {
                // What is committed lies in the log, from which the next opening has it.
                Err(DbError::Failed(why)) if self.opener.forward.learns(&why) => {
                    *self.db.write() = Arc::new(self.opener.open().await?);
                }
                closed => return closed,
            }
        }
    }
}

async fn write(db: &Db, rows: &[(Key, Row)]) -> Result<(), DbError> {
    let written = db.write(batch_of(rows)).await?;
    // Two halves of one wait: the flush starts the PUT, the handle says that this batch is in it.
    let flush = db.flush_with_options(FlushOptions { flush_type: FlushType::Wal });
    let (flushed, durable) = futures::join!(flush, written.await_durable());
    flushed?;
    Ok(durable?)
}

/// Rows longer than so many bytes are not copied into the database's memory, but shared with it.
const LONG: usize = 4096;

/// The rows as one batch: in the order in which the database keeps them, and in one piece of memory.
fn batch_of(rows: &[(Key, Row)]) -> WriteBatch {
    let short = |row: &Row| row.as_ref().filter(|value| value.len() <= LONG).map_or(0, |value| value.len());
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut bytes = BytesMut::with_capacity(rows.iter().map(|(key, row)| key.len() + short(row)).sum());
    let mut batch = WriteBatch::new();
    for (key, row) in rows {
        let Some(value) = row else {
            batch.delete(key);
            continue;
        };
        bytes.extend_from_slice(key);
        let key = bytes.split().freeze();
        let value = if value.len() > LONG {
            Bytes::from_owner(value.clone())
        } else {
            bytes.extend_from_slice(value);
            bytes.split().freeze()
        };
        batch.put_bytes(key, value);
    }
    batch
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
    use std::collections::BTreeMap;
    use tarn_pool::{CreateSpec, HostId};

    async fn database() -> Database {
        let spec = CreateSpec {
            name: "overtaken".into(),
            urls: (0..2).map(|i| format!("mem://db-{}-{i}", std::process::id())).collect(),
            properties: BTreeMap::new(),
            root_properties: BTreeMap::new(),
            host: HostId { id: 7, name: "here".into() },
            force: false,
        };
        let pool = Pool::create(spec).await.expect("pool");
        let row = pool.config().datasets[0].clone();
        Database::open(pool, &row, Shares::of(16 << 20)).await.expect("database")
    }

    #[tokio::test]
    async fn who_was_overtaken_goes_on_and_so_does_everybody_who_was_with_it() {
        let db = database().await;
        let key = Key::from_slice(b"key");
        let value = Value::from(&b"value"[..]);
        for round in 0..3 {
            let woken = db.opener.build().await.expect("a host that had the pool before");
            if round == 0 {
                db.commit(&[(key.clone(), Some(value.clone()))]).await.expect("commit");
            }
            let reads = futures::future::join_all((0..8).map(|_| db.get(&key))).await;
            for read in reads {
                assert_eq!(read.expect("read"), Some(value.clone()), "round {round}");
            }
            drop(woken);
        }
        db.close().await.expect("close");
    }
}
