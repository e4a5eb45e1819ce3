//! Where Google's credentials are found: the places that its own tools use, in their order.
//!
//! `GOOGLE_APPLICATION_CREDENTIALS`, then what `gcloud auth application-default login` has left, then the service account
//! of the machine. All of it is `object_store`'s to follow, which renews what expires; `GOOGLE_SKIP_SIGNATURE=true` is
//! for servers that want no credentials.

use super::federation::{External, Federation};
use crate::environment::Environment;
use crate::url::GcsLocation;
use crate::web::{self, Counted, connector, once, options};
use crate::{Error, Result, Source};
use object_store::client::HttpConnector;
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder, GoogleConfigKey};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ENDPOINT: &str = "https://storage.googleapis.com";
/// Where gcloud leaves its own, below its folder.
const WELL_KNOWN: &str = "application_default_credentials.json";

/// The kinds of file that the library follows.
const KINDS: [&str; 2] = ["service_account", "authorized_user"];

#[derive(Deserialize)]
struct File {
    #[serde(rename = "type")]
    kind: String,
}

/// What opening a bucket takes.
pub(super) struct Found {
    /// Gives tokens, unless the store wants none.
    pub provider: Option<GcpCredentialProvider>,
    pub source: Option<Source>,
    /// Where the store is.
    pub endpoint: String,
}

pub(super) fn find(url: &str, location: &GcsLocation, environment: &Environment) -> Result<Found> {
    use GoogleConfigKey as Key;
    let environment = &environment.with_files(url)?;
    let endpoint = location.terms.endpoint.clone().unwrap_or_else(|| ENDPOINT.to_string());
    let mut builder = GoogleCloudStorageBuilder::new().with_bucket_name(&location.bucket);
    for (name, value) in environment.all().filter(|(name, _)| name.starts_with("GOOGLE_")) {
        match name.to_ascii_lowercase().parse::<Key>() {
            // The bucket and where it is are this crate's to say.
            Err(_) | Ok(Key::Bucket | Key::BaseUrl | Key::Client(_)) => {}
            Ok(key) => builder = builder.with_config(key, value),
        }
    }
    if builder.get_config_value(&Key::SkipSignature).is_some_and(|value| value == "true") {
        return Ok(Found { provider: None, source: None, endpoint });
    }
    if web::is_exposed(&endpoint) {
        return Err(Error::Config(format!(
            "{url}: tokens would be readable on their way to {endpoint}: use https://, or GOOGLE_SKIP_SIGNATURE=true \
             where the server wants none"
        )));
    }
    let mut source = source(&builder, environment);
    let others = [Key::ServiceAccount, Key::ServiceAccountKey, Key::BearerToken];
    if others.iter().all(|key| builder.get_config_value(key).is_none())
        && let Some(file) = file(environment)
    {
        let external = check(url, &file)?;
        source = Source::lasting(&format!("{}, read again when it is not taken any more", file.display()));
        if let Some(external) = external {
            let client = options(url, external.token_url(), &location.terms)?;
            let http = connector(Counted::nothing()).connect(&client);
            let http = http.map_err(|e| Error::Config(format!("{url}: {}", web::innermost(&e))))?;
            let provider: GcpCredentialProvider =
                Arc::new(Federation { external, http, last: tokio::sync::Mutex::default() });
            return Ok(Found { provider: Some(provider), source: Some(source), endpoint });
        }
        builder = builder.with_application_credentials(file.display().to_string());
    }
    let client = options(url, ENDPOINT, &location.terms)?;
    let builder = builder
        .with_client_options(client)
        .with_http_connector(connector(Counted::nothing()))
        .with_retry(once());
    // Its words may quote what they are about.
    let store = builder.build().map_err(|_| {
        Error::Config(format!(
            "{url}: the service account's key cannot be used: fetch a new one as JSON, and name its file in \
             GOOGLE_APPLICATION_CREDENTIALS"
        ))
    })?;
    Ok(Found { provider: Some(store.credentials().clone()), source: Some(source), endpoint })
}

