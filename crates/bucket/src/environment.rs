//! The environment variables that say where credentials are, taken once, so that a test can give its own.

use crate::{Error, Result};
use std::collections::HashMap;
use std::path::PathBuf;

/// What variables begin with that matter here: those of the services, of their metadata servers, and `HOME`.
const WANTED: &[&str] = &["AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "IDENTITY_", "MSI_ENDPOINT", "HOME"];

/// Secrets that may be in files, which the variable of the same name with `_FILE` names: so that they can be renewed.
const IN_FILES: &[&str] =
    &["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN", "GOOGLE_BEARER_TOKEN"];

/// Variables and their values. Has no `Debug`, for it holds secrets.
#[derive(Clone, Default)]
pub struct Environment(HashMap<String, String>);

impl Environment {
    /// Those of the process.
    pub fn of_process() -> Environment {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let wanted = |name: &str| WANTED.iter().any(|start| name.starts_with(start));
        Environment(std::env::vars_os().filter_map(text).filter(|(name, _)| wanted(name)).collect())
    }

    pub fn of<const N: usize>(variables: [(&str, &str); N]) -> Environment {
        Environment(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
    }

    /// With these variables too, or instead.
    #[must_use]
    pub fn and(mut self, variables: &[(&str, &str)]) -> Environment {
        self.0.extend(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        self
    }

    /// With the secrets that are in files now.
    pub(crate) fn with_files(&self, url: &str) -> Result<Environment> {
        let mut with = self.clone();
        for name in IN_FILES.iter().filter(|name| self.get(name).is_none()) {
            let Some(file) = self.get(&format!("{name}_FILE")) else { continue };
            let text = std::fs::read_to_string(file).map_err(|e| {
                let why = e.kind();
                Error::Config(format!(
                    "{url}: {file}, which {name}_FILE names, cannot be read: {why}: correct it"
                ))
            })?;
            with.0.insert(name.to_string(), text.trim().to_string());
        }
        Ok(with)
    }

    /// The variable's value, unless it is unset or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Every variable that has a value.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.keys().filter_map(|name| Some((name.as_str(), self.get(name)?)))
    }

    /// The file that `variable` names, or this one below the home directory.
    pub(crate) fn file(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let named = self.get(variable).map(PathBuf::from);
        named.or_else(|| Some(PathBuf::from(self.get("HOME")?).join(below_home)))
    }
}
