//! Uploads in parts that nobody finished: what a crash in the middle of a large PUT leaves at the store, invisible in
//! listings and paid for.
//!
//! `object_store` has no request that lists them, so this makes it: a GET whose signature is in its URL.

use super::{S3Bucket, errors::Answer};
use crate::{Error, Operation, Result, UnfinishedUpload};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use std::time::Duration;

/// The signature holds for so long.
const VALID: Duration = Duration::from_secs(300);
/// Pages of one listing that are read at most; what they leave is found by the next.
const PAGES: usize = 20;

/// Where a listing goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Marker {
    key: String,
    upload: String,
}

impl S3Bucket {
    /// Uploads below the bucket's prefix, by the keys that they are for, without those that are under way here.
    pub(super) async fn list_uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        let mut found = Vec::new();
        let mut marker = None;
        for _ in 0..PAGES {
            let text = self.uploads_page(marker.as_ref()).await?;
            for upload in elements(&text, "Upload") {
                let (Some(key), Some(id)) = (element(upload, "Key"), element(upload, "UploadId")) else {
                    continue;
                };
                let Some(key) = key.strip_prefix(&self.prefix) else { continue };
                if !self.live.lock().contains(&id) {
                    found.push(UnfinishedUpload { key: key.to_string(), id });
                }
            }
            marker = next(&text);
            if marker.is_none() {
                break;
            }
        }
        Ok(found)
    }

    async fn uploads_page(&self, marker: Option<&Marker>) -> Result<String> {
        let mut query =
            vec![("uploads".to_string(), String::new()), ("prefix".to_string(), self.prefix.clone())];
        if let Some(Marker { key, upload }) = marker {
            query.push(("key-marker".into(), key.clone()));
            query.push(("upload-id-marker".into(), upload.clone()));
        }
        let options = SignedUrlOptions::new().with_query(query);
        let failed =
            |why: String| Error::Io(format!("{}: unfinished uploads cannot be listed: {why}", self.url));
        let method = "GET".parse().map_err(|_| failed("no such method".into()))?;
        let url = self
            .store
            .signed_url_opts(method, &Path::default(), VALID, &options)
            .await
            .map_err(|e| self.explain(Operation::List, "", &e))?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.as_str().parse().map_err(|_| failed("its URL is not one".into()))?;
        // Not the error's own text: it would hold the URL, and that the signature.
        let response = self.http.execute(request).await.map_err(|e| failed(format!("{:?}", e.kind())))?;
        let status = response.status().as_u16();
        let body = response.into_body().bytes().await.map_err(|e| failed(format!("{:?}", e.kind())))?;
        let text = String::from_utf8_lossy(&body).into_owned();
        if status != 200 {
            return Err(self.explain_answer(Operation::List, "", &Answer::of_response(status, &text)));
        }
        Ok(text)
    }

    pub(super) async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<()> {
        use object_store::multipart::MultipartStore;
        if self.live.lock().contains(&upload.id) {
            return Ok(());
        }
        let path = self.path(&upload.key)?;
        match self.store.abort_multipart(&path, &upload.id).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.explain(Operation::Delete, &upload.key, &e)),
        }
    }
}

/// What stands between each `<name>` and its end.
fn elements<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(&open) {
        rest = &rest[start + open.len()..];
        let Some(end) = rest.find(&close) else { break };
        found.push(&rest[..end]);
        rest = &rest[end + close.len()..];
    }
    found
}

/// The text of the first element of that name.
fn element(text: &str, name: &str) -> Option<String> {
    let raw = elements(text, name).first().copied()?;
    let plain = raw.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'");
    Some(plain.replace("&amp;", "&"))
}

fn next(text: &str) -> Option<Marker> {
    if element(text, "IsTruncated")? != "true" {
        return None;
    }
    let key = element(text, "NextKeyMarker").filter(|key| !key.is_empty())?;
    Some(Marker { key, upload: element(text, "NextUploadIdMarker").unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let text = "<?xml version=\"1.0\"?><ListMultipartUploadsResult><Bucket>b</Bucket><KeyMarker></KeyMarker>\
            <NextKeyMarker>t/d/2&amp;</NextKeyMarker><NextUploadIdMarker>u2</NextUploadIdMarker>\
            <MaxUploads>2</MaxUploads><IsTruncated>true</IsTruncated>\
            <Upload><Key>t/d/1</Key><UploadId>u1</UploadId><Initiated>2026-01-01T00:00:00Z</Initiated></Upload>\
            <Upload><Key>t/d/2&amp;</Key><UploadId>u2</UploadId></Upload></ListMultipartUploadsResult>";
        let uploads = elements(text, "Upload");
        assert_eq!(uploads.len(), 2);
        assert_eq!(element(uploads[1], "Key").unwrap(), "t/d/2&");
        assert_eq!(element(uploads[0], "UploadId").unwrap(), "u1");
        assert_eq!(next(text), Some(Marker { key: "t/d/2&".into(), upload: "u2".into() }));
        assert_eq!(next(&text.replace("true", "false")), None);
        assert!(elements("<Upload><Key>", "Upload").is_empty());
    }
}
