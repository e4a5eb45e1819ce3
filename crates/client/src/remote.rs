//! A mounted file system whose server is elsewhere: names by its metadata service, bytes by its object storage service.

use crate::{Client, ClientOptions};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tarn_base::{SegmentId, VdevId};
use tarn_pool::{BucketError, Capacity, Far, FarError, Pool, Reach};
use tarn_proto::wire::{Link, RemoteMds, RemoteOss};
use tarn_proto::{Oss, OssError};

/// The server's object storage service, in the pool's terms.
struct FarOss(RemoteOss);

fn far_error(error: OssError) -> FarError {
    FarError::Bucket(match error {
        OssError::NotFound(object) => BucketError::NotFound(object),
        OssError::NoSpace(text) => BucketError::NoSpace(text),
        OssError::Denied(text) => BucketError::Denied(text),
        OssError::Timeout(text) => BucketError::Timeout(text),
        OssError::Io(text) => BucketError::Io(text),
        OssError::Fenced(_) => return FarError::Fenced,
    })
}

#[async_trait::async_trait]
impl Far for FarOss {
    async fn get(&self, segment: SegmentId, range: Range<u64>) -> Result<Bytes, FarError> {
        self.0.get(segment, range).await.map_err(far_error)
    }

    async fn get_tail(&self, segment: SegmentId, len: u64) -> Result<(Bytes, u64), FarError> {
        self.0.get_tail(segment, len).await.map_err(far_error)
    }

    async fn put(&self, segment: SegmentId, body: Vec<Bytes>) -> Result<(), FarError> {
        self.0.put(segment, body).await.map_err(far_error)
    }

    async fn stored(&self, segment: SegmentId, bytes: u64) -> Result<(), FarError> {
        self.0.stored(segment, bytes).await.map_err(far_error)
    }

    async fn capacity(&self, vdev: VdevId) -> Result<Option<Capacity>, FarError> {
        let room = self.0.room(vdev).await.map_err(far_error)?;
        Ok(room.map(|room| Capacity { total: room.total, free: room.free }))
    }
}

impl Client {
    /// A client of the dataset at the other end of a link, which is called `name` here, and the pool as it sees it, with
    /// `memory` bytes for records.
    pub async fn remote(
        link: Arc<Link>,
        name: &str,
        reach: Reach,
        memory: u64,
        options: impl FnOnce(&Pool) -> ClientOptions,
    ) -> tarn_pool::Result<(Arc<Client>, Arc<Pool>)> {
        let far = Arc::new(FarOss(RemoteOss::new(link.clone())));
        let pool = Pool::guest(link.pool(), name, far, reach, memory).await?;
        let client = Client::new(Arc::new(RemoteMds::new(link)), pool.clone(), options(&pool));
        Ok((client, pool))
    }
}
