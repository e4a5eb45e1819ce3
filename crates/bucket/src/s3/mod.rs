//! S3 and what speaks its protocol, through `object_store`.
//!
//! One request is one attempt: `object_store`'s own retries are off, because the guard above decides what is
//! tried again and for how long, and must see each failure to do so.

mod ask;
mod direct;
mod errors;
mod keeps;
mod uploads;

use crate::aws::{self, Environment};
use crate::buffer::Buffer;
use crate::store::body_len;
use crate::url::{Location, S3Location};
use crate::{Bucket, Capacity, Error, ListPage, ObjectInfo, Operation, Result, UnfinishedUpload, key};
use bytes::Bytes;
pub(crate) use direct::parses_head;
use errors::Answer;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpConnector};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
    RetryConfig,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A body of more bytes than this is written in parts.
const MULTIPART_ABOVE: u64 = 16 << 20;
/// Bytes in a part.
const PART: usize = 8 << 20;
/// Parts of one object in flight.
const PARTS_AT_ONCE: usize = 8;
/// How often an upload that was given up is ended, and how long after one another, until the store knows it not.
const ABORT_TRIES: usize = 4;
const ABORT_PAUSE: Duration = Duration::from_secs(1);
/// A piece of a body of so many bytes is not a part of the library's memory: it came from [`direct`], and stays as it is.
const WHOLE: usize = 512 << 10;
/// An object that is longer than wanted by more bytes than this is not read to its end.
const REST_MAX: u64 = 256 << 10;
/// Connections kept open to the store while nothing uses them.
const IDLE_CONNECTIONS: usize = 512;
/// How long such a connection is kept.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// No request takes longer, whoever waits for it.
const REQUEST_LIMIT: Duration = Duration::from_secs(300);
/// How long a connection may take to open.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A bucket, or a folder of one, at an S3 store.
pub struct S3Bucket {
    url: String,
    /// For messages.
    endpoint: String,
    /// Ends in `/` unless it is empty.
    prefix: String,
    store: Arc<AmazonS3>,
    /// For the requests that `object_store` does not have.
    http: HttpClient,
    /// What uploads in parts that are under way are for.
    live: Arc<Mutex<Vec<Path>>>,
}

impl S3Bucket {
    /// Opens the bucket without asking it anything.
    pub fn open(location: &S3Location, environment: &Environment) -> Result<S3Bucket> {
        let url = Location::S3(location.clone()).url();
        let (builder, endpoint) = aws::builder(&url, location, environment)?;
        let client = ClientOptions::new()
            .with_allow_http(endpoint.starts_with("http://"))
            .with_http1_only()
            .with_connect_timeout(CONNECT_LIMIT)
            .with_timeout(REQUEST_LIMIT)
            .with_pool_max_idle_per_host(IDLE_CONNECTIONS)
            .with_pool_idle_timeout(IDLE_LIMIT);
        let connector = direct::Connector {
            connect_limit: CONNECT_LIMIT,
            request_limit: REQUEST_LIMIT,
            idle_limit: IDLE_LIMIT,
            idle_connections: IDLE_CONNECTIONS,
        };
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let http =
            connector.connect(&client).map_err(|e| Error::Config(format!("{url}: {}", innermost(&e))))?;
        let store = builder
            .with_client_options(client)
            .with_http_connector(connector)
            .with_retry(retry)
            .build()
            .map_err(|e| Error::Config(format!("{url}: {}", innermost(&e))))?;
        let prefix = match location.prefix.as_str() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let (store, live) = (Arc::new(store), Arc::default());
        Ok(S3Bucket { url, endpoint, prefix, store, http, live })
    }

    fn path(&self, key: &str) -> Result<Path> {
        key::check(&self.url, key)?;
        let full = format!("{}{key}", self.prefix);
        key::check(&self.url, &full)?;
        Path::parse(&full)
            .map_err(|e| Error::Config(format!("{}: the key {key:?} cannot be used: {e}", self.url)))
    }

