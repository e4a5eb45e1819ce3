//! What is particular to Azure: the texts of its errors, secrets that stay secret, what it keeps.

mod common;

use common::azurite::{KEY, Server, with_key};
use common::refusal;
use tarn_bucket::environment::Environment;
use tarn_bucket::{Bucket, Error, OpenOptions, open};

#[tokio::test]
async fn what_is_wrong_is_said_in_one_line() {
    let Some(server) = Server::start() else { return };
    let (url, options) = (server.container("there", "").await, server.options());
    open(&url, &options).unwrap().check().await.unwrap();
    let with = |environment: Environment| OpenOptions { environment, ..options.clone() };
    let refusal =
        async |url: &str, options: &OpenOptions| refusal(url, options, &[KEY, "hush", "aHVzaA"]).await;

    let error = refusal(&url.replace("//there", "//not-there"), &options).await;
    assert!(matches!(&error, Error::Config(text) if text.contains("no such container")), "{error}");
    let error = refusal(&url, &with(with_key("aHVzaA=="))).await;
    assert!(
        matches!(&error, Error::Credentials(text) if text.contains("AZURE_STORAGE_ACCOUNT_KEY")),
        "{error}"
    );
    let error = refusal(&url.replace("account=tarntest", "account=nobody"), &options).await;
    assert!(matches!(&error, Error::Credentials(text) if text.contains("not accepted")), "{error}");
    let sas =
        Environment::of([("AZURE_STORAGE_SAS_TOKEN", "sv=2023-11-03&sp=r&se=2020-01-01&sr=c&sig=hush")]);
    let error = refusal(&url, &with(sas)).await;
    assert!(matches!(&error, Error::Credentials(_)), "{error}");
    let error = refusal("az://c?account=tarntest&endpoint=http://127.0.0.1:1", &options).await;
    assert!(
        matches!(&error, Error::Io(text) if text.contains("cannot connect to http://127.0.0.1:1")),
        "{error}"
    );
    let nowhere =
        Environment::of([("IDENTITY_ENDPOINT", "http://127.0.0.1:1/metadata/identity/oauth2/token")]);
    let error = refusal(&url, &with(nowhere)).await;
    assert!(matches!(&error, Error::Credentials(text) if text.contains("no credentials")), "{error}");
}

#[tokio::test]
async fn soft_delete_is_told() {
    let Some(server) = Server::start() else { return };
    let bucket = open(&server.container("soft", "").await, &server.options()).unwrap();
    assert_eq!(bucket.keeps().await, None);
    let properties = "<?xml version=\"1.0\" encoding=\"utf-8\"?><StorageServiceProperties><DeleteRetentionPolicy>\
        <Enabled>true</Enabled><Days>7</Days></DeleteRetentionPolicy></StorageServiceProperties>";
    server.ask("PUT", "/?restype=service&comp=properties", properties).await;
    let told = bucket.keeps().await.unwrap();
    assert!(told.contains("soft delete") && told.starts_with("az://soft"), "{told}");
}
