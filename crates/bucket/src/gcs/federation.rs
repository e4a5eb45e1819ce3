//! Workload identity federation: a token of somebody else's (a Kubernetes cluster's, a CI's, a company's) is exchanged for
//! one of Google's, as a file of the type `external_account` says.
//!
//! The foreign token is read from a file or asked of a URL each time, for whoever issues it renews it there. Google's
//! Security Token Service gives an access token for it, with which a service account may have to be impersonated.

use crate::web::ask::{Reply, ask};
use crate::web::{encoded, is_exposed};
use bytes::Bytes;
use chrono::DateTime;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method};
use object_store::client::{CredentialProvider, HttpClient, HttpRequest, HttpRequestBody};
use object_store::gcp::GcpCredential;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::clock::{Clock, SystemClock};
use tokio::time::Instant;

/// What a token must be good for.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// A token that is good for less than this is renewed.
const LEFT: Duration = Duration::from_secs(120);
/// What is kept of a token's time where it is not told.
const UNTOLD: Duration = Duration::from_secs(600);

/// The file, as Google documents it.
#[derive(Deserialize)]
pub(super) struct External {
    audience: String,
    subject_token_type: String,
    token_url: String,
    service_account_impersonation_url: Option<String>,
    credential_source: Foreign,
}

/// Where the foreign token is.
#[derive(Deserialize)]
struct Foreign {
    file: Option<PathBuf>,
    url: Option<String>,
    #[serde(default)]
    headers: HashMap<String, String>,
    format: Option<Format>,
}

#[derive(Deserialize)]
struct Format {
    subject_token_field_name: Option<String>,
}

#[derive(Deserialize)]
struct Exchanged {
    access_token: String,
    expires_in: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Impersonated {
    access_token: String,
    expire_time: String,
}

impl External {
    /// A file that is followed, or why it is not.
    pub fn read(text: &str) -> Result<External, &'static str> {
        let external: External =
            serde_json::from_str(text).map_err(|_| "it lacks what Google documents of external_account")?;
        let source = &external.credential_source;
        if source.file.is_none() && source.url.is_none() {
            return Err("its token is neither in a file nor at a URL");
        }
        let urls = [Some(&external.token_url), external.service_account_impersonation_url.as_ref()];
        if urls.into_iter().flatten().any(|url| is_exposed(url)) {
            return Err("tokens would be readable on their way: its URLs begin with https://");
        }
        Ok(external)
    }

    pub fn token_url(&self) -> &str {
        &self.token_url
    }
}

/// A token, and until when it is good.
type Token = (Arc<GcpCredential>, Instant);

/// Gives Google's tokens.
pub(super) struct Federation {
    pub external: External,
    pub http: HttpClient,
    pub last: tokio::sync::Mutex<Option<Token>>,
}

impl std::fmt::Debug for Federation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Federation").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl CredentialProvider for Federation {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        let mut last = self.last.lock().await;
        if let Some((token, end)) = &*last
            && Instant::now() + LEFT < *end
        {
            return Ok(token.clone());
        }
        // As the library words its own: see `Answer`.
        let failed = |why: String| object_store::Error::Generic {
            store: "GCS",
            source: format!("Error performing token request: {why}").into(),
        };
        let (token, end) = self.fetch().await.map_err(failed)?;
        *last = Some((token.clone(), end));
        Ok(token)
    }
}

