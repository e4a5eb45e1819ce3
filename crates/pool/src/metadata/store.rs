//! [`MetadataStore`]: the two copies behind the interface of `object_store`. The rules are in the module above.

use super::copies::{self, CopyError, Part, Want};
use super::object::{Footer, Identity, overhead};
use super::{placement, prefix};
use crate::authority::Gate;
use crate::damage::DamageLog;
use crate::outage::Side;
use crate::text::now_ms;
use crate::vdev::Vdev;
use crate::{DatasetConfig, Error, Result};
use bytes::Bytes;
use futures::future::join_all;
use object_store::{PutMode, PutResult};
use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use tarn_base::point::{self, Point};
use tarn_base::{DatasetId, PoolGuid, VdevGuid};
use tokio::sync::watch;
use tokio::time::Instant;

/// Memory for footers of objects read, as a part of that for regions.
const FOOTERS_PART: u64 = 8;
/// Small reads of an object that never changes bring so many bytes around them, aligned: a database is read in blocks of
/// some KiB, and neighbours are wanted soon.
pub(super) const REGION: u64 = 512 << 10;
/// Memory for such regions and for footers unless [`MetadataStore::set_memory`] says otherwise, in bytes.
const MEMORY: u64 = 32 << 20;
/// Folders in which the database has its tables, the lists of them, and what is to be merged.
const TABLES: [&str; 3] = ["compacted", "manifest", "compactions"];
/// A listed object with one copy is given its second when it is older than this many milliseconds: a younger one may
/// be on its way.
const SETTLED_MS: i64 = 60_000;

pub(super) type Os<T> = object_store::Result<T>;

/// What a listing found, by path: payload's bytes, time (milliseconds since 1970), and which of the vdevs have it.
pub(super) type Listed = BTreeMap<String, (u64, i64, BTreeSet<usize>)>;

/// What was done to a dataset's metadata.
#[derive(Clone, Copy, Debug)]
pub struct Changed {
    /// When an object was written or deleted last.
    pub at: Instant,
    /// Tables of the database, lists of them, and orders to merge them, that were written since the store was opened.
    pub tables: u64,
}

/// The object store of one dataset's metadata.
pub(crate) struct MetadataStore {
    pub(super) pool: PoolGuid,
    pub(super) dataset: DatasetId,
    /// In the dataset's order.
    pub(super) vdevs: Vec<Arc<Vdev>>,
    pub(super) guids: Vec<VdevGuid>,
    pub(super) gate: Arc<Gate>,
    pub(super) damage: Arc<DamageLog>,
    pub(super) footers: Cache<String, Arc<Footer>, Weight, Hashing>,
    pub(super) regions: Cache<(String, u64), Part, Weight, Hashing>,
    /// One create of a path at a time; the path says which of them is to be held.
    creating: [tokio::sync::Mutex<()>; 16],
    /// One replacement of an existing object at a time.
    pub(super) rewriting: tokio::sync::Mutex<()>,
    /// The objects that are replaced whose copies are known to be alike.
    pub(super) alike: Mutex<HashSet<String>>,
    /// Sizes of the objects known, for the vdevs' books, and what was deleted, so that no repair brings it back.
    pub(super) books: Mutex<Books>,
    pub(super) settled_ms: AtomicI64,
    changed: watch::Sender<Changed>,
    pub(super) this: std::sync::Weak<MetadataStore>,
}

/// The same in every process, so that a simulation that is repeated forgets the same.
type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

fn cache<K, V>(expected: usize, bytes: u64) -> Cache<K, V, Weight, Hashing>
where
    K: Eq + std::hash::Hash,
    V: Clone,
    Weight: quick_cache::Weighter<K, V>,
{
    Cache::with(expected, bytes, Weight, Hashing::default(), DefaultLifecycle::default())
}

/// Memory that what is remembered takes, in bytes.
#[derive(Clone)]
pub(super) struct Weight;

impl quick_cache::Weighter<String, Arc<Footer>> for Weight {
    fn weight(&self, path: &String, footer: &Arc<Footer>) -> u64 {
        (path.len() + footer.weight()) as u64
    }
}

