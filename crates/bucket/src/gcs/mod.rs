//! Google Cloud Storage, by its JSON API.
//!
//! `object_store` speaks the service's XML API, whose uploads the emulators do not know: what cannot be tested is not
//! used. Of the library this takes the HTTP client and the credentials.
//!
//! A body of any size is one upload: GCS shows nothing of it before its last byte, and keeps nothing of one that was cut
//! off, so that there are no unfinished uploads to look for. Who must be first says `ifGenerationMatch=0`.

mod answers;
mod batch;
pub mod credentials;
mod errors;
pub mod federation;
mod keeps;
mod request;
mod terms;

use crate::environment::Environment;
use crate::error::object;
use crate::store::every_page;
use crate::url::{GcsLocation, Location};
use crate::web::answer::Answer;
use crate::web::body::collect;
use crate::web::customer_key::CustomerKey;
use crate::web::folder::Folder;
use crate::web::renew::{Renew, Renewing};
use crate::web::{Counted, connector, innermost, options};
use crate::{Bucket, Capacity, Error, ListPage, ObjectInfo, Operation, Result, Source};
use bytes::Bytes;
use credentials::Found;
use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use http::header::RANGE;
use object_store::client::HttpConnector;
use object_store::gcp::GcpCredential;
use request::{Client, Place, Response};
use std::ops::Range;
use std::sync::Arc;
use tarn_base::{Provider, Tally};
use terms::Terms;

/// Keys in one batch: the most that GCS takes.
const BATCH: usize = 100;
/// Batches in flight.
const BATCHES_AT_ONCE: usize = 10;

/// A bucket, or a folder of one, at Google Cloud Storage.
pub struct GcsBucket {
    folder: Folder,
    source: Option<Source>,
    client: Client,
    tally: Arc<Tally>,
}

/// Opens the bucket without asking it anything.
pub fn open(location: &GcsLocation, environment: &Environment) -> Result<GcsBucket> {
    let url = Location::Gcs(location.clone()).url();
    let Found { provider, source, endpoint } = credentials::find(&url, location, environment)?;
    let credentials = match provider {
        Some(_) => Some(find_credentials(&url, location, environment)?),
        None => None,
    };
    let tally = Arc::new(Tally::new(Provider::Gcs));
    let http = connector(Counted::all(&tally)).connect(&options(&url, &endpoint, &location.terms)?);
    let http = http.map_err(|e| Error::Config(format!("{url}: {}", innermost(&e))))?;
    let key = match &location.terms.customer_key_file {
        Some(file) => Some(CustomerKey::load(&url, file, &endpoint)?),
        None => None,
    };
    let terms = Terms {
        key,
        class: location.terms.storage_class.clone(),
        kms: location.kms.clone(),
        payer: location.billing_project.clone(),
    };
    let client = Client { http, credentials, endpoint, bucket: location.bucket.clone(), terms };
    Ok(GcsBucket { folder: Folder::new(url, &location.prefix), source, client, tally })
}

/// Credentials that are looked for in all places again when the store does not take them.
fn find_credentials(
    url: &str,
    location: &GcsLocation,
    environment: &Environment,
) -> Result<Arc<Renewing<GcpCredential>>> {
    let (url, location, environment) = (url.to_string(), location.clone(), environment.clone());
    Renewing::new(move || {
        let found = credentials::find(&url, &location, &environment)?;
        found.provider.ok_or_else(|| Error::Config(format!("{url}: no credentials are wanted")))
    })
}

impl GcsBucket {
    fn explain(&self, operation: Operation, key: &str, answer: &Answer) -> Error {
        let about = errors::about(&self.folder.url, &self.client.endpoint, operation, key);
        let error = errors::explain(&about, answer);
        if let (Error::Credentials(_), Some(credentials)) = (&error, &self.client.credentials) {
            credentials.renew();
        }
        error
    }

    /// The answer's JSON, read by `parse`, which gives nothing for what GCS would not say.
    async fn told<T>(
        &self,
        operation: Operation,
        key: &str,
        place: Place<'_>,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let answer = self.client.send(Method::GET, place, &[], Vec::new()).await;
        let text = match answer {
            Ok(response) => response.text().await,
            Err(answer) => Err(answer),
        };
        let text = text.map_err(|answer| self.explain(operation, key, &answer))?;
        parse(&text).ok_or_else(|| {
            let (url, endpoint) = (&self.folder.url, &self.client.endpoint);
            Error::Config(format!("{url}: what {endpoint} answers is not what GCS says: check the endpoint"))
        })
    }

    /// The answer to a GET of a range (`bytes=...`); `None` when the object has no byte in it.
    async fn ranged(&self, key: &str, range: String) -> Result<Option<Response>> {
        let name = self.folder.name(key)?;
        match self.client.send(Method::GET, Place::Media(&name), &[(RANGE, range)], Vec::new()).await {
            Ok(response) if response.len() == 0 => Ok(None),
            Ok(response) => Ok(Some(response)),
            Err(answer) if answer.status == Some(416) => Ok(None),
            Err(answer) => Err(self.explain(Operation::Get, key, &answer)),
        }
    }

    async fn body(&self, key: &str, response: Response, range: Range<u64>) -> Result<Bytes> {
        let (place, len) = (object(&self.folder.url, key), response.len());
        if response.start() != range.start || len > range.end - range.start {
            return Err(Error::Io(format!("{place}: another range came than was asked for")));
        }
        let failed = |e| self.explain(Operation::Get, key, &Answer::of_transport(&e));
        collect(&place, response.pieces().map_err(failed), len as usize, true).await
    }

