//! New signatures for requests that `object_store` has signed: AWS Signature Version 4.

use crate::web::encoded;
use ::url::{Position, Url};
use aws_lc_rs::{digest, hmac};
use chrono::{DateTime, NaiveDateTime, Utc};
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderValue};
use object_store::aws::AwsCredential;
use object_store::client::HttpRequest;
use std::fmt::Write;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SIGNED_AT: &str = "x-amz-date";
const FORMAT: &str = "%Y%m%dT%H%M%SZ";

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
pub(super) fn sign(request: &mut HttpRequest, credential: &AwsCredential, at: DateTime<Utc>) -> Option<()> {
    let (place, names) = signed(request.headers())?;
    sign_as(request, credential, at, &place, &names)
}

/// Gives a request one header more, of a lower-case name, which is signed with the others if they are.
pub(super) fn add(
    request: &mut HttpRequest,
    credential: &AwsCredential,
    name: &'static str,
    value: HeaderValue,
) -> Option<()> {
    request.headers_mut().insert(name, value);
    let Some((place, names)) = signed(request.headers()) else { return Some(()) };
    let date = request.headers().get(SIGNED_AT)?.to_str().ok()?;
    let at = NaiveDateTime::parse_from_str(date, FORMAT).ok()?.and_utc();
    let mut names: Vec<&str> = names.split(';').chain([name]).collect();
    names.sort_unstable();
    sign_as(request, credential, at, &place, &names.join(";"))
}

fn sign_as(
    request: &mut HttpRequest,
    credential: &AwsCredential,
    at: DateTime<Utc>,
    place: &str,
    names: &str,
) -> Option<()> {
    let date = at.format(FORMAT).to_string();
    request.headers_mut().insert(SIGNED_AT, HeaderValue::from_str(&date).ok()?);
    let scope = format!("{}/{place}", at.format("%Y%m%d"));
    let hash = request.headers().get("x-amz-content-sha256")?.to_str().ok()?;
    let words = format!("{}\n{names}\n{hash}", canonical(request, names)?);
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
        let at = NaiveDateTime::parse_from_str(&date, FORMAT).unwrap().and_utc();
        sign(&mut request, &credential, at).unwrap();
        assert_eq!(text(&request, "authorization"), before);
        sign(&mut request, &credential, at + chrono::TimeDelta::days(1)).unwrap();
        assert_ne!(text(&request, "authorization"), before);
        assert_ne!(text(&request, SIGNED_AT), date);
    }

    /// A header that is added is signed as if the library had been given it.
    #[test]
    fn a_header_more_is_signed_as_the_library_signs_it() {
        let (credential, name, value) = (credential(), "x-amz-checksum-crc32c", "AAAAAA==");
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = "http://h:1/b/key".parse().unwrap();
        let bare = request.clone();
        AwsAuthorizer::new(&credential, "s3", "eu-x").try_authorize(&mut request, None).unwrap();
        let at =
            NaiveDateTime::parse_from_str(request.headers()[SIGNED_AT].to_str().unwrap(), FORMAT).unwrap();
        add(&mut request, &credential, name, HeaderValue::from_static(value)).unwrap();
        // Of the library's signature, only the date is not ours to choose.
        let mut whole = bare.clone();
        whole.headers_mut().insert(name, HeaderValue::from_static(value));
        AwsAuthorizer::new(&credential, "s3", "eu-x").try_authorize(&mut whole, None).unwrap();
        sign(&mut whole, &credential, at.and_utc()).unwrap();
        assert_eq!(request.headers()[AUTHORIZATION], whole.headers()[AUTHORIZATION]);
        let mut unsigned = bare;
        add(&mut unsigned, &credential, name, HeaderValue::from_static(value)).unwrap();
        assert!(unsigned.headers()[name] == value && !unsigned.headers().contains_key(AUTHORIZATION));
    }
}