impl quick_cache::Weighter<(String, u64), Part> for Weight {
    fn weight(&self, (path, _): &(String, u64), part: &Part) -> u64 {
        (path.len() + part.bytes.len()) as u64
    }
}

#[derive(Default)]
pub(super) struct Books {
    sizes: HashMap<String, u64>,
    pub(super) deleted: HashSet<String>,
}

impl std::fmt::Debug for MetadataStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::fmt::Display for MetadataStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "metadata of dataset {} in pool {:016x}", self.dataset, self.pool.0)
    }
}

pub(super) fn generic(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "tarn", source: error.into() }
}

/// An error that trying again does not help.
pub(super) fn fatal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    generic(slatedb_common::retry::NonRetryable(error.into()))
}

/// A vdev gave up: after its deadline there is no point in trying again at once.
pub(super) fn given_up(error: impl Into<Error>) -> object_store::Error {
    match error.into() {
        Error::Bucket(error) if error.passes_soon() => generic(error),
        error => fatal(error),
    }
}

/// A number below `count` that is always the same for a path.
fn one_of(path: &str, count: usize) -> usize {
    twox_hash::XxHash3_64::oneshot(path.as_bytes()) as usize % count
}

fn taken(path: &str) -> object_store::Error {
    object_store::Error::AlreadyExists { path: path.into(), source: "object exists".into() }
}

pub(super) fn absent(path: &str) -> object_store::Error {
    object_store::Error::NotFound { path: path.into(), source: "no such object".into() }
}

fn put_result(footer: &Footer) -> PutResult {
    PutResult { e_tag: Some(footer.e_tag()), version: None, extensions: Default::default() }
}

/// The copy on this vdev and no other, waited for where calls wait.
async fn read_one(vdev: &Vdev, identity: &Identity<'_>, want: &Want) -> std::result::Result<Part, CopyError> {
    loop {
        match copies::read(vdev, identity, want, None).await {
            Err(CopyError::Failed(_)) if vdev.outages.outlast(Side::Read).await => {}
            other => return other,
        }
    }
}

/// An object ready to be written.
struct Prepared {
    footer: Footer,
    body: Vec<Bytes>,
}

impl MetadataStore {
    /// The store of `dataset`; `vdevs` are those that it names, in its order.
    pub fn new(
        pool: PoolGuid,
        dataset: &DatasetConfig,
        vdevs: Vec<Arc<Vdev>>,
        gate: Arc<Gate>,
        damage: Arc<DamageLog>,
    ) -> Arc<MetadataStore> {
        Arc::new_cyclic(|this| MetadataStore {
            pool,
            dataset: dataset.id,
            guids: vdevs.iter().map(|v| v.guid).collect(),
            vdevs,
            gate,
            damage,
            footers: cache(1 << 10, MEMORY / FOOTERS_PART),
            regions: cache(1 << 6, MEMORY - MEMORY / FOOTERS_PART),
            creating: Default::default(),
            rewriting: tokio::sync::Mutex::new(()),
            alike: Mutex::default(),
            books: Mutex::default(),
            settled_ms: AtomicI64::new(SETTLED_MS),
            changed: watch::Sender::new(Changed { at: Instant::now(), tables: 0 }),
            this: this.clone(),
        })
    }

