//! S3 servers: versitygw over a directory of its own, and others.

use super::Process;
use object_store::ClientOptions;
use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector};
use std::path::{Path, PathBuf};
use tarn_bucket::OpenOptions;
use tarn_bucket::environment::Environment;
use tempfile::TempDir;

pub const KEY: &str = "tarn-test";
pub const SECRET: &str = "a-secret-for-the-test";

pub struct Server {
    process: Process,
    dir: TempDir,
}

impl Server {
    /// Starts one, if it is installed or asked for by `TARN_TEST_S3=1`.
    pub fn start() -> Option<Server> {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap();
        let environment =
            vec![("ROOT_ACCESS_KEY_ID", KEY.to_string()), ("ROOT_SECRET_ACCESS_KEY", SECRET.to_string())];
        let place = dir.path().to_str().unwrap();
        let process = Process::start("versitygw.sh", "bin/versitygw", "TARN_TEST_S3", place, environment)?;
        Some(Server { process, dir })
    }

    pub fn stop(&self) {
        self.process.stop();
    }

    pub fn start_again(&self) {
        self.process.start_again();
    }

    /// Makes a bucket and gives its URL, with `prefix` (which starts with a slash, if there is any).
    pub fn bucket(&self, name: &str, prefix: &str) -> String {
        std::fs::create_dir_all(self.dir.path().join(name)).unwrap();
        format!("s3://{name}{prefix}?endpoint={}", self.process.endpoint())
    }

    /// The directory of a bucket.
    pub fn dir(&self, bucket: &str) -> PathBuf {
        self.dir.path().join(bucket)
    }

    /// Options with this server's credentials.
    pub fn options(&self) -> OpenOptions {
        options()
    }
}

fn options() -> OpenOptions {
    let environment = Environment::of([("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)]);
    OpenOptions { environment, ..OpenOptions::default() }
}

/// moto, in memory.
pub struct Moto(Process);

impl Moto {
    /// Starts one, if it is installed or asked for by `TARN_TEST_MOTO=1`.
    pub fn start() -> Option<Moto> {
        Process::start("moto.sh", "moto/bin/moto_server", "TARN_TEST_MOTO", "-", Vec::new()).map(Moto)
    }

    pub async fn bucket(&self, name: &str, prefix: &str) -> String {
        let endpoint = self.0.endpoint();
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("{endpoint}/{name}").parse().unwrap();
        *request.method_mut() = "PUT".parse().unwrap();
        let client =
            ReqwestConnector::default().connect(&ClientOptions::new().with_allow_http(true)).unwrap();
        let made = client.execute(request).await.unwrap();
        assert!(made.status().is_success());
        format!("s3://{name}{prefix}?endpoint={endpoint}")
    }

    pub fn options(&self) -> OpenOptions {
        options()
    }
}
