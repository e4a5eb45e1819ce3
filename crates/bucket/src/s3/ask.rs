//! Requests of a bucket itself that `object_store` does not have: GETs whose signature is in their URL.

use super::S3;
use crate::web::ask::{Reply, ask};
use crate::web::innermost;
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use std::time::Duration;

/// The signature holds for so long.
const VALID: Duration = Duration::from_secs(300);

impl S3 {
    /// Asks the bucket, with these words behind the `?`. An error is one line that says why there was no answer; never
    /// the URL, which holds the signature.
    pub(super) async fn ask(&self, query: Vec<(String, String)>) -> Result<Reply, String> {
        let options = SignedUrlOptions::new().with_query(query);
        let method = "GET".parse().map_err(|_| "no such method")?;
        let signed = self.store.signed_url_opts(method, &Path::default(), VALID, &options).await;
        let url = signed.map_err(|e| innermost(&e))?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.as_str().parse().map_err(|_| "its URL is not one")?;
        ask(&self.http, request).await
    }
}