    /// Bounds what is kept in memory of objects read.
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.footers.set_capacity(bytes / FOOTERS_PART);
        self.regions.set_capacity(bytes - bytes / FOOTERS_PART);
    }

    /// Bytes that are kept of objects read, and at most.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let (footers, regions) = (&self.footers, &self.regions);
        (footers.weight() + regions.weight(), footers.capacity() + regions.capacity())
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Changed> {
        self.changed.subscribe()
    }

    fn note_change(&self, tables: u64) {
        self.changed.send_modify(|changed| {
            *changed = Changed { at: Instant::now(), tables: changed.tables + tables };
        });
    }

    pub(super) fn key(&self, path: &str) -> String {
        format!("{}{path}", prefix(self.dataset))
    }

    /// The vdevs that hold the path: primary, and second if there is one.
    pub(super) fn holders(&self, path: &str) -> Vec<&Arc<Vdev>> {
        placement(path, &self.guids).into_iter().take(2).map(|i| &self.vdevs[i]).collect()
    }

    fn prepare(&self, path: &str, mut payload: Vec<Bytes>, put_id: String) -> Prepared {
        let key = self.key(path);
        // A retry of a conditional put has the same put id, and so the same nonce.
        let nonce = match put_id.is_empty() {
            true => rand::random(),
            false => twox_hash::XxHash3_128::oneshot(format!("{put_id} {key}").as_bytes()).to_le_bytes(),
        };
        let footer = Footer::new(self.gate.epoch(), nonce, now_ms(), put_id, &payload);
        payload.push(footer.to_bytes(&Identity { pool: self.pool, key: &key }));
        Prepared { footer, body: payload }
    }

    /// Writes an object by the rules for its mode.
    pub(super) async fn put(
        &self,
        path: &str,
        payload: Vec<Bytes>,
        put_id: String,
        mode: PutMode,
    ) -> Os<PutResult> {
        self.gate.pass().map_err(fatal)?;
        let object = self.prepare(path, payload, put_id);
        let done = match mode {
            PutMode::Overwrite => self.overwrite(path, &object).await,
            PutMode::Create => self.create(path, &object).await,
            PutMode::Update(expected) => self.update(path, &object, expected.e_tag).await,
        };
        // One that failed may have taken effect.
        self.note_change(u64::from(path.split('/').any(|part| TABLES.contains(&part))));
        done?;
        self.footers.insert(path.to_string(), Arc::new(object.footer.clone()));
        // Only a put brings a deleted path back: a listing may be older than the delete.
        self.books.lock().deleted.remove(path);
        self.book(path, object.footer.payload);
        Ok(put_result(&object.footer))
    }

    async fn overwrite(&self, path: &str, object: &Prepared) -> Os<()> {
        let key = self.key(path);
        let puts = self.holders(path).into_iter().map(|vdev| vdev.put_durable(&key, object.body.clone()));
        join_all(puts).await.into_iter().collect::<Result<()>>().map_err(given_up)
    }

    async fn create(&self, path: &str, object: &Prepared) -> Os<()> {
        let _one = self.creating[one_of(path, self.creating.len())].lock().await;
        let key = self.key(path);
        let holders = self.holders(path);
        let first = AtomicBool::new(true);
        let creates = holders.iter().map(|vdev| async {
            let made = vdev.create(&key, object.body.clone()).await;
            if made.is_ok() && holders.len() > 1 && first.swap(false, SeqCst) {
                point::pass(Point::MetadataOneCopy);
            }
            made
        });
        let mut found = false;
        for made in join_all(creates).await {
            match made {
                Ok(()) => {}
                Err(Error::Bucket(tarn_bucket::Error::Exists(_))) => found = true,
                Err(error) => return Err(given_up(error)),
            }
        }
        if found { self.settle(path, object, &holders).await } else { Ok(()) }
    }

    /// A create found an object: ours, somebody else's, or one of each. Success is ours alone on every holder.
    async fn settle(&self, path: &str, object: &Prepared, holders: &[&Arc<Vdev>]) -> Os<()> {
        let _one = self.rewriting.lock().await;
        let key = self.key(path);
        let identity = Identity { pool: self.pool, key: &key };
        let read = holders.iter().map(|vdev| read_one(vdev, &identity, &Want::All));
        let mut good = Vec::new();
        let mut damaged = Vec::new();
        for (&vdev, found) in holders.iter().zip(join_all(read).await) {
            match found {
                Ok(part) => good.push((vdev, part)),
                Err(CopyError::Damaged(problem)) => damaged.push((vdev, problem)),
                // Deleted in the meantime: it was not ours.
                Err(CopyError::Absent) => return Err(taken(path)),
                Err(CopyError::Failed(error)) => return Err(given_up(error)),
                Err(CopyError::Range(error)) => return Err(generic(error)),
            }
        }
        // Of equal epochs, the other's is the older: in one process, creates of a path come one after another.
        let age = |part: &Part| (part.footer.epoch, part.footer.nonce == object.footer.nonce);
        let Some(winner) = good.iter().map(|(_, part)| part).min_by_key(|part| age(part)).cloned() else {
            damaged.iter().for_each(|(vdev, problem)| self.note(vdev, &key, problem, false));
            return Err(taken(path));
        };
        if good.iter().all(|(_, part)| part.footer.epoch <= self.gate.epoch()) {
            for (vdev, problem) in &damaged {
                self.rewrite(vdev, path, &winner).await.map_err(given_up)?;
                self.note(vdev, &key, problem, true);
            }
            for (vdev, part) in &good {
                if part.footer.nonce != winner.footer.nonce {
                    self.rewrite(vdev, path, &winner).await.map_err(given_up)?;
                }
            }
        }
        if good.iter().any(|(_, part)| part.footer.nonce != object.footer.nonce) {
            return Err(taken(path));
        }
        // Who took the pool meanwhile may have looked here before it was ours.
        self.gate.check(true).await.map_err(given_up)
    }

    /// Compare-and-swap on the e-tag. Among the tasks of this process the lock makes it atomic, among hosts the
    /// authority that was just asked.
    async fn update(&self, path: &str, object: &Prepared, expected: Option<String>) -> Os<()> {
        self.gate.check(true).await.map_err(fatal)?;
        let key = self.key(path);
        // Puts the primary right if it is not; from here on it alone counts.
        self.read_healing(path, &Want::Head).await?;
        let _one = self.rewriting.lock().await;
        let holders = self.holders(path);
        let now = match read_one(holders[0], &Identity { pool: self.pool, key: &key }, &Want::Head).await {
            Ok(part) => part.footer.e_tag(),
            Err(CopyError::Failed(error)) => return Err(given_up(error)),
            Err(_) => return Err(generic(format!("{}: {key} cannot be read", holders[0].url()))),
        };
        if expected.as_ref() != Some(&now) {
            return Err(object_store::Error::Precondition {
                path: path.into(),
                source: "it was changed meanwhile".into(),
            });
        }
        self.alike.lock().remove(path);
        for vdev in holders {
            vdev.put_durable(&key, object.body.clone()).await.map_err(given_up)?;
        }
        self.alike.lock().insert(path.to_string());
        Ok(())
    }

    /// Enters an object's size into the vdevs' books.
    pub(super) fn book(&self, path: &str, payload: u64) {
        let size = payload + overhead(payload);
        let mut books = self.books.lock();
        let before = books.sizes.insert(path.to_string(), size).unwrap_or(0);
        drop(books);
        for vdev in self.holders(path) {
            vdev.add_allocated(size as i64 - before as i64);
        }
    }

    /// Takes all the objects out of the vdevs' books: they were deleted by other means.
    pub(crate) fn forget_books(&self) {
        let sizes = std::mem::take(&mut self.books.lock().sizes);
        for (path, size) in sizes {
            self.holders(&path).into_iter().for_each(|vdev| vdev.add_allocated(-(size as i64)));
        }
    }

    fn unbook(&self, path: &str) {
        let mut books = self.books.lock();
        // Bounded, as it only has to outlast a listing that is under way.
        if books.deleted.len() > 10_000 {
            books.deleted.clear();
        }
        books.deleted.insert(path.to_string());
        let Some(size) = books.sizes.remove(path) else { return };
        drop(books);
        for vdev in self.holders(path) {
            vdev.add_allocated(-(size as i64));
        }
    }

    /// Deletes both copies of each, seconds first.
    pub(super) async fn delete(&self, paths: &[String]) -> Os<()> {
        self.gate.pass().map_err(fatal)?;
        if paths.is_empty() {
            return Ok(());
        }
        paths.iter().for_each(|path| self.unbook(path));
        let done = self.delete_copies(paths).await;
        self.note_change(0);
        paths.iter().for_each(|path| drop(self.footers.remove(path)));
        done
    }

    async fn delete_copies(&self, paths: &[String]) -> Os<()> {
        for copy in [1, 0] {
            let mut by_vdev: BTreeMap<usize, Vec<String>> = BTreeMap::new();
            for path in paths {
                if let Some(&vdev) = placement(path, &self.guids).get(copy) {
                    by_vdev.entry(vdev).or_default().push(self.key(path));
                }
            }
            let deletes = by_vdev.iter().map(|(&vdev, keys)| self.vdevs[vdev].delete(keys));
            join_all(deletes).await.into_iter().collect::<Result<()>>().map_err(given_up)?;
        }
        Ok(())
    }
}
