//! One request to the JSON API, and what comes back.

use super::answers;
use super::terms::Terms;
use crate::web::answer::Answer;
use crate::web::encoded;
use crate::web::renew::Renewing;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method};
use object_store::PutPayload;
use object_store::client::{
    CredentialProvider, HttpClient, HttpError, HttpRequest, HttpRequestBody, HttpResponse,
};
use object_store::gcp::GcpCredential;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

/// What is asked of an object in JSON.
const FIELDS: &str = "fields=name,size,updated";
const FIELDS_OF_PAGE: &str = "fields=nextPageToken,items(name,size,updated)";
/// What tells whether a bucket keeps what is deleted.
const FIELDS_OF_BUCKET: &str = "fields=versioning,retentionPolicy,softDeletePolicy,defaultEventBasedHold";

/// Sends requests with a token, where the store wants one.
pub(super) struct Client {
    pub http: HttpClient,
    pub credentials: Option<Arc<Renewing<GcpCredential>>>,
    /// Without a slash at its end; for messages too.
    pub endpoint: String,
    pub bucket: String,
    pub terms: Terms,
}

/// What a request is on. Names are those in the bucket, as they are.
pub(super) enum Place<'a> {
    /// The bucket's own properties.
    Bucket,
    /// An object that is deleted: an answer without a body has no fields to choose from.
    Object(&'a str),
    /// What is known of an object.
    Known(&'a str),
    /// An object's bytes.
    Media(&'a str),
    Upload {
        name: &'a str,
        create: bool,
    },
    List {
        below: &'a str,
        after: Option<&'a str>,
    },
    /// Many requests in one.
    Batch,
}

impl Client {
    /// The answer, if it is a good one.
    pub async fn send(
        &self,
        method: Method,
        place: Place<'_>,
        headers: &[(HeaderName, String)],
        body: Vec<Bytes>,
    ) -> Result<Response, Answer> {
        let (body, kind) = match place {
            Place::Upload { .. } => self.terms.upload(body),
            _ => (body, None),
        };
        let kind = kind.unwrap_or_else(|| "application/octet-stream".into());
        let len: usize = body.iter().map(Bytes::len).sum();
        let mut request = HttpRequest::new(match method {
            Method::POST => PutPayload::from_iter(body).into(),
            _ => HttpRequestBody::empty(),
        });
        if method == Method::POST {
            request.headers_mut().insert(CONTENT_LENGTH, len.into());
            let kind = HeaderValue::from_str(&kind);
            let kind = kind.map_err(|_| Answer::told(400, "", "a header is not one"))?;
            request.headers_mut().insert(CONTENT_TYPE, kind);
        }
        let url = format!("{}{}", self.endpoint, self.terms.path(&place, &self.bucket));
        *request.uri_mut() = url.parse().map_err(|_| Answer::told(400, "", "its URL is not one"))?;
        *request.method_mut() = method;
        self.terms.add_headers(&place, request.headers_mut());
        for (name, value) in headers {
            let value =
                HeaderValue::from_str(value).map_err(|_| Answer::told(400, "", "a header is not one"))?;
            request.headers_mut().insert(name, value);
        }
        if let Some(credentials) = &self.credentials {
            let credential = credentials.get_credential().await.map_err(|e| Answer::of(&e))?;
            let token = HeaderValue::from_str(&format!("Bearer {}", credential.bearer));
            let mut token = token.map_err(|_| Answer::told(401, "", "the token is not one"))?;
            token.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let response = self.http.execute(request).await.map_err(|e| Answer::of_transport(&e))?;
        match response.status().as_u16() {
            200..300 => Ok(Response(response)),
            status => {
                let body = response.into_body().bytes().await.map_err(|e| Answer::of_transport(&e))?;
                Err(answers::error(status, &String::from_utf8_lossy(&body)))
            }
        }
    }
}

impl Place<'_> {
    /// What follows the endpoint.
    pub fn path(&self, bucket: &str) -> String {
        let object = |name: &str| format!("/storage/v1/b/{bucket}/o/{}", encoded(name));
        match self {
            Place::Bucket => format!("/storage/v1/b/{bucket}?{FIELDS_OF_BUCKET}"),
            Place::Object(name) => object(name),
            Place::Known(name) => format!("{}?{FIELDS}", object(name)),
            Place::Media(name) => format!("{}?alt=media", object(name)),
            Place::Upload { name, create } => {
                let only_if_absent = if *create { "&ifGenerationMatch=0" } else { "" };
                let name = encoded(name);
                format!(
                    "/upload/storage/v1/b/{bucket}/o?uploadType=media&fields=size{only_if_absent}&name={name}"
                )
            }
            Place::List { below, after } => {
                let mut path = format!("/storage/v1/b/{bucket}/o?{FIELDS_OF_PAGE}&maxResults=1000");
                for (name, value) in [("prefix", Some(*below)), ("pageToken", *after)] {
                    if let Some(value) = value.filter(|value| !value.is_empty()) {
                        let _ = write!(path, "&{name}={}", encoded(value));
                    }
                }
                path
            }
            Place::Batch => "/batch/storage/v1".to_string(),
        }
    }
}

/// The bytes that a `Content-Range` names, and the size of the whole; nothing where they contradict each other.
pub(super) fn part_of(range: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (range, size) = (first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?, size.parse().ok()?);
    (range.start < range.end && range.end <= size).then_some((range, size))
}

/// A good answer, whose body has not been read.
pub(super) struct Response(HttpResponse);

impl Response {
    pub async fn text(self) -> Result<String, Answer> {
        let body = self.0.into_body().bytes().await.map_err(|e| Answer::of_transport(&e))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        self.0.headers().get(name)?.to_str().ok()
    }

    /// The bytes of the object that the answer is, and its size, where it is a part.
    fn part(&self) -> Option<(Range<u64>, u64)> {
        part_of(self.header(&CONTENT_RANGE)?)
    }

    /// Bytes of the body.
    pub fn len(&self) -> u64 {
        match self.part() {
            Some((range, _)) => range.end - range.start,
            None => self.header(&CONTENT_LENGTH).and_then(|len| len.parse().ok()).unwrap_or(0),
        }
    }

    /// Where in the object the body begins.
    pub fn start(&self) -> u64 {
        self.part().map_or(0, |(range, _)| range.start)
    }

    /// Bytes of the object.
    pub fn size(&self) -> u64 {
        self.part().map_or_else(|| self.len(), |(_, size)| size)
    }

    pub fn pieces(self) -> BoxStream<'static, Result<Bytes, HttpError>> {
        self.0.into_body().bytes_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_in_the_whole() {
        assert_eq!(part_of("bytes 7-9/10"), Some((7..10, 10)));
        for bad in ["bytes 7-10/10", "bytes 9-7/10", "bytes */10", "bytes 7-9/*", "7-9/10", "bytes -1-2/3"] {
            assert_eq!(part_of(bad), None, "{bad}");
        }
        assert_eq!(part_of(&format!("bytes 0-{}/{}", u64::MAX, u64::MAX)), None);
    }

    #[test]
    fn names_are_encoded_where_they_stand() {
        assert_eq!(Place::Media("a b/ü?#%").path("k"), "/storage/v1/b/k/o/a%20b%2F%C3%BC%3F%23%25?alt=media");
        let create = Place::Upload { name: "a+b&c", create: true }.path("k");
        assert!(create.ends_with("&ifGenerationMatch=0&name=a%2Bb%26c"), "{create}");
        let list = Place::List { below: "a/", after: Some("=") }.path("k");
        assert!(list.ends_with("&maxResults=1000&prefix=a%2F&pageToken=%3D"), "{list}");
    }
}
