//! Parsers of what users type and stores answer, in one shape, for tests that feed them what nobody would write.

use crate::{Location, azure, gcs, key, s3, web};

/// A name, and a function that parses bytes and says whether they were accepted. It panics when what was accepted
/// does not come back the same from its own bytes.
pub type Parser = (&'static str, fn(&[u8]) -> bool);

pub const PARSERS: &[Parser] = &[
    ("bucket-url", url),
    ("bucket-key", |bytes| std::str::from_utf8(bytes).is_ok_and(|text| key::check("bucket", text).is_ok())),
    ("bucket-s3-answer", s3::parses_answer),
    ("bucket-s3-date", |bytes| std::str::from_utf8(bytes).is_ok_and(s3::parses_date)),
    ("bucket-s3-head", web::parses_head),
    ("bucket-customer-key", web::customer_key::parses_key),
    ("bucket-azure-answer", azure::parses_answer),
    ("bucket-gcs-answer", gcs::parses_answer),
    ("bucket-gcs-batch", gcs::parses_batch),
    ("bucket-gcs-part", |bytes| std::str::from_utf8(bytes).is_ok_and(gcs::parses_part)),
    ("bucket-gcs-key", |bytes| std::str::from_utf8(bytes).is_ok_and(gcs::credentials::parses_file)),
    ("bucket-gcs-token", |bytes| std::str::from_utf8(bytes).is_ok_and(gcs::federation::parses_token)),
    ("bucket-azure-connection", |bytes| {
        std::str::from_utf8(bytes).is_ok_and(azure::credentials::parses_connection)
    }),
    ("bucket-profile", |bytes| std::str::from_utf8(bytes).is_ok_and(s3::credentials::parses_profile)),
];

fn url(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match Location::parse(text) {
        Ok(location) => {
            let written = location.url();
            assert_eq!(
                Location::parse(&written).as_ref().ok(),
                Some(&location),
                "{written} does not come back"
            );
            true
        }
        Err(error) => {
            let line = error.to_string();
            assert!(line.len() < 4 * text.len() + 400, "{line}");
            false
        }
    }
}
