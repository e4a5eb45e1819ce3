//! Random operations on several files against vectors of bytes, over many seeds.

use crate::model::Model;
use crate::store::Behaviour;
use crate::world::{World, pattern};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;
use tarn_base::{FsError, Ino};
use tarn_client::{FallocMode, Handle, Seek, Target};

const RECORD: u32 = 4096;
const FILES: usize = 4;
/// Offsets stay below this, in bytes.
const SPAN: usize = 96 << 10;

/// Tries until it succeeds: a flush that failed keeps its data.
macro_rules! again {
    ($call:expr) => {{
        let mut tries = 0;
        loop {
            match $call.await {
                Err(FsError::Io(_)) if tries < 5000 => tries += 1,
                other => break other,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }};
}

pub struct Run {
    pub world: World,
    pub rng: SmallRng,
    files: Vec<File>,
    stamp: u64,
    seed: u64,
    pub log: Vec<String>,
}

struct File {
    name: String,
    ino: Ino,
    handle: Handle,
    model: Model,
}

impl Run {
    pub async fn new(seed: u64, behaviour: Behaviour) -> Run {
        let world = World::with(seed, RECORD, behaviour, |options| {
            options.dirty_max = 160 << 10;
            options.prefetch_max = 128 << 10;
            options.flush_age = Duration::from_millis(50);
        });
        let mut run = Run {
            world,
            rng: SmallRng::seed_from_u64(seed),
            files: Vec::new(),
            stamp: 0,
            seed,
            log: Vec::new(),
        };
        for n in 0..FILES {
            let name = format!("file{n}");
            let (ino, handle) = run.world.create(&name).await;
            run.files.push(File { name, ino, handle, model: Model::default() });
        }
        run.world.client.sync_all().wait().await.expect("sync");
        run.files.iter_mut().for_each(|f| f.model.synced());
        run
    }

    fn offset(&mut self) -> usize {
        let offset = self.rng.random_range(0..SPAN);
        // Often at the boundary of a record, or next to it.
        match self.rng.random_range(0..4) {
            0 => offset / RECORD as usize * RECORD as usize,
            1 => (offset / RECORD as usize * RECORD as usize).saturating_sub(1),
            _ => offset,
        }
    }

    fn len(&mut self) -> usize {
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(1..64),
            1 => RECORD as usize * self.rng.random_range(1..5),
            _ => self.rng.random_range(1..20_000),
        }
    }

    /// One random operation, checked against the model. None may take long.
    pub async fn step(&mut self) {
        if tokio::time::timeout(Duration::from_secs(600), self.step_inner()).await.is_err() {
            let tail = self.log.len().saturating_sub(20);
            panic!("seed {} hangs: {:#?} {:?}", self.seed, &self.log[tail..], self.world.client.stats());
        }
    }

    async fn step_inner(&mut self) {
        let n = self.rng.random_range(0..FILES);
        let (offset, len) = (self.offset(), self.len());
        let (handle, ino) = (self.files[n].handle, self.files[n].ino);
        let what = self.rng.random_range(0..100);
        self.log.push(format!("{what} file{n} {offset}+{len}"));
        match what {
            0..28 => self.write(n, offset, len).await,
            28..36 => self.append(n, len).await,
            36..62 => {
                let found = self.world.read(handle, offset as u64, len).await;
                self.same(n, &found, offset, len);
            }
            62..68 => {
                again!(self.world.set_size(ino, offset as u64)).expect("truncate");
                self.files[n].model.set_size(offset);
            }
            68..72 => self.fallocate(n, FallocMode::PunchHole, offset, len).await,
            72..74 => self.fallocate(n, FallocMode::ZeroRange, offset, len).await,
            74..75 => self.fallocate(n, FallocMode::ZeroRangeKeepSize, offset, len).await,
            75..77 => self.fallocate(n, FallocMode::Allocate, offset, len).await,
            77..84 => self.copy(n, offset, len).await,
            84..86 => {
                again!(self.world.client.fsync(ino, false).wait()).expect("fsync");
                self.files[n].model.synced();
            }
            86..92 => self.seek(n, offset).await,
            92..95 => self.reopen(n).await,
            95..98 => {
                let pause = self.rng.random_range(0..100);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            98 => assert_eq!(self.world.size(ino).await, self.files[n].model.data.len() as u64),
            _ => {
                again!(self.world.client.sync_all().wait()).expect("sync");
                self.files.iter_mut().for_each(|f| f.model.synced());
            }
        }
    }

    fn same(&self, n: usize, found: &[u8], offset: usize, len: usize) {
        let expected = self.files[n].model.read(offset, len);
        let ctx = || format!("seed {} file{n} at {offset}+{len} after {} steps", self.seed, self.log.len());
        assert_eq!(found.len(), expected.len(), "length: {}", ctx());
        if let Some(at) = (0..found.len()).find(|i| found[*i] != expected[*i]) {
            let tail = self.log.len().saturating_sub(40);
            panic!(
                "byte {}: {} is not {}: {}\n{:#?}",
                offset + at,
                found[at],
                expected[at],
                ctx(),
                &self.log[tail..]
            );
        }
    }

    async fn write(&mut self, n: usize, offset: usize, len: usize) {
        self.stamp += 1;
        let data = pattern(self.stamp, offset as u64, len);
        // Noted first: a crash may come after it was taken and before it was answered.
        self.files[n].model.write(offset, &data);
        let written = again!(self.world.write(self.files[n].handle, offset as u64, &data));
        assert_eq!(written.expect("write"), len);
    }

    async fn append(&mut self, n: usize, len: usize) {
        let end = self.files[n].model.data.len();
        if end > SPAN * 2 {
            return;
        }
        self.stamp += 1;
        let data = pattern(self.stamp, end as u64, len);
        self.files[n].model.write(end, &data);
        let written = again!(self.world.write(self.files[n].handle, Target::End, &data));
        assert_eq!(written.expect("append"), len);
    }

    async fn fallocate(&mut self, n: usize, mode: FallocMode, offset: usize, len: usize) {
        let file = &mut self.files[n];
        let client = &self.world.client;
        client.fallocate(file.handle, mode, offset as u64, len as u64).wait().await.expect("fallocate");
        if mode != FallocMode::Allocate {
            file.model.zero(offset, offset + len);
        }
        if matches!(mode, FallocMode::Allocate | FallocMode::ZeroRange) {
            let size = file.model.data.len().max(offset + len);
            file.model.set_size(size);
        }
    }

    async fn copy(&mut self, n: usize, mut to: usize, len: usize) {
        let from_file = self.rng.random_range(0..FILES);
        let mut from = self.offset();
        let len = len * self.rng.random_range(1..4);
        if self.rng.random_bool(0.7) {
            from = from / RECORD as usize * RECORD as usize;
            to = to / RECORD as usize * RECORD as usize;
        }
        let data = self.files[from_file].model.read(from, len).to_vec();
        let (source, target) = (self.files[from_file].handle, self.files[n].handle);
        let copy = || self.world.client.copy_range(source, from as u64, target, to as u64, len as u64).wait();
        let answer = again!(copy());
        let apart = from + data.len() <= to || to + data.len() <= from;
        if from_file == n && !apart && !data.is_empty() {
            assert!(matches!(answer, Err(FsError::Invalid(_))));
            return;
        }
        assert_eq!(answer.expect("copy"), data.len() as u64);
        if !data.is_empty() {
            self.files[n].model.write(to, &data);
        }
    }

    async fn seek(&mut self, n: usize, offset: usize) {
        let file = &self.files[n];
        let data = &file.model.data;
        let client = &self.world.client;
        let found = client.seek(file.handle, offset as u64, Seek::Data).wait().await;
        let hole = client.seek(file.handle, offset as u64, Seek::Hole).wait().await;
        if offset >= data.len() {
            assert_eq!((found, hole), (Err(FsError::NoData), Err(FsError::NoData)));
            return;
        }
        let until = found.clone().unwrap_or(data.len() as u64) as usize;
        assert!(until >= offset && data[offset..until].iter().all(|b| *b == 0), "data skipped by SEEK_DATA");
        let hole = hole.expect("there is always a hole at the end") as usize;
        assert!(hole >= offset && hole <= data.len());
        assert!(hole == data.len() || data[hole] == 0, "SEEK_HOLE found data");
    }

    async fn reopen(&mut self, n: usize) {
        let client = self.world.client.clone();
        client.close(self.files[n].handle);
        if self.rng.random_bool(0.5) {
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..80))).await;
        }
        let (ino, handle) = self.world.open(&self.files[n].name).await;
        assert_eq!(ino, self.files[n].ino);
        self.files[n].handle = handle;
    }

    /// Everything written out, and the same files through a new client.
    pub async fn remount(&mut self) {
        again!(self.world.client.shutdown(|_| {})).expect("shutdown");
        assert_eq!(self.world.client.stats().dirty_bytes, 0);
        self.world.remount();
        for n in 0..FILES {
            self.files[n].handle = self.world.open(&self.files[n].name).await.1;
            self.files[n].model.synced();
        }
        self.check_all().await;
    }

    pub async fn check_all(&mut self) {
        for n in 0..FILES {
            let len = self.files[n].model.data.len() + 10;
            let found = self.world.read(self.files[n].handle, 0, len).await;
            self.same(n, &found, 0, len);
        }
    }

    /// After a crash: every file is one that its history allows; what is found becomes the model.
    pub async fn crash(&mut self, newest: bool) {
        let log = std::mem::take(&mut self.log);
        self.world.crash(self.seed, newest);
        for n in 0..FILES {
            let (ino, handle) = self.world.open(&self.files[n].name).await;
            let size = self.world.size(ino).await;
            let found = self.world.read(handle, 0, size as usize + 1).await;
            assert_eq!(found.len() as u64, size);
            if let Err(wrong) = self.files[n].model.check_survivor(&found) {
                let log: Vec<_> = log.iter().filter(|l| l.contains(&format!("file{n}"))).collect();
                panic!("seed {}, newest {newest}, file{n}: {wrong}\n{log:#?}", self.seed);
            }
            self.files[n].handle = handle;
            self.files[n].model.data = found;
            self.files[n].model.synced();
        }
    }
}

/// As many seeds from `first` as a test runs, or as `TARN_SEEDS` asks for.
pub fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("TARN_SEEDS").ok().and_then(|n| n.parse().ok());
    first..first + asked.unwrap_or(count)
}

#[tokio::test(start_paused = true)]
async fn random_operations_match_the_model() {
    for seed in seeds(0, 20) {
        let mut run = Run::new(seed, Behaviour::default()).await;
        for round in 0..6 {
            for _ in 0..1000 {
                run.step().await;
            }
            run.check_all().await;
            if round % 2 == 1 {
                run.remount().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn random_operations_match_with_failing_writes() {
    for seed in seeds(100, 5) {
        let behaviour = Behaviour { write_fails: 0.2, cache: 4, ..Behaviour::default() };
        let mut run = Run::new(seed, behaviour).await;
        for _ in 0..2000 {
            run.step().await;
        }
        run.check_all().await;
        run.world.store.behaviour.lock().write_fails = 0.0;
        run.remount().await;
    }
}
