//! Whether a bucket keeps what is deleted from it: versions, or objects under a lock.
//!
//! Asked once, when a bucket is taken into a pool, and only to warn: a store that does not know the request, or does not
//! let these credentials make it, is not asked twice, and nothing is said.

use super::S3;
use crate::web::ask::Reply;
use crate::web::xml::element;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

impl S3 {
    /// Why what is deleted from this bucket would not give its space back, in one line; `None` when it does, or the
    /// store does not say.
    pub(super) async fn find_keeps(&self, url: &str) -> Option<String> {
        let versions = self.told(url, "versioning").await.is_some_and(|text| has_versions(&text));
        let locked = self.told(url, "object-lock").await.is_some_and(|text| has_lock(&text));
        let (what, remedy) = match (versions, locked) {
            (_, true) => ("locks objects against deletion (object lock)", "use a bucket without object lock"),
            (true, false) => (
                "keeps old versions of objects (versioning)",
                "suspend versioning, or let a lifecycle rule expire noncurrent versions",
            ),
            (false, false) => return None,
        };
        Some(format!("{url}: the bucket {what}, so that what Tarn deletes goes on to use space: {remedy}"))
    }

    /// The bucket's answer to `GET ?what`, if it is one.
    async fn told(&self, url: &str, what: &str) -> Option<String> {
        let why = match tokio::time::timeout(LIMIT, self.ask(&[(what, "")])).await {
            Ok(Ok(Reply { status: 200, text, .. })) => return Some(text),
            Ok(Ok(Reply { status, .. })) => status.to_string(),
            Ok(Err(why)) => why,
            Err(_) => "no answer".to_string(),
        };
        tracing::debug!(bucket = url, what, why, "the store does not say");
        None
    }
}

/// Whether the answer to `?versioning` says that old versions are kept.
pub(super) fn has_versions(xml: &str) -> bool {
    element(xml, "Status").is_some_and(|status| status == "Enabled")
}

/// Whether the answer to `?object-lock` says that objects may be locked.
pub(super) fn has_lock(xml: &str) -> bool {
    element(xml, "ObjectLockEnabled").is_some_and(|status| status == "Enabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"<?xml version="1.0" encoding="UTF-8"?>"#;

    #[test]
    fn answers_of_s3_are_understood() {
        // As in the documentation of GetBucketVersioning and GetObjectLockConfiguration.
        let versioning = |inside: &str| {
            let of = "http://s3.amazonaws.com/doc/2006-03-01/";
            format!(r#"{HEAD}<VersioningConfiguration xmlns="{of}">{inside}</VersioningConfiguration>"#)
        };
        assert!(has_versions(&versioning("<Status>Enabled</Status>")));
        assert!(!has_versions(&versioning("<Status>Suspended</Status>")));
        assert!(!has_versions(&versioning("")) && !has_versions("") && !has_versions("<Status>"));
        let lock = "<ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>COMPLIANCE</Mode>\
            <Days>30</Days></DefaultRetention></Rule>";
        assert!(has_lock(&format!("{HEAD}<ObjectLockConfiguration>{lock}</ObjectLockConfiguration>")));
        assert!(!has_lock(&format!("{HEAD}<ObjectLockConfiguration></ObjectLockConfiguration>")));
    }
}
