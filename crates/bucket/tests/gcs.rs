//! What is particular to GCS: the texts of its errors, secrets that stay secret, what it keeps.

mod common;

use common::gcs::{Server, TOKEN};
use common::refusal;
use tarn_bucket::environment::Environment;
use tarn_bucket::{Bucket, Error, OpenOptions, open};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn what_is_wrong_is_said_in_one_line() {
    let Some(server) = Server::start() else { return };
    let (url, options) = (server.bucket("there", ""), server.options());
    open(&url, &options).unwrap().check().await.unwrap();
    // The emulator says of an object only that it is not there.
    let missing = open(&url.replace("//there", "//not-there"), &options).unwrap();
    let put = missing.put("a/b", vec![bytes::Bytes::from_static(b"x")]).await;
    for error in [missing.check().await.unwrap_err(), put.unwrap_err()] {
        assert!(matches!(&error, Error::Config(text) if text.contains("no such bucket")), "{error}");
    }
    let error = refusal("gs://b?endpoint=http://127.0.0.1:1", &options, &[TOKEN]).await;
    assert!(
        matches!(&error, Error::Io(text) if text.contains("cannot connect to http://127.0.0.1:1")),
        "{error}"
    );
}

#[tokio::test]
async fn versions_are_told() {
    let Some(server) = Server::start() else { return };
    let url = server.bucket("plain", "");
    assert_eq!(open(&url, &server.options()).unwrap().keeps().await, None);
    let url = url.replace("//plain", "//kept");
    server.make(r#"{"name":"kept","versioning":{"enabled":true}}"#);
    let told = open(&url, &server.options()).unwrap().keeps().await.unwrap();
    assert!(told.contains("versioning") && told.starts_with("gs://kept"), "{told}");
}

/// A server that answers everything with one status and reason of GCS's.
async fn refuser(status: &'static str, reason: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let _ = stream.read(&mut request).await;
                let body =
                    format!(r#"{{"error":{{"message":"in words","errors":[{{"reason":"{reason}"}}]}}}}"#);
                let head =
                    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}", body.len());
                let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await;
            });
        }
    });
    endpoint
}

/// The emulator takes any token, so what Google says to a bad one comes from a server of our own.
#[tokio::test]
async fn credentials_that_are_refused_are_told_without_them() {
    let environment = Environment::of([("GOOGLE_BEARER_TOKEN", TOKEN)]);
    let options = OpenOptions { environment, ..OpenOptions::default() };
    for (status, reason, class, part) in [
        ("401 Unauthorized", "authError", "Credentials", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("403 Forbidden", "forbidden", "Denied", "Storage Object User"),
    ] {
        let url = format!("gs://b?endpoint={}", refuser(status, reason).await);
        let error = refusal(&url, &options, &[TOKEN]).await;
        assert!(format!("{error:?}").starts_with(class) && error.to_string().contains(part), "{error}");
    }
}
