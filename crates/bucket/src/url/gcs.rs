//! Names of buckets at Google Cloud Storage.

use super::place::{self, Kind};
use super::terms::{self, Terms};
use crate::{Error, Result};

const KIND: Kind = Kind {
    scheme: "gs",
    bucket: "bucket",
    parameters: &["kms", "billing_project"],
    credentials: "a file that GOOGLE_APPLICATION_CREDENTIALS names",
};

/// A bucket at Google Cloud Storage or a server that speaks its JSON API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcsLocation {
    pub bucket: String,
    /// Folder below which Tarn's keys lie, without slashes at its ends; empty for the bucket's root.
    pub prefix: String,
    pub terms: Terms,
    /// The key of Google's key management with which the store encrypts: `projects/.../cryptoKeys/name`.
    pub kms: Option<String>,
    /// The project that pays for requests, where the requester pays.
    pub billing_project: Option<String>,
}

impl GcsLocation {
    pub(super) fn url(&self) -> String {
        let mut parameters = self.terms.parameters();
        parameters
            .extend([("kms", self.kms.as_deref()), ("billing_project", self.billing_project.as_deref())]);
        place::write(&KIND, &self.bucket, &self.prefix, &parameters)
    }
}

/// Parses what follows `gs://`.
pub(super) fn parse(rest: &str) -> Result<GcsLocation> {
    let place = place::parse(&KIND, rest)?;
    let mut gcs = GcsLocation { bucket: place.bucket, prefix: place.prefix, ..GcsLocation::default() };
    for (name, value) in place.parameters {
        if gcs.terms.take(&KIND, &gcs.bucket, &name, &value)? {
            continue;
        }
        match name.as_str() {
            "kms" => gcs.kms = Some(terms::key_name(&KIND, &gcs.bucket, &value)?),
            "billing_project" => gcs.billing_project = Some(project(value)?),
            unknown => return Err(place::unknown(&KIND, &gcs.bucket, unknown)),
        }
    }
    terms::one_key(&KIND, &gcs.bucket, &gcs.terms, gcs.kms.as_ref())?;
    Ok(gcs)
}

fn project(value: String) -> Result<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    if !value.is_empty() && value.chars().all(good) {
        return Ok(value);
    }
    Err(Error::Config(format!("gs://: billing_project={} is no project's ID", value.escape_debug())))
}
