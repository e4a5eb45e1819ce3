//! What a bucket's name says of how objects are kept and who pays, as GCS wants to hear it.

use super::request::Place;
use crate::web::customer_key::CustomerKey;
use crate::web::encoded;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Stands between the two parts of an upload. Nothing in the first looks like it, and the second has its length.
const BOUNDARY: &str = "===tarn-upload===";

#[derive(Default)]
pub(super) struct Terms {
    pub key: Option<CustomerKey>,
    pub class: Option<String>,
    pub kms: Option<String>,
    /// The project that pays.
    pub payer: Option<String>,
}

impl Terms {
    /// What follows the endpoint.
    pub fn path(&self, place: &Place<'_>, bucket: &str) -> String {
        let mut path = place.path(bucket);
        let upload = matches!(place, Place::Upload { .. });
        if upload && self.class.is_some() {
            path = path.replace("uploadType=media", "uploadType=multipart");
        }
        let payer = self.payer.as_ref().filter(|_| !matches!(place, Place::Batch));
        let kms = self.kms.as_ref().filter(|_| upload);
        for (name, value) in [("userProject", payer), ("kmsKeyName", kms)] {
            if let Some(value) = value {
                path.push(if path.contains('?') { '&' } else { '?' });
                path.push_str(&format!("{name}={}", encoded(value)));
            }
        }
        path
    }

    /// Adds the headers of a request on `place`.
    pub fn add_headers(&self, place: &Place<'_>, headers: &mut HeaderMap) {
        let Some(key) = self.key.as_ref().filter(|_| matches!(place, Place::Upload { .. } | Place::Media(_)))
        else {
            return;
        };
        headers.insert("x-goog-encryption-algorithm", HeaderValue::from_static("AES256"));
        for (name, value) in
            [("x-goog-encryption-key", &key.key), ("x-goog-encryption-key-sha256", &key.sha256)]
        {
            // Base64 is always a header's value.
            if let Ok(mut value) = HeaderValue::from_str(value) {
                value.set_sensitive(true);
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }

    /// The body of an upload and its type: a storage class is told in a part before the object's own.
    pub fn upload(&self, body: Vec<Bytes>) -> (Vec<Bytes>, Option<String>) {
        let Some(class) = &self.class else { return (body, None) };
        let head = format!(
            "--{BOUNDARY}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{{\"storageClass\":\"{class}\"}}\r\n\
             --{BOUNDARY}\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        let end = Bytes::from(format!("\r\n--{BOUNDARY}--"));
        let whole = [vec![Bytes::from(head)], body, vec![end]].concat();
        (whole, Some(format!("multipart/related; boundary=\"{BOUNDARY}\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_told_where_they_matter() {
        let upload = Place::Upload { name: "n", create: true };
        let plain = Terms::default();
        for place in [&upload, &Place::Object("n"), &Place::Media("n")] {
            assert_eq!(plain.path(place, "b"), place.path("b"));
        }
        let terms = Terms {
            class: Some("NEARLINE".into()),
            kms: Some("projects/p/k".into()),
            payer: Some("p-1".into()),
            key: None,
        };
        let path = terms.path(&upload, "b");
        assert!(
            path.contains("uploadType=multipart&") && path.ends_with("&kmsKeyName=projects%2Fp%2Fk"),
            "{path}"
        );
        assert_eq!(terms.path(&Place::Object("n"), "b"), "/storage/v1/b/b/o/n?userProject=p-1");
        assert_eq!(terms.path(&Place::Media("n"), "b"), "/storage/v1/b/b/o/n?alt=media&userProject=p-1");
        let (body, kind) = terms.upload(vec![Bytes::from_static(b"bytes")]);
        let text = String::from_utf8(body.concat()).unwrap();
        assert!(kind.unwrap().starts_with("multipart/related"));
        assert!(text.contains("{\"storageClass\":\"NEARLINE\"}\r\n--===tarn-upload===\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\nbytes\r\n--===tarn-upload===--"), "{text}");
    }
}
