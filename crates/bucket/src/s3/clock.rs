//! Requests that bear the store's time where this host's clock is wrong.
//!
//! S3 refuses what was signed more than a quarter of an hour ago, or will be. It says with the refusal what time it is:
//! from then on requests are signed with that, as AWS's own tools do. `object_store` signs with this host's clock, so
//! that its signature is replaced by one of the same words with another date (AWS Signature Version 4).

use crate::web::encoded;
use ::url::{Position, Url};
use aws_lc_rs::{digest, hmac};
use chrono::{DateTime, TimeDelta, Utc};
use http::header::{AUTHORIZATION, DATE, HOST};
use http::{HeaderMap, HeaderValue};
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::client::{HttpClient, HttpError, HttpRequest, HttpResponse, HttpService};
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use tarn_base::clock::{Clock, SystemClock};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SIGNED_AT: &str = "x-amz-date";
const FORMAT: &str = "%Y%m%dT%H%M%SZ";
/// A refusal is put down to the clock where it is off by so many seconds. Stores take 15 minutes.
const OFF: i64 = 5 * 60;

/// A client whose requests bear the store's time.
#[derive(Debug)]
pub(super) struct Timed {
    pub inner: HttpClient,
    pub credentials: AwsCredentialProvider,
    /// Seconds by which the store's clock is ahead of this host's; zero while that does not matter.
    skew: AtomicI64,
}

impl Timed {
    pub fn new(inner: HttpClient, credentials: AwsCredentialProvider) -> Timed {
        Timed { inner, credentials, skew: AtomicI64::new(0) }
    }

    async fn send(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let skew = self.skew.load(Relaxed);
        if skew != 0
            && let Ok(credential) = self.credentials.get_credential().await
            && let Some(now) = now().checked_add_signed(TimeDelta::seconds(skew))
        {
            // Without a new signature it goes out as it is, and is refused with a reason.
            let _ = sign(&mut request, &credential, now);
        }
        self.inner.execute(request).await
    }

    /// Whether a refusal came from a clock that is off; the new difference is kept.
    fn learns(&self, answer: &HttpResponse) -> bool {
        if !matches!(answer.status().as_u16(), 400 | 401 | 403) {
            return false;
        }
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        let Some(skew) = date.and_then(|date| skew_of(date, now())) else { return false };
        let known = self.skew.load(Relaxed);
        if (skew - known).abs() < OFF {
            return false;
        }
        let direction = if skew < 0 { "ahead of" } else { "behind" };
        let seconds = skew.abs();
        tracing::warn!(
            "this host's clock is {seconds} s {direction} the store's, whose time requests bear: set it"
        );
        self.skew.store(skew, Relaxed);
        true
    }
}

#[async_trait::async_trait]
impl HttpService for Timed {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let again = request.clone();
        let answer = self.send(request).await?;
        if self.learns(&answer) { self.send(again).await } else { Ok(answer) }
    }
}

fn now() -> DateTime<Utc> {
    let now = SystemClock::default().now();
    DateTime::from_timestamp(now.sec, now.nsec).unwrap_or_default()
}

/// Seconds by which a server that says `date` is ahead of `now`.
pub(super) fn skew_of(date: &str, now: DateTime<Utc>) -> Option<i64> {
    let date = DateTime::parse_from_rfc2822(date).ok()?;
    Some(date.signed_duration_since(now).num_seconds())
}

/// What was signed, by the header that says so: the region and the service, and the names of the headers.
fn signed(headers: &HeaderMap) -> Option<(String, String)> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix(ALGORITHM)?;
    let value = |name: &str| {
        let (_, rest) = text.split_once(name)?;
        rest.split(',').next().map(str::to_string)
    };
    let credential = value("Credential=")?;
    // KEY/DATE/REGION/SERVICE/aws4_request, and a key may have slashes.
    let mut parts = credential.rsplitn(4, '/');
    let (last, service, region) = (parts.next()?, parts.next()?, parts.next()?);
    Some((format!("{region}/{service}/{last}"), value("SignedHeaders=")?))
}

