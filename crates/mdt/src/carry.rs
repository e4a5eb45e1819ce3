//! Segments that are committed before they are in their buckets.
//!
//! A sync of little data would wait for two things, one after the other: that its segment is in a bucket, and that the
//! transaction group that points to it is in others. So a small segment travels in the transaction group, as a row with
//! all of its bytes, and who waits is answered when that is durable. Meanwhile the segment is PUT where its pointers say
//! it is; until then readers find it in memory. A later transaction group drops the row: by then, the PUT is durable,
//! because the pool is synced before a transaction group is.
//!
//! After a crash the rows that are left say what has to be PUT, again or for the first time: it is the same object either
//! way. A carried segment that loses its last live byte is deleted like others, but not before it has come to its bucket,
//! so that its PUT does not come after that.

use crate::key::{self, table};
use crate::phys::{self, CarriedPhys};
use crate::tx::Tx;
use crate::{Mdt, no_stop, pool_error};
use futures::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::block::Sealed;
use tarn_base::point::{self, Point};
use tarn_base::sabotage::{self, Sabotage};
use tarn_base::{FsError, SegmentId};
use tokio::sync::Notify;

/// Most bytes of one segment that is carried: a record of the usual 128 KiB fits, since whoever appends
/// a little to a file and syncs it rewrites its last record each time.
const ONE_MAX: u64 = 160 << 10;
/// Segments on their way to buckets at once.
const BATCH: usize = 32;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// How long opening and closing wait for what is on its way. It is safe where it is.
const SETTLED: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Carrier {
    segments: Mutex<BTreeMap<SegmentId, Sealed>>,
    wake: Notify,
    /// Told when segments have come to their buckets.
    came: Notify,
}

impl Carrier {
    fn add(&self, segment: Sealed) {
        self.segments.lock().insert(segment.id, segment);
        self.wake.notify_one();
    }

    pub fn contains(&self, id: SegmentId) -> bool {
        self.segments.lock().contains_key(&id)
    }

    fn is_empty(&self) -> bool {
        self.segments.lock().is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.segments.lock().values().map(|segment| segment.object.len() as u64).sum()
    }

    fn some(&self) -> Vec<Sealed> {
        self.segments.lock().values().take(BATCH).cloned().collect()
    }

    /// Waits until there is nothing to carry, for a while.
    async fn settled(&self) {
        let all = async {
            loop {
                let came = self.came.notified();
                tokio::pin!(came);
                came.as_mut().enable();
                if self.is_empty() {
                    return;
                }
                came.await;
            }
        };
        if tokio::time::timeout(SETTLED, all).await.is_err() {
            tracing::warn!("segments that are safe in the metadata have not come to their buckets yet");
        }
    }
}

/// A segment that may be in a commit: if it is not, nobody will read it.
pub(crate) struct Offered {
    mdt: Arc<Mdt>,
    id: SegmentId,
}

impl Drop for Offered {
    fn drop(&mut self) {
        if !self.mdt.carrier.contains(self.id) {
            self.mdt.pool.carried_no_more(self.id);
        }
    }
}

impl Mdt {
    /// Most bytes of a segment that a commit takes along now.
    pub fn carries(&self) -> u64 {
        let room = self.shares.carried.saturating_sub(self.carrier.bytes());
        ONE_MAX.min(self.shares.txg / 2).min(room)
    }

    /// Lets readers find a segment that a commit is to take along.
    pub(crate) fn offer(self: &Arc<Self>, segment: &Sealed) -> Offered {
        self.pool.carry(segment);
        Offered { mdt: self.clone(), id: segment.id }
    }

    /// The open transaction group has the segment.
    pub(crate) fn carry(&self, segment: Sealed) {
        self.pool.book(segment.id.grant.dataset, segment.id.grant.vdev, segment.payload as i64);
        self.carrier.add(segment);
    }

    /// Finds what a crash left.
    pub(crate) async fn load_carried(&self) -> Result<(), FsError> {
        if sabotage::on(Sabotage::ForgetCarried) {
            return Ok(());
        }
        for (key, row) in self.rows_of(table::CARRIED).await? {
            let CarriedPhys { payload, object } = phys::decode("carried segment", &row).map_err(no_stop)?;
            if let Some(id) = key::carried_of(&key) {
                let segment = Sealed { id, payload, object };
                self.pool.carry(&segment);
                self.carrier.add(segment);
            }
        }
        Ok(())
    }

    pub(crate) async fn carried(&self) {
        self.carrier.settled().await;
    }

    pub(crate) async fn run_carrier(self: Arc<Self>) {
        loop {
            let some = self.carrier.some();
            let work = async {
                if some.is_empty() {
                    self.carrier.wake.notified().await;
                } else if let Err(error) = self.bring(some).await {
                    tracing::warn!(%error, "cannot bring carried segments to their buckets yet");
                    tokio::time::sleep(PAUSE).await;
                }
            };
            tokio::select! {
                _ = work => {}
                _ = self.stop.cancelled() => return,
            }
        }
    }

