//! The objects of a bucket, through `object_store`: what the services that it speaks to do alike.

use super::answer::Answer;
use super::body::{collect, split};
use super::folder::Folder;
use super::innermost;
use crate::store::{body_len, every_page};
use crate::{Bucket, Capacity, Error, ListPage, ObjectInfo, Operation, Result, Source, UnfinishedUpload};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, PutMode,
    PutMultipartOptions, PutOptions, PutPayload,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::Tally;

/// A body of more bytes than this is written in parts.
const MULTIPART_ABOVE: u64 = 16 << 20;
/// Bytes in a part.
const PART: usize = 8 << 20;
/// Parts of one object in flight.
const PARTS_AT_ONCE: usize = 8;
/// How often an upload that was given up is ended, and how long after one another, until the store knows it not.
const ABORT_TRIES: usize = 4;
const ABORT_PAUSE: Duration = Duration::from_secs(1);
/// Objects in a piece of a listing.
const PAGE: usize = 1000;
/// An object that is longer than wanted by more bytes than this is not read to its end.
const REST_MAX: u64 = 256 << 10;

/// What `object_store` does for a service.
pub(crate) trait Store: ObjectStore + MultipartStore + PaginatedListStore {}

impl<T: ObjectStore + MultipartStore + PaginatedListStore> Store for T {}

/// What is particular to one service.
#[async_trait::async_trait]
pub(crate) trait Service: Send + Sync + 'static {
    /// The error that a request on `key` of the bucket `url` becomes; the key is empty where it was on the bucket.
    fn explain(&self, url: &str, operation: Operation, key: &str, answer: &Answer) -> Error;

    /// Where the credentials come from.
    fn credentials(&self) -> Source;

    /// The store does not take the credentials: look for others.
    fn renew(&self);

    /// Whether the refusal of a HEAD, which has no body, says why.
    fn has_words_for_heads(&self) -> bool;

    /// Whether what is written in parts can be given a storage class.
    fn has_class_for_parts(&self) -> bool {
        true
    }

    /// Whether a GET can ask for the last so many bytes.
    fn has_suffix_ranges(&self) -> bool {
        true
    }

    async fn uploads(&self, _objects: &Objects) -> Result<Vec<UnfinishedUpload>> {
        Ok(Vec::new())
    }

    /// Why what is deleted would not give its space back: see [`Bucket::keeps`].
    async fn keeps(&self, url: &str) -> Option<String>;
}

/// A bucket, or a folder of one.
pub struct Objects {
    folder: Folder,
    store: Arc<dyn Store>,
    service: Box<dyn Service>,
    tally: Arc<Tally>,
    /// The storage class of what is written, if it is not the bucket's own.
    class: Option<String>,
    /// What uploads in parts that are under way are for.
    live: Arc<Mutex<Vec<Path>>>,
}

impl Objects {
    pub(crate) fn new(
        folder: Folder,
        store: Arc<dyn Store>,
        service: Box<dyn Service>,
        class: Option<String>,
        tally: Arc<Tally>,
    ) -> Objects {
        Objects { folder, store, service, class, tally, live: Arc::default() }
    }

    /// What objects are written with.
    fn attributes(&self) -> Attributes {
        self.class.iter().map(|class| (Attribute::StorageClass, class.clone())).collect()
    }

