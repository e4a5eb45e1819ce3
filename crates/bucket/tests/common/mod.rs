//! A real S3 server for tests.

#![allow(dead_code)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use tarn_bucket::OpenOptions;
use tarn_bucket::environment::Environment;
use tempfile::TempDir;

pub const KEY: &str = "tarn-test";
pub const SECRET: &str = "a-secret-for-the-test";

/// A running versitygw over a directory of its own, stopped when this is dropped.
pub struct Server {
    script: PathBuf,
    dir: TempDir,
    port: u16,
}

impl Server {
    /// Starts one. `None`, said aloud, where it is neither installed nor asked for by `TARN_TEST_S3=1`.
    pub fn start() -> Option<Server> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let asked = std::env::var("TARN_TEST_S3").is_ok_and(|value| value == "1");
        if !asked && !repository.join(".tools/bin/versitygw").exists() {
            eprintln!(
                "skipped: no .tools/bin/versitygw; run tests/servers/versitygw.sh install, or set TARN_TEST_S3=1"
            );
            return None;
        }
        let script = repository.join("tests/servers/versitygw.sh");
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap();
        let mut server = Server { script, dir, port: 0 };
        // Another process may take the port before the server does.
        for _ in 0..5 {
            server.port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if server.launch() {
                return Some(server);
            }
        }
        panic!("versitygw did not start");
    }

    fn launch(&self) -> bool {
        let mut command = Command::new(&self.script);
        command.args(["start", self.dir.path().to_str().unwrap(), &self.port.to_string()]);
        command.envs([("ROOT_ACCESS_KEY_ID", KEY), ("ROOT_SECRET_ACCESS_KEY", SECRET)]);
        command.status().unwrap().success()
    }

    pub fn stop(&self) {
        let _ = Command::new(&self.script).args(["stop", &self.port.to_string()]).status();
    }

    /// Starts it on the same port and directory after [`Server::stop`].
    pub fn start_again(&self) {
        assert!(self.launch(), "versitygw did not start again");
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Makes a bucket and gives its URL, with `prefix` (which starts with a slash, if there is any).
    pub fn bucket(&self, name: &str, prefix: &str) -> String {
        std::fs::create_dir_all(self.dir.path().join(name)).unwrap();
        format!("s3://{name}{prefix}?endpoint={}", self.endpoint())
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

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
