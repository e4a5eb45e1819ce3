//! Requests that `object_store` does not have.

use object_store::client::{HttpClient, HttpRequest};

/// What a store said.
pub(crate) struct Reply {
    pub status: u16,
    /// XML or JSON, as a rule.
    pub text: String,
    headers: http::HeaderMap,
}

impl Reply {
    /// A header's value, if it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Sends a signed request. An error is one line that says why there was no answer; never the URL, which may hold the
/// signature.
pub(crate) async fn ask(http: &HttpClient, request: HttpRequest) -> Result<Reply, String> {
    let response = http.execute(request).await.map_err(|e| format!("{:?}", e.kind()))?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = response.into_body().bytes().await.map_err(|e| format!("{:?}", e.kind()))?;
    Ok(Reply { status, text: String::from_utf8_lossy(&body).into_owned(), headers })
}
