//! Azure Blob Storage and what speaks its protocol.
//!
//! Blocks of an upload that nobody finishes are in no listing, and Azure drops them by itself within a week.

pub mod credentials;
mod errors;
mod keeps;

use crate::environment::Environment;
use crate::url::{AzureLocation, Location};
use crate::web::answer::Answer;
use crate::web::customer_key::CustomerKey;
use crate::web::folder::Folder;
use crate::web::objects::{Objects, Service};
use crate::web::renew::{Renew, Renewing};
use crate::web::{Counted, connector, innermost, once, options};
use crate::{Error, Operation, Result, Source};
use credentials::Found;
use object_store::ClientOptions;
use object_store::azure::{AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::{HttpClient, HttpConnector};
use std::sync::Arc;
use tarn_base::{Provider, Tally};

/// What Azure has besides blobs.
struct Azure {
    /// Where the account's containers lie, for messages too.
    endpoint: String,
    account: String,
    source: Source,
    container: String,
    store: Arc<MicrosoftAzure>,
    credentials: Arc<Renewing<AzureCredential>>,
    /// For the requests that `object_store` does not have.
    http: HttpClient,
}

/// Opens the container without asking it anything.
pub fn open(location: &AzureLocation, environment: &Environment) -> Result<Objects> {
    let url = Location::Azure(location.clone()).url();
    let credentials = find_credentials(&url, location, environment)?;
    let Found { builder, account, endpoint, source } = credentials::find(&url, location, environment)?;
    let client = options(&url, &endpoint, &location.terms)?;
    let failed = |e: object_store::Error| Error::Config(format!("{url}: {}", innermost(&e)));
    let tally = Arc::new(Tally::new(Provider::Azure));
    let counted = Counted::of_bucket(&tally, &location.container);
    let http = connector(counted.clone()).connect(&client).map_err(failed)?;
    let builder = with_client(builder, location, client, counted);
    let mut builder = builder.with_credentials(credentials.clone());
    if let Some(file) = &location.terms.customer_key_file {
        builder = builder.with_encryption_key(CustomerKey::load(&url, file, &endpoint)?.key);
    }
    let store = Arc::new(builder.build().map_err(failed)?);
    let container = location.container.clone();
    let service = Azure { endpoint, account, source, container, store: store.clone(), credentials, http };
    let class = location.terms.storage_class.clone();
    Ok(Objects::new(Folder::new(url, &location.prefix), store, Box::new(service), class, tally))
}

fn with_client(
    builder: MicrosoftAzureBuilder,
    location: &AzureLocation,
    client: ClientOptions,
    counted: Counted,
) -> MicrosoftAzureBuilder {
    builder
        .with_container_name(&location.container)
        .with_client_options(client)
        .with_http_connector(connector(counted))
        .with_retry(once())
}

/// Credentials that are looked for in all places again when the store does not take them.
fn find_credentials(
    url: &str,
    location: &AzureLocation,
    environment: &Environment,
) -> Result<Arc<Renewing<AzureCredential>>> {
    let (url, location, environment) = (url.to_string(), location.clone(), environment.clone());
    Renewing::new(move || {
        let Found { builder, endpoint, .. } = credentials::find(&url, &location, &environment)?;
        let client = options(&url, &endpoint, &location.terms)?;
        let store = with_client(builder, &location, client, Counted::nothing()).build();
        let store = store.map_err(|e| Error::Config(format!("{url}: {}", innermost(&e))))?;
        Ok(store.credentials().clone())
    })
}

#[async_trait::async_trait]
impl Service for Azure {
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

    /// The library takes none there. A blob of any size that Tarn writes may be written at once.
    fn has_class_for_parts(&self) -> bool {
        false
    }

    fn has_suffix_ranges(&self) -> bool {
        false
    }

    async fn keeps(&self, url: &str) -> Option<String> {
        self.find_keeps(url).await
    }
}

/// Whether an answer of a store makes sense; for tests that give it what no store would.
pub(crate) fn parses_answer(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let kept = keeps::has_soft_delete(&text);
    let answer = Answer::of(&object_store::Error::Generic { store: "Azure", source: text.into() });
    let about = errors::about("az://container", "http://host", Operation::Get, "key");
    let line = errors::explain(&about, &answer).to_string();
    assert!(!line.contains(char::is_control) && line.len() < 4000, "{line:?}");
    kept | answer.status.is_some()
}
