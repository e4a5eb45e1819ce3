//! S3 and what speaks its protocol.

mod ask;
pub mod credentials;
mod errors;
mod keeps;
mod uploads;

use crate::environment::Environment;
use crate::url::{Location, S3Location};
use crate::web::answer::Answer;
use crate::web::folder::Folder;
use crate::web::objects::{Objects, Service};
use crate::web::{connector, innermost, once, options};
use crate::{Error, Operation, Result, UnfinishedUpload};
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpConnector};
use std::sync::Arc;

/// What S3 has besides objects.
struct S3 {
    /// For messages.
    endpoint: String,
    store: Arc<AmazonS3>,
    /// For the requests that `object_store` does not have.
    http: HttpClient,
}

/// Opens the bucket without asking it anything.
pub fn open(location: &S3Location, environment: &Environment) -> Result<Objects> {
    let url = Location::S3(location.clone()).url();
    let (builder, endpoint) = credentials::builder(&url, location, environment)?;
    let client = options(&endpoint);
    let failed = |e: object_store::Error| Error::Config(format!("{url}: {}", innermost(&e)));
    let http = connector().connect(&client).map_err(failed)?;
    let builder = builder.with_client_options(client).with_http_connector(connector()).with_retry(once());
    let store = Arc::new(builder.build().map_err(failed)?);
    let service = S3 { endpoint, store: store.clone(), http };
    Ok(Objects::new(Folder::new(url, &location.prefix), store, Box::new(service)))
}

#[async_trait::async_trait]
impl Service for S3 {
    fn explain(&self, url: &str, operation: Operation, key: &str, answer: &Answer) -> Error {
        errors::explain(&errors::about(url, &self.endpoint, operation, key), answer)
    }

    async fn uploads(&self, objects: &Objects) -> Result<Vec<UnfinishedUpload>> {
        self.list_uploads(objects).await
    }

    async fn keeps(&self, url: &str) -> Option<String> {
        self.find_keeps(url).await
    }
}

/// Whether an answer of a store makes sense; for tests that give it what no store would.
pub(crate) fn parses_answer(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let kept = keeps::has_versions(&text) | keeps::has_lock(&text);
    let answer = Answer::of(&object_store::Error::Generic { store: "S3", source: text.into() });
    let error = errors::explain(&errors::about("s3://bucket", "http://host", Operation::Get, "key"), &answer);
    let line = error.to_string();
    assert!(!line.contains(char::is_control) && line.len() < 4000, "{line:?}");
    kept | answer.status.is_some()
}
