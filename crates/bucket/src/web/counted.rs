//! Requests that go out, counted by what stores charge for: one place that every request to every store passes.

use http::header::CONTENT_LENGTH;
use http::{Method, Uri};
use object_store::client::{HttpClient, HttpError, HttpRequest, HttpResponse, HttpService};
use std::sync::Arc;
use tarn_base::{Charge, Tally};

/// Which requests count, and where.
#[derive(Clone, Default)]
pub(crate) struct Counted {
    tally: Option<Arc<Tally>>,
    /// Only those that are on this bucket: a library's client also fetches credentials.
    bucket: Option<String>,
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}

impl Counted {
    pub fn nothing() -> Counted {
        Counted::default()
    }

    pub fn all(tally: &Arc<Tally>) -> Counted {
        Counted { tally: Some(tally.clone()), bucket: None }
    }

    pub fn of_bucket(tally: &Arc<Tally>, bucket: &str) -> Counted {
        Counted { tally: Some(tally.clone()), bucket: Some(bucket.to_string()) }
    }

    /// Counts what `client` sends.
    pub fn client(&self, client: HttpClient) -> HttpClient {
        match self.tally {
            Some(_) => HttpClient::new(Counting { client, counted: self.clone() }),
            None => client,
        }
    }

    fn tally_of(&self, uri: &Uri) -> Option<&Tally> {
        let counts = self.bucket.as_ref().is_none_or(|bucket| is_on(uri, bucket));
        self.tally.as_deref().filter(|_| counts)
    }

    fn sent(&self, request: &HttpRequest) {
        if let Some(tally) = self.tally_of(request.uri()) {
            tally.sent(charge(request.method(), request.uri()), request.body().content_length() as u64);
        }
    }

    fn answered(&self, method: &Method, uri: &Uri, response: &HttpResponse) {
        let length =
            response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(tally) = self.tally_of(uri).filter(|_| method != Method::HEAD) {
            tally.received(length.unwrap_or(0));
        }
    }

    /// A request has gone out, with the answer if one came.
    pub fn exchanged(&self, request: &HttpRequest, response: Option<&HttpResponse>) {
        self.sent(request);
        if let Some(response) = response {
            self.answered(request.method(), request.uri(), response);
        }
    }
}

#[derive(Debug)]
struct Counting {
    client: HttpClient,
    counted: Counted,
}

#[async_trait::async_trait]
impl HttpService for Counting {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.counted.sent(&request);
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let response = self.client.execute(request).await?;
        self.counted.answered(&method, &uri, &response);
        Ok(response)
    }
}

/// Whether a request is on the bucket, which stands in the host or in the path.
fn is_on(uri: &Uri, bucket: &str) -> bool {
    let in_host =
        uri.host().and_then(|host| host.strip_prefix(bucket)).is_some_and(|rest| rest.starts_with('.'));
    in_host || uri.path().split('/').any(|part| part == bucket)
}

/// What a store charges a request as.
fn charge(method: &Method, uri: &Uri) -> Charge {
    let names: Vec<&str> = uri.query().unwrap_or_default().split('&').collect();
    let asks =
        |wanted: &[&str]| names.iter().any(|name| wanted.contains(&name.split('=').next().unwrap_or(name)));
    match *method {
        Method::DELETE => Charge::Delete,
        // S3's and Azure's deletes of many, and GCS's batches, which hold nothing but deletes.
        Method::POST if asks(&["delete"]) || names.contains(&"comp=batch") => Charge::Delete,
        Method::POST if uri.path().starts_with("/batch/") => Charge::Delete,
        Method::HEAD => Charge::Head,
        Method::GET if asks(&["list-type", "uploads"]) || names.contains(&"comp=list") => Charge::List,
        Method::GET if uri.path().starts_with("/storage/v1/") && uri.path().ends_with("/o") => Charge::List,
        Method::GET => Charge::Get,
        _ => Charge::Put,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_as_price_lists_do() {
        for (method, uri, wanted) in [
            (Method::PUT, "http://s3/b/key", Charge::Put),
            (Method::POST, "http://s3/b/key?uploads", Charge::Put),
            (Method::PUT, "http://s3/b/key?partNumber=1&uploadId=x", Charge::Put),
            (Method::POST, "http://s3/b/key?uploadId=x", Charge::Put),
            (Method::DELETE, "http://s3/b/key?uploadId=x", Charge::Delete),
            (Method::POST, "http://s3/b?delete", Charge::Delete),
            (Method::GET, "http://s3/b?list-type=2&prefix=a", Charge::List),
            (Method::GET, "http://s3/b?uploads", Charge::List),
            (Method::GET, "http://s3/b/list-type", Charge::Get),
            (Method::GET, "http://s3/b?versioning", Charge::Get),
            (Method::HEAD, "http://s3/b/key", Charge::Head),
            (Method::POST, "https://g/upload/storage/v1/b/b/o?uploadType=media&name=a", Charge::Put),
            (Method::GET, "https://g/storage/v1/b/b/o?fields=a&maxResults=1000", Charge::List),
            (Method::GET, "https://g/storage/v1/b/b/o/a?alt=media", Charge::Get),
            (Method::POST, "https://g/batch/storage/v1", Charge::Delete),
            (Method::GET, "https://a/c?restype=container&comp=list", Charge::List),
            (Method::POST, "https://a/c?comp=batch&restype=container", Charge::Delete),
            (Method::PUT, "https://a/c/key?comp=block&blockid=x", Charge::Put),
        ] {
            assert_eq!(charge(&method, &uri.parse().unwrap()), wanted, "{method} {uri}");
        }
    }

    #[test]
    fn only_what_is_on_the_bucket_counts() {
        for (uri, counts) in [
            ("https://data.s3.eu-central-1.amazonaws.com/key", true),
            ("http://127.0.0.1:9000/data/key", true),
            ("http://127.0.0.1:9000/data?list-type=2", true),
            ("https://sts.amazonaws.com/?Action=AssumeRole", false),
            ("http://169.254.169.254/latest/meta-data/iam", false),
            ("https://database.s3.amazonaws.com/key", false),
        ] {
            assert_eq!(is_on(&uri.parse().unwrap(), "data"), counts, "{uri}");
        }
    }
}
