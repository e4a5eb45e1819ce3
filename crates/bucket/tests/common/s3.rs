//! versitygw over a directory of its own.

use super::Process;
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
        let environment = Environment::of([("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)]);
        OpenOptions { environment, ..OpenOptions::default() }
    }
}
