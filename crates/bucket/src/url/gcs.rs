//! Names of buckets at Google Cloud Storage.

use super::place::{self, Kind};
use crate::Result;

const KIND: Kind = Kind {
    scheme: "gs",
    bucket: "bucket",
    parameters: "endpoint",
    credentials: "a file that GOOGLE_APPLICATION_CREDENTIALS names",
};

/// A bucket at Google Cloud Storage or a server that speaks its JSON API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcsLocation {
    pub bucket: String,
    /// Folder below which Tarn's keys lie, without slashes at its ends; empty for the bucket's root.
    pub prefix: String,
    /// `http://` or `https://`, host and port; Google's own if not given.
    pub endpoint: Option<String>,
}

impl GcsLocation {
    pub(super) fn url(&self) -> String {
        place::write(&KIND, &self.bucket, &self.prefix, &[("endpoint", self.endpoint.as_deref())])
    }
}

/// Parses what follows `gs://`.
pub(super) fn parse(rest: &str) -> Result<GcsLocation> {
    let place = place::parse(&KIND, rest)?;
    let mut gcs = GcsLocation { bucket: place.bucket, prefix: place.prefix, endpoint: None };
    for (name, value) in place.parameters {
        match name.as_str() {
            "endpoint" => gcs.endpoint = Some(place::endpoint(&KIND, &gcs.bucket, &value)?),
            unknown => return Err(place::unknown(&KIND, &gcs.bucket, unknown)),
        }
    }
    Ok(gcs)
}
