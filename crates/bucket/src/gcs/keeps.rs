//! Whether a bucket keeps what is deleted from it: versions, retention, soft delete.
//!
//! Asked once, when a bucket is taken into a pool, and only to warn: credentials that may not ask (it takes
//! `storage.buckets.get`) are not asked twice, and nothing is said.

use super::GcsBucket;
use super::request::Place;
use crate::Operation;
use serde::Deserialize;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

/// As much of a bucket's properties as matters here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Properties {
    versioning: Option<Versioning>,
    retention_policy: Option<Retention>,
    soft_delete_policy: Option<SoftDelete>,
    #[serde(default)]
    default_event_based_hold: bool,
}

#[derive(Deserialize)]
struct Versioning {
    #[serde(default)]
    enabled: bool,
}

/// Its seconds do not matter.
#[derive(Deserialize)]
struct Retention {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SoftDelete {
    /// A number, as text.
    retention_duration_seconds: String,
}

/// Why what is deleted from this bucket would not give its space back, in one line; `None` when it does, or the store
/// does not say.
pub(super) async fn find(bucket: &GcsBucket) -> Option<String> {
    let read = |text: &str| Some(of(text));
    let asked = bucket.told(Operation::Head, "", Place::Bucket, read);
    let (what, remedy) = match tokio::time::timeout(LIMIT, asked).await {
        Ok(Ok(found)) => found?,
        Ok(Err(why)) => {
            tracing::debug!(bucket = bucket.folder.url, %why, "the store does not say");
            return None;
        }
        Err(_) => return None,
    };
    let url = &bucket.folder.url;
    Some(format!("{url}: the bucket {what}, so that what Tarn deletes goes on to use space: {remedy}"))
}

/// What a bucket's properties say that it does, and the remedy.
pub(super) fn of(text: &str) -> Option<(&'static str, &'static str)> {
    let properties: Properties = serde_json::from_str(text).ok()?;
    if properties.retention_policy.is_some() || properties.default_event_based_hold {
        return Some(("forbids to delete objects (retention)", "use a bucket without it"));
    }
    if properties.versioning.is_some_and(|versioning| versioning.enabled) {
        return Some((
            "keeps old versions of objects (versioning)",
            "disable it, or let a lifecycle rule delete noncurrent versions",
        ));
    }
    let days = properties.soft_delete_policy.map(|policy| policy.retention_duration_seconds);
    match days {
        Some(seconds) if seconds != "0" => Some((
            "keeps deleted objects for days (soft delete)",
            "`gcloud storage buckets update --clear-soft-delete` ends that",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_gcs_are_understood() {
        for (text, part) in [
            (r#"{"versioning":{"enabled":true}}"#, "versioning"),
            (r#"{"retentionPolicy":{"retentionPeriod":"60"},"versioning":{}}"#, "retention"),
            (r#"{"softDeletePolicy":{"retentionDurationSeconds":"604800"}}"#, "soft delete"),
            (r#"{"defaultEventBasedHold":true}"#, "retention"),
        ] {
            assert!(of(text).unwrap().0.contains(part), "{text}");
        }
        for text in [r#"{"softDeletePolicy":{"retentionDurationSeconds":"0"}}"#, "{}", "", "[1]"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
