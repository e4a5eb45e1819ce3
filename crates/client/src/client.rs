//! The client, its options, and what all of its operations share.

use crate::ahead::Ahead;
use crate::buffer::FreeList;
use crate::flush::Flush;
use crate::inode::Inode;
use crate::open::Handles;
use crate::patch::Patches;
use crate::records::{PoolRecords, Records, fs_error};
use crate::scattered::Scattered;
use crate::siblings::Siblings;
use crate::space::SpaceCheck;
use crate::stats::{ClientStats, Counters, MemoryUse};
use crate::table::{Pinned, Table};
use crate::timed::Timed;
use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tarn_base::{Answer, Clock, FsError, Ino, job};
use tarn_pool::{Caching, Error, Pool};
use tarn_proto::Mds;
use tokio::sync::{Notify, OwnedRwLockWriteGuard};

/// How a client behaves. Every field has a default but the runtime.
#[derive(Clone)]
pub struct ClientOptions {
    /// Most bytes of memory for written data, whole buffers counted. Above 60 % of it everything dirty is flushed, at it
    /// writers wait.
    pub dirty_max: u64,
    /// Most bytes of segments on their way to buckets: what is packed for them takes memory of its own.
    pub flights_max: u64,
    /// How long written data waits at most before its flush begins, unless it fills a segment earlier.
    pub flush_age: Duration,
    /// How much is fetched ahead of readers at most, in bytes for all of them together; 0: nothing.
    pub prefetch_max: u64,
    /// Whoever uses the client calls [`Client::forget`] for each inode that it was told of, as a kernel does when it
    /// drops one from its caches: an inode without names is kept until then.
    pub told_of_forgetting: bool,
    /// Where background work and everything that waits runs.
    pub runtime: tokio::runtime::Handle,
    pub clock: Arc<dyn Clock>,
}

impl ClientOptions {
    /// The defaults: 256 MiB dirty, 5 s of age, 64 MiB ahead of readers, the machine's clock.
    pub fn new(runtime: tokio::runtime::Handle) -> ClientOptions {
        ClientOptions {
            dirty_max: 256 << 20,
            flights_max: 128 << 20,
            flush_age: Duration::from_secs(5),
            prefetch_max: 64 << 20,
            told_of_forgetting: false,
            runtime,
            clock: Arc::new(tarn_base::SystemClock::default()),
        }
    }
}

/// So many records may be made whole without room among the dirty bytes.
const FEW: usize = 64;

/// Files whose data version is remembered after they were closed, for the kernel's page cache.
const VERSIONS: usize = 1 << 16;

/// A mounted dataset. All methods may be called from any thread, in or out of the runtime.
pub struct Client {
    pub(crate) mds: Arc<dyn Mds>,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) options: ClientOptions,
    pub(crate) table: Arc<Table>,
    pub(crate) handles: Handles,
    pub(crate) flush: Flush,
    pub(crate) patches: Patches,
    pub(crate) space: SpaceCheck,
    pub(crate) stats: Counters,
    pub(crate) free: Arc<FreeList>,
    /// The data version up to which the kernel's cache of a file is known to be right.
    pub(crate) versions: Cache<Ino, u64>,
    /// Counts flights that ended: attributes fetched before one and merged after it may miss what it took from
    /// the overlay.
    pub(crate) settled: AtomicU64,
    /// Told when dirty bytes become fewer, or flushing fails.
    pub(crate) room: Notify,
    /// Bytes that writers have room for but have not yet made dirty.
    pub(crate) reserved: AtomicU64,
    pub(crate) ahead: Ahead,
    pub(crate) siblings: Siblings,
    pub(crate) scattered: Scattered,
    /// Inodes without names that are kept until they are forgotten, with a pin where the client knows more of them.
    pub(crate) nameless: Mutex<HashMap<Ino, Option<Pinned>>>,
    fenced: AtomicBool,
}

impl Client {
    /// A client of the dataset behind `mds`, with its data in `pool`. Starts background tasks on
    /// `options.runtime`; they end with [`Client::shutdown`], or when the last reference is dropped.
    pub fn new(mds: Arc<dyn Mds>, pool: Arc<Pool>, options: ClientOptions) -> Arc<Client> {
        Client::with_records(mds, Arc::new(PoolRecords::new(pool)), options)
    }

