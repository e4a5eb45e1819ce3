//! Opening and closing a dataset.
//!
//! Opening finishes what a crash left: truncations go on before anybody is served; orphans, freed segments and
//! segments that were written but never committed are taken care of in the background, unless a client on another host
//! may still know of them (see `client`).

use crate::carry::Carrier;
use crate::compact::Compactor;
use crate::db::Database;
use crate::key::{self, table};
use crate::memory::Shares;
use crate::names::{HASH_BITS, Hashing};
use crate::near::Near;
use crate::pages::Pages;
use crate::phys::{
    self, GrantPhys, InodePhys, ReclaimPhys, SegmentPhys, SuperPhys, TruncatePhys, Value, VdevPhys,
};
use crate::reap::Reaper;
use crate::reclaim::Reclaimer;
use crate::rows::RowStore;
use crate::txg::Engine;
use crate::{Counters, Mdt, OpState, Properties, no_stop, pool_error};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_base::posix::FileKind;
use tarn_base::{Clock, DatasetId, FsError, Grant, Ino, Txg};
use tarn_pool::Pool;
use tokio_util::sync::CancellationToken;

/// How a dataset is opened.
pub struct MdtOptions {
    pub properties: Properties,
    /// Bytes for rows and database blocks in memory.
    pub memory: u64,
    /// Owner of the root directory of a new dataset: user and group.
    pub root_owner: (u32, u32),
    pub clock: Arc<dyn Clock>,
    /// Bits of the hash of names in a new dataset; fewer than the default force collisions in tests.
    pub hash_bits: u8,
}

impl MdtOptions {
    pub fn new(clock: Arc<dyn Clock>) -> MdtOptions {
        MdtOptions {
            properties: Properties::default(),
            memory: 256 << 20,
            root_owner: (0, 0),
            clock,
            hash_bits: HASH_BITS,
        }
    }
}

impl Mdt {
    /// Opens a dataset of an open pool, and makes its first rows if it is new. Every earlier owner is fenced.
    pub async fn open(pool: Arc<Pool>, dataset: DatasetId, options: MdtOptions) -> Result<Arc<Mdt>, FsError> {
        let config = pool.config();
        let row = config.datasets.iter().find(|row| row.id == dataset).ok_or(FsError::NotFound)?;
        let shares = Shares::of(options.memory);
        let db = Database::open(pool.clone(), row, shares).await?;
        let numbers = match numbers(&db, &options).await {
            Ok(numbers) => numbers,
            Err(error) => {
                db.give_up().await;
                return Err(error);
            }
        };
        let txg = numbers.txg.next();
        let mdt = Arc::new(Mdt {
            dataset,
            pool,
            rows: RowStore::new(txg, Ino(numbers.next_ino), &shares),
            shares,
            db,
            op: Mutex::new(OpState {
                txg,
                numbers,
                stored: BTreeMap::new(),
                changed: false,
                rows: 0,
                bytes: 0,
                changes: 0,
                client: None,
            }),
            engine: Engine::new(numbers.txg),
            properties: RwLock::new(options.properties),
            hashing: Hashing { seed: numbers.hash_seed, bits: numbers.hash_bits },
            open_inodes: Mutex::default(),
            reaper: Reaper::default(),
            reclaimer: Reclaimer::default(),
            carrier: Carrier::default(),
            compactor: Compactor::default(),
            near: Near::default(),
            ends: Mutex::default(),
            pages: Pages::new(shares.pages),
            old_grants: Mutex::new(Vec::new()),
            measuring: tokio::sync::Mutex::default(),
            truncations: Default::default(),
            counters: Counters::default(),
            clock: options.clock,
            runtime: tokio::runtime::Handle::current(),
            stop: CancellationToken::new(),
            tasks: Mutex::new(Vec::new()),
            stop_txgs: CancellationToken::new(),
            txg_task: Mutex::new(None),
        });
        *mdt.txg_task.lock() = Some(tokio::spawn(mdt.clone().run_txgs()));
        if let Err(error) = mdt.recover().await {
            mdt.abandon();
            mdt.db.give_up().await;
            return Err(error);
        }
        // Whoever reads elsewhere than through this process finds them in their buckets then.
        mdt.carried().await;
        mdt.spawn(mdt.clone().run_truncations());
        mdt.spawn(mdt.clone().run_reaper());
        mdt.spawn(mdt.clone().run_reclaim());
        mdt.spawn(mdt.clone().run_compaction());
        Ok(mdt)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().push(tokio::spawn(task));
    }