    fn explain(&self, operation: Operation, key: &str, error: &object_store::Error) -> Error {
        self.explain_answer(operation, key, &Answer::of(error))
    }

    fn explain_answer(&self, operation: Operation, key: &str, answer: &Answer) -> Error {
        errors::explain(&self.url, &self.endpoint, operation, key, answer)
    }

    fn key_of(&self, path: &Path) -> Option<String> {
        path.as_ref().strip_prefix(&self.prefix).filter(|key| !key.is_empty()).map(str::to_string)
    }

    /// The answer to a ranged GET; `None` when the object has no byte in the range.
    async fn request(&self, path: &Path, key: &str, range: GetRange) -> Result<Option<GetResult>> {
        match self.store.get_opts(path, GetOptions::new().with_range(Some(range))).await {
            Ok(result) => Ok(Some(result)),
            Err(e) => {
                let answer = Answer::of(&e);
                match answer.status {
                    Some(416) => Ok(None),
                    // Some stores answer a range of an empty object with the whole of it.
                    None if e.to_string().contains("non-partial") && self.head(key).await?.size == 0 => {
                        Ok(None)
                    }
                    _ => Err(self.explain_answer(Operation::Get, key, &answer)),
                }
            }
        }
    }

    /// The first `most` bytes of an answer's body. The rest is read too, so that the connection can be used again.
    async fn collect(&self, key: &str, result: GetResult, most: u64) -> Result<Bytes> {
        let len = (result.range.end - result.range.start).min(most) as usize;
        let wrong =
            |got: usize| Error::Io(format!("{}: {key}: the body ended at {got} of {len} bytes", self.url));
        let mut body = None;
        let mut filled = 0;
        let mut pieces = result.into_stream();
        while let Some(piece) = pieces.next().await {
            let mut piece = piece.map_err(|e| self.explain(Operation::Get, key, &e))?;
            if filled == 0 && len >= WHOLE && piece.len() >= len {
                piece.truncate(len);
                return Ok(piece);
            }
            if most < u64::MAX {
                piece.truncate(len - filled);
            }
            let place = body
                .get_or_insert_with(|| Buffer::new(len))
                .as_mut()
                .get_mut(filled..filled + piece.len())
                .ok_or_else(|| wrong(filled + piece.len()))?;
            place.copy_from_slice(&piece);
            filled += piece.len();
        }
        if filled != len {
            return Err(wrong(filled));
        }
        Ok(body.map_or_else(Bytes::new, Buffer::freeze))
    }

    async fn put_in_parts(&self, path: &Path, key: &str, body: Vec<Bytes>) -> Result<()> {
        let fail = |e: object_store::Error| self.explain(Operation::Put, key, &e);
        // The store knows of an upload before its answer is here, and may list it.
        let mut upload = Upload::begin(self, path);
        let id = self.store.create_multipart(path).await.map_err(fail)?;
        upload.id = Some(id.clone());
        let parts: Vec<PartId> = stream::iter(split(body).into_iter().enumerate())
            .map(|(index, part)| self.store.put_part(path, &id, index, part))
            .buffered(PARTS_AT_ONCE)
            .try_collect()
            .await
            .map_err(fail)?;
        self.store.complete_multipart(path, &id, parts).await.map_err(fail)?;
        upload.done();
        Ok(())
    }
}

/// A multipart upload that is ended when it is dropped unfinished, so that its parts do not stay and cost.
struct Upload {
    store: Arc<AmazonS3>,
    live: Arc<Mutex<Vec<Path>>>,
    path: Path,
    id: Option<String>,
}