    async fn upload(&self, operation: Operation, key: &str, body: Vec<Bytes>) -> Result<()> {
        let name = self.folder.name(key)?;
        let place = Place::Upload { name: &name, create: operation == Operation::Create };
        let answer = match self.client.send(Method::POST, place, &[], body).await {
            Ok(response) => response.text().await,
            Err(answer) => Err(answer),
        };
        answer.map(drop).map_err(|answer| self.explain(operation, key, &answer))
    }

    async fn delete_one(&self, key: &str) -> Result<()> {
        let name = self.folder.name(key)?;
        match self.client.send(Method::DELETE, Place::Object(&name), &[], Vec::new()).await {
            Ok(_) => Ok(()),
            Err(answer) => self.unless_missing(key, &answer),
        }
    }

    fn unless_missing(&self, key: &str, answer: &Answer) -> Result<()> {
        match self.explain(Operation::Delete, key, answer) {
            Error::NotFound(_) => Ok(()),
            error => Err(error),
        }
    }

    async fn delete_batch(&self, keys: &[String]) -> Result<()> {
        let names = keys.iter().map(|key| self.folder.name(key)).collect::<Result<Vec<_>>>()?;
        let failed = |answer| self.explain(Operation::Delete, "", &answer);
        let (response, boundary) = batch::send(&self.client, &names).await.map_err(failed)?;
        let answers = batch::parse(&boundary, &response);
        if answers.len() != keys.len() {
            let (came, asked) = (answers.len(), keys.len());
            return Err(Error::Io(format!(
                "{}: {came} of {asked} deletes of a batch were answered",
                self.folder.url
            )));
        }
        answers
            .iter()
            .filter(|answer| answer.failed())
            .try_for_each(|answer| self.unless_missing("", &answers::error(answer.status, answer.body)))
    }
}

#[async_trait::async_trait]
impl Bucket for GcsBucket {
    fn url(&self) -> &str {
        &self.folder.url
    }

    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            self.folder.name(key)?;
            return Ok(Bytes::new());
        }
        match self.ranged(key, format!("bytes={}-{}", range.start, range.end - 1)).await? {
            Some(response) => self.body(key, response, range).await,
            None => Ok(Bytes::new()),
        }
    }

    async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)> {
        let found = if len == 0 { None } else { self.ranged(key, format!("bytes=-{len}")).await? };
        match found {
            Some(response) => {
                let size = response.size();
                Ok((self.body(key, response, size.saturating_sub(len)..size).await?, size))
            }
            None => Ok((Bytes::new(), self.head(key).await?.size)),
        }
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo> {
        let name = self.folder.name(key)?;
        let found = self.told(Operation::Head, key, Place::Known(&name), answers::object).await?;
        Ok(ObjectInfo { key: key.to_string(), size: found.size, modified_ms: found.modified_ms })
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        self.upload(Operation::Put, key, body).await
    }

    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        self.upload(Operation::Create, key, body).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        if let [key] = keys {
            return self.delete_one(key).await;
        }
        let batches: Vec<_> = keys.chunks(BATCH).map(|keys| self.delete_batch(keys)).collect();
        stream::iter(batches).buffer_unordered(BATCHES_AT_ONCE).try_collect().await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        every_page(self, prefix).await
    }

    async fn list_page(&self, prefix: &str, after: Option<String>) -> Result<ListPage> {
        let below = self.folder.below(prefix)?;
        let place = Place::List { below: &below, after: after.as_deref() };
        let page = self.told(Operation::List, "", place, answers::page).await?;
        let info = |found: answers::Object| {
            Some(ObjectInfo {
                key: self.folder.key_of(&found.name)?,
                size: found.size,
                modified_ms: found.modified_ms,
            })
        };
        Ok(ListPage { objects: page.objects.into_iter().filter_map(info).collect(), next: page.next })
    }

    /// Every answered upload is durable.
    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn capacity(&self) -> Result<Option<Capacity>> {
        Ok(None)
    }

    fn credentials(&self) -> Option<Source> {
        self.source.clone()
    }

    async fn keeps(&self) -> Option<String> {
        keeps::find(self).await
    }

    fn tally(&self) -> Option<&Tally> {
        Some(&self.tally)
    }
}

/// Whether a store's answer makes sense; for tests that give it what no store would.
pub(crate) fn parses_answer(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let page = answers::page(&text);
    let objects = page.as_ref().map_or(0, |page| page.objects.len());
    assert!(objects <= bytes.len());
    let line = errors::explain(
        &errors::about("gs://bucket", "http://host", Operation::Get, "key"),
        &answers::error(400, &text),
    )
    .to_string();
    assert!(!line.contains(char::is_control) && line.len() < 4000, "{line:?}");
    page.is_some() | answers::object(&text).is_some() | keeps::of(&text).is_some()
}

/// Whether a part of an object that an answer names can be one.
pub(crate) fn parses_part(text: &str) -> bool {
    let part = request::part_of(text);
    assert!(part.as_ref().is_none_or(|(range, size)| range.start < range.end && range.end <= *size));
    part.is_some()
}

/// Whether the answer to a batch can be read: its first line is the boundary.
pub(crate) fn parses_batch(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let (boundary, body) = text.split_once('\n').unwrap_or((&text, ""));
    let answers = batch::parse(boundary.trim(), body);
    assert!(answers.len() <= bytes.len() && answers.iter().all(|answer| answer.status < 1000));
    !answers.is_empty()
}