impl Federation {
    async fn fetch(&self) -> Result<Token, String> {
        let foreign = self.foreign().await?;
        let External { audience, subject_token_type, token_url, .. } = &self.external;
        let words = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("scope", SCOPE),
            ("audience", audience),
            ("subject_token_type", subject_token_type),
            ("subject_token", &foreign),
        ];
        let words: Vec<String> =
            words.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let form = "application/x-www-form-urlencoded";
        let text = self.post(token_url, form, words.join("&"), None).await?;
        let (token, left) = exchanged(&text).ok_or("its answer has no token")?;
        let Some(url) = &self.external.service_account_impersonation_url else {
            return Ok((Arc::new(GcpCredential { bearer: token }), Instant::now() + left));
        };
        let body = format!("{{\"scope\":[\"{SCOPE}\"]}}");
        let text = self.post(url, "application/json", body, Some(&token)).await?;
        let now = SystemClock::default().now().sec;
        let (token, left) =
            impersonated(&text, now).ok_or("the answer has no token of the service account")?;
        Ok((Arc::new(GcpCredential { bearer: token }), Instant::now() + left))
    }

    /// The token that is exchanged.
    async fn foreign(&self) -> Result<String, String> {
        let Foreign { file, url, headers, format } = &self.external.credential_source;
        let text = match (file, url) {
            (Some(file), _) => std::fs::read_to_string(file)
                .map_err(|e| format!("{} cannot be read: {}", file.display(), e.kind()))?,
            (None, Some(url)) => {
                let mut request = HttpRequest::new(HttpRequestBody::empty());
                *request.uri_mut() = url.parse().map_err(|_| "the token's URL is not one")?;
                for (name, value) in headers {
                    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "a header is not one")?;
                    let value = HeaderValue::from_str(value).map_err(|_| "a header is not one")?;
                    request.headers_mut().insert(name, value);
                }
                told(ask(&self.http, request).await?)?
            }
            (None, None) => return Err("there is no token to exchange".into()),
        };
        let field = format.as_ref().and_then(|format| format.subject_token_field_name.as_deref());
        subject(&text, field).ok_or_else(|| "what should be the token to exchange is none".into())
    }

    async fn post(
        &self,
        url: &str,
        kind: &str,
        body: String,
        bearer: Option<&str>,
    ) -> Result<String, String> {
        let mut request = HttpRequest::new(Bytes::from(body).into());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.parse().map_err(|_| "the URL for tokens is not one")?;
        let kind = HeaderValue::from_str(kind).map_err(|_| "a header is not one")?;
        request.headers_mut().insert(CONTENT_TYPE, kind);
        if let Some(bearer) = bearer {
            let bearer = HeaderValue::from_str(&format!("Bearer {bearer}"));
            let mut bearer = bearer.map_err(|_| "the token is not one")?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        told(ask(&self.http, request).await?)
    }
}

/// A good answer's text. Others may quote what was sent.
fn told(reply: Reply) -> Result<String, String> {
    match reply.status {
        200..300 => Ok(reply.text),
        status => Err(format!("status code: {status}")),
    }
}

/// The foreign token in a file or an answer: all of it, or a field of JSON.
fn subject(text: &str, field: Option<&str>) -> Option<String> {
    let token = match field {
        None => text.trim().to_string(),
        Some(field) => {
            serde_json::from_str::<serde_json::Value>(text).ok()?.get(field)?.as_str()?.to_string()
        }
    };
    (!token.is_empty()).then_some(token)
}

fn exchanged(text: &str) -> Option<(String, Duration)> {
    let found: Exchanged = serde_json::from_str(text).ok()?;
    Some((found.access_token, found.expires_in.map_or(UNTOLD, Duration::from_secs)))
}

/// `now` is in seconds since 1970.
fn impersonated(text: &str, now: i64) -> Option<(String, Duration)> {
    let found: Impersonated = serde_json::from_str(text).ok()?;
    let end = DateTime::parse_from_rfc3339(&found.expire_time).ok()?.timestamp();
    Some((found.access_token, Duration::from_secs(u64::try_from(end - now).unwrap_or_default())))
}

/// Whether an answer is a token; for tests that give it what nobody would.
pub(crate) fn parses_token(text: &str) -> bool {
    let foreign = subject(text, Some("access_token"));
    foreign.is_some()
        | exchanged(text).is_some()
        | impersonated(text, 0).is_some()
        | External::read(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_answers_are_read_as_google_documents_them() {
        let file = |url: &str, source: &str| {
            format!(
                r#"{{"type":"external_account","audience":"//iam","subject_token_type":"urn:jwt",
                "token_url":"{url}","credential_source":{source}}}"#
            )
        };
        assert!(External::read(&file("https://sts", r#"{"file":"/t"}"#)).is_ok());
        let why = |text: String| External::read(&text).err().unwrap();
        assert!(why(file("http://sts.example", r#"{"file":"/t"}"#)).contains("https"));
        assert!(why(file("https://sts", r#"{"environment_id":"aws1"}"#)).contains("neither"));
        assert!(why("{}".into()).contains("lacks"));
        assert_eq!(subject(" tok\n", None).unwrap(), "tok");
        assert_eq!(subject(r#"{"id":"tok"}"#, Some("id")).unwrap(), "tok");
        assert_eq!((subject("", None), subject("{}", Some("id"))), (None, None));
        let (token, left) =
            exchanged(r#"{"access_token":"t","expires_in":60,"token_type":"Bearer"}"#).unwrap();
        assert_eq!((token.as_str(), left.as_secs()), ("t", 60));
        let text = r#"{"accessToken":"t","expireTime":"1970-01-01T00:01:40Z"}"#;
        assert_eq!(impersonated(text, 40).unwrap().1.as_secs(), 60);
        assert_eq!(impersonated(text, 400).unwrap().1.as_secs(), 0);
    }
}