    /// As [`Client::new`], over any store of records.
    pub fn with_records(mds: Arc<dyn Mds>, records: Arc<dyn Records>, options: ClientOptions) -> Arc<Client> {
        let client = Arc::new(Client {
            mds: Arc::new(Timed(mds)),
            records,
            table: Table::new(),
            handles: Handles::default(),
            flush: Flush::default(),
            patches: Patches::default(),
            space: SpaceCheck::default(),
            stats: Counters::default(),
            free: Arc::new(FreeList::new(options.dirty_max)),
            versions: Cache::new(VERSIONS),
            settled: AtomicU64::new(0),
            room: Notify::new(),
            reserved: AtomicU64::new(0),
            ahead: Ahead::new(options.prefetch_max),
            siblings: Siblings::new(),
            scattered: Scattered::default(),
            nameless: Mutex::default(),
            fenced: AtomicBool::new(false),
            options,
        });
        client.start_flusher();
        client
    }

    /// Counters of this moment.
    pub fn stats(&self) -> ClientStats {
        self.stats.snapshot()
    }

    /// Memory of written data.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            dirty: self.free.lent(),
            idle: self.free.held(),
            dirty_max: self.options.dirty_max,
            flights: self.flush.flights() as u64 * self.records.segment_size(),
            flights_max: self.options.flights_max,
        }
    }

    /// From now on at most so many bytes are fetched ahead of readers, and never more than the options allow.
    pub fn limit_prefetch(&self, max: u64) {
        self.ahead.set_max(self.options.prefetch_max.min(max));
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.stats.dirty_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn more_dirty(&self, bytes: u64) {
        self.stats.dirty_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(crate) fn less_dirty(&self, bytes: u64) {
        if bytes > 0 {
            self.stats.dirty_bytes.fetch_sub(bytes, Ordering::AcqRel);
            self.room.notify_waiters();
        }
    }

    /// Runs `future` for as long as it needs no waiting; what is left becomes the pending answer.
    pub(crate) fn answer<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, FsError>> + Send + 'static,
    ) -> Answer<T> {
        let mut future = Box::pin(future);
        // Timers and connections made inside must find their runtime, although nothing runs on it yet.
        let _inside = self.options.runtime.enter();
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Answer::Ready(result),
            Poll::Pending => Answer::Pending(future),
        }
    }

    /// As [`Client::answer`], but what waits goes on to its end even if nobody waits for it any more: for
    /// changes that must not stop half-way.
    pub(crate) fn answer_to_the_end<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, FsError>> + Send + 'static,
    ) -> Answer<T> {
        match self.answer(future) {
            Answer::Ready(result) => Answer::Ready(result),
            Answer::Pending(rest) => {
                let task = self.options.runtime.spawn(job::carried(rest));
                Answer::pending(async move {
                    task.await.unwrap_or_else(|e| Err(FsError::Io(format!("a change was cut off: {e}"))))
                })
            }
        }
    }

    /// Lets a promise run on its own; whether it fails is of no consequence.
    pub(crate) fn detach<T: Send + 'static>(&self, answer: Answer<T>) {
        if let Answer::Pending(future) = answer {
            self.options.runtime.spawn(job::for_job(job::current(), future));
        }
    }

    pub(crate) fn check_fenced(&self) -> Result<(), FsError> {
        if self.fenced.load(Ordering::Acquire) { Err(FsError::Fenced) } else { Ok(()) }
    }

    pub(crate) fn check_writable(&self) -> Result<(), FsError> {
        self.check_fenced()?;
        if self.mds.info().read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Takes note of an error that changes everything, and gives it on.
    pub(crate) fn noted(&self, error: FsError) -> FsError {
        if error == FsError::Fenced && !self.fenced.swap(true, Ordering::AcqRel) {
            tracing::error!("another host has taken the pool: nothing is written any more");
            for inode in self.table.all() {
                inode.changed.notify_waiters();
            }
            self.room.notify_waiters();
        }
        error
    }

    /// Gives up: nothing is written any more, and whoever waits is told.
    pub fn abandon(&self) {
        self.fenced.store(true, Ordering::Release);
        self.stop_flusher();
        for inode in self.table.all() {
            inode.changed.notify_waiters();
        }
        self.room.notify_waiters();
    }

    pub(crate) fn pool_error(&self, error: Error) -> FsError {
        self.noted(fs_error(error))
    }

    /// The inode with its attributes loaded.
    pub(crate) async fn pin_loaded(&self, ino: Ino) -> Result<Pinned, FsError> {
        let pinned = self.table.pin(ino);
        if !pinned.state.lock().loaded {
            let attr = self.mds.getattr(ino).wait().await?;
            pinned.load(&attr);
        }
        Ok(pinned)
    }

    /// Waits until nobody writes or flushes the file, and keeps it so. No record in front of `whole` has a patch then.
    pub(crate) async fn exclusive(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        whole: u64,
    ) -> Result<Exclusive, FsError> {
        let settled = self.settle(inode, 0..whole, true).await;
        self.exclusive_after(settled, inode, whole).await
    }

    /// As [`Client::exclusive`], of a file that was `settled` just now: for who has others exclusively. What those hold of the
    /// dirty bytes cannot be flushed, so he must not wait for room.
    pub(crate) async fn exclusive_after(
        self: &Arc<Self>,
        settled: Result<(), FsError>,
        inode: &Arc<Inode>,
        whole: u64,
    ) -> Result<Exclusive, FsError> {
        let guard = inode.order.clone().write_owned().await;
        let exclusive = Exclusive { guard: Some(guard), inode: inode.clone(), client: self.clone() };
        // A few that are left, or came meanwhile, take no memory worth waiting for.
        if inode.state.lock().patches.range(..whole).count() > FEW {
            settled?;
        }
        self.settle(inode, 0..whole, false).await?;
        Ok(exclusive)
    }

    /// The committed content of a record; `None` for a hole. The caller knows whether it still stands.
    pub(crate) async fn load_record(&self, ino: Ino, record: u64) -> Result<Option<Bytes>, FsError> {
        self.read_committed(ino, record).await.map_err(|unread| match unread {
            Unread::Lost(error) | Unread::Failed(error) => error,
        })
    }

    /// As [`Client::load_record`], telling what is lost from what cannot be read now.
    pub(crate) async fn read_committed(&self, ino: Ino, record: u64) -> Result<Option<Bytes>, Unread> {
        let mut before = None;
        loop {
            let map = self.mds.map(ino, record, 1).wait().await.map_err(Unread::Failed)?;
            let Some(ptr) = map.ptrs.first().copied().flatten() else { return Ok(None) };
            if let Some(content) = self.records.cached(&ptr) {
                return Ok(Some(content));
            }
            match self.records.clone().read(vec![ptr], Caching::Keep).await {
                Ok(mut content) => return Ok(content.pop()),
                // Freed under our hands: the map says where it is now.
                Err(Error::Missing(_)) if before != Some(ptr) => before = Some(ptr),
                Err(e) => {
                    let lost = matches!(e, Error::Damaged(_) | Error::Missing(_));
                    self.note_lost(ino, [(record, ptr)].into_iter(), &e).await;
                    let error = self.pool_error(e);
                    return Err(if lost { Unread::Lost(error) } else { Unread::Failed(error) });
                }
            }
        }
    }
}

/// Why a record's committed content was not read.
pub(crate) enum Unread {
    /// It is damaged or missing, for good.
    Lost(FsError),
    Failed(FsError),
}

impl Drop for Client {
    fn drop(&mut self) {
        self.flush.kick.notify_one();
    }
}

/// The right to change a file's shape.
pub(crate) struct Exclusive {
    guard: Option<OwnedRwLockWriteGuard<()>>,
    inode: Arc<Inode>,
    client: Arc<Client>,
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.guard = None;
        // The flusher passed the file over meanwhile.
        self.inode.changed.notify_waiters();
        self.client.flush.kick.notify_one();
        self.client.table.forget_if_clean(self.inode.ino);
    }
}
