//! Whether a container keeps what is deleted from it: soft delete, immutability.
//!
//! Asked once, when a container is taken into a pool, and only to warn. Versioning is told by the management interface
//! alone, which Tarn has no credentials for.

use super::Azure;
use crate::web::ask::{Reply, ask};
use crate::web::xml::{element, elements};
use object_store::azure::AzureAuthorizer;
use object_store::client::{HttpRequest, HttpRequestBody};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

impl Azure {
    /// Why what is deleted from this container would not give its space back, in one line; `None` when it does, or the
    /// store does not say.
    pub(super) async fn find_keeps(&self, url: &str) -> Option<String> {
        let container = self.told(url, &format!("/{}?restype=container", self.container)).await;
        let account = self.told(url, "?restype=service&comp=properties").await;
        let held = |name: &str| container.as_ref().is_some_and(|reply| reply.header(name) == Some("true"));
        let (what, remedy) = if held("x-ms-has-immutability-policy") || held("x-ms-has-legal-hold") {
            ("forbids to delete blobs (immutability)", "use a container without it")
        } else if account.is_some_and(|reply| has_soft_delete(&reply.text)) {
            ("keeps deleted blobs for days (soft delete)", "disable soft delete for blobs in the account")
        } else {
            return None;
        };
        Some(format!("{url}: the container {what}, so that what Tarn deletes goes on to use space: {remedy}"))
    }

    /// The answer to a GET of what follows the endpoint, if it is one.
    async fn told(&self, url: &str, place: &str) -> Option<Reply> {
        let why = match tokio::time::timeout(LIMIT, self.get(place)).await {
            Ok(Ok(reply)) if reply.status == 200 => return Some(reply),
            Ok(Ok(reply)) => reply.status.to_string(),
            Ok(Err(why)) => why,
            Err(_) => "no answer".to_string(),
        };
        tracing::debug!(container = url, place, why, "the store does not say");
        None
    }

    /// An error is one line that says why there was no answer, without the URL, which may hold a signature.
    async fn get(&self, place: &str) -> Result<Reply, String> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("{}/{}", self.endpoint, place.trim_start_matches('/'))
            .parse()
            .map_err(|_| "its URL is not one")?;
        let credential =
            self.store.credentials().get_credential().await.map_err(|e| crate::web::innermost(&e))?;
        let authorizer = AzureAuthorizer::new(&credential, &self.account);
        authorizer.try_authorize(&mut request).map_err(|e| crate::web::innermost(&e))?;
        ask(&self.http, request).await
    }
}

/// Whether the properties of the blob service say that deleted blobs are kept.
pub(super) fn has_soft_delete(xml: &str) -> bool {
    let policy = elements(xml, "DeleteRetentionPolicy");
    policy.first().and_then(|policy| element(policy, "Enabled")).is_some_and(|word| word == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_azure_are_understood() {
        // As in the documentation of Get Blob Service Properties.
        let properties = |enabled: &str, days: &str| {
            format!(
                "<?xml version=\"1.0\" encoding=\"utf-8\"?><StorageServiceProperties><HourMetrics>\
                 <Enabled>true</Enabled></HourMetrics><DeleteRetentionPolicy><Enabled>{enabled}</Enabled>{days}\
                 </DeleteRetentionPolicy></StorageServiceProperties>"
            )
        };
        assert!(has_soft_delete(&properties("true", "<Days>7</Days>")));
        assert!(!has_soft_delete(&properties("false", "")) && !has_soft_delete("<DeleteRetentionPolicy>"));
    }
}
