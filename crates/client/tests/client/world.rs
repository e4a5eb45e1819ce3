//! A client with what it stands on, on a clock that a test's runtime drives.

use crate::mds::{MemMds, Served};
use crate::store::{Behaviour, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_base::posix::{Cred, SetAttr};
use tarn_base::{Clock, FsError, Ino, Timespec};
use tarn_client::{Client, ClientOptions, Handle, OpenMode, Target};

pub const ROOT: Cred = Cred { uid: 0, gid: 0 };
pub const READ_WRITE: OpenMode = OpenMode { read: true, write: true, truncate: false, direct: false };

/// Tokio's clock, which stands still while anything runs when it is paused.
pub struct TestClock(tokio::time::Instant);

impl Clock for TestClock {
    fn now(&self) -> Timespec {
        let since = self.0.elapsed();
        Timespec { sec: 1_000_000 + since.as_secs() as i64, nsec: since.subsec_nanos() }
    }
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

pub struct World {
    pub clock: Arc<TestClock>,
    pub store: Arc<Store>,
    pub mds: Arc<MemMds>,
    pub client: Arc<Client>,
    pub options: ClientOptions,
}

impl Drop for World {
    fn drop(&mut self) {
        let behind = self.mds.behind_the_end.load(Ordering::SeqCst);
        assert!(std::thread::panicking() || behind == 0, "{behind} commits left records behind the end");
    }
}

impl World {
    pub fn new(seed: u64, record_size: u32, behaviour: Behaviour) -> World {
        World::with(seed, record_size, behaviour, |_| {})
    }

    pub fn with(
        seed: u64,
        record_size: u32,
        behaviour: Behaviour,
        change: impl FnOnce(&mut ClientOptions),
    ) -> World {
        let clock = Arc::new(TestClock(tokio::time::Instant::now()));
        let store = Store::new(seed, behaviour);
        let mds = MemMds::new(seed ^ 1, record_size, store.clone(), clock.clone());
        let mut options = ClientOptions::new(tokio::runtime::Handle::current());
        options.clock = clock.clone();
        change(&mut options);
        let client = Client::with_records(Arc::new(Served(mds.clone())), store.clone(), options.clone());
        World { clock, store, mds, client, options }
    }

    /// Another client on the same state, as after an unmount.
    pub fn remount(&mut self) {
        self.store.drop_cache();
        self.client = Client::with_records(
            Arc::new(Served(self.mds.clone())),
            self.store.clone(),
            self.options.clone(),
        );
    }

    /// The machine dies; what survives is served to a new client.
    pub fn crash(&mut self, seed: u64, newest: bool) {
        let state = self.mds.crash(newest);
        self.mds = MemMds::from_state(seed, state, self.store.clone(), self.clock.clone());
        self.remount();
    }

    pub async fn create(&self, name: &str) -> (Ino, Handle) {
        let made =
            self.client.create_open(ROOT, Ino::ROOT, name.as_bytes(), 0o644, 0, READ_WRITE).wait().await;
        let (attr, handle) = made.expect("create");
        (attr.ino, handle)
    }

    pub async fn open(&self, name: &str) -> (Ino, Handle) {
        let attr = self.client.lookup(Ino::ROOT, name.as_bytes()).wait().await.expect("lookup");
        let (handle, _, _) = self.client.open(attr.ino, READ_WRITE).wait().await.expect("open");
        (attr.ino, handle)
    }

    pub async fn write(
        &self,
        handle: Handle,
        target: impl Into<Target>,
        data: &[u8],
    ) -> Result<usize, FsError> {
        self.client.write(handle, target, data, false).wait().await
    }

    pub async fn read(&self, handle: Handle, offset: u64, len: usize) -> Vec<u8> {
        let buf = self.client.read(handle, offset, len).wait().await.expect("read");
        assert_eq!(buf.len, buf.pieces.iter().map(|p| p.len()).sum::<usize>());
        buf.to_vec()
    }

    pub async fn set_size(&self, ino: Ino, size: u64) -> Result<(), FsError> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let attr = self.client.setattr(ROOT, ino, set, None).wait().await?;
        assert_eq!(attr.size, size);
        Ok(())
    }

    pub async fn size(&self, ino: Ino) -> u64 {
        self.client.getattr(ino).wait().await.expect("getattr").size
    }
}

/// Bytes that are never zero and tell where and when they were written.
pub fn pattern(stamp: u64, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((stamp.wrapping_mul(37) + (offset + i) * 7) % 255) as u8 + 1).collect()
}
