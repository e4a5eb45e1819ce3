//! The interface of `object_store` over [`MetadataStore`].

use super::copies::{Part, Want};
use super::multipart::Upload;
use super::object::{PUT_ID_MAX, payload_len};
use super::prefix;
use super::store::{Listed, MetadataStore, Os, generic, given_up};
use crate::outage::Side;
use futures::future::join_all;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult,
};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};
use tarn_bucket::ObjectInfo;

/// What SlateDB calls the mark on its conditional puts.
const PUT_ID: &str = "slatedbputid";
/// Locations that a delete takes at once.
const DELETE_BATCH: usize = 1000;

/// The put id among an upload's attributes; others cannot be kept.
fn put_id(attributes: &Attributes) -> Os<String> {
    let mut id = String::new();
    for (name, value) in attributes {
        match name {
            Attribute::Metadata(name) if name == PUT_ID && value.len() <= PUT_ID_MAX => {
                id = value.to_string();
            }
            other => {
                return Err(object_store::Error::NotSupported {
                    source: format!("attribute {other:?} cannot be kept").into(),
                });
            }
        }
    }
    Ok(id)
}

impl MetadataStore {
    /// What each vdev lists, or all but one: what one vdev holds is also on another; of two that fail nobody knows what
    /// they hold.
    async fn list_vdevs(&self, within: &str) -> Os<Vec<Option<Vec<ObjectInfo>>>> {
        loop {
            let listed = join_all(self.vdevs.iter().map(|vdev| vdev.list_hasty(within))).await;
            let failed: Vec<usize> = (0..listed.len()).filter(|i| listed[*i].is_err()).collect();
            if failed.len() <= 1 && failed.len() < self.vdevs.len() {
                return Ok(listed.into_iter().map(|result| result.ok()).collect());
            }
            if !self.vdevs[failed[0]].outages.outlast(Side::Read).await {
                let error = listed.into_iter().find_map(|result| result.err());
                return Err(error.map_or_else(|| generic("nothing was listed"), given_up));
            }
        }
    }

    /// Everything below `folder` (a path, or nothing): with its payload's length and its time.
    pub(crate) async fn list_below(&self, folder: &str) -> Os<Vec<ObjectMeta>> {
        let base = prefix(self.dataset);
        let within = if folder.is_empty() { base.clone() } else { format!("{base}{folder}/") };
        let listed = self.list_vdevs(&within).await?;
        let mut found = Listed::new();
        let whole = listed.iter().all(Option::is_some);
        for (i, objects) in listed.into_iter().enumerate() {
            for object in objects.into_iter().flatten() {
                let (Some(path), Some(len)) = (object.key.strip_prefix(&base), payload_len(object.size))
                else {
                    continue;
                };
                let entry = found.entry(path.to_string()).or_insert((len, i64::MIN, BTreeSet::new()));
                entry.1 = entry.1.max(object.modified_ms);
                entry.2.insert(i);
            }
        }
        if whole {
            self.complete(&found);
        }
        let meta = |(path, (size, modified_ms, _)): (String, (u64, i64, _))| {
            self.book(&path, size);
            Some(ObjectMeta {
                location: Path::parse(&path).ok()?,
                last_modified: (UNIX_EPOCH + Duration::from_millis(modified_ms.max(0) as u64)).into(),
                size,
                e_tag: None,
                version: None,
            })
        };
        Ok(found.into_iter().filter_map(meta).collect())
    }
}

#[async_trait::async_trait]
impl ObjectStore for MetadataStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Os<PutResult> {
        let id = put_id(&options.attributes)?;
        self.put(location.as_ref(), payload.into_iter().collect(), id, options.mode).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Os<Box<dyn MultipartUpload>> {
        let store = self.this.upgrade().ok_or_else(|| generic("the store was closed"))?;
        let put_id = put_id(&options.attributes)?;
        Ok(Box::new(Upload { store, path: location.to_string(), put_id, parts: Vec::new() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Os<GetResult> {
        let want = match (options.head, &options.range) {
            (true, _) => Want::Head,
            (false, None) => Want::All,
            (false, Some(range)) => Want::Range(range.clone()),
        };
        let part = self.read_near(location.as_ref(), &want).await?;
        let footer = &part.footer;
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: (UNIX_EPOCH + Duration::from_millis(footer.written_ms.max(0) as u64)).into(),
            size: footer.payload,
            e_tag: Some(footer.e_tag()),
            version: None,
        };
        options.check_preconditions(&meta)?;
        let mut attributes = Attributes::new();
        if !footer.put_id.is_empty() {
            attributes.insert(Attribute::Metadata(Cow::Borrowed(PUT_ID)), footer.put_id.clone().into());
        }
        let Part { range, bytes, .. } = part;
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async move { Ok(bytes) }).boxed()),
            meta,
            range,
            attributes,
            extensions: Default::default(),
        })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Os<Path>>) -> BoxStream<'static, Os<Path>> {
        let this = self.this.clone();
        let batch = move |batch: Vec<Os<Path>>| {
            let this = this.clone();
            async move {
                let this = this.upgrade().ok_or_else(|| generic("the store was closed"))?;
                let paths = batch.into_iter().collect::<Os<Vec<Path>>>()?;
                let names: Vec<String> = paths.iter().map(|p| p.to_string()).collect();
                this.delete(&names).await?;
                Ok::<_, object_store::Error>(stream::iter(paths.into_iter().map(Ok)))
            }
        };
        locations.ready_chunks(DELETE_BATCH).then(batch).try_flatten().boxed()
    }

    fn list(&self, folder: Option<&Path>) -> BoxStream<'static, Os<ObjectMeta>> {
        let this = self.this.clone();
        let folder = folder.map(|p| p.to_string()).unwrap_or_default();
        let listing = async move {
            let this = this.upgrade().ok_or_else(|| generic("the store was closed"))?;
            Ok::<_, object_store::Error>(stream::iter(this.list_below(&folder).await?.into_iter().map(Ok)))
        };
        stream::once(listing).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, folder: Option<&Path>) -> Os<ListResult> {
        let root = Path::default();
        let folder = folder.unwrap_or(&root);
        let mut common = BTreeSet::new();
        let mut objects = Vec::new();
        for object in self.list_below(folder.as_ref()).await? {
            let below: Option<Vec<_>> = object.location.prefix_match(folder).map(Iterator::collect);
            match below.as_deref() {
                Some([_]) => objects.push(object),
                Some([first, ..]) => {
                    common.insert(folder.clone().join(first.clone()));
                }
                _ => {}
            }
        }
        Ok(ListResult {
            common_prefixes: common.into_iter().collect(),
            objects,
            extensions: Default::default(),
        })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Os<()> {
        let part = self.read_healing(from.as_ref(), &Want::All).await?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        self.put(to.as_ref(), vec![part.bytes], String::new(), mode).await.map(drop)
    }
}
