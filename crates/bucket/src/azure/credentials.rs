//! Where Azure's account, endpoint and credentials are found: the variables that Azure's own tools use.
//!
//! In this order: the account's key, a workload's identity (`AZURE_FEDERATED_TOKEN_FILE`), a client's secret, a shared
//! access signature, the managed identity of the machine. All but the keys that are looked for here are `object_store`'s
//! to find; it renews what expires.

use crate::environment::Environment;
use crate::url::AzureLocation;
use crate::{Error, Result, Source, web};
use object_store::azure::{AzureAccessKey, AzureConfigKey, MicrosoftAzureBuilder};
use std::collections::HashMap;

/// What opening a container takes.
pub(super) struct Found {
    /// With credentials, account and endpoint.
    pub builder: MicrosoftAzureBuilder,
    pub account: String,
    /// Where the account's containers lie.
    pub endpoint: String,
    pub source: Source,
}

pub(super) fn find(url: &str, location: &AzureLocation, environment: &Environment) -> Result<Found> {
    let environment = &environment.with_files(url)?;
    let connection =
        environment.get("AZURE_STORAGE_CONNECTION_STRING").map(read_connection).unwrap_or_default();
    let of_connection = |name: &str| connection.get(name).map(String::as_str);
    let variable = |names: &[&str]| names.iter().find_map(|name| environment.get(name));
    let account = location.account.as_deref();
    let account = account.or(variable(&["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"]));
    let Some(account) = account.or(of_connection("accountname")) else {
        return Err(Error::Config(format!(
            "{url}: no storage account: add ?account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME"
        )));
    };
    let endpoint = location.terms.endpoint.as_deref();
    let endpoint = endpoint.or(variable(&["AZURE_STORAGE_ENDPOINT"])).or(of_connection("blobendpoint"));
    let endpoint = match endpoint {
        Some(endpoint) => endpoint.trim_end_matches('/').to_string(),
        None => format!("https://{account}.blob.core.windows.net"),
    };
    let mut builder = from_environment(environment);
    let key = variable(&["AZURE_STORAGE_KEY"]).or(of_connection("accountkey"));
    builder = with_missing(builder, AzureConfigKey::AccessKey, key);
    builder = with_missing(builder, AzureConfigKey::SasKey, of_connection("sharedaccesssignature"));
    builder = with_missing(builder, AzureConfigKey::MsiEndpoint, environment.get("IDENTITY_ENDPOINT"));
    check(url, &endpoint, &builder)?;
    let source = source(&builder, environment);
    let builder = builder.with_account(account).with_endpoint(endpoint.clone());
    Ok(Found { builder, account: account.to_string(), endpoint, source })
}

/// Where the builder's credentials come from, by the library's own order.
fn source(builder: &MicrosoftAzureBuilder, environment: &Environment) -> Source {
    use AzureConfigKey as Key;
    let has = |key: Key| builder.get_config_value(&key).is_some();
    let of = |says: &str, variable: &str| match environment.get(&format!("{variable}_FILE")) {
        Some(file) => Source::lasting(&format!("{says} in {file}, read again when it is not taken any more")),
        None => Source::ending(
            &format!("{says} in {variable}"),
            &format!("put it into a file that {variable}_FILE names, which is read again"),
        ),
    };
    if has(Key::Token) {
        of("a token", "AZURE_STORAGE_TOKEN")
    } else if has(Key::AccessKey) {
        Source::lasting("the account's key")
    } else if has(Key::ClientId) && has(Key::AuthorityId) && has(Key::FederatedTokenFile) {
        Source::lasting("a workload's identity, renewed")
    } else if has(Key::ClientId) && has(Key::AuthorityId) && has(Key::ClientSecret) {
        Source::lasting("a client's secret, by which tokens are renewed")
    } else if has(Key::SasKey) {
        of("a shared access signature", "AZURE_STORAGE_SAS_TOKEN")
    } else {
        Source::lasting("the machine's managed identity, renewed")
    }
}

