//! Real servers for tests.

#![allow(dead_code)]

pub mod azurite;
pub mod gcs;
pub mod s3;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tarn_bucket::{Bucket, Error, OpenOptions, open};

/// A server that one of `tests/servers` starts and stops. It is stopped when this is dropped.
pub struct Process {
    script: PathBuf,
    port: u16,
    environment: Vec<(&'static str, String)>,
    /// The directory that it serves, or `-` for memory.
    place: String,
}

impl Process {
    /// Starts one. `None`, said aloud, where `.tools/{installed}` is not there and `variable=1` does not ask for it.
    pub fn start(
        name: &str,
        installed: &str,
        variable: &str,
        place: &str,
        environment: Vec<(&'static str, String)>,
    ) -> Option<Process> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let asked = std::env::var(variable).is_ok_and(|value| value == "1");
        if !asked && !repository.join(".tools").join(installed).exists() {
            eprintln!(
                "skipped: no .tools/{installed}; run tests/servers/{name} install, or set {variable}=1"
            );
            return None;
        }
        let script = repository.join("tests/servers").join(name);
        let mut process = Process { script, port: 0, environment, place: place.to_string() };
        // Another process may take the port before the server does.
        for _ in 0..5 {
            process.port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if process.launch() {
                return Some(process);
            }
        }
        panic!("{name}: the server did not start");
    }

    fn launch(&self) -> bool {
        let mut command = Command::new(&self.script);
        command.args(["start", &self.place, &self.port.to_string()]);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.status().unwrap().success()
    }

    pub fn stop(&self) {
        let _ = Command::new(&self.script).args(["stop", &self.port.to_string()]).status();
    }

    /// Starts it on the same port and directory after [`Process::stop`].
    pub fn start_again(&self) {
        assert!(self.launch(), "{}: the server did not start again", self.script.display());
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The one line that `check` and a read and a write give, each quickly, and without any of the secrets.
pub async fn refusal(url: &str, options: &OpenOptions, secrets: &[&str]) -> Error {
    let bucket = open(url, options).unwrap();
    let start = Instant::now();
    let error = bucket.check().await.unwrap_err();
    let shown = format!("{error} {error:?} {bucket:?} {:?}", bucket.stats());
    for secret in secrets {
        assert!(!shown.contains(secret), "{shown}");
    }
    assert!(!error.to_string().contains('\n') && error.to_string().len() < 400, "{error}");
    if !error.is_transient() {
        let read = bucket.get("a/b", 0..9).await.unwrap_err();
        let write = bucket.put("a/b", vec![bytes::Bytes::from_static(b"x")]).await.unwrap_err();
        for other in [read, write] {
            assert_eq!(std::mem::discriminant(&other), std::mem::discriminant(&error), "{other} {error}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    error
}