    async fn put_once(
        &self,
        operation: Operation,
        mode: PutMode,
        path: &Path,
        key: &str,
        body: Vec<Bytes>,
    ) -> Result<()> {
        let options = PutOptions { mode, attributes: self.attributes(), ..PutOptions::default() };
        let written = self.store.put_opts(path, PutPayload::from_iter(body), options).await;
        written.map(drop).map_err(|e| self.explain(operation, key, &e))
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Which uploads in parts are under way here.
    pub(crate) fn live(&self) -> Vec<Path> {
        self.live.lock().clone()
    }

    pub(crate) fn path(&self, key: &str) -> Result<Path> {
        Path::parse(self.folder.name(key)?)
            .map_err(|e| Error::Config(format!("{}: the key {key:?} cannot be used: {e}", self.folder.url)))
    }

    fn explain(&self, operation: Operation, key: &str, error: &object_store::Error) -> Error {
        self.explain_answer(operation, key, &Answer::of(error))
    }

    fn explain_answer(&self, operation: Operation, key: &str, answer: &Answer) -> Error {
        let error = self.service.explain(&self.folder.url, operation, key, answer);
        if matches!(error, Error::Credentials(_)) {
            self.service.renew();
        }
        error
    }

    /// Why a HEAD was refused, which a GET may be told.
    async fn explain_head(&self, path: &Path, key: &str, error: &object_store::Error) -> Error {
        let answer = Answer::of(error);
        let mute = answer.code.is_empty() && matches!(answer.status, Some(400 | 401 | 403));
        if mute && !self.service.has_words_for_heads() {
            let first = GetOptions::new().with_range(Some(GetRange::Bounded(0..1)));
            if let Err(told) = self.store.get_opts(path, first).await {
                return self.explain(Operation::Head, key, &told);
            }
        }
        self.explain_answer(Operation::Head, key, &answer)
    }

    /// The answer to a ranged GET; `None` when the object has no byte in the range.
    async fn request(&self, path: &Path, key: &str, range: GetRange) -> Result<Option<GetResult>> {
        match self.store.get_opts(path, GetOptions::new().with_range(Some(range.clone()))).await {
            Ok(result) => Ok(Some(result)),
            Err(e) => {
                let answer = Answer::of(&e);
                match answer.status {
                    Some(416) => Ok(None),
                    // Some stores answer a range without bytes with the whole object, or with one that it has not.
                    None if is_odd(&e) && !self.has_bytes(key, &range).await? => Ok(None),
                    _ => Err(self.explain_answer(Operation::Get, key, &answer)),
                }
            }
        }
    }

    async fn has_bytes(&self, key: &str, range: &GetRange) -> Result<bool> {
        let size = self.head(key).await?.size;
        Ok(match range {
            GetRange::Bounded(range) => range.start < size,
            GetRange::Offset(start) => *start < size,
            GetRange::Suffix(_) => size > 0,
        })
    }

    /// The first `most` bytes of an answer's body.
    async fn collect(&self, key: &str, result: GetResult, most: u64) -> Result<Bytes> {
        let len = (result.range.end - result.range.start).min(most) as usize;
        let pieces = result.into_stream().map_err(|e| self.explain(Operation::Get, key, &e));
        collect(&crate::error::object(&self.folder.url, key), pieces, len, most == u64::MAX).await
    }

    async fn put_in_parts(&self, path: &Path, key: &str, body: Vec<Bytes>) -> Result<()> {
        let fail = |e: object_store::Error| self.explain(Operation::Put, key, &e);
        // The store knows of an upload before its answer is here, and may list it.
        let mut upload = Upload::begin(self, path);
        let options = PutMultipartOptions { attributes: self.attributes(), ..Default::default() };
        let id = self.store.create_multipart_opts(path, options).await.map_err(fail)?;
        upload.id = Some(id.clone());
        let parts: Vec<PartId> = stream::iter(split(body, PART).into_iter().enumerate())
            .map(|(index, part)| self.store.put_part(path, &id, index, PutPayload::from_iter(part)))
            .buffered(PARTS_AT_ONCE)
            .try_collect()
            .await
            .map_err(fail)?;
        self.store.complete_multipart(path, &id, parts).await.map_err(fail)?;
        upload.done();
        Ok(())
    }
}

/// Whether the library found that an answer's range is not what was asked for.
fn is_odd(error: &object_store::Error) -> bool {
    let text = error.to_string();
    ["non-partial", "Wanted range"].iter().any(|words| text.contains(words))
}

/// A multipart upload that is ended when it is dropped unfinished, so that its parts do not stay and cost.
struct Upload {
    store: Arc<dyn Store>,
    live: Arc<Mutex<Vec<Path>>>,
    path: Path,
    id: Option<String>,
}

impl Upload {
    fn begin(bucket: &Objects, path: &Path) -> Upload {
        bucket.live.lock().push(path.clone());
        Upload { store: bucket.store.clone(), live: bucket.live.clone(), path: path.clone(), id: None }
    }

    fn done(mut self) {
        self.id = None;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut live = self.live.lock();
        if let Some(at) = live.iter().position(|path| *path == self.path) {
            live.swap_remove(at);
        }
        drop(live);
        let Some(id) = self.id.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (store, path) = (self.store.clone(), self.path.clone());
        runtime.spawn(async move {
            // A part that is still on its way may arrive after the end of its upload, so that it takes another.
            for _ in 0..ABORT_TRIES {
                match store.abort_multipart(&path, &id).await {
                    Ok(()) => {}
                    Err(object_store::Error::NotFound { .. }) => return,
                    Err(e) => tracing::debug!(%path, cause = innermost(&e), "an upload could not be ended"),
                }
                tokio::time::sleep(ABORT_PAUSE).await;
            }
        });
    }
}

#[async_trait::async_trait]
impl Bucket for Objects {
    fn url(&self) -> &str {
        &self.folder.url
    }

    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let path = self.path(key)?;
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match self.request(&path, key, GetRange::Bounded(range)).await? {
            Some(result) => self.collect(key, result, u64::MAX).await,
            None => Ok(Bytes::new()),
        }
    }

