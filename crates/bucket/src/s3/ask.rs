//! Requests of a bucket itself that `object_store` does not have.

use super::S3;
use crate::web::ask::{Reply, ask};
use crate::web::{encoded, innermost};
use object_store::aws::AwsAuthorizer;
use object_store::client::{HttpRequest, HttpRequestBody};

impl S3 {
    /// Asks the bucket, with these words behind the `?`. An error is one line that says why there was no answer.
    pub(super) async fn ask(&self, query: &[(&str, &str)]) -> Result<Reply, String> {
        let words: Vec<String> =
            query.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() =
            format!("{}?{}", self.place, words.join("&")).parse().map_err(|_| "its URL is not one")?;
        let credential = self.store.credentials().get_credential().await.map_err(|e| innermost(&e))?;
        let authorizer = AwsAuthorizer::new(&credential, "s3", &self.region);
        let authorizer = authorizer.with_request_payer(self.requester_pays);
        authorizer.try_authorize(&mut request, None).map_err(|e| innermost(&e))?;
        ask(&self.http, request).await
    }
}
