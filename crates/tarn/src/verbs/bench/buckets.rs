//! The buckets by themselves: objects as large as segments, many at once, and small ones.

use super::files::{MANY, MANY_SIZE, SMALL, TIMES};
use super::meter::Watch;
use super::{What, median};
use anyhow::Result;
use bytes::Bytes;
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tarn_bucket::inspect::{folder, tidy};
use tarn_bucket::raw::{Object, objects, parallel_get, parallel_put};
use tarn_bucket::{Bucket, Guarded, OpenOptions, open};

/// Bytes of an object of a stream: a segment of the usual size.
pub const OBJECT: u64 = 4 << 20;
/// Requests at once, for each bucket and in all.
const AT_ONCE: usize = 16;
const AT_ONCE_MOST: usize = 128;
/// How long one request is tried again, at the most.
const DEADLINE: Duration = Duration::from_secs(20);

pub struct Buckets {
    buckets: Vec<Arc<Guarded>>,
    folder: String,
    stream: Vec<Object>,
    at_once: usize,
}

impl Buckets {
    pub fn open(urls: &[String], size: u64) -> Result<Buckets> {
        let options = OpenOptions { deadline: DEADLINE, ..OpenOptions::default() };
        let buckets = urls.iter().map(|url| open(url, &options)).collect::<Result<Vec<_>, _>>()?;
        let folder = folder();
        let all: Vec<Arc<dyn Bucket>> = buckets.iter().map(|b| b.clone() as Arc<dyn Bucket>).collect();
        let stream = objects(&all, &format!("{folder}/"), (size / OBJECT) as usize);
        let at_once = (buckets.len() * AT_ONCE).min(AT_ONCE_MOST);
        Ok(Buckets { buckets, folder, stream, at_once })
    }

    /// Where everything is that is written, in each bucket.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    pub async fn measure(&self, what: What) -> Result<f64> {
        Ok(match what {
            What::Write => parallel_put(&self.stream, OBJECT, self.at_once).await?,
            What::Read => parallel_get(&self.stream, OBJECT, self.at_once).await?,
            What::SmallWrite => self.small_writes().await?,
            What::SmallRead => self.small_reads().await?,
            What::Many => self.many().await?,
        })
    }

    /// Objects of 4 KiB one after the other, here and there.
    async fn small_writes(&self) -> Result<f64> {
        let (body, mut times) = (Bytes::from(vec![7; SMALL]), Vec::new());
        for n in 0..TIMES {
            let (bucket, start) = (&self.buckets[n % self.buckets.len()], Watch::start());
            bucket.put(&format!("{}/small-{n}", self.folder), vec![body.clone()]).await?;
            bucket.sync().await?;
            times.push(start.elapsed());
        }
        Ok(median(times))
    }

    async fn small_reads(&self) -> Result<f64> {
        let mut times = Vec::new();
        for n in 0..TIMES {
            let object = &self.stream[n % self.stream.len()];
            let at = (n as u64 * 7919 * 4096) % OBJECT;
            let start = Watch::start();
            object.bucket.get(&object.key, at..at + SMALL as u64).await?;
            times.push(start.elapsed());
        }
        Ok(median(times))
    }

    /// Objects a second.
    async fn many(&self) -> Result<f64> {
        let all: Vec<Arc<dyn Bucket>> = self.buckets.iter().map(|b| b.clone() as Arc<dyn Bucket>).collect();
        let objects = objects(&all, &format!("{}/many-", self.folder), MANY);
        let bytes = parallel_put(&objects, MANY_SIZE as u64, self.at_once).await?;
        Ok(bytes / MANY_SIZE as f64)
    }

    /// Deletes everything that was written.
    pub async fn tidy(&self) -> Result<()> {
        let done = join_all(self.buckets.iter().map(|bucket| tidy(bucket, &self.folder))).await;
        Ok(done.into_iter().collect::<Result<(), _>>()?)
    }
}
