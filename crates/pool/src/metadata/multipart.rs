//! Uploads in parts: gathered in memory and written whole, because an object's checksums stand behind its payload
//! and both copies must be the same. SlateDB's own limit on the size of its tables bounds the memory.

use super::store::MetadataStore;
use bytes::Bytes;
use futures::FutureExt;
use object_store::{MultipartUpload, PutMode, PutPayload, PutResult, UploadPart};
use std::sync::Arc;

pub(super) struct Upload {
    pub store: Arc<MetadataStore>,
    pub path: String,
    pub put_id: String,
    pub parts: Vec<Bytes>,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upload({}, {} pieces)", self.path, self.parts.len())
    }
}

#[async_trait::async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts.extend(data);
        async { Ok(()) }.boxed()
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let parts = std::mem::take(&mut self.parts);
        self.store.put(&self.path, parts, std::mem::take(&mut self.put_id), PutMode::Overwrite).await
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.parts.clear();
        Ok(())
    }
}
