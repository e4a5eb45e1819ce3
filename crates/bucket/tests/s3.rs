//! What is particular to S3: the texts of its errors, secrets that stay secret, uploads that are ended.

mod common;

use bytes::Bytes;
use common::s3::{KEY, SECRET, Server};
use std::path::Path;
use std::time::{Duration, Instant};
use tarn_bucket::environment::Environment;
use tarn_bucket::{Bucket, Error, OpenOptions, Operation, open};

fn with(server: &Server, key: &str, secret: &str) -> OpenOptions {
    let environment = Environment::of([("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)]);
    OpenOptions { environment, ..server.options() }
}

async fn refusal(url: &str, options: &OpenOptions) -> Error {
    common::refusal(url, options, &[SECRET, "hush"]).await
}

#[tokio::test]
async fn what_is_wrong_is_said_in_one_line() {
    let Some(server) = Server::start() else { return };
    let (url, options) = (server.bucket("there", ""), server.options());
    open(&url, &options).unwrap().check().await.unwrap();

    let error = refusal(&url.replace("//there", "//not-there"), &options).await;
    assert!(matches!(&error, Error::Config(text) if text.contains("no such bucket")), "{error}");
    let error = refusal(&url, &with(&server, KEY, "hush")).await;
    assert!(matches!(&error, Error::Credentials(text) if text.contains("AWS_SECRET_ACCESS_KEY")), "{error}");
    let error = refusal(&url, &with(&server, "nobody", "hush")).await;
    assert!(matches!(&error, Error::Credentials(text) if text.contains("AWS_ACCESS_KEY_ID")), "{error}");
    let error = refusal(&format!("{url}&region=eu-north-7"), &options).await;
    assert!(matches!(&error, Error::Config(text) if text.contains("region")), "{error}");
    let error = refusal("s3://b?endpoint=http://127.0.0.1:1", &options).await;
    assert!(
        matches!(&error, Error::Io(text) if text.contains("cannot connect to http://127.0.0.1:1")),
        "{error}"
    );
    let error = refusal("s3://b?endpoint=http://no-such-host.invalid", &options).await;
    assert!(matches!(&error, Error::Io(text) if text.contains("cannot connect")), "{error}");
    let nowhere = OpenOptions {
        environment: Environment::of([("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")]),
        ..options
    };
    let error = refusal(&url, &nowhere).await;
    assert!(matches!(&error, Error::Credentials(text) if text.contains("no credentials")), "{error}");
}

/// Everything below the server's own folders of a bucket for uploads that are not complete.
fn unfinished(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries.flatten().map(|entry| if entry.path().is_dir() { unfinished(&entry.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn an_upload_that_is_given_up_is_ended() {
    let Some(server) = Server::start() else { return };
    let bucket = open(&server.bucket("uploads", ""), &server.options()).unwrap();
    let body = vec![Bytes::from(vec![7; 40 << 20])];
    let uploads = server.dir("uploads").join(".sgwtmp/multipart");
    let mut seen = 0;
    for _ in 0..50 {
        let mut put = bucket.put("large", body.clone());
        while unfinished(&uploads) == 0 {
            tokio::select! {
                done = &mut put => { done.unwrap(); break }
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
        seen = unfinished(&uploads);
        drop(put);
        if seen > 0 {
            break;
        }
    }
    assert!(seen > 0, "no upload was seen");
    let start = Instant::now();
    while unfinished(&uploads) > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "the upload was not ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_upload_that_a_crash_left_is_found_and_ended() {
    let Some(server) = Server::start() else { return };
    let (url, options) = (server.bucket("left", "/tarn"), server.options());
    let uploads = server.dir("left").join(".sgwtmp/multipart");
    let bucket = open(&url, &options).unwrap();
    assert_eq!(bucket.uploads().await.unwrap(), []);
    let mut crashed = false;
    for _ in 0..50 {
        // A runtime that ends takes with it what would have ended the upload, as a crash does.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (url, options) = (url.clone(), options.clone());
        runtime.spawn(async move {
            let body = vec![Bytes::from(vec![7; 40 << 20])];
            open(&url, &options).unwrap().put("d/large", body).await
        });
        for _ in 0..2000 {
            if unfinished(&uploads) > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        runtime.shutdown_background();
        tokio::time::sleep(Duration::from_millis(300)).await;
        crashed = unfinished(&uploads) > 0;
        if crashed {
            break;
        }
    }
    assert!(crashed, "no upload was left");
    let found = bucket.uploads().await.unwrap();
    assert!(!found.is_empty() && found.iter().all(|upload| upload.key == "d/large"), "{found:?}");
    // Who is elsewhere in the bucket has nothing to do with it.
    let neighbour = open(&server.bucket("left", "/other"), &options).unwrap();
    assert_eq!(neighbour.uploads().await.unwrap(), []);
    for upload in &found {
        bucket.end_upload(upload).await.unwrap();
        bucket.end_upload(upload).await.unwrap();
    }
    assert_eq!((bucket.uploads().await.unwrap(), unfinished(&uploads)), (vec![], 0));
    // One's own that is under way is not among them.
    let body = vec![Bytes::from(vec![7; 40 << 20])];
    let put = bucket.put("d/large", body);
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    tokio::pin!(put);
    loop {
        tokio::select! {
            done = &mut put => break done.unwrap(),
            _ = looks.tick() => assert_eq!(bucket.uploads().await.unwrap(), []),
        }
    }
}

#[tokio::test]
async fn a_server_that_dies_and_comes_back_is_survived() {
    let Some(server) = Server::start() else { return };
    let bucket = open(&server.bucket("back", ""), &server.options()).unwrap();
    bucket.put("a", vec![Bytes::from_static(b"x")]).await.unwrap();
    server.stop();
    let waiting = tokio::spawn({
        let bucket = bucket.clone();
        async move { bucket.get("a", 0..1).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.start_again();
    assert_eq!(waiting.await.unwrap().unwrap(), "x");
    assert!(bucket.stats().operations[&Operation::Get].retries > 0);
}
