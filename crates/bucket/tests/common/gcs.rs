//! fake-gcs-server in memory.

use super::Process;
use tarn_bucket::OpenOptions;
use tarn_bucket::environment::Environment;

pub const TOKEN: &str = "a-token-for-the-test";

pub struct Server(Process);

impl Server {
    /// Starts one, if it is installed or asked for by `TARN_TEST_GCS=1`.
    pub fn start() -> Option<Server> {
        let process = Process::start("fake-gcs.sh", "bin/fake-gcs-server", "TARN_TEST_GCS", "-", Vec::new())?;
        Some(Server(process))
    }

    /// Makes a bucket and gives its URL, with `prefix` (which starts with a slash, if there is any).
    pub fn bucket(&self, name: &str, prefix: &str) -> String {
        self.make(&format!(r#"{{"name":"{name}"}}"#));
        format!("gs://{name}{prefix}?endpoint={}", self.0.endpoint())
    }

    /// Makes a bucket with properties.
    pub fn make(&self, json: &str) {
        let url = format!("{}/storage/v1/b", self.0.endpoint());
        let mut curl = std::process::Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--header", "Content-Type: application/json"]);
        assert!(curl.args(["--data", json, "--output", "/dev/null", &url]).status().unwrap().success());
    }

    /// Options with a token, which the server does not look at.
    pub fn options(&self) -> OpenOptions {
        let environment = Environment::of([("GOOGLE_BEARER_TOKEN", TOKEN)]);
        OpenOptions { environment, ..OpenOptions::default() }
    }
}
