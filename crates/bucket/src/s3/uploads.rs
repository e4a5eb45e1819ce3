//! Uploads in parts that nobody finished: what a crash in the middle of a large PUT leaves at the store, invisible in
//! listings and paid for.

use super::S3;
use crate::web::answer::Answer;
use crate::web::ask::Reply;
use crate::web::folder::Folder;
use crate::web::objects::{Objects, Service};
use crate::web::xml::{element, elements};
use crate::{Error, Operation, Result, UnfinishedUpload};

/// Pages of one listing that are read at most; what they leave is found by the next.
const PAGES: usize = 20;

/// Where a listing goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Marker {
    key: String,
    upload: String,
}

impl S3 {
    /// Uploads below the bucket's prefix, by the keys that they are for, without those that are under way here.
    pub(super) async fn list_uploads(&self, objects: &Objects) -> Result<Vec<UnfinishedUpload>> {
        let mut found = Vec::new();
        let mut marker = None;
        let before = objects.live();
        for _ in 0..PAGES {
            let text = self.uploads_page(objects, marker.as_ref()).await?;
            for upload in elements(&text, "Upload") {
                let (Some(key), Some(id)) = (element(upload, "Key"), element(upload, "UploadId")) else {
                    continue;
                };
                let Some(key) = objects.folder().key_of(&key) else { continue };
                let Ok(path) = objects.path(&key) else { continue };
                if !before.contains(&path) && !objects.live().contains(&path) {
                    found.push(UnfinishedUpload { key, id });
                }
            }
            marker = next(&text);
            if marker.is_none() {
                break;
            }
        }
        Ok(found)
    }

    async fn uploads_page(&self, objects: &Objects, marker: Option<&Marker>) -> Result<String> {
        let Folder { url, prefix } = objects.folder();
        let mut query = vec![("uploads", ""), ("prefix", prefix.as_str())];
        if let Some(Marker { key, upload }) = marker {
            query.push(("key-marker", key));
            query.push(("upload-id-marker", upload));
        }
        let failed = |why| Error::Io(format!("{url}: unfinished uploads cannot be listed: {why}"));
        let Reply { status, text, .. } = self.ask(&query).await.map_err(failed)?;
        match status {
            200 => Ok(text),
            _ => Err(self.explain(url, Operation::List, "", &Answer::of_response(status, &text))),
        }
    }
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
