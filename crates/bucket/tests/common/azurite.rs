//! azurite in memory.

use super::Process;
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector};
use tarn_bucket::OpenOptions;
use tarn_bucket::environment::Environment;

pub const ACCOUNT: &str = "tarntest";
/// `a-secret-for-the-test` in base64.
pub const KEY: &str = "YS1zZWNyZXQtZm9yLXRoZS10ZXN0";

pub struct Server(Process);

impl Server {
    /// Starts one, if it is installed or asked for by `TARN_TEST_AZURE=1`.
    pub fn start() -> Option<Server> {
        let environment = vec![("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{KEY}"))];
        let installed = "azurite/node_modules/azurite/package.json";
        Process::start("azurite.sh", installed, "TARN_TEST_AZURE", "-", environment).map(Server)
    }

    fn endpoint(&self) -> String {
        format!("{}/{ACCOUNT}", self.0.endpoint())
    }

    /// Makes a container and gives its URL, with `prefix` (which starts with a slash, if there is any).
    pub async fn container(&self, name: &str, prefix: &str) -> String {
        self.ask("PUT", &format!("/{name}?restype=container"), "").await;
        format!("az://{name}{prefix}?account={ACCOUNT}&endpoint={}", self.endpoint())
    }

    /// A request of the account's owner.
    pub async fn ask(&self, method: &str, place: &str, body: &str) {
        let client = object_store::ClientOptions::new().with_allow_http(true);
        let client = ReqwestConnector::default().connect(&client).unwrap();
        let mut request = HttpRequest::new(HttpRequestBody::from(body.to_string()));
        *request.method_mut() = method.parse().unwrap();
        *request.uri_mut() = format!("{}{place}", self.endpoint()).parse().unwrap();
        request.headers_mut().insert("content-length", body.len().into());
        let credential = AzureCredential::AccessKey(AzureAccessKey::try_new(KEY).unwrap());
        AzureAuthorizer::new(&credential, ACCOUNT).try_authorize(&mut request).unwrap();
        let response = client.execute(request).await.unwrap();
        assert!(response.status().is_success(), "{} {place}: {}", method, response.status());
    }

    /// Options with this server's key.
    pub fn options(&self) -> OpenOptions {
        OpenOptions { environment: with_key(KEY), ..OpenOptions::default() }
    }
}

pub fn with_key(key: &str) -> Environment {
    Environment::of([("AZURE_STORAGE_ACCOUNT_KEY", key)])
}
