//! How fast this crate moves objects to and from an S3 server: a yardstick for the benchmark.
//!
//! ```text
//! raw get ENDPOINT CONNECTIONS < objects      reads what each line "bucket/key<TAB>size[<TAB>offset]" says
//! raw put ENDPOINT CONNECTIONS OBJECTS SIZE BUCKET...
//!                                             writes OBJECTS objects of SIZE bytes, spread over the buckets
//! ```
//!
//! Prints bytes and seconds. Credentials come from the environment.

use bytes::Bytes;
use std::collections::HashMap;
use std::error::Error;
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tarn_bucket::{Bucket, OpenOptions};

const LINE: &str = "a line is BUCKET/KEY<TAB>SIZE[<TAB>OFFSET]";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// One request: where, which key, how many bytes, and from where on.
struct Task {
    bucket: Arc<dyn Bucket>,
    key: String,
    size: u64,
    offset: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kind, endpoint, connections, rest @ ..] = words.as_slice() else {
        return Err("usage: raw get|put ENDPOINT CONNECTIONS ...".into());
    };
    let connections: usize = connections.parse()?;
    let (tasks, body) = match kind.as_str() {
        "get" => (from_input(endpoint, connections)?, None),
        "put" => {
            let tasks = from_words(endpoint, connections, rest)?;
            let mut body = vec![0; tasks.first().map_or(0, |task| task.size) as usize];
            rand::Rng::fill_bytes(&mut rand::rng(), &mut body);
            (tasks, Some(Bytes::from(body)))
        }
        other => return Err(format!("unknown command {other}").into()),
    };
    let start = Instant::now();
    let moved = run(tasks, body, connections).await?;
    println!("{moved} {:.6}", start.elapsed().as_secs_f64());
    Ok(())
}

fn open(endpoint: &str, bucket: &str, connections: usize) -> Result<Arc<dyn Bucket>> {
    let options = OpenOptions { concurrency: Some(connections), ..OpenOptions::default() };
    Ok(tarn_bucket::open(&format!("s3://{bucket}?endpoint={endpoint}&region=us-east-1"), &options)?)
}

fn from_input(endpoint: &str, connections: usize) -> Result<Vec<Task>> {
    let mut buckets: HashMap<String, Arc<dyn Bucket>> = HashMap::new();
    let mut tasks = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split('\t');
        let (place, size) = words.next().zip(words.next()).ok_or(LINE)?;
        let offset = words.next().map_or(Ok(0), str::parse)?;
        let (name, key) = place.split_once('/').ok_or(LINE)?;
        if !buckets.contains_key(name) {
            buckets.insert(name.to_string(), open(endpoint, name, connections)?);
        }
        let bucket = buckets[name].clone();
        tasks.push(Task { bucket, key: key.to_string(), size: size.parse()?, offset });
    }
    Ok(tasks)
}

fn from_words(endpoint: &str, connections: usize, words: &[String]) -> Result<Vec<Task>> {
    let [objects, size, names @ ..] = words else {
        return Err("usage: raw put ENDPOINT CONNECTIONS OBJECTS SIZE BUCKET...".into());
    };
    let (objects, size): (usize, u64) = (objects.parse()?, size.parse()?);
    let buckets = names.iter().map(|name| open(endpoint, name, connections)).collect::<Result<Vec<_>>>()?;
    let task = |n: usize| {
        let bucket = buckets.get(n % buckets.len().max(1)).ok_or("name a bucket")?.clone();
        Ok(Task { bucket, key: format!("raw/{:02x}/object-{n}", n % 256), size, offset: 0 })
    };
    (0..objects).map(task).collect()
}

/// Runs the tasks, so many at a time; gives the bytes that moved.
async fn run(tasks: Vec<Task>, body: Option<Bytes>, connections: usize) -> Result<u64> {
    let shared = Arc::new((tasks, AtomicUsize::new(0)));
    let workers = (0..connections.max(1)).map(|_| {
        let (shared, body) = (shared.clone(), body.clone());
        tokio::spawn(async move {
            let (tasks, next) = &*shared;
            let mut moved = 0;
            while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                match &body {
                    Some(body) => task.bucket.put(&task.key, vec![body.clone()]).await?,
                    None => {
                        let range = task.offset..task.offset + task.size;
                        let got = task.bucket.get(&task.key, range).await?.len() as u64;
                        if got != task.size {
                            return Err(format!("{}: {got} bytes instead of {}", task.key, task.size).into());
                        }
                    }
                }
                moved += task.size;
            }
            Ok::<u64, Box<dyn Error + Send + Sync>>(moved)
        })
    });
    let mut moved = 0;
    for worker in workers.collect::<Vec<_>>() {
        moved += worker.await??;
    }
    Ok(moved)
}