/// Where the builder's credentials come from, if it is no file.
fn source(builder: &GoogleCloudStorageBuilder, environment: &Environment) -> Source {
    use GoogleConfigKey as Key;
    let has = |key: Key| builder.get_config_value(&key).is_some();
    match environment.get("GOOGLE_BEARER_TOKEN_FILE") {
        Some(file) if has(Key::BearerToken) => {
            Source::lasting(&format!("a token in {file}, read again when it is not taken any more"))
        }
        None if has(Key::BearerToken) => Source::ending(
            "a token in GOOGLE_BEARER_TOKEN",
            "put it into a file that GOOGLE_BEARER_TOKEN_FILE names, which is read again",
        ),
        _ if has(Key::ServiceAccount) || has(Key::ServiceAccountKey) => {
            Source::lasting("a service account's key, by which tokens are renewed")
        }
        _ => Source::lasting("the machine's service account, renewed"),
    }
}

/// The file that is named, or gcloud's if it is there.
fn file(environment: &Environment) -> Option<PathBuf> {
    if let Some(named) = environment.get("GOOGLE_APPLICATION_CREDENTIALS") {
        return Some(PathBuf::from(named));
    }
    let folder = environment.file("CLOUDSDK_CONFIG", ".config/gcloud")?;
    Some(folder.join(WELL_KNOWN)).filter(|file| file.exists())
}

/// Reads a file, and refuses one that cannot be read or is of a kind that is not followed. Gives what tells of another's
/// tokens; the rest the library reads itself.
fn check(url: &str, file: &Path) -> Result<Option<External>> {
    let shown = file.display();
    let bad = |why: String| {
        Error::Config(format!(
            "{url}: the credentials in {shown} cannot be used: {why}: name a service account's key in \
             GOOGLE_APPLICATION_CREDENTIALS"
        ))
    };
    let text = std::fs::read_to_string(file).map_err(|e| bad(e.kind().to_string()))?;
    match kind(&text) {
        Some(kind) if KINDS.contains(&kind.as_str()) => Ok(None),
        Some(kind) if kind == "external_account" => {
            External::read(&text).map(Some).map_err(|why| bad(why.into()))
        }
        Some(kind) => Err(bad(format!("Tarn does not follow the type {}", web::answer::in_a_line(&kind)))),
        None => Err(bad("it is not JSON with a type".into())),
    }
}

/// What kind of credentials a file holds.
fn kind(text: &str) -> Option<String> {
    serde_json::from_str::<File>(text).ok().map(|file| file.kind)
}

/// Whether a file of credentials has a kind; for tests that give it what no tool would write.
pub(crate) fn parses_file(text: &str) -> bool {
    kind(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;

    fn found(name: &str, variables: &[(&str, &str)]) -> Result<(bool, String)> {
        let Ok(Location::Gcs(location)) = Location::parse(name) else { panic!("{name}") };
        let found = find(name, &location, &Environment::of([]).and(variables))?;
        Ok((found.provider.is_some(), found.endpoint))
    }

    #[test]
    fn a_token_goes_nowhere_that_others_can_read_it() {
        let token = ("GOOGLE_BEARER_TOKEN", "hush");
        assert_eq!(found("gs://b", &[token]).unwrap(), (true, ENDPOINT.into()));
        let here = "gs://b?endpoint=http://127.0.0.1:1";
        assert_eq!(found(here, &[token]).unwrap(), (true, "http://127.0.0.1:1".into()));
        let there = "gs://b?endpoint=http://10.0.0.1:1";
        let text = found(there, &[token]).unwrap_err().to_string();
        assert!(text.contains("https") && !text.contains("hush"), "{text}");
        assert!(!found(there, &[("GOOGLE_SKIP_SIGNATURE", "true")]).unwrap().0);
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key.json");
        let account =
            r#"{"type":"service_account","private_key":"hush","private_key_id":"k","client_email":"e"}"#;
        for (text, part) in [
            (None, "not found"),
            (Some("hush"), "not JSON"),
            (Some(r#"{"type":"external_account","x":"hush"}"#), "external_account"),
            (Some(account), "cannot be used"),
        ] {
            if let Some(text) = text {
                std::fs::write(&file, text).unwrap();
            }
            let named = ("GOOGLE_APPLICATION_CREDENTIALS", file.to_str().unwrap());
            let text = found("gs://b", &[named]).unwrap_err().to_string();
            assert!(text.contains(part) && !text.contains("hush") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn what_gcloud_left_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(".config/gcloud");
        std::fs::create_dir_all(&folder).unwrap();
        let home = Environment::of([("HOME", dir.path().to_str().unwrap())]);
        assert_eq!(file(&home), None);
        std::fs::write(folder.join(WELL_KNOWN), "{}").unwrap();
        assert_eq!(file(&home), Some(folder.join(WELL_KNOWN)));
    }
}