impl Upload {
    fn begin(bucket: &S3Bucket, path: &Path) -> Upload {
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

/// Cuts a body into payloads of [`PART`] bytes without copying it.
fn split(body: Vec<Bytes>) -> Vec<PutPayload> {
    let mut parts = Vec::new();
    let (mut part, mut room) = (Vec::new(), PART);
    for mut piece in body {
        while !piece.is_empty() {
            let taken = piece.split_to(room.min(piece.len()));
            room -= taken.len();
            part.push(taken);
            if room == 0 {
                parts.push(PutPayload::from_iter(std::mem::take(&mut part)));
                room = PART;
            }
        }
    }
    if !part.is_empty() {
        parts.push(PutPayload::from_iter(part));
    }
    parts
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[async_trait::async_trait]
impl Bucket for S3Bucket {
    fn url(&self) -> &str {
        &self.url
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
        let meta = self.store.head(&path).await.map_err(|e| self.explain(Operation::Head, key, &e))?;
        Ok(ObjectInfo {
            key: key.into(),
            size: meta.size,
            modified_ms: meta.last_modified.timestamp_millis(),
        })
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let path = self.path(key)?;
        if body_len(&body) > MULTIPART_ABOVE {
            return self.put_in_parts(&path, key, body).await;
        }
        let payload = PutPayload::from_iter(body);
        self.store.put(&path, payload).await.map_err(|e| self.explain(Operation::Put, key, &e))?;
        Ok(())
    }

    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        let path = self.path(key)?;
        let payload = PutPayload::from_iter(body);
        match self.store.put_opts(&path, payload, PutMode::Create.into()).await {
            Ok(_) => Ok(()),
            Err(e) => Err(self.explain(Operation::Create, key, &e)),
        }
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let paths = keys.iter().map(|key| self.path(key)).collect::<Result<Vec<_>>>()?;
        let mut results = self.store.delete_stream(stream::iter(paths).map(Ok).boxed());
        while let Some(result) = results.next().await {
            let Err(e) = result else { continue };
            let key = keys.first().map_or("", String::as_str);
            match self.explain(Operation::Delete, if keys.len() == 1 { key } else { "" }, &e) {
                Error::NotFound(_) => {}
                error => return Err(error),
            }
        }
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let (mut objects, mut after) = (Vec::new(), None);
        loop {
            let page = self.list_page(prefix, after).await?;
            objects.extend(page.objects);
            after = page.next;
            if after.is_none() {
                objects.sort_unstable_by(|a: &ObjectInfo, b| a.key.cmp(&b.key));
                return Ok(objects);
            }
        }
    }

    async fn list_page(&self, prefix: &str, after: Option<String>) -> Result<ListPage> {
        let folder = key::folder(&self.url, prefix)?;
        let below = if folder.is_empty() { self.prefix.clone() } else { format!("{}{folder}/", self.prefix) };
        let options = PaginatedListOptions { page_token: after, ..PaginatedListOptions::default() };
        let page = self
            .store
            .list_paginated(Some(below.as_str()).filter(|below| !below.is_empty()), options)
            .await
            .map_err(|e| self.explain(Operation::List, "", &e))?;
        let info = |meta: object_store::ObjectMeta| {
            let modified_ms = meta.last_modified.timestamp_millis();
            Some(ObjectInfo { key: self.key_of(&meta.location)?, size: meta.size, modified_ms })
        };
        let objects = page.result.objects.into_iter().filter_map(info).collect();
        Ok(ListPage { objects, next: page.page_token })
    }

    async fn uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        self.list_uploads().await
    }

    async fn end_upload(&self, upload: &UnfinishedUpload) -> Result<()> {
        self.abort_upload(upload).await
    }

    /// Every answered PUT of S3 is durable.
    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn capacity(&self) -> Result<Option<Capacity>> {
        Ok(None)
    }

    async fn keeps(&self) -> Option<String> {
        self.find_keeps().await
    }
}

/// Whether an answer of a store makes sense; for tests that give it what no store would.
pub(crate) fn parses_answer(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let kept = keeps::has_versions(&text) | keeps::has_lock(&text);
    let answer = Answer::of(&object_store::Error::Generic { store: "S3", source: text.into() });
    let error = errors::explain("s3://bucket", "http://host", Operation::Get, "key", &answer);
    let line = error.to_string();
    assert!(!line.contains(char::is_control) && line.len() < 4000, "{line:?}");
    kept | answer.status.is_some()
}
