//! A mounted file system whose server is elsewhere: names by its metadata service, bytes by its object storage service.

use crate::{Client, ClientOptions};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tarn_base::{SegmentId, VdevId};
use tarn_pool::{BucketError, Capacity, Far, Pool, Result};
use tarn_proto::wire::{Connection, RemoteMds, RemoteOss};
use tarn_proto::{Oss, OssError};

/// The server's object storage service, in the pool's terms.
struct FarOss(RemoteOss);

fn bucket_error(error: OssError) -> BucketError {
    match error {
        OssError::NotFound(object) => BucketError::NotFound(object),
        OssError::NoSpace(text) => BucketError::NoSpace(text),
        OssError::Denied(text) => BucketError::Denied(text),
        OssError::Timeout(text) => BucketError::Timeout(text),
        OssError::Io(text) => BucketError::Io(text),
    }
}

#[async_trait::async_trait]
impl Far for FarOss {
    async fn get(&self, segment: SegmentId, range: Range<u64>) -> Result<Bytes, BucketError> {
        self.0.get(segment, range).await.map_err(bucket_error)
    }

    async fn get_tail(&self, segment: SegmentId, len: u64) -> Result<(Bytes, u64), BucketError> {
        self.0.get_tail(segment, len).await.map_err(bucket_error)
    }

    async fn put(&self, segment: SegmentId, body: Vec<Bytes>) -> Result<(), BucketError> {
        self.0.put(segment, body).await.map_err(bucket_error)
    }

    async fn capacity(&self, vdev: VdevId) -> Result<Option<Capacity>, BucketError> {
        let room = self.0.room(vdev).await.map_err(bucket_error)?;
        Ok(room.map(|room| Capacity { total: room.total, free: room.free }))
    }
}

impl Client {
    /// A client of the dataset at the other end of a connection, and the pool as it sees it: with `memory` bytes for
    /// records, and all bytes by way of the server.
    pub async fn remote(
        connection: Arc<Connection>,
        memory: u64,
        options: ClientOptions,
    ) -> Result<(Arc<Client>, Arc<Pool>)> {
        let far = Arc::new(FarOss(RemoteOss::new(connection.clone())));
        let pool = Pool::guest(connection.pool(), far, memory).await?;
        let client = Client::new(Arc::new(RemoteMds::new(connection)), pool.clone(), options);
        Ok((client, pool))
    }
}
