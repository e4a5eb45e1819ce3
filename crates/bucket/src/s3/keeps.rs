//! Whether a bucket keeps what is deleted from it: versions, or objects under a lock.
//!
//! `object_store` has no such request, so this one is made here, with its signature and its connections. It is made
//! once, when a bucket is taken into a pool, and only to warn: a store that does not know the request, or does not
//! let these credentials make it, is not asked twice, and nothing is said.

use super::S3Bucket;
use object_store::ClientOptions;
use object_store::aws::AwsAuthorizer;
use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);
/// An answer has a few hundred bytes; more is not looked at.
const ANSWER_MAX: usize = 64 << 10;

impl S3Bucket {
    /// Why what is deleted from this bucket would not give its space back, in one line; `None` when it does, or the
    /// store does not say.
    pub(super) async fn find_keeps(&self) -> Option<String> {
        let versions = self.ask("versioning").await.is_some_and(|text| has_versions(&text));
        let locked = self.ask("object-lock").await.is_some_and(|text| has_lock(&text));
        let (what, remedy) = match (versions, locked) {
            (_, true) => ("locks objects against deletion (object lock)", "use a bucket without object lock"),
            (true, false) => (
                "keeps old versions of objects (versioning)",
                "suspend versioning, or let a lifecycle rule expire noncurrent versions",
            ),
            (false, false) => return None,
        };
        let url = &self.url;
        Some(format!("{url}: the bucket {what}, so that what Tarn deletes goes on to use space: {remedy}"))
    }

    /// The bucket's answer to `GET ?what`, if it is one.
    async fn ask(&self, what: &str) -> Option<String> {
        match tokio::time::timeout(LIMIT, self.request_of_bucket(what)).await {
            Ok(Ok(text)) => Some(text),
            Ok(Err(why)) => {
                tracing::debug!(bucket = self.url, what, why, "the store does not say");
                None
            }
            Err(_) => None,
        }
    }

    async fn request_of_bucket(&self, what: &str) -> Result<String, String> {
        let text = |e: &dyn std::error::Error| super::innermost(e);
        let credential = self.store.credentials().get_credential().await.map_err(|e| text(&e))?;
        let options = ClientOptions::new().with_allow_http(self.endpoint.starts_with("http://"));
        let client = ReqwestConnector::default().connect(&options).map_err(|e| text(&e))?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("{}?{what}", self.place).parse().map_err(|_| "no address")?;
        let signer = AwsAuthorizer::new(&credential, "s3", &self.region);
        signer.try_authorize(&mut request, None).map_err(|e| text(&e))?;
        let answer = client.execute(request).await.map_err(|e| text(&e))?;
        if !answer.status().is_success() {
            return Err(answer.status().to_string());
        }
        let body = answer.into_body().bytes().await.map_err(|e| text(&e))?;
        Ok(String::from_utf8_lossy(&body[..body.len().min(ANSWER_MAX)]).into_owned())
    }
}

/// Whether the answer to `?versioning` says that old versions are kept.
pub(super) fn has_versions(xml: &str) -> bool {
    element(xml, "Status").is_some_and(|status| status == "Enabled")
}

/// Whether the answer to `?object-lock` says that objects may be locked.
pub(super) fn has_lock(xml: &str) -> bool {
    element(xml, "ObjectLockEnabled").is_some_and(|status| status == "Enabled")
}

/// The text of the first element of this name.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(text, _)| text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"<?xml version="1.0" encoding="UTF-8"?>"#;

    #[test]
    fn answers_of_s3_are_understood() {
        // As in the documentation of GetBucketVersioning and GetObjectLockConfiguration.
        let versioning = |inside: &str| {
            let of = "http://s3.amazonaws.com/doc/2006-03-01/";
            format!(r#"{HEAD}<VersioningConfiguration xmlns="{of}">{inside}</VersioningConfiguration>"#)
        };
        assert!(has_versions(&versioning("<Status>Enabled</Status>")));
        assert!(!has_versions(&versioning("<Status>Suspended</Status>")));
        assert!(!has_versions(&versioning("")) && !has_versions("") && !has_versions("<Status>"));
        let lock = "<ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>COMPLIANCE</Mode>\
            <Days>30</Days></DefaultRetention></Rule>";
        assert!(has_lock(&format!("{HEAD}<ObjectLockConfiguration>{lock}</ObjectLockConfiguration>")));
        assert!(!has_lock(&format!("{HEAD}<ObjectLockConfiguration></ObjectLockConfiguration>")));
    }
}
