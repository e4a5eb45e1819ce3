//! Requests that bear the store's time where this host's clock is wrong.
//!
//! S3 refuses what was signed more than a quarter of an hour ago, or will be. It says with the refusal what time it is:
//! from then on requests are signed with that, as AWS's own tools do. `object_store` signs with this host's clock, so
//! that its signature is replaced by one of the same words with another date.

use super::signature::sign;
use chrono::{DateTime, TimeDelta, Utc};
use http::header::DATE;
use object_store::aws::AwsCredentialProvider;
use object_store::client::{HttpClient, HttpError, HttpRequest, HttpResponse, HttpService};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use tarn_base::clock::{Clock, SystemClock};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_read_off_the_date() {
        let now = DateTime::parse_from_rfc3339("2026-01-01T00:20:00Z").unwrap().to_utc();
        assert_eq!(skew_of("Thu, 01 Jan 2026 00:00:00 GMT", now), Some(-1200));
        assert_eq!(skew_of("yesterday", now), None);
    }
}
