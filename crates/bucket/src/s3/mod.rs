//! S3 and what speaks its protocol.

mod ask;
mod checksum;
mod clock;
pub mod credentials;
mod errors;
mod keeps;
mod signature;
mod uploads;

use crate::environment::Environment;
use crate::url::{Location, S3Location};
use crate::web::answer::Answer;
use crate::web::customer_key::CustomerKey;
use crate::web::folder::Folder;
use crate::web::objects::{Objects, Service};
use crate::web::renew::{Renew, Renewing};
use crate::web::{Counted, connector, innermost, once, options};
use crate::{Error, Operation, Result, Source, UnfinishedUpload};
use checksum::Checked;
use clock::Timed;
use credentials::Found;
use object_store::ClientOptions;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};
use object_store::client::{HttpClient, HttpConnector};
use std::sync::Arc;
use tarn_base::{Provider, Tally};

/// What S3 has besides objects.
struct S3 {
    /// For messages.
    endpoint: String,
    /// Where the bucket is.
    place: String,
    region: String,
    requester_pays: bool,
    source: Source,
    store: Arc<AmazonS3>,
    credentials: Arc<Renewing<AwsCredential>>,
    /// For the requests that `object_store` does not have.
    http: HttpClient,
}

/// Makes clients that know the store's time and give objects a checksum.
#[derive(Debug)]
struct S3Connector {
    credentials: AwsCredentialProvider,
    counted: Counted,
}

impl HttpConnector for S3Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = connector(self.counted.clone()).connect(options)?;
        let timed = HttpClient::new(Timed::new(client, self.credentials.clone()));
        Ok(HttpClient::new(Checked::new(timed, self.credentials.clone())))
    }
}

/// Opens the bucket without asking it anything.
pub fn open(location: &S3Location, environment: &Environment) -> Result<Objects> {
    let url = Location::S3(location.clone()).url();
    let credentials = find_credentials(&url, location, environment)?;
    let tally = Arc::new(Tally::new(Provider::S3));
    let counted = Counted::of_bucket(&tally, &location.bucket);
    let connector = S3Connector { credentials: credentials.clone(), counted };
    let found = credentials::find(&url, location, environment)?;
    let client = options(&url, &found.endpoint, &location.terms)?;
    let failed = |e: object_store::Error| Error::Config(format!("{url}: {}", innermost(&e)));
    let http = connector.connect(&client).map_err(failed)?;
    let builder = on_terms(&url, found.builder, location, &found.endpoint)?;
    let requester_pays =
        builder.get_config_value(&AmazonS3ConfigKey::RequestPayer).is_some_and(|value| value == "true");
    let builder = builder.with_credentials(credentials.clone()).with_client_options(client);
    let store = builder.with_http_connector(connector).with_retry(once()).build().map_err(failed)?;
    let Found { endpoint, place, region, source, .. } = found;
    let store = Arc::new(store);
    let service =
        S3 { endpoint, place, region, requester_pays, source, store: store.clone(), credentials, http };
    let class = location.terms.storage_class.clone();
    Ok(Objects::new(Folder::new(url, &location.prefix), store, Box::new(service), class, tally))
}

/// With what the bucket's name says of encryption and payment.
fn on_terms(
    url: &str,
    mut builder: AmazonS3Builder,
    location: &S3Location,
    endpoint: &str,
) -> Result<AmazonS3Builder> {
    if let Some(file) = &location.terms.customer_key_file {
        builder = builder.with_ssec_encryption(CustomerKey::load(url, file, endpoint)?.key);
    }
    if let Some(kms) = &location.kms {
        builder = builder.with_sse_kms_encryption(kms);
    }
    Ok(match location.requester_pays {
        Some(pays) => builder.with_request_payer(pays),
        None => builder,
    })
}

/// Credentials that are looked for in all places again when the store does not take them.
fn find_credentials(
    url: &str,
    location: &S3Location,
    environment: &Environment,
) -> Result<Arc<Renewing<AwsCredential>>> {
    let (url, location, environment) = (url.to_string(), location.clone(), environment.clone());
    Renewing::new(move || {
        let found = credentials::find(&url, &location, &environment)?;
        let client = options(&url, &found.endpoint, &location.terms)?;
        let builder = found.builder.with_client_options(client);
        let store = builder.with_http_connector(connector(Counted::nothing())).with_retry(once()).build();
        let store = store.map_err(|e| Error::Config(format!("{url}: {}", innermost(&e))))?;
        Ok(store.credentials().clone())
    })
}

#[async_trait::async_trait]
impl Service for S3 {
    fn explain(&self, url: &str, operation: Operation, key: &str, answer: &Answer) -> Error {
        errors::explain(&errors::about(url, &self.endpoint, operation, key), answer)
    }

    fn credentials(&self) -> Source {
        self.source.clone()
    }

    fn renew(&self) {
        self.credentials.renew();
    }

    fn has_words_for_heads(&self) -> bool {
        false
    }

    async fn uploads(&self, objects: &Objects) -> Result<Vec<UnfinishedUpload>> {
        self.list_uploads(objects).await
    }

    async fn keeps(&self, url: &str) -> Option<String> {
        self.find_keeps(url).await
    }
}

/// Whether an answer says what time it is; for tests that give it what no store would.
pub(crate) fn parses_date(text: &str) -> bool {
    clock::skew_of(text, chrono::DateTime::default()).is_some()
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
