//! A bucket in memory, for tests: as durable as the process.

use crate::error::object;
use crate::store::body_len;
use crate::{Bucket, Capacity, Error, ObjectInfo, Result, key};
use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use tarn_base::{Clock, SystemClock};

static NAMED: LazyLock<Mutex<HashMap<String, Objects>>> = LazyLock::new(Mutex::default);

static STAND_INS: LazyLock<Mutex<HashMap<String, Arc<dyn Bucket>>>> = LazyLock::new(Mutex::default);

type Objects = Arc<RwLock<BTreeMap<String, Object>>>;

#[derive(Clone)]
struct Object {
    body: Bytes,
    modified_ms: i64,
}

/// Objects in memory. Every bucket of one name shows the same objects, and they outlive it.
pub struct MemoryBucket {
    url: String,
    objects: Objects,
    clock: SystemClock,
}

impl MemoryBucket {
    /// The bucket of that name in this process, made if it is not there.
    pub fn named(name: &str) -> MemoryBucket {
        let objects = NAMED.lock().entry(name.to_string()).or_default().clone();
        MemoryBucket { url: format!("mem://{name}"), objects, clock: SystemClock::default() }
    }

    /// Forgets the bucket of that name: whoever opens it next finds it empty.
    pub fn forget(name: &str) {
        NAMED.lock().remove(name);
    }

    fn find(&self, key: &str) -> Result<Object> {
        key::check(&self.url, key)?;
        self.objects.read().get(key).cloned().ok_or_else(|| Error::NotFound(object(&self.url, key)))
    }

    fn object(&self, body: Vec<Bytes>) -> Object {
        let mut joined = BytesMut::with_capacity(body_len(&body) as usize);
        body.iter().for_each(|piece| joined.extend_from_slice(piece));
        let now = self.clock.now();
        let modified_ms = now.sec * 1000 + i64::from(now.nsec / 1_000_000);
        Object { body: joined.freeze(), modified_ms }
    }
}

/// Lets `mem://name` be this bucket in this process, from the next opening on.
pub fn stand_in(name: &str, bucket: Arc<dyn Bucket>) {
    STAND_INS.lock().insert(name.to_string(), bucket);
}

/// What `mem://name` is.
pub(crate) fn open(name: &str) -> Arc<dyn Bucket> {
    let stand_in = STAND_INS.lock().get(name).cloned();
    stand_in.unwrap_or_else(|| Arc::new(MemoryBucket::named(name)))
}

fn info(key: &str, object: &Object) -> ObjectInfo {
    ObjectInfo { key: key.to_string(), size: object.body.len() as u64, modified_ms: object.modified_ms }
}

#[async_trait::async_trait]
impl Bucket for MemoryBucket {
    fn url(&self) -> &str {
        &self.url
    }

    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let body = self.find(key)?.body;
        let end = range.end.min(body.len() as u64) as usize;
        let start = (range.start.min(end as u64)) as usize;
        Ok(body.slice(start..end))
    }

    async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)> {
        let body = self.find(key)?.body;
        let size = body.len() as u64;
        Ok((body.slice(size.saturating_sub(len) as usize..), size))
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo> {
        Ok(info(key, &self.find(key)?))
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        key::check(&self.url, key)?;
        let object = self.object(body);
        self.objects.write().insert(key.to_string(), object);
        Ok(())
    }

    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        key::check(&self.url, key)?;
        let new = self.object(body);
        match self.objects.write().entry(key.to_string()) {
            std::collections::btree_map::Entry::Occupied(_) => Err(Error::Exists(object(&self.url, key))),
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(new);
                Ok(())
            }
        }
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        for key in keys {
            key::check(&self.url, key)?;
        }
        let mut objects = self.objects.write();
        for key in keys {
            objects.remove(key);
        }
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let folder = key::folder(&self.url, prefix)?;
        let start = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let objects = self.objects.read();
        let below = objects.range(start.clone()..).take_while(|(key, _)| key.starts_with(&start));
        Ok(below.map(|(key, object)| info(key, object)).collect())
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn capacity(&self) -> Result<Option<Capacity>> {
        Ok(None)
    }
}
