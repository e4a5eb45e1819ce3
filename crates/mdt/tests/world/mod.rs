//! A pool of memory buckets with one dataset, for tests.
#![allow(dead_code)]

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tarn_base::posix::{Attr, Cred, FileKind, NewNode, RenameMode, SetAttr};
use tarn_base::{Answer, BlockPtr, DatasetId, FsError, Grant, Ino, RecordOwner, SegmentId, SystemClock, Txg};
use tarn_mdt::{FileChange, Mdt, MdtOptions};
use tarn_pool::{CreateSpec, HostId, Pool, SegmentBuilder};

pub const ROOT: Cred = Cred { uid: 0, gid: 0 };
pub const DATASET: DatasetId = DatasetId(1);

pub struct World {
    pub pool: Arc<Pool>,
    pub mdt: Arc<Mdt>,
    hash_bits: u8,
    grant: Option<(Grant, u32)>,
}

static WORLDS: AtomicU64 = AtomicU64::new(0);

pub fn options(hash_bits: u8) -> MdtOptions {
    MdtOptions { hash_bits, ..MdtOptions::new(Arc::new(SystemClock::default())) }
}

impl World {
    pub async fn new() -> World {
        Self::with_hash_bits(47).await
    }

    pub async fn with_hash_bits(hash_bits: u8) -> World {
        let n = WORLDS.fetch_add(1, Ordering::Relaxed);
        let spec = CreateSpec {
            name: format!("tank{n}"),
            urls: (0..3).map(|i| format!("mem://mdt-{}-{n}-{i}", std::process::id())).collect(),
            properties: BTreeMap::from([("rewind".into(), "0".into())]),
            root_properties: BTreeMap::new(),
            host: HostId { id: 7, name: "here".into() },
            force: false,
        };
        let pool = Pool::create(spec).await.expect("pool");
        let mdt = Mdt::open(pool.clone(), DATASET, options(hash_bits)).await.expect("dataset");
        World { pool, mdt, hash_bits, grant: None }
    }

    /// Opens the dataset anew without closing it: what a crash leaves. The old owner is fenced.
    pub async fn crash(&mut self) {
        let options = MdtOptions { properties: self.mdt.properties(), ..options(self.hash_bits) };
        self.mdt = Mdt::open(self.pool.clone(), DATASET, options).await.expect("reopen");
        self.grant = None;
    }

    pub async fn reopen(&mut self) {
        self.mdt.close().await.expect("close");
        self.crash().await;
    }

    pub async fn make(&self, parent: Ino, name: &str, kind: FileKind) -> Result<Attr, FsError> {
        let node = NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target: Vec::new() };
        self.mdt.create(ROOT, parent, name.as_bytes(), node).wait().await
    }

    pub async fn file(&self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, FileKind::Regular).await.expect("file").ino
    }

    pub async fn dir(&self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, FileKind::Directory).await.expect("directory").ino
    }

    /// Removes a name, and keeps nothing open.
    pub async fn unlink(&self, parent: Ino, name: &str) -> Result<(), FsError> {
        self.closed(self.mdt.unlink(parent, name.as_bytes()).wait().await)
    }

    pub async fn rmdir(&self, parent: Ino, name: &str) -> Result<(), FsError> {
        self.closed(self.mdt.rmdir(parent, name.as_bytes()).wait().await)
    }

    /// Renames over whatever is there.
    pub async fn rename(&self, from: Ino, name: &str, to: Ino, new_name: &str) -> Result<(), FsError> {
        let mode = RenameMode::Replace;
        let moved = self.mdt.rename(from, name.as_bytes(), to, new_name.as_bytes(), mode);
        self.closed(moved.wait().await)
    }

    fn closed(&self, gone: Result<Option<Ino>, FsError>) -> Result<(), FsError> {
        gone?.into_iter().for_each(|ino| self.mdt.close_inode(ino));
        Ok(())
    }

    /// Writes records of `fill` bytes into one new segment and commits them: `(file, record, byte)`.
    pub async fn write(&mut self, records: &[(Ino, u64, u8)], record_size: usize) {
        let id = self.segment().await;
        let mut builder = SegmentBuilder::new(id);
        let info = self.mdt.properties();
        let mut files: BTreeMap<Ino, FileChange> = BTreeMap::new();
        for &(ino, record, fill) in records {
            let owner = RecordOwner { dataset: DATASET, ino, record };
            let data = Bytes::from(vec![fill; record_size]);
            let ptr = builder.add(owner, data, tarn_base::Compression::Off, info.checksum, Txg(0));
            let change = files.entry(ino).or_insert(FileChange {
                ino,
                records: Vec::new(),
                size_at_least: 0,
                mtime: None,
            });
            change.records.push((record, Some(ptr)));
            change.size_at_least = change.size_at_least.max((record + 1) * record_size as u64);
        }
        let files = files.into_values().collect();
        let body = builder.finish();
        // Both ways of writing are met in all tests.
        let carried = if records[0].2.is_multiple_of(2) && body.object <= self.mdt.carries() {
            Some(self.pool.seal(body))
        } else {
            self.pool.put_segment(body).await.expect("put");
            None
        };
        self.mdt.commit(files, carried).wait().await.expect("commit");
    }

    pub async fn segment(&mut self) -> SegmentId {
        let (grant, seq) = match self.grant {
            Some((grant, seq)) if seq < Grant::SEGMENTS => (grant, seq),
            _ => {
                let vdev = self.pool.place(1).expect("place");
                (self.mdt.grants(vec![vdev]).wait().await.expect("grant")[0], 0)
            }
        };
        self.grant = Some((grant, seq + 1));
        SegmentId { grant, seq }
    }

    pub async fn ptr(&self, ino: Ino, record: u64) -> Option<BlockPtr> {
        self.mdt.map(ino, record, 1).wait().await.expect("map")[0]
    }

    pub async fn read(&self, ino: Ino, record: u64) -> Option<u8> {
        let ptr = self.ptr(ino, record).await?;
        let data = self.pool.read(&[ptr], tarn_pool::Caching::Keep).await.expect("read");
        assert!(data[0].iter().all(|b| *b == data[0][0]));
        Some(data[0][0])
    }

    pub async fn truncate(&self, ino: Ino, size: u64) -> Attr {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.mdt.setattr(ino, set).wait().await.expect("truncate")
    }

    pub async fn names(&self, dir: Ino, page: usize) -> Vec<String> {
        let (mut cookie, mut out) = (0, Vec::new());
        loop {
            let entries = self.mdt.readdir(dir, cookie, page).wait().await.expect("readdir");
            let Some(last) = entries.last() else { return out };
            assert!(last.cookie > cookie);
            cookie = last.cookie;
            out.extend(entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
        }
    }

    pub async fn attr(&self, ino: Ino) -> Result<Attr, FsError> {
        self.mdt.getattr(ino).wait().await
    }

    /// The dataset checks out, every byte of it.
    pub async fn assert_clean(&self) {
        self.mdt.sync().await.expect("sync");
        let report = self.mdt.check(true, |_| {}).await.expect("check");
        assert!(report.is_clean(), "{report:#?}");
    }

    /// Waits until background work has made `done` true.
    pub async fn until(&self, what: &str, done: impl AsyncFn(&World) -> bool) {
        for _ in 0..300 {
            if done(self).await {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{what}: not within 30 s");
    }
}

/// The answer is there at once.
pub fn now<T>(answer: Answer<T>) -> Result<T, FsError> {
    match answer {
        Answer::Ready(result) => result,
        Answer::Pending(_) => panic!("the answer is not in memory"),
    }
}
