//! Azure Blob Storage and what speaks its protocol.
//!
//! Blocks of an upload that nobody finishes are in no listing, and Azure drops them by itself within a week.

pub mod credentials;
mod errors;
mod keeps;

use crate::environment::Environment;
use crate::url::{AzureLocation, Location};
use crate::web::answer::Answer;
use crate::web::folder::Folder;
use crate::web::objects::{Objects, Service};
use crate::web::{connector, innermost, once, options};
use crate::{Error, Operation, Result};
use credentials::Found;
use object_store::azure::MicrosoftAzure;
use object_store::client::{HttpClient, HttpConnector};
use std::sync::Arc;

/// What Azure has besides blobs.
struct Azure {
    /// Where the account's containers lie, for messages too.
    endpoint: String,
    account: String,
    container: String,
    store: Arc<MicrosoftAzure>,
    /// For the requests that `object_store` does not have.
    http: HttpClient,
}

/// Opens the container without asking it anything.
pub fn open(location: &AzureLocation, environment: &Environment) -> Result<Objects> {
    let url = Location::Azure(location.clone()).url();
    let Found { builder, account, endpoint } = credentials::find(&url, location, environment)?;
    let client = options(&endpoint);
    let failed = |e: object_store::Error| Error::Config(format!("{url}: {}", innermost(&e)));
    let http = connector().connect(&client).map_err(failed)?;
    let builder = builder
        .with_container_name(&location.container)
        .with_client_options(client)
        .with_http_connector(connector())
        .with_retry(once());
    let store = Arc::new(builder.build().map_err(failed)?);
    let container = location.container.clone();
    let service = Azure { endpoint, account, container, store: store.clone(), http };
    Ok(Objects::new(Folder::new(url, &location.prefix), store, Box::new(service)))
}

#[async_trait::async_trait]
impl Service for Azure {
    fn explain(&self, url: &str, operation: Operation, key: &str, answer: &Answer) -> Error {
        errors::explain(&errors::about(url, &self.endpoint, operation, key), answer)
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
