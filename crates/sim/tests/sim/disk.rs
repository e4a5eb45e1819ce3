//! A bucket whose objects may not be durable yet, with requests that take their time and may outlive who made them.
//!
//! A store that needs a sync keeps, for each key, every version since the durable one; a crash leaves one of them,
//! chosen key by key. A request that nobody waits for any more, because its time was over or the machine stopped, may
//! be lost, or be applied now, or arrive up to [`LATEST`] later.

use crate::chance::Chance;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tarn_bucket::{Bucket, Capacity, Error, ObjectInfo, Result, key};
use tokio::time::Instant;

/// The latest that a request arrives after it was given up.
pub const LATEST: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Object {
    body: Bytes,
    modified_ms: i64,
}

#[derive(Clone)]
enum Change {
    Put(Object),
    Create(Object),
    Delete,
}

#[derive(Default)]
struct State {
    /// Versions of each key by number, oldest first; only the first is durable.
    objects: BTreeMap<String, Vec<(u64, Option<Object>)>>,
    next_version: u64,
    late: Vec<(Instant, String, Change)>,
    /// Requests that were made and have had no effect yet.
    under_way: BTreeSet<u64>,
}

/// One bucket of a simulated world.
pub struct Disk {
    url: String,
    chance: Arc<Chance>,
    /// Writes are durable only after a sync.
    needs_sync: bool,
    /// The slowest request without faults, in microseconds.
    slowest_us: u64,
    state: Mutex<State>,
}

impl State {
    fn get(&self, key: &str) -> Option<&Object> {
        self.objects.get(key)?.last()?.1.as_ref()
    }

    fn apply(&mut self, key: &str, change: Change, durable: bool) -> bool {
        let (object, durable) = match change {
            Change::Create(_) if self.get(key).is_some() => return false,
            Change::Create(object) => (Some(object), true),
            Change::Put(object) => (Some(object), durable),
            Change::Delete => (None, durable),
        };
        self.next_version += 1;
        let versions = self.objects.entry(key.to_string()).or_insert_with(|| vec![(0, None)]);
        versions.push((self.next_version, object));
        if durable {
            versions.drain(..versions.len() - 1);
        }
        true
    }

    /// What was there before `version` is durable.
    fn settle(&mut self, version: u64) {
        self.objects.retain(|_, versions| {
            let last = versions.iter().rposition(|(number, _)| *number < version).unwrap_or(0);
            versions.drain(..last);
            versions.len() > 1 || versions[0].1.is_some()
        });
    }
}

/// A change on its way; what becomes of it if nobody waits for it any more is decided when it is dropped.
struct Sent<'a> {
    disk: &'a Disk,
    number: u64,
    changes: Vec<(String, Change)>,
}

impl Sent<'_> {
    /// It arrives. Whether it did what it was to do.
    fn arrive(mut self) -> bool {
        let disk = self.disk;
        let mut state = disk.state.lock();
        state.under_way.remove(&self.number);
        if state.under_way.first().is_some_and(|first| *first < self.number) {
            disk.chance.count("fault reorder");
        }
        let changes = std::mem::take(&mut self.changes);
        changes
            .into_iter()
            .fold(true, |all, (key, change)| state.apply(&key, change, !disk.needs_sync) && all)
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        state.under_way.remove(&self.number);
        for (key, change) in std::mem::take(&mut self.changes) {
            let chance = &self.disk.chance;
            let fate = format!("{} {key} {}", self.disk.url, self.number);
            match chance.fate(&fate, 3) {
                0 => {
                    state.apply(&key, change, !self.disk.needs_sync);
                    chance.count("fault given_up_applied");
                }
                1 => {
                    let millis = chance.fate(&format!("{fate} late"), LATEST.as_millis() as u64);
                    state.late.push((Instant::now() + Duration::from_millis(millis), key, change));
                    chance.count("fault given_up_late");
                }
                _ => chance.count("fault given_up_lost"),
            }
        }
    }
}

impl Disk {
    pub fn new(url: String, chance: Arc<Chance>, needs_sync: bool, slowest_us: u64) -> Arc<Disk> {
        Arc::new(Disk { url, chance, needs_sync, slowest_us, state: Mutex::default() })
    }

