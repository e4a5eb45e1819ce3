//! [`MetadataStore`]: the two copies behind the interface of `object_store`. The rules are in the module above.

use super::copies::{self, CopyError, Part, Want};
use super::multipart::Upload;
use super::object::{Footer, Identity, overhead, payload_len};
use super::{placement, prefix};
use crate::authority::Gate;
use crate::damage::{DamageLog, DamageRecord};
use crate::text::now_ms;
use crate::vdev::Vdev;
use crate::{DatasetConfig, Error, Result};
use bytes::Bytes;
use foyer::{Cache, CacheBuilder};
use futures::future::join_all;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult,
};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, UNIX_EPOCH};
use tarn_base::{DatasetId, PoolGuid, VdevGuid};

/// What SlateDB calls the mark on its conditional puts.
const PUT_ID: &str = "slatedbputid";
/// Memory for footers of objects read, in bytes.
const FOOTERS: usize = 4 << 20;
/// Locations that a delete takes at once.
const DELETE_BATCH: usize = 1000;
/// A listed object with one copy is given its second when it is older than this: a younger one may be on its way.
const SETTLED_MS: i64 = 60_000;

type Os<T> = object_store::Result<T>;

/// The object store of one dataset's metadata.
pub(crate) struct MetadataStore {
    pool: PoolGuid,
    dataset: DatasetId,
    /// In the dataset's order.
    vdevs: Vec<Arc<Vdev>>,
    guids: Vec<VdevGuid>,
    gate: Arc<Gate>,
    damage: Arc<DamageLog>,
    footers: Cache<String, Arc<Footer>>,
    /// One replacement of an existing object at a time.
    rewriting: tokio::sync::Mutex<()>,
    /// Sizes of the objects known, for the vdevs' books, and what was deleted, so that no repair brings it back.
    books: Mutex<Books>,
    this: std::sync::Weak<MetadataStore>,
}

#[derive(Default)]
struct Books {
    sizes: HashMap<String, u64>,
    deleted: HashSet<String>,
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

fn generic(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "tarn", source: error.into() }
}

/// An error that trying again does not help.
fn fatal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    generic(slatedb_common::retry::NonRetryable(error.into()))
}

fn taken(path: &str) -> object_store::Error {
    object_store::Error::AlreadyExists { path: path.into(), source: "object exists".into() }
}

fn absent(path: &str) -> object_store::Error {
    object_store::Error::NotFound { path: path.into(), source: "no such object".into() }
}

fn put_result(footer: &Footer) -> PutResult {
    PutResult { e_tag: Some(footer.e_tag()), version: None, extensions: Default::default() }
}