/// Signs a request that is signed already, with another date.
fn sign(request: &mut HttpRequest, credential: &AwsCredential, now: DateTime<Utc>) -> Option<()> {
    let (place, names) = signed(request.headers())?;
    let date = now.format(FORMAT).to_string();
    request.headers_mut().insert(SIGNED_AT, HeaderValue::from_str(&date).ok()?);
    let scope = format!("{}/{place}", now.format("%Y%m%d"));
    let hash = request.headers().get("x-amz-content-sha256")?.to_str().ok()?;
    let words = format!("{}\n{names}\n{hash}", canonical(request, &names)?);
    let to_sign =
        format!("{ALGORITHM}\n{date}\n{scope}\n{}", hex(digest::digest(&digest::SHA256, words.as_bytes())));
    let mut key = format!("AWS4{}", credential.secret_key).into_bytes();
    for word in scope.split('/').chain([to_sign.as_str()]) {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), word.as_bytes());
        key = tag.as_ref().to_vec();
    }
    let text = format!(
        "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={}",
        credential.key_id,
        hex(key)
    );
    request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_str(&text).ok()?);
    Some(())
}

/// The request's method, path, query and headers of these names, as both sides write them.
fn canonical(request: &HttpRequest, names: &str) -> Option<String> {
    let url = Url::parse(&request.uri().to_string()).ok()?;
    let mut query: Vec<(String, String)> =
        url.query_pairs().map(|(name, value)| (encoded(&name), encoded(&value))).collect();
    query.sort_unstable();
    let query: Vec<String> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut text = format!("{}\n{}\n{}\n", request.method(), url.path(), query.join("&"));
    for name in names.split(';') {
        let value = if name == HOST.as_str() {
            url[Position::BeforeHost..Position::AfterPort].to_string()
        } else {
            let values: Option<Vec<&str>> =
                request.headers().get_all(name).iter().map(|value| value.to_str().ok()).collect();
            values?.join(",").split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let _ = writeln!(text, "{name}:{value}");
    }
    Some(text)
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::aws::AwsAuthorizer;
    use object_store::client::HttpRequestBody;

    fn credential() -> AwsCredential {
        AwsCredential { key_id: "AK/IA".into(), secret_key: "hush".into(), token: Some("tok".into()) }
    }

    /// Signed with the same date, it is what the library signs.
    #[test]
    fn a_signature_is_the_librarys_with_another_date() {
        let (credential, url) =
            (credential(), "http://h:1/b/a%20b?x-id=1&list-type=2&prefix=a%2Fb%20c&uploads=");
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().unwrap();
        request.headers_mut().insert("range", HeaderValue::from_static("bytes=0-1"));
        request.headers_mut().insert("x-amz-meta-a", HeaderValue::from_static(" a   b "));
        AwsAuthorizer::new(&credential, "s3", "eu-x").try_authorize(&mut request, None).unwrap();
        let text = |request: &HttpRequest, name: &str| request.headers()[name].to_str().unwrap().to_string();
        let (date, before) = (text(&request, SIGNED_AT), text(&request, "authorization"));
        let at = chrono::NaiveDateTime::parse_from_str(&date, FORMAT).unwrap().and_utc();
        sign(&mut request, &credential, at).unwrap();
        assert_eq!(text(&request, "authorization"), before);
        sign(&mut request, &credential, at + TimeDelta::days(1)).unwrap();
        assert_ne!(text(&request, "authorization"), before);
        assert_ne!(text(&request, SIGNED_AT), date);
    }

    #[test]
    fn the_difference_is_read_off_the_date() {
        let now = DateTime::parse_from_rfc3339("2026-01-01T00:20:00Z").unwrap().to_utc();
        assert_eq!(skew_of("Thu, 01 Jan 2026 00:00:00 GMT", now), Some(-1200));
        assert_eq!(skew_of("yesterday", now), None);
    }
}