    /// The machine stopped: of what was not durable some is lost.
    pub fn crash(&self) {
        let mut state = self.state.lock();
        for (key, versions) in &mut state.objects {
            if versions.len() == 1 {
                continue;
            }
            let kept = self.chance.fate(&format!("{} {key} crash", self.url), versions.len() as u64) as usize;
            let last = kept + 1 == versions.len();
            self.chance.count(if last { "fault crash_kept" } else { "fault crash_dropped" });
            *versions = vec![versions[kept].clone()];
        }
        state.objects.retain(|_, versions| versions[0].1.is_some());
    }

    /// Waits as long as a request takes on its way, and takes in what arrives meanwhile.
    async fn travel(&self) {
        let micros = self.chance.below(self.slowest_us);
        tokio::time::sleep(Duration::from_micros(micros)).await;
        self.chance.still_alive().await;
        let now = Instant::now();
        let mut state = self.state.lock();
        let (due, late) = std::mem::take(&mut state.late).into_iter().partition(|(at, ..)| *at <= now);
        state.late = late;
        let due: Vec<(Instant, String, Change)> = due;
        for (_, key, change) in due {
            self.chance.trace(&format!("{} late {key}", self.url));
            state.apply(&key, change, !self.needs_sync);
        }
    }

    async fn ask(&self, what: &str, key: &str) -> u64 {
        let number = self.chance.request().await;
        self.chance.trace(&format!("{} {what} {key}", self.url));
        number
    }

    async fn read<T>(&self, what: &str, key: &str, take: impl FnOnce(&Object) -> T) -> Result<T> {
        key::check(&self.url, key)?;
        self.ask(what, key).await;
        self.travel().await;
        let found = self.state.lock().get(key).map(take);
        self.travel().await;
        found.ok_or_else(|| Error::NotFound(format!("{}: {key}", self.url)))
    }

    async fn send(&self, what: &str, changes: Vec<(String, Change)>) -> Result<bool> {
        for (key, _) in &changes {
            key::check(&self.url, key)?;
        }
        let number = self.ask(what, changes.first().map_or("", |(key, _)| key)).await;
        self.state.lock().under_way.insert(number);
        let sent = Sent { disk: self, number, changes };
        self.travel().await;
        let done = sent.arrive();
        self.travel().await;
        Ok(done)
    }
}

fn object(body: Vec<Bytes>) -> Object {
    let mut joined = BytesMut::new();
    body.iter().for_each(|piece| joined.extend_from_slice(piece));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Object { body: joined.freeze(), modified_ms: now.map_or(0, |since| since.as_millis() as i64) }
}

fn info(key: &str, object: &Object) -> ObjectInfo {
    ObjectInfo { key: key.to_string(), size: object.body.len() as u64, modified_ms: object.modified_ms }
}

#[async_trait::async_trait]
impl Bucket for Disk {
    fn url(&self) -> &str {
        &self.url
    }

    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let cut = |object: &Object| {
            let end = range.end.min(object.body.len() as u64) as usize;
            object.body.slice((range.start as usize).min(end)..end)
        };
        self.read("get", key, cut).await
    }

    async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)> {
        let cut = |object: &Object| {
            let size = object.body.len() as u64;
            (object.body.slice(size.saturating_sub(len) as usize..), size)
        };
        self.read("tail", key, cut).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo> {
        self.read("head", key, |object| info(key, object)).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        self.send("put", vec![(key.to_string(), Change::Put(object(body)))]).await.map(drop)
    }

    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        match self.send("create", vec![(key.to_string(), Change::Create(object(body)))]).await? {
            true => Ok(()),
            false => Err(Error::Exists(format!("{}: {key}", self.url))),
        }
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let changes = keys.iter().map(|key| (key.clone(), Change::Delete)).collect();
        self.send("delete", changes).await.map(drop)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let folder = prefix.trim_end_matches('/');
        let start = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        self.ask("list", prefix).await;
        self.travel().await;
        let found = {
            let state = self.state.lock();
            let below = state.objects.range(start.clone()..).take_while(|(key, _)| key.starts_with(&start));
            let live = below.filter_map(|(key, versions)| Some(info(key, versions.last()?.1.as_ref()?)));
            live.collect()
        };
        self.travel().await;
        Ok(found)
    }

    async fn sync(&self) -> Result<()> {
        self.ask("sync", "").await;
        let before = self.state.lock().next_version + 1;
        self.travel().await;
        self.travel().await;
        self.state.lock().settle(before);
        Ok(())
    }

    async fn capacity(&self) -> Result<Option<Capacity>> {
        Ok(None)
    }
}
