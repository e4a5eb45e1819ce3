//! Names of buckets at S3 and what speaks its protocol.

use super::place::{self, Kind};
use super::terms::{self, Terms};
use crate::{Error, Result};

const KIND: Kind = Kind {
    scheme: "s3",
    bucket: "bucket",
    parameters: &[
        "region",
        "path_style",
        "virtual_host",
        "allow_http",
        "unsigned_payload",
        "profile",
        "kms",
        "requester_pays",
    ],
    credentials: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or into ~/.aws/credentials",
};

/// A bucket at S3 or a compatible store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Location {
    pub bucket: String,
    /// Folder below which Tarn's keys lie, without slashes at its ends; empty for the bucket's root.
    pub prefix: String,
    /// The endpoint is AWS's own by region if not given here or in the environment.
    pub terms: Terms,
    pub region: Option<String>,
    /// The bucket's name goes into the host name (`virtual_host`) and not into the path (`path_style`).
    pub virtual_host: Option<bool>,
    /// Bodies are sent without a hash of every byte in the signature; by default where TLS or the loopback
    /// protects them.
    pub unsigned_payload: Option<bool>,
    /// Whose credentials of the profile files to use.
    pub profile: Option<String>,
    /// The key of AWS's key management with which the store encrypts: its ARN, ID or alias.
    pub kms: Option<String>,
    /// Who asks agrees to pay for it.
    pub requester_pays: Option<bool>,
}

impl S3Location {
    pub(super) fn url(&self) -> String {
        let word = |value: Option<bool>| value.map(|b| if b { "true" } else { "false" });
        let mut parameters = self.terms.parameters();
        parameters.extend([
            ("region", self.region.as_deref()),
            ("virtual_host", word(self.virtual_host)),
            ("unsigned_payload", word(self.unsigned_payload)),
            ("profile", self.profile.as_deref()),
            ("kms", self.kms.as_deref()),
            ("requester_pays", word(self.requester_pays)),
        ]);
        place::write(&KIND, &self.bucket, &self.prefix, &parameters)
    }
}

/// Parses what follows `s3://`.
pub(super) fn parse(rest: &str) -> Result<S3Location> {
    let place = place::parse(&KIND, rest)?;
    let mut s3 = S3Location { bucket: place.bucket, prefix: place.prefix, ..S3Location::default() };
    let bucket = &s3.bucket;
    let mut allow_http = None;
    for (name, value) in place.parameters {
        if s3.terms.take(&KIND, bucket, &name, &value)? {
            continue;
        }
        match name.as_str() {
            "kms" => s3.kms = Some(terms::key_name(&KIND, bucket, &value)?),
            "requester_pays" => s3.requester_pays = Some(place::truth(&KIND, bucket, &name, &value)?),
            "region" => s3.region = Some(value),
            "profile" => s3.profile = Some(value),
            "path_style" => s3.virtual_host = Some(!place::truth(&KIND, bucket, &name, &value)?),
            "virtual_host" => s3.virtual_host = Some(place::truth(&KIND, bucket, &name, &value)?),
            "unsigned_payload" => s3.unsigned_payload = Some(place::truth(&KIND, bucket, &name, &value)?),
            "allow_http" => allow_http = Some(place::truth(&KIND, bucket, &name, &value)?),
            unknown => return Err(place::unknown(&KIND, bucket, unknown)),
        }
    }
    terms::one_key(&KIND, bucket, &s3.terms, s3.kms.as_ref())?;
    let plain = s3.terms.endpoint.as_deref().is_some_and(|e| e.starts_with("http://"));
    if plain && allow_http == Some(false) {
        return Err(Error::Config(format!(
            "s3://{bucket}: allow_http=false and an http:// endpoint contradict each other: use https://"
        )));
    }
    Ok(s3)
}