    pub(crate) async fn rows_of(&self, table: u8) -> Result<Vec<(key::Key, Value)>, FsError> {
        let (start, end) = key::whole_table(table);
        self.scan(&start, &end, usize::MAX).await
    }

    /// First what is known, then what is to be done about it: that counts on, and enters into, the former.
    async fn recover(self: &Arc<Self>) -> Result<(), FsError> {
        self.load_space().await?;
        self.load_carried().await?;
        self.spawn(self.clone().run_carrier());
        for (key, row) in self.rows_of(table::TRUNCATE).await? {
            let intent: TruncatePhys = phys::decode("truncation", &row).map_err(no_stop)?;
            if let Some(ino) = key::ino_of(&key) {
                self.truncations.add(ino, intent.from_record, 0);
            }
        }
        self.finish_truncations().await?;
        self.load_client().await?;
        let theirs = self.client().is_some();
        if !theirs {
            self.orphans().await?.into_iter().for_each(|ino| self.reaper.push(ino));
        }
        let mdt = self.clone();
        self.spawn(async move {
            let tidy = async {
                if !theirs {
                    mdt.sweep(Vec::new()).await?;
                }
                mdt.find_thin().await
            };
            let swept = tokio::select! {
                done = tidy => done,
                _ = mdt.stop.cancelled() => Ok(()),
            };
            if let Err(error) = swept {
                tracing::warn!(%error, "cannot look for uncommitted segments; the next open tries again");
            }
        });
        Ok(())
    }

    /// What the segments take, which of them wait for their end, and which grants are open.
    async fn load_space(&self) -> Result<(), FsError> {
        let mut stored = BTreeMap::new();
        for (key, row) in self.rows_of(table::VDEV).await? {
            let row: VdevPhys = phys::decode("vdev", &row).map_err(no_stop)?;
            stored.extend(key::vdev_of(&key).map(|vdev| (vdev, row.stored)));
        }
        self.op.lock().stored = stored.clone();
        for (key, row) in self.rows_of(table::RECLAIM).await? {
            let row: ReclaimPhys = phys::decode("freed segment", &row).map_err(no_stop)?;
            if let Some((freed_ms, segment)) = key::reclaim_of(&key) {
                self.reclaimer.add(freed_ms, segment, row.size, Txg(0));
                *stored.entry(segment.grant.vdev).or_default() += row.size;
            }
        }
        self.pool.set_booked(self.dataset, stored);
        *self.old_grants.lock() = self.open_grants().await?;
        Ok(())
    }

    pub(crate) async fn open_grants(&self) -> Result<Vec<Grant>, FsError> {
        let mut grants = Vec::new();
        for (_, row) in self.rows_of(table::GRANT).await? {
            grants.push(phys::decode::<GrantPhys>("grant", &row).map_err(no_stop)?.grant);
        }
        Ok(grants)
    }

    /// Deletes segments that were written under open grants of an earlier session but never committed. The grants
    /// stay open: an owner that was taken over may still have a segment on its way, so closing looks once more. At the
    /// close it also looks at this session's grants under which writing failed.
    async fn sweep(self: &Arc<Self>, strays: Vec<Grant>) -> Result<(), FsError> {
        let mut grants = self.old_grants.lock().clone();
        grants.extend(strays);
        for grant in grants {
            let mut orphans = Vec::new();
            for (id, _) in self.pool.list_grant(grant).await.map_err(pool_error)? {
                let row = self.look(move |tx| tx.get(&key::segment(id))).wait().await?;
                if row.is_none() && !self.reclaimer.contains(id) {
                    orphans.push(id);
                }
            }
            if !orphans.is_empty() {
                tracing::info!(count = orphans.len(), "deleting segments that were never committed");
                self.pool.delete_segments(&orphans).await.map_err(pool_error)?;
            }
        }
        Ok(())
    }