    async fn get_start(&self, key: &str, len: u64) -> Result<Bytes> {
        let path = self.path(key)?;
        let found = self.store.get_opts(&path, GetOptions::new()).await;
        let result = found.map_err(|e| self.explain(Operation::Get, key, &e))?;
        if result.meta.size > len + REST_MAX {
            return self.get(key, 0..len).await;
        }
        self.collect(key, result, len).await
    }

    async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)> {
        let path = self.path(key)?;
        if !self.service.has_suffix_ranges() {
            let size = self.head(key).await?.size;
            return Ok((self.get(key, size.saturating_sub(len)..size).await?, size));
        }
        let found = if len == 0 { None } else { self.request(&path, key, GetRange::Suffix(len)).await? };
        match found {
            Some(result) => {
                let size = result.meta.size;
                Ok((self.collect(key, result, u64::MAX).await?, size))
            }
            None => Ok((Bytes::new(), self.head(key).await?.size)),
        }
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo> {
        let path = self.path(key)?;
        let meta = match self.store.head(&path).await {
            Ok(meta) => meta,
            Err(e) => return Err(self.explain_head(&path, key, &e).await),
        };
        Ok(ObjectInfo {
            key: key.into(),
            size: meta.size,
            modified_ms: meta.last_modified.timestamp_millis(),
        })
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let path = self.path(key)?;
        let in_parts = self.class.is_none() || self.service.has_class_for_parts();
        if in_parts && body_len(&body) > MULTIPART_ABOVE {
            return self.put_in_parts(&path, key, body).await;
        }
        self.put_once(Operation::Put, PutMode::Overwrite, &path, key, body).await
    }

    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let path = self.path(key)?;
        self.put_once(Operation::Create, PutMode::Create, &path, key, body).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let paths = keys.iter().map(|key| self.path(key)).collect::<Result<Vec<_>>>()?;
        let mut results = self.store.delete_stream(stream::iter(paths).map(Ok).boxed());
        while let Some(result) = results.next().await {
            let e = match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => continue,
                Err(e) => e,
            };
            let key = keys.first().map_or("", String::as_str);
            match self.explain(Operation::Delete, if keys.len() == 1 { key } else { "" }, &e) {
                Error::NotFound(_) => {}
                error => return Err(error),
            }
        }
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        every_page(self, prefix).await
    }

    async fn list_page(&self, prefix: &str, after: Option<String>) -> Result<ListPage> {
        let below = self.folder.below(prefix)?;
        let options = PaginatedListOptions { page_token: after, max_keys: Some(PAGE), ..Default::default() };
        let page = self
            .store
            .list_paginated(Some(below.as_str()).filter(|below| !below.is_empty()), options)
            .await
            .map_err(|e| self.explain(Operation::List, "", &e))?;
        let info = |meta: object_store::ObjectMeta| {
            let modified_ms = meta.last_modified.timestamp_millis();
            Some(ObjectInfo {
                key: self.folder.key_of(meta.location.as_ref())?,
                size: meta.size,
                modified_ms,
            })
        };
        let objects = page.result.objects.into_iter().filter_map(info).collect();
        Ok(ListPage { objects, next: page.page_token })
    }

    async fn uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        self.service.uploads(self).await
    }

    async fn end_upload(&self, upload: &UnfinishedUpload) -> Result<()> {
        let path = self.path(&upload.key)?;
        if self.live.lock().contains(&path) {
            return Ok(());
        }
        match self.store.abort_multipart(&path, &upload.id).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.explain(Operation::Delete, &upload.key, &e)),
        }
    }

    /// Every answered PUT is durable.
    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn capacity(&self) -> Result<Option<Capacity>> {
        Ok(None)
    }

    fn credentials(&self) -> Option<Source> {
        Some(self.service.credentials())
    }

    async fn keeps(&self) -> Option<String> {
        self.service.keeps(&self.folder.url).await
    }

    fn tally(&self) -> Option<&Tally> {
        Some(&self.tally)
    }
}
