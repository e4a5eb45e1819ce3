//! Objects go out with a checksum of their bytes, and the store refuses what it did not get as it was sent.
//!
//! It is CRC-32C, which processors have an instruction for, also the store's. A store that is given none is to make one
//! by itself; S3's own choice is CRC-64, and of what a server takes for a PUT that can be a fifth.
//!
//! Some stores that speak S3's protocol refuse headers that they do not know. Where the first object is refused and is
//! taken without its checksum, none is sent from then on.

use super::signature;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use object_store::aws::AwsCredentialProvider;
use object_store::client::{HttpClient, HttpError, HttpRequest, HttpRequestBody, HttpResponse, HttpService};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const HEADER: &str = "x-amz-checksum-crc32c";
/// Refusals of this object as it came, and not of its header.
const OF_THE_OBJECT: [&str; 4] =
    ["BadDigest", "XAmzContentChecksumMismatch", "RequestTimeout", "IncompleteBody"];

/// What is known of a store.
const UNKNOWN: u8 = 0;
const TAKES: u8 = 1;
const REFUSES: u8 = 2;

/// A client whose objects bear their checksum.
#[derive(Debug)]
pub(super) struct Checked {
    inner: HttpClient,
    credentials: AwsCredentialProvider,
    store: AtomicU8,
}

impl Checked {
    pub fn new(inner: HttpClient, credentials: AwsCredentialProvider) -> Checked {
        Checked { inner, credentials, store: AtomicU8::new(UNKNOWN) }
    }

    /// The request with its checksum; `None` where it cannot be signed.
    async fn checked(&self, mut request: HttpRequest) -> Option<HttpRequest> {
        let credential = self.credentials.get_credential().await.ok()?;
        let crc = BASE64_STANDARD.encode(crc_of(request.body().clone()).await.to_be_bytes());
        signature::add(&mut request, &credential, HEADER, HeaderValue::from_str(&crc).ok()?)?;
        Some(request)
    }

    /// What the first answer has said stays: of several first objects one may have been refused for something else.
    fn learn(&self, what: u8) {
        if self.store.compare_exchange(UNKNOWN, what, Relaxed, Relaxed).is_ok() && what == REFUSES {
            tracing::info!("the store knows no {HEADER}: objects go without");
        }
    }

    /// What an answer to the first object means, which may have been to its checksum.
    async fn first(&self, plain: HttpRequest, answer: HttpResponse) -> Result<HttpResponse, HttpError> {
        if answer.status().is_success() {
            self.learn(TAKES);
        }
        if !matches!(answer.status(), StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED) {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let body = body.bytes().await?;
        let words = String::from_utf8_lossy(&body);
        if OF_THE_OBJECT.iter().any(|code| words.contains(code)) {
            return Ok(HttpResponse::from_parts(head, body.into()));
        }
        let answer = self.inner.execute(plain).await?;
        if answer.status().is_success() {
            self.learn(REFUSES);
        }
        Ok(answer)
    }
}

#[async_trait::async_trait]
impl HttpService for Checked {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Parts of an upload bear what was said when it began.
        let whole = request.method() == Method::PUT && request.uri().query().is_none();
        let object = whole && request.body().content_length() > 0;
        let store = self.store.load(Relaxed);
        if !object || store == REFUSES {
            return self.inner.execute(request).await;
        }
        let Some(checked) = self.checked(request.clone()).await else {
            return self.inner.execute(request).await;
        };
        let answer = self.inner.execute(checked).await?;
        if store == TAKES { Ok(answer) } else { self.first(request, answer).await }
    }
}

async fn crc_of(mut body: HttpRequestBody) -> u32 {
    let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(bytes) = frame.data_ref() {
            crc.update(bytes);
        }
    }
    crc.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use object_store::aws::AwsCredential;
    use object_store::{PutPayload, StaticCredentialProvider};
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Answers PUTs in turn, and notes which of them bore a checksum.
    #[derive(Debug, Default)]
    struct Store {
        answers: Mutex<Vec<(u16, &'static str)>>,
        checksums: Mutex<Vec<Option<String>>>,
    }

    #[derive(Debug)]
    struct Door(Arc<Store>);

    #[async_trait::async_trait]
    impl HttpService for Door {
        async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            let checksum = request.headers().get(HEADER).map(|value| value.to_str().unwrap().to_string());
            self.0.checksums.lock().push(checksum);
            let (status, words) = self.0.answers.lock().remove(0);
            let mut answer = HttpResponse::new(Bytes::from(words).into());
            *answer.status_mut() = StatusCode::from_u16(status).unwrap();
            Ok(answer)
        }
    }

    /// The last status of so many objects, and which requests bore a checksum, where the store answers so.
    async fn put(objects: usize, answers: &[(u16, &'static str)]) -> (u16, Vec<bool>) {
        let store = Arc::new(Store { answers: Mutex::new(answers.to_vec()), ..Store::default() });
        let key = AwsCredential { key_id: "AKIA".into(), secret_key: "hush".into(), token: None };
        let client =
            Checked::new(HttpClient::new(Door(store.clone())), Arc::new(StaticCredentialProvider::new(key)));
        let mut status = 0;
        for _ in 0..objects {
            let pieces = ["1234", "56789"].map(Bytes::from);
            let mut request = HttpRequest::new(PutPayload::from_iter(pieces).into());
            *request.method_mut() = Method::PUT;
            *request.uri_mut() = "http://h/b/key".parse().unwrap();
            status = client.call(request).await.unwrap().status().as_u16();
        }
        let checksums = store.checksums.lock();
        // That of "123456789" is 0xE3069283.
        assert!(checksums.iter().flatten().all(|checksum| checksum == "4waSgw=="), "{checksums:?}");
        assert!(store.answers.lock().is_empty());
        (status, checksums.iter().map(Option::is_some).collect())
    }

    #[tokio::test]
    async fn a_store_that_refuses_the_header_is_sent_none() {
        let refused = (501, "<Code>NotImplemented</Code>");
        assert_eq!(put(2, &[(200, ""), (200, "")]).await, (200, vec![true, true]));
        assert_eq!(put(2, &[refused, (200, ""), (200, "")]).await, (200, vec![true, false, false]));
        // Not the header's fault: without it the object is refused too.
        assert_eq!(put(2, &[refused, refused, (200, "")]).await, (200, vec![true, false, true]));
        // One object was taken with it.
        assert_eq!(put(2, &[(200, ""), refused]).await, (501, vec![true, true]));
    }

    #[test]
    fn a_store_that_took_one_object_is_sent_checksums_whatever_another_was_told() {
        let key = AwsCredential { key_id: "AKIA".into(), secret_key: "hush".into(), token: None };
        let door = HttpClient::new(Door(Arc::default()));
        let client = Checked::new(door, Arc::new(StaticCredentialProvider::new(key)));
        client.learn(TAKES);
        client.learn(REFUSES);
        assert_eq!(client.store.load(Relaxed), TAKES);
    }

    #[tokio::test]
    async fn an_object_that_was_damaged_on_its_way_is_not_sent_without() {
        let damaged = (400, "<Error><Code>BadDigest</Code></Error>");
        assert_eq!(put(2, &[damaged, (200, "")]).await, (200, vec![true, true]));
        assert_eq!(put(1, &[damaged]).await, (400, vec![true]));
    }
}