    /// Finds the segments that compaction should look at.
    async fn find_thin(self: &Arc<Self>) -> Result<(), FsError> {
        let (mut from, end) = key::whole_table(table::SEGMENT);
        loop {
            let rows = self.scan(&from, &end, 1000).await?;
            for (key, row) in &rows {
                let row: SegmentPhys = phys::decode("segment", row).map_err(no_stop)?;
                if let Some(id) = tarn_base::SegmentId::from_bytes(&key[1..])
                    && row.live < row.size
                {
                    self.compactor.note(id, row);
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == 1000 => {
                    from = last.clone();
                    from.push(0);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Gives the dataset up without writing anything more: whoever waits for it fails, and it is never opened again
    /// from here. What was not durable is lost.
    pub fn abandon(&self) {
        self.stop.cancel();
        self.stop_txgs.cancel();
        self.db.abandon();
        self.engine.fence();
        let engine = self.txg_task.lock().take();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.into_iter().chain(engine).for_each(|task| task.abort());
    }

    /// Makes everything durable and lets the dataset go. Whoever writes segments under a grant has stopped. When it
    /// cannot be made durable it is not let go, and may be closed again.
    pub async fn close(self: &Arc<Self>) -> Result<(), FsError> {
        if self.stop_txgs.is_cancelled() {
            return Ok(());
        }
        self.carried().await;
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            // One that panicked has been logged; the others end by the token.
            let _ = task.await;
        }
        let closed = self.close_space().await;
        let synced = closed.and(self.sync().await);
        if synced.as_ref().is_err_and(|error| *error != FsError::Fenced) {
            return synced;
        }
        self.stop_txgs.cancel();
        let engine = self.txg_task.lock().take();
        if let Some(engine) = engine {
            let _ = engine.await;
        }
        let database = self.db.close().await.map_err(FsError::from);
        synced.and(database)
    }

    /// Deletes what was never committed, and ends the grants under which it was written.
    async fn close_space(self: &Arc<Self>) -> Result<(), FsError> {
        if self.client().is_some() {
            // It goes on with what it has written, and with its grants, when the dataset is opened again.
            return Ok(());
        }
        // No segment is on its way any more, so nothing will have to be looked for.
        let strays = self.pool.strays(self.dataset);
        match self.sweep(strays.clone()).await {
            Ok(()) => self.close_grants(&strays).await,
            // They stay open, and the next open looks again.
            Err(_) => Ok(()),
        }
    }

    /// Closes all but these: a request that failed may still take effect, so the next open looks once more.
    async fn close_grants(self: &Arc<Self>, but: &[Grant]) -> Result<(), FsError> {
        let mut grants = self.rows_of(table::GRANT).await?;
        let kept: Vec<key::Key> = but.iter().map(|grant| key::grant(*grant)).collect();
        grants.retain(|(key, _)| !kept.contains(key));
        if grants.is_empty() {
            return Ok(());
        }
        let close = |tx: &mut crate::tx::Tx| {
            for (key, _) in &grants {
                tx.delete(key.clone());
            }
            Ok(())
        };
        self.change_slowly(&close).await
    }
}

/// The numbers that a dataset goes on from. A new one has its first rows made.
async fn numbers(db: &Database, options: &MdtOptions) -> Result<SuperPhys, FsError> {
    match db.get(&key::super_row()).await? {
        Some(row) => phys::decode("dataset", &row).map_err(no_stop),
        None => format(db, options).await,
    }
}

/// The first rows of a new dataset.
async fn format(db: &Database, options: &MdtOptions) -> Result<SuperPhys, FsError> {
    let now = options.clock.now();
    let numbers = SuperPhys {
        txg: Txg(1),
        next_ino: Ino::ROOT.0 + 1,
        next_grant: 1,
        live: 0,
        stored: 0,
        inodes: 1,
        hash_seed: rand::random(),
        hash_bits: options.hash_bits,
    };
    let (uid, gid) = options.root_owner;
    let root = InodePhys {
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        uid,
        gid,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        record_shift: options.properties.record_size.trailing_zeros() as u8,
        data_version: 1,
        parent: Ino::ROOT,
        flags: 0,
        xattrs: 0,
        target: Vec::new(),
        project: 0,
    };
    let rows = [
        (key::super_row(), Some(phys::encode(&numbers))),
        (key::inode(Ino::ROOT), Some(phys::encode(&root))),
    ];
    db.commit(&rows).await?;
    Ok(numbers)
}