    /// PUTs segments, and drops the rows of those that came to their buckets.
    async fn bring(self: &Arc<Self>, segments: Vec<Sealed>) -> Result<(), FsError> {
        let puts = segments.iter().map(|segment| self.pool.put_carried(segment));
        let (mut brought, mut failed) = (Vec::new(), None);
        for (segment, put) in segments.iter().zip(join_all(puts).await) {
            match put {
                Ok(()) => brought.push(segment.id),
                Err(error) => failed = Some(error),
            }
        }
        point::pass(Point::CarriedBrought);
        let drop_rows = |tx: &mut Tx| {
            brought.iter().for_each(|id| tx.delete(key::carried(*id)));
            Ok(())
        };
        if !brought.is_empty() {
            self.change_slowly(&drop_rows).await?;
        }
        for id in brought {
            self.carrier.segments.lock().remove(&id);
            self.pool.carried_no_more(id);
        }
        self.carrier.came.notify_waiters();
        failed.map_or(Ok(()), |error| Err(pool_error(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileChange, MdtOptions};
    use bytes::Bytes;
    use std::collections::BTreeMap;
    use tarn_base::posix::{Cred, FileKind, NewNode};
    use tarn_base::{BlockPtr, ChecksumKind, Compression, DatasetId, Ino, RecordOwner, SystemClock, Txg};
    use tarn_pool::{Caching, CreateSpec, HostId, Pool, SegmentBuilder};

    const DATASET: DatasetId = DatasetId(1);

    async fn pool() -> Arc<Pool> {
        let spec = CreateSpec {
            name: "carried".into(),
            urls: (0..2).map(|i| format!("mem://carry-{}-{i}", std::process::id())).collect(),
            properties: BTreeMap::from([("rewind".into(), "0".into())]),
            root_properties: BTreeMap::new(),
            host: HostId { id: 7, name: "here".into() },
            force: false,
        };
        Pool::create(spec).await.expect("pool")
    }

    async fn open(pool: &Arc<Pool>) -> Arc<Mdt> {
        let options = MdtOptions::new(Arc::new(SystemClock::default()));
        Mdt::open(pool.clone(), DATASET, options).await.expect("dataset")
    }

    /// A file with one record, in a segment that is carried.
    async fn write(mdt: &Arc<Mdt>, id: SegmentId, name: &str, fill: u8) -> (Ino, BlockPtr) {
        let node = NewNode { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0, target: Vec::new() };
        let owner = Cred { uid: 0, gid: 0 };
        let ino = mdt.create(owner, Ino::ROOT, name.as_bytes(), node).wait().await.expect("create").ino;
        let mut builder = SegmentBuilder::new(id);
        let record = RecordOwner { dataset: DATASET, ino, record: 0 };
        let data = Bytes::from(vec![fill; 5000]);
        let ptr = builder.add(record, data, Compression::Off, ChecksumKind::Xxh3, Txg(0));
        let file = FileChange { ino, records: vec![(0, Some(ptr))], size_at_least: 5000, mtime: None };
        let segment = mdt.pool.seal(builder.finish());
        assert!(segment.object.len() as u64 <= mdt.carries());
        mdt.commit(vec![file], Some(segment)).wait().await.expect("commit");
        (ino, ptr)
    }

    async fn reads(pool: &Arc<Pool>, ptr: &BlockPtr, fill: u8) -> bool {
        let read = pool.read(&[*ptr], Caching::Bypass).await;
        read.is_ok_and(|read| read[0] == vec![fill; 5000])
    }

    async fn stored(pool: &Arc<Pool>) -> Vec<SegmentId> {
        let mut listed: Vec<_> =
            pool.list_segments(DATASET).await.expect("list").into_iter().map(|(id, _)| id).collect();
        listed.sort();
        listed
    }

    #[tokio::test]
    async fn what_is_carried_is_read_at_once_and_brought_to_its_bucket_even_after_a_crash() {
        let pool = pool().await;
        let mdt = open(&pool).await;
        let vdev = pool.place(1).expect("place");
        let grant = mdt.grants(vec![vdev]).wait().await.expect("grant")[0];
        let id = |seq| SegmentId { grant, seq };
        let (_, first) = write(&mdt, id(0), "first", 1).await;
        mdt.carried().await;
        assert_eq!(stored(&pool).await, [id(0)]);

        // Nobody carries any more: as if the process had ended right after each sync.
        mdt.stop.cancel();
        tokio::task::yield_now().await;
        let (kept, second) = write(&mdt, id(1), "second", 2).await;
        let (gone, third) = write(&mdt, id(2), "third", 3).await;
        mdt.unlink(Ino::ROOT, b"third").wait().await.expect("unlink");
        mdt.close_inode(gone);
        mdt.sync().await.expect("sync");
        assert_eq!(stored(&pool).await, [id(0)]);
        assert!(reads(&pool, &second, 2).await && reads(&pool, &third, 3).await);
        let report = mdt.check(true, |_| {}).await.expect("check");
        assert!(report.is_clean(), "{report:?}");
        pool.carried_no_more(id(1));
        pool.carried_no_more(id(2));
        assert!(!reads(&pool, &second, 2).await);

        let mdt = open(&pool).await;
        assert!(stored(&pool).await.starts_with(&[id(0), id(1)]));
        assert_eq!(mdt.carrier.bytes(), 0);
        assert!(reads(&pool, &first, 1).await && reads(&pool, &second, 2).await);
        assert_eq!(mdt.map(kept, 0, 1).wait().await.expect("map")[0].map(|ptr| ptr.segment), Some(id(1)));
        for _ in 0..100 {
            if stored(&pool).await == [id(0), id(1)] {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(stored(&pool).await, [id(0), id(1)], "what was removed is deleted");
        let report = mdt.check(true, |_| {}).await.expect("check");
        assert!(report.is_clean(), "{report:?}");
        assert!(mdt.rows_of(table::CARRIED).await.expect("rows").is_empty());
        mdt.close().await.expect("close");
    }
}