/// The put id among an upload's attributes; others cannot be kept.
fn put_id(attributes: &Attributes) -> Os<String> {
    let mut id = String::new();
    for (name, value) in attributes {
        match name {
            Attribute::Metadata(name) if name == PUT_ID && value.len() <= super::object::PUT_ID_MAX => {
                id = value.to_string();
            }
            other => {
                return Err(object_store::Error::NotSupported {
                    source: format!("attribute {other:?} cannot be kept").into(),
                });
            }
        }
    }
    Ok(id)
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
        let footers = CacheBuilder::new(FOOTERS)
            .with_name("footers")
            .with_shards(1)
            .with_weighter(|path: &String, footer: &Arc<Footer>| path.len() + footer.weight())
            .build();
        Arc::new_cyclic(|this| MetadataStore {
            pool,
            dataset: dataset.id,
            guids: vdevs.iter().map(|v| v.guid).collect(),
            vdevs,
            gate,
            damage,
            footers,
            rewriting: tokio::sync::Mutex::new(()),
            books: Mutex::default(),
            this: this.clone(),
        })
    }

    fn key(&self, path: &str) -> String {
        format!("{}{path}", prefix(self.dataset))
    }

    /// The vdevs that hold the path: primary, and second if there is one.
    fn holders(&self, path: &str) -> Vec<&Arc<Vdev>> {
        placement(path, &self.guids).into_iter().take(2).map(|i| &self.vdevs[i]).collect()
    }

    fn prepare(&self, path: &str, mut payload: Vec<Bytes>, put_id: String) -> Prepared {
        let key = self.key(path);
        // A retry of a conditional put has the same put id, and so the same nonce.
        let nonce = match put_id.is_empty() {
            true => rand::random(),
            false => xxhash_rust::xxh3::xxh3_128(format!("{put_id} {key}").as_bytes()).to_le_bytes(),
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
        match mode {
            PutMode::Overwrite => self.overwrite(path, &object).await?,
            PutMode::Create => self.create(path, &object).await?,
            PutMode::Update(expected) => self.update(path, &object, expected.e_tag).await?,
        }
        self.footers.insert(path.to_string(), Arc::new(object.footer.clone()));
        self.book(path, object.footer.payload);
        Ok(put_result(&object.footer))
    }

    async fn overwrite(&self, path: &str, object: &Prepared) -> Os<()> {
        let key = self.key(path);
        let puts = self.holders(path).into_iter().map(|vdev| vdev.put_durable(&key, object.body.clone()));
        join_all(puts).await.into_iter().collect::<Result<()>>().map_err(generic)
    }

    async fn create(&self, path: &str, object: &Prepared) -> Os<()> {
        let key = self.key(path);
        let holders = self.holders(path);
        for (n, vdev) in holders.iter().enumerate() {
            match vdev.create(&key, object.body.clone()).await {
                Ok(()) => {}
                Err(Error::Bucket(tarn_bucket::Error::Exists(_))) => {
                    self.resolve(path, object, &holders, n).await?;
                }
                Err(error) => return Err(generic(error)),
            }
        }
        Ok(())
    }

    /// A create found an object on holder `n`: ours or not.
    async fn resolve(&self, path: &str, object: &Prepared, holders: &[&Arc<Vdev>], n: usize) -> Os<()> {
        let one = self.rewriting.lock().await;
        let key = self.key(path);
        let identity = Identity { pool: self.pool, key: &key };
        let found = copies::read(holders[n], &identity, &Want::All, None).await;
        match (n, found) {
            (_, Ok(part)) if part.footer.nonce == object.footer.nonce => Ok(()),
            (0, Ok(_)) => Err(taken(path)),
            (_, Ok(part)) => {
                // It once won, and the primary lost it: ours gives way.
                self.rewrite(holders[0], path, &part).await.map_err(generic)?;
                Err(taken(path))
            }
            (0, Err(CopyError::Damaged(problem))) => {
                self.note(holders[0], &key, &problem, false);
                drop(one);
                // Was it ours? If the other copy cannot tell, it was not: one who is told so tries another path.
                match self.read_healing(path, &Want::Head).await {
                    Ok(part) if part.footer.nonce == object.footer.nonce => Ok(()),
                    Ok(_) | Err(_) => Err(taken(path)),
                }
            }
            (_, Err(CopyError::Damaged(problem))) => {
                self.note(holders[n], &key, &problem, true);
                holders[n].put_durable(&key, object.body.clone()).await.map_err(generic)
            }
            // Deleted in the meantime: it was not ours.
            (_, Err(CopyError::Absent)) => Err(taken(path)),
            (_, Err(CopyError::Failed(error))) => Err(generic(error)),
            (_, Err(CopyError::Range(error))) => Err(generic(error)),
        }
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
        let now = match copies::read(holders[0], &Identity { pool: self.pool, key: &key }, &Want::Head, None)
            .await
        {
            Ok(part) => part.footer.e_tag(),
            Err(CopyError::Failed(error)) => return Err(generic(error)),
            Err(_) => return Err(generic(format!("{}: {key} cannot be read", holders[0].url()))),
        };
        if expected.as_ref() != Some(&now) {
            return Err(object_store::Error::Precondition {
                path: path.into(),
                source: "it was changed meanwhile".into(),
            });
        }
        for vdev in holders {
            vdev.put_durable(&key, object.body.clone()).await.map_err(generic)?;
        }
        Ok(())
    }

    /// Reads by the rules: primary first, then the second; a bad or absent copy is replaced.
    async fn read_healing(&self, path: &str, want: &Want) -> Os<Part> {
        let holders = self.holders(path);
        // Again when a repair finds that somebody made the object meanwhile: what is there now counts.
        for _ in 0..3 {
            let mut bad = Vec::new();
            for (n, vdev) in holders.iter().enumerate() {
                match self.read_copy(path, vdev, want).await {
                    Ok(part) => {
                        self.footers.insert(path.to_string(), part.footer.clone());
                        let mut overtaken = false;
                        for (n, problem) in bad {
                            overtaken |= self.repair(path, holders[n], vdev, problem).await;
                        }
                        if overtaken {
                            break;
                        }
                        return Ok(part);
                    }
                    Err(CopyError::Range(text)) => return Err(fatal(text)),
                    Err(error) => bad.push((n, error)),
                }
                if n + 1 == holders.len() {
                    self.footers.remove(path);
                    return Err(self.unreadable(path, &holders, &bad));
                }
            }
        }
        Err(generic(format!("{}: it is being replaced all the time", self.key(path))))
    }

    /// One copy, with the footer that is remembered where it fits.
    async fn read_copy(&self, path: &str, vdev: &Vdev, want: &Want) -> std::result::Result<Part, CopyError> {
        let key = self.key(path);
        let identity = Identity { pool: self.pool, key: &key };
        let known = self.footers.get(path).map(|entry| entry.value().clone());
        if known.is_some() && !matches!(want, Want::Head) {
            match copies::read(vdev, &identity, want, known).await {
                // It may be of an object that was replaced.
                Err(CopyError::Damaged(_) | CopyError::Range(_)) => drop(self.footers.remove(path)),
                other => return other,
            }
        }
        copies::read(vdev, &identity, want, None).await
    }

    /// Why no copy could be read.
    fn unreadable(
        &self,
        path: &str,
        holders: &[&Arc<Vdev>],
        bad: &[(usize, CopyError)],
    ) -> object_store::Error {
        if bad.iter().all(|(_, error)| matches!(error, CopyError::Absent)) {
            return absent(path);
        }
        let key = self.key(path);
        let mut may_pass = false;
        let mut problems = Vec::new();
        for (n, error) in bad {
            let url = holders[*n].url();
            problems.push(match error {
                CopyError::Failed(error) => {
                    may_pass = true;
                    error.to_string()
                }
                CopyError::Damaged(problem) => {
                    self.note(holders[*n], &key, problem, false);
                    format!("{url}: {key}: {problem}")
                }
                _ => format!("{url}: {key} is not there"),
            });
        }
        let text = problems.join("; ");
        if may_pass { generic(text) } else { fatal(text) }
    }

    /// Replaces a copy that a read found bad from the good one; what goes wrong with that is left to the next read.
    /// `true`: the object was made there by somebody else in the meantime.
    async fn repair(&self, path: &str, bad: &Arc<Vdev>, good: &Arc<Vdev>, problem: CopyError) -> bool {
        let text = match &problem {
            CopyError::Absent => "it is not there",
            CopyError::Damaged(text) => text,
            CopyError::Failed(_) | CopyError::Range(_) => return false,
        };
        if self.gate.pass().is_err() || self.books.lock().deleted.contains(path) {
            return false;
        }
        let key = self.key(path);
        let identity = Identity { pool: self.pool, key: &key };
        let _one = self.rewriting.lock().await;
        let Ok(whole) = copies::read(good, &identity, &Want::All, None).await else { return false };
        let result = if matches!(problem, CopyError::Absent) {
            match bad.create(&key, self.body(&whole, &identity)).await {
                Err(Error::Bucket(tarn_bucket::Error::Exists(_))) => return true,
                other => other,
            }
        } else {
            self.rewrite(bad, path, &whole).await
        };
        self.note(bad, &key, text, result.is_ok());
        match result {
            Ok(()) => tracing::info!("{}: {key}: {text}; repaired from {}", bad.url(), good.url()),
            Err(error) => tracing::warn!("{}: {key}: {text}; repair failed: {error}", bad.url()),
        }
        false
    }

    fn body(&self, whole: &Part, identity: &Identity<'_>) -> Vec<Bytes> {
        vec![whole.bytes.clone(), whole.footer.to_bytes(identity)]
    }

    async fn rewrite(&self, vdev: &Arc<Vdev>, path: &str, whole: &Part) -> Result<()> {
        let key = self.key(path);
        let body = self.body(whole, &Identity { pool: self.pool, key: &key });
        vdev.put_durable(&key, body).await
    }

    fn note(&self, vdev: &Vdev, key: &str, problem: &str, repaired: bool) {
        vdev.checksum_errors.fetch_add(1, Relaxed);
        self.damage.note(DamageRecord {
            seen_ms: 0,
            vdev: vdev.url().to_string(),
            object: key.to_string(),
            segment: None,
            offset: None,
            owner: None,
            problem: problem.to_string(),
            repaired,
        });
    }

    /// Enters an object's size into the vdevs' books.
    fn book(&self, path: &str, payload: u64) {
        let size = payload + overhead(payload);
        let mut books = self.books.lock();
        books.deleted.remove(path);
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

    /// Everything below `folder` (a path, or nothing): with its payload's length and its time.
    pub(crate) async fn list_below(&self, folder: &str) -> Os<Vec<ObjectMeta>> {
        let base = prefix(self.dataset);
        let within = if folder.is_empty() { base.clone() } else { format!("{base}{folder}/") };
        let listed = join_all(self.vdevs.iter().map(|vdev| vdev.list(&within))).await;
        let mut found: BTreeMap<String, (u64, i64, BTreeSet<usize>)> = BTreeMap::new();
        let mut failed = Vec::new();
        for (i, objects) in listed.into_iter().enumerate() {
            match objects {
                Err(error) => failed.push(error),
                Ok(objects) => {
                    for object in objects {
                        let (Some(path), Some(len)) =
                            (object.key.strip_prefix(&base), payload_len(object.size))
                        else {
                            continue;
                        };
                        let entry = found.entry(path.to_string()).or_insert((len, i64::MIN, BTreeSet::new()));
                        entry.1 = entry.1.max(object.modified_ms);
                        entry.2.insert(i);
                    }
                }
            }
        }
        // What one vdev holds is also on another; of two that fail nobody knows what they hold.
        if failed.len() > 1 || failed.len() == self.vdevs.len() {
            return Err(generic(failed.swap_remove(0)));
        }
        if failed.is_empty() {
            self.complete(&found);
        }
        let meta = |(path, (size, modified_ms, _)): (String, (u64, i64, _))| {
            self.book(&path, size);
            Some(ObjectMeta {
                location: Path::parse(&path).ok()?,
                last_modified: (UNIX_EPOCH + Duration::from_millis(modified_ms.max(0) as u64)).into(),
                size,
                e_tag: None,
                version: None,
            })
        };
        Ok(found.into_iter().filter_map(meta).collect())
    }

    /// Has the missing copy made of what was listed with one, in the background.
    fn complete(&self, found: &BTreeMap<String, (u64, i64, BTreeSet<usize>)>) {
        let settled = now_ms() - SETTLED_MS;
        let mut lone = Vec::new();
        for (path, (_, modified_ms, places)) in found {
            let holders = placement(path, &self.guids);
            if *modified_ms < settled && holders.iter().take(2).any(|i| !places.contains(i)) {
                let held = holders.iter().take(2).find(|i| places.contains(i));
                let lacks = holders.iter().take(2).find(|i| !places.contains(i));
                if let (Some(&held), Some(&lacks)) = (held, lacks) {
                    lone.push((path.clone(), held, lacks));
                }
            }
        }
        let Some(this) = self.this.upgrade() else { return };
        if lone.is_empty() {
            return;
        }
        tokio::spawn(async move {
            for (path, held, lacks) in lone {
                this.repair(&path, &this.vdevs[lacks], &this.vdevs[held], CopyError::Absent).await;
            }
        });
    }

    /// Deletes both copies of each, seconds first.
    async fn delete(&self, paths: &[String]) -> Os<()> {
        self.gate.pass().map_err(fatal)?;
        paths.iter().for_each(|path| self.unbook(path));
        for copy in [1, 0] {
            let mut by_vdev: BTreeMap<usize, Vec<String>> = BTreeMap::new();
            for path in paths {
                if let Some(&vdev) = placement(path, &self.guids).get(copy) {
                    by_vdev.entry(vdev).or_default().push(self.key(path));
                }
            }
            let deletes = by_vdev.iter().map(|(&vdev, keys)| self.vdevs[vdev].delete(keys));
            join_all(deletes).await.into_iter().collect::<Result<()>>().map_err(generic)?;
        }
        paths.iter().for_each(|path| drop(self.footers.remove(path)));
        Ok(())
    }
}

#[async_trait::async_trait]
impl ObjectStore for MetadataStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Os<PutResult> {
        let id = put_id(&options.attributes)?;
        self.put(location.as_ref(), payload.into_iter().collect(), id, options.mode).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Os<Box<dyn MultipartUpload>> {
        let store = self.this.upgrade().ok_or_else(|| generic("the store was closed"))?;
        let put_id = put_id(&options.attributes)?;
        Ok(Box::new(Upload { store, path: location.to_string(), put_id, parts: Vec::new() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Os<GetResult> {
        let want = match (options.head, &options.range) {
            (true, _) => Want::Head,
            (false, None) => Want::All,
            (false, Some(range)) => Want::Range(range.clone()),
        };
        let part = self.read_healing(location.as_ref(), &want).await?;
        let footer = &part.footer;
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: (UNIX_EPOCH + Duration::from_millis(footer.written_ms.max(0) as u64)).into(),
            size: footer.payload,
            e_tag: Some(footer.e_tag()),
            version: None,
        };
        options.check_preconditions(&meta)?;
        let mut attributes = Attributes::new();
        if !footer.put_id.is_empty() {
            attributes.insert(Attribute::Metadata(Cow::Borrowed(PUT_ID)), footer.put_id.clone().into());
        }
        let Part { range, bytes, .. } = part;
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async move { Ok(bytes) }).boxed()),
            meta,
            range,
            attributes,
            extensions: Default::default(),
        })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Os<Path>>) -> BoxStream<'static, Os<Path>> {
        let this = self.this.clone();
        let batch = move |batch: Vec<Os<Path>>| {
            let this = this.clone();
            async move {
                let this = this.upgrade().ok_or_else(|| generic("the store was closed"))?;
                let paths = batch.into_iter().collect::<Os<Vec<Path>>>()?;
                let names: Vec<String> = paths.iter().map(|p| p.to_string()).collect();
                this.delete(&names).await?;
                Ok::<_, object_store::Error>(stream::iter(paths.into_iter().map(Ok)))
            }
        };
        locations.ready_chunks(DELETE_BATCH).then(batch).try_flatten().boxed()
    }

    fn list(&self, folder: Option<&Path>) -> BoxStream<'static, Os<ObjectMeta>> {
        let this = self.this.clone();
        let folder = folder.map(|p| p.to_string()).unwrap_or_default();
        let listing = async move {
            let this = this.upgrade().ok_or_else(|| generic("the store was closed"))?;
            Ok::<_, object_store::Error>(stream::iter(this.list_below(&folder).await?.into_iter().map(Ok)))
        };
        stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, folder: Option<&Path>) -> Os<ListResult> {
        let root = Path::default();
        let folder = folder.unwrap_or(&root);
        let mut common = BTreeSet::new();
        let mut objects = Vec::new();
        for object in self.list_below(folder.as_ref()).await? {
            let below: Option<Vec<_>> = object.location.prefix_match(folder).map(Iterator::collect);
            match below.as_deref() {
                Some([_]) => objects.push(object),
                Some([first, ..]) => {
                    common.insert(folder.clone().join(first.clone()));
                }
                _ => {}
            }
        }
        Ok(ListResult {
            common_prefixes: common.into_iter().collect(),
            objects,
            extensions: Default::default(),
        })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Os<()> {
        let part = self.read_healing(from.as_ref(), &Want::All).await?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        self.put(to.as_ref(), vec![part.bytes], String::new(), mode).await.map(drop)
    }
}