fn from_environment(environment: &Environment) -> MicrosoftAzureBuilder {
    use AzureConfigKey as Key;
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in environment.all().filter(|(name, _)| name.starts_with("AZURE_")) {
        match name.to_ascii_lowercase().parse::<Key>() {
            // The container and where it is are this crate's to say.
            Err(_) | Ok(Key::ContainerName | Key::AccountName | Key::Endpoint | Key::UseEmulator) => {}
            Ok(key) => builder = builder.with_config(key, value),
        }
    }
    builder
}

fn with_missing(
    builder: MicrosoftAzureBuilder,
    key: AzureConfigKey,
    value: Option<&str>,
) -> MicrosoftAzureBuilder {
    match value {
        Some(value) if builder.get_config_value(&key).is_none() => builder.with_config(key, value),
        _ => builder,
    }
}

/// Refuses a key that is none, and to send a token where others can read it.
fn check(url: &str, endpoint: &str, builder: &MicrosoftAzureBuilder) -> Result<()> {
    let key = builder.get_config_value(&AzureConfigKey::AccessKey);
    if key.as_ref().is_some_and(|key| AzureAccessKey::try_new(key).is_err()) {
        return Err(Error::Config(format!(
            "{url}: AZURE_STORAGE_ACCOUNT_KEY is no key: copy it as the portal shows it, in base64"
        )));
    }
    let signs = key.is_some() && builder.get_config_value(&AzureConfigKey::Token).is_none();
    if !signs && web::is_exposed(endpoint) {
        return Err(Error::Config(format!(
            "{url}: tokens would be readable on their way to {endpoint}: use https://, or an account key"
        )));
    }
    Ok(())
}

/// The values of a connection string, `Name=value;Name=value`, by their names in lower case.
fn read_connection(text: &str) -> HashMap<String, String> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_string())).collect()
}

/// Whether a connection string says anything; for tests that give it what no tool would write.
pub(crate) fn parses_connection(text: &str) -> bool {
    let values = read_connection(text);
    values.keys().all(|name| *name == name.to_ascii_lowercase()) && !values.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;

    const KEY: &str = "aHVzaGh1c2g=";

    fn found(name: &str, variables: &[(&str, &str)]) -> Result<(String, String, Option<String>)> {
        let Ok(Location::Azure(location)) = Location::parse(name) else { panic!("{name}") };
        let found = find(name, &location, &Environment::of([]).and(variables))?;
        let shown = format!("{:?}", found.builder);
        assert!(!shown.contains(KEY) && !shown.contains("hush"), "{shown}");
        let key = found.builder.get_config_value(&AzureConfigKey::AccessKey);
        Ok((found.account, found.endpoint, key))
    }

    #[test]
    fn name_then_variables_then_connection_string() {
        let own = "https://one.blob.core.windows.net".to_string();
        let connection = format!("AccountName=three;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:1/three/");
        let variables = [("AZURE_STORAGE_ACCOUNT_NAME", "two"), ("AZURE_STORAGE_KEY", KEY)];
        let one = found("az://c?account=one", &variables).unwrap();
        assert_eq!(one, ("one".into(), own, Some(KEY.into())));
        assert_eq!(found("az://c", &variables).unwrap().0, "two");
        let three = found("az://c", &[("AZURE_STORAGE_CONNECTION_STRING", &connection)]).unwrap();
        assert_eq!(three, ("three".into(), "http://127.0.0.1:1/three".into(), Some(KEY.into())));
    }

    #[test]
    fn what_cannot_be_used_is_said_without_secrets() {
        for (name, variables, part) in [
            ("az://c", ("AZURE_STORAGE_ACCOUNT_KEY", KEY), "no storage account"),
            ("az://c?account=one", ("AZURE_STORAGE_ACCOUNT_KEY", "hush-hush"), "is no key"),
            ("az://c?account=one&endpoint=http://10.0.0.1", ("AZURE_STORAGE_SAS_TOKEN", "sig=hush"), "https"),
        ] {
            let text = found(name, &[variables]).unwrap_err().to_string();
            assert!(text.contains(part) && !text.contains("hush"), "{text}");
        }
    }
}
