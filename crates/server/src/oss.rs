//! The object storage service: segments of one dataset, for a client that has no credentials for the buckets.

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use std::ops::Range;
use std::sync::Arc;
use tarn_base::{DatasetId, SegmentId, VdevId};
use tarn_pool::{BucketError, Pool};
use tarn_proto::{Oss, OssError, Room};

/// Serves one dataset's segments.
pub struct LocalOss {
    pool: Arc<Pool>,
    dataset: DatasetId,
}

type Reply<T> = BoxFuture<'static, Result<T, OssError>>;

fn oss_error(error: BucketError) -> OssError {
    let text = error.to_string();
    match error {
        BucketError::NotFound(object) => OssError::NotFound(object),
        BucketError::NoSpace(_) => OssError::NoSpace(text),
        BucketError::Timeout(_) | BucketError::Credentials(_) => OssError::Timeout(text),
        BucketError::Denied(_) | BucketError::Config(_) => OssError::Denied(text),
        BucketError::Io(_) | BucketError::Busy(_) | BucketError::Exists(_) => OssError::Io(text),
    }
}

fn pool_error(error: tarn_pool::Error) -> OssError {
    match error {
        tarn_pool::Error::Fenced => OssError::Fenced(error.to_string()),
        tarn_pool::Error::Bucket(error) => oss_error(error),
        tarn_pool::Error::NoSpace => OssError::NoSpace("the pool".into()),
        other => OssError::Denied(other.to_string()),
    }
}

impl LocalOss {
    pub fn new(pool: Arc<Pool>, dataset: DatasetId) -> Arc<LocalOss> {
        Arc::new(LocalOss { pool, dataset })
    }

    /// What a client does with a segment, unless it is another dataset's.
    fn with<T, F>(&self, segment: SegmentId, call: impl FnOnce(Arc<Pool>) -> F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, OssError>> + Send + 'static,
    {
        if segment.grant.dataset != self.dataset {
            return ready(Err(OssError::Denied(format!("segment {segment} is another dataset's")))).boxed();
        }
        call(self.pool.clone()).boxed()
    }
}

impl Oss for LocalOss {
    fn get(&self, segment: SegmentId, range: Range<u64>) -> Reply<Bytes> {
        self.with(segment, |pool| async move { pool.guest_get(segment, range).await.map_err(oss_error) })
    }

    fn get_tail(&self, segment: SegmentId, len: u64) -> Reply<(Bytes, u64)> {
        self.with(segment, |pool| async move { pool.guest_get_tail(segment, len).await.map_err(oss_error) })
    }

    fn put(&self, segment: SegmentId, body: Vec<Bytes>) -> Reply<()> {
        self.with(
            segment,
            |pool| async move { pool.guest_put(segment, whole(body)).await.map_err(pool_error) },
        )
    }

    fn stored(&self, segment: SegmentId, bytes: u64) -> Reply<()> {
        self.with(segment, |pool| async move { pool.guest_stored(segment, bytes).map_err(pool_error) })
    }

    fn room(&self, vdev: VdevId) -> Reply<Option<Room>> {
        let capacity = self.pool.guest_capacity(vdev).map_err(pool_error);
        let room = capacity.map(|found| found.map(|c| Room { total: c.total, free: c.free }));
        ready(room).boxed()
    }
}

/// One piece: as a rule it is one already.
fn whole(mut body: Vec<Bytes>) -> Bytes {
    if body.len() == 1 {
        return body.remove(0);
    }
    let mut all = BytesMut::with_capacity(body.iter().map(Bytes::len).sum());
    body.iter().for_each(|piece| all.extend_from_slice(piece));
    all.freeze()
}
