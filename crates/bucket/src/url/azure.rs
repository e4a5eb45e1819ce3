//! Names of containers at Azure Blob Storage.
//!
//! `az://container/prefix?account=name` is how Tarn writes them. It reads `azure://` for the same, and
//! `abfs[s]://container@account.dfs.core.windows.net/prefix`, which Hadoop's users know.

use super::place::{self, Kind};
use super::terms::Terms;
use crate::{Error, Result};

const KIND: Kind = Kind {
    scheme: "az",
    bucket: "container",
    parameters: &["account"],
    credentials: "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID and its like",
};

/// A container at Azure Blob Storage or a server that speaks its protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AzureLocation {
    pub container: String,
    /// Folder below which Tarn's keys lie, without slashes at its ends; empty for the container's root.
    pub prefix: String,
    /// The storage account; that of the environment if not given.
    pub account: Option<String>,
    /// The endpoint is where the containers lie; Azure's own by account if not given.
    pub terms: Terms,
}

impl AzureLocation {
    pub(super) fn url(&self) -> String {
        let mut parameters = vec![("account", self.account.as_deref())];
        parameters.extend(self.terms.parameters());
        place::write(&KIND, &self.container, &self.prefix, &parameters)
    }
}

/// Parses what follows the scheme.
pub(super) fn parse(rest: &str) -> Result<AzureLocation> {
    let (host, behind) = match rest.find(['/', '?']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (place, of_host) = match host.split_once('@') {
        Some((container, host)) if !container.contains(':') && host.contains('.') => {
            let account = account_of(host)?;
            (place::parse(&KIND, &format!("{container}{behind}"))?, Some(account))
        }
        _ => (place::parse(&KIND, rest)?, None),
    };
    let mut azure = AzureLocation {
        container: place.bucket,
        prefix: place.prefix,
        account: of_host,
        terms: Terms::default(),
    };
    for (name, value) in place.parameters {
        if azure.terms.take(&KIND, &azure.container, &name, &value)? {
            continue;
        }
        match name.as_str() {
            "account" => {
                let account = account(value)?;
                if azure.account.as_ref().is_some_and(|other| *other != account) {
                    let container = &azure.container;
                    return Err(Error::Config(format!(
                        "az://{container}: the name has two accounts: keep one"
                    )));
                }
                azure.account = Some(account);
            }
            unknown => return Err(place::unknown(&KIND, &azure.container, unknown)),
        }
    }
    Ok(azure)
}

/// The account in a host of Azure's.
fn account_of(host: &str) -> Result<String> {
    let suffixes = [".dfs.core.windows.net", ".blob.core.windows.net"];
    match suffixes.iter().find_map(|suffix| host.strip_suffix(suffix)) {
        Some(name) => account(name.to_string()),
        // What stands before the @ may be a secret.
        None => Err(Error::Config(
            "az://: behind the @ stands ACCOUNT.dfs.core.windows.net; for another host write \
             az://container/prefix?account=ACCOUNT&endpoint=https://host"
                .into(),
        )),
    }
}

fn account(name: String) -> Result<String> {
    let good =
        (3..=24).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if good {
        return Ok(name);
    }
    Err(Error::Config(format!(
        "az://: the account {name:?} cannot be one: its name has 3 to 24 lower-case letters and digits"
    )))
}
