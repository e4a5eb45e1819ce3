//! How fast the buckets are with nothing above them: the limit that a file system's speed is measured against.

use crate::{Bucket, Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// An object in one of the buckets.
#[derive(Clone)]
pub struct Object {
    pub bucket: Arc<dyn Bucket>,
    pub key: String,
}

/// Objects named `prefix` and a number, spread evenly over the buckets.
pub fn objects(buckets: &[Arc<dyn Bucket>], prefix: &str, count: usize) -> Vec<Object> {
    let spread = buckets.iter().cycle().take(if buckets.is_empty() { 0 } else { count });
    spread
        .enumerate()
        .map(|(n, bucket)| Object { bucket: bucket.clone(), key: format!("{prefix}{n}") })
        .collect()
}

/// Reads each object whole, `concurrency` at a time. Gives bytes per second.
pub async fn parallel_get(objects: &[Object], object_size: u64, concurrency: usize) -> Result<f64> {
    run(objects, concurrency, object_size, move |object| async move {
        let body = object.bucket.get(&object.key, 0..object_size).await?;
        match body.len() as u64 {
            len if len == object_size => Ok(()),
            len => Err(Error::Io(format!("{}: {}: {len} bytes long", object.bucket.url(), object.key))),
        }
    })
    .await
}

/// Writes each object, `concurrency` at a time, with bytes that do not compress, and makes them durable. Gives
/// bytes per second.
pub async fn parallel_put(objects: &[Object], object_size: u64, concurrency: usize) -> Result<f64> {
    let mut bytes = vec![0; object_size as usize];
    rand::Rng::fill_bytes(&mut rand::rng(), &mut bytes);
    let body = Bytes::from(bytes);
    let start = Instant::now();
    run(objects, concurrency, object_size, move |object| {
        let body = body.clone();
        async move { object.bucket.put(&object.key, vec![body]).await }
    })
    .await?;
    let mut buckets: Vec<&Arc<dyn Bucket>> = Vec::new();
    for Object { bucket, .. } in objects {
        if !buckets.iter().any(|other| Arc::ptr_eq(other, bucket)) {
            buckets.push(bucket);
        }
    }
    futures::future::try_join_all(buckets.iter().map(|bucket| bucket.sync())).await?;
    Ok((objects.len() as u64 * object_size) as f64 / start.elapsed().as_secs_f64())
}

async fn run<F>(
    objects: &[Object],
    concurrency: usize,
    object_size: u64,
    work: impl Fn(Object) -> F + Send + Sync + 'static,
) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send,
{
    let start = Instant::now();
    let shared = Arc::new((objects.to_vec(), AtomicUsize::new(0), work));
    let workers = (0..concurrency.max(1)).map(|_| {
        let shared = shared.clone();
        tokio::spawn(async move {
            let (objects, next, work) = &*shared;
            while let Some(object) = objects.get(next.fetch_add(1, Relaxed)) {
                work(object.clone()).await?;
            }
            Ok::<(), Error>(())
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.map_err(|e| Error::Io(e.to_string()))??;
    }
    Ok((objects.len() as u64 * object_size) as f64 / start.elapsed().as_secs_f64())
}
