//! Where S3 credentials, region and endpoint are found: the places that the AWS tools use, in their order.
//!
//! What the bucket's name says comes first, then the environment (`AWS_*`), then the profile files
//! (`~/.aws/credentials` and `~/.aws/config`, by `AWS_PROFILE`), then web identity, container and instance
//! metadata, which `object_store` asks by itself. Secrets stay in the types of `object_store`, whose `Debug`
//! hides them, and in [`Profile`], which has none. All of it is looked at again when the store does not take what was
//! found, so that files may be rewritten at any time.

use crate::environment::Environment;
use crate::url::S3Location;
use crate::web;
use crate::{Error, Result, Source};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use std::collections::HashMap;

/// What the profile files say of one profile. Has no `Debug`, for it holds secrets.
#[derive(Default)]
struct Profile(HashMap<String, String>);

impl Profile {
    fn load(environment: &Environment, name: &str) -> Profile {
        let mut values = HashMap::new();
        let section = if name == "default" { name.to_string() } else { format!("profile {name}") };
        let files = [
            (environment.file("AWS_CONFIG_FILE", ".aws/config"), section.as_str()),
            (environment.file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"), name),
        ];
        for (file, section) in files {
            if let Some(text) = file.and_then(|path| std::fs::read_to_string(path).ok()) {
                values.extend(read_section(&text, section));
            }
        }
        Profile(values)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// The values of one `[section]`. Indented lines belong to a value that Tarn does not use.
fn read_section(text: &str, section: &str) -> HashMap<String, String> {
    let mut values = HashMap::new();
    let mut inside = false;
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        if let Some(name) = line.trim_end().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = name.split_whitespace().eq(section.split_whitespace());
        } else if let (true, Some((name, value))) = (inside, line.split_once('=')) {
            values.insert(name.trim().to_ascii_lowercase(), value.trim().to_string());
        }
    }
    values
}

/// What a profile file says of the profile `default`; for tests that give it what no tool would write.
pub(crate) fn parses_profile(text: &str) -> bool {
    let values = read_section(text, "default");
    values.keys().all(|name| *name == name.to_ascii_lowercase()) && !values.is_empty()
}

/// What opening a bucket takes.
pub(super) struct Found {
    /// With credentials, region, place and style.
    pub builder: AmazonS3Builder,
    pub region: String,
    /// The store's URL, for messages.
    pub endpoint: String,
    /// The bucket's URL.
    pub place: String,
    pub source: Source,
}

pub(super) fn find(url: &str, location: &S3Location, environment: &Environment) -> Result<Found> {
    let named = location.profile.as_deref();
    let name = named.or(environment.get("AWS_PROFILE")).unwrap_or("default");
    let profile = Profile::load(environment, name);
    if named.is_some() && profile.0.is_empty() {
        return Err(Error::Config(format!(
            "{url}: no profile {name} in ~/.aws/credentials or ~/.aws/config"
        )));
    }
    let mut builder = from_environment(environment, named.is_some());
    let in_environment = named.is_none() && keys_in_environment(url, environment)?;
    if !in_environment {
        builder = with_profile(builder, url, name, &profile, named.is_some())?;
    }
    let region = location.region.as_deref();
    if let Some(region) = region.or(match builder.get_config_value(&AmazonS3ConfigKey::Region) {
        Some(_) => None,
        None => profile.get("region"),
    }) {
        builder = builder.with_region(region);
    }
    let of_environment = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = location
        .terms
        .endpoint
        .as_deref()
        .or_else(|| of_environment.iter().find_map(|variable| environment.get(variable)))
        .or_else(|| profile.get("endpoint_url"));
    let source = source(&builder, in_environment, name);
    Ok(with_endpoint(builder, location, endpoint, source))
}

/// Whether the environment has keys. One without the other is a mistake.
fn keys_in_environment(url: &str, environment: &Environment) -> Result<bool> {
    const NAMES: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let (set, unset) = match NAMES.map(|name| environment.get(name).is_some()) {
        [true, true] => return Ok(true),
        [false, false] => return Ok(false),
        [true, false] => (NAMES[0], NAMES[1]),
        [false, true] => (NAMES[1], NAMES[0]),
    };
    Err(Error::Config(format!(
        "{url}: {set} is set, and {unset} is not: set both, or neither to use ~/.aws/credentials or the host's role"
    )))
}

/// Where the builder's credentials come from, by the library's own order.
fn source(builder: &AmazonS3Builder, of_environment: bool, profile: &str) -> Source {
    use AmazonS3ConfigKey as Key;
    let has = |key: Key| builder.get_config_value(&key).is_some();
    if of_environment && has(Key::Token) {
        let instead = "put them into ~/.aws/credentials, which is read again";
        return Source::ending("temporary keys in the environment", instead);
    }
    Source::lasting(&match () {
        () if of_environment => "keys in the environment".to_string(),
        () if has(Key::AccessKeyId) => {
            format!("profile {profile}, read again when its keys are not taken any more")
        }
        () if has(Key::WebIdentityTokenFile) && has(Key::RoleArn) => "a web identity, renewed".into(),
        () if has(Key::ContainerCredentialsRelativeUri) || has(Key::ContainerCredentialsFullUri) => {
            "the container's role, renewed".into()
        }
        () => "the instance's role, renewed".into(),
    })
}

fn from_environment(environment: &Environment, without_credentials: bool) -> AmazonS3Builder {
    use AmazonS3ConfigKey as Key;
    let mut builder = AmazonS3Builder::new();
    for (name, value) in environment.all().filter(|(name, _)| name.starts_with("AWS_")) {
        match name.to_ascii_lowercase().parse::<Key>() {
            // The bucket and where it is are this crate's to say.
            Err(_) | Ok(Key::Bucket | Key::Endpoint | Key::S3Endpoint | Key::VirtualHostedStyleRequest) => {}
            Ok(Key::AccessKeyId | Key::SecretAccessKey | Key::Token) if without_credentials => {}
            Ok(key) => builder = builder.with_config(key, value),
        }
    }
    builder
}

fn with_profile(
    builder: AmazonS3Builder,
    url: &str,
    name: &str,
    profile: &Profile,
    must: bool,
) -> Result<AmazonS3Builder> {
    let keys = ["aws_access_key_id", "aws_secret_access_key"];
    let found = keys.map(|key| profile.get(key));
    if let [Some(key), Some(secret)] = found {
        let builder = builder.with_access_key_id(key).with_secret_access_key(secret);
        return Ok(match profile.get("aws_session_token") {
            Some(token) => builder.with_token(token),
            None => builder,
        });
    }
    let foreign =
        ["sso_session", "sso_start_url", "credential_process", "source_profile", "credential_source"];
    match foreign.into_iter().find(|way| profile.get(way).is_some()) {
        Some(way) => Err(Error::Config(format!(
            "{url}: profile {name} uses {way}, which Tarn does not follow: put keys into the environment with \
             `aws configure export-credentials --profile {name} --format env`"
        ))),
        None if must || found.iter().any(Option::is_some) => {
            let missing = if found[0].is_none() { keys[0] } else { keys[1] };
            Err(Error::Config(format!(
                "{url}: profile {name} has no {missing}: add it to ~/.aws/credentials"
            )))
        }
        None => Ok(builder),
    }
}

/// Sets where the bucket is. With an endpoint of its own it is named in the path, unless the name says
/// otherwise; at AWS it is named in the host, unless dots in it would break TLS.
fn with_endpoint(
    builder: AmazonS3Builder,
    location: &S3Location,
    endpoint: Option<&str>,
    source: Source,
) -> Found {
    let virtual_host = location.virtual_host.unwrap_or(endpoint.is_none() && !location.bucket.contains('.'));
    let mut builder = builder
        .with_bucket_name(&location.bucket)
        .with_virtual_hosted_style_request(virtual_host)
        .with_unsigned_payload(
            location.unsigned_payload.unwrap_or_else(|| !endpoint.is_some_and(web::is_exposed)),
        );
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region).unwrap_or_else(|| "us-east-1".into());
    let shown = endpoint.map_or_else(|| format!("https://s3.{region}.amazonaws.com"), str::to_string);
    let place = match shown.split_once("://") {
        Some((scheme, host)) if virtual_host => format!("{scheme}://{}.{host}", location.bucket),
        _ => shown.clone(),
    };
    if let Some(endpoint) = endpoint {
        builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(place.clone());
    }
    let place = if virtual_host { place } else { format!("{place}/{}", location.bucket) };
    Found { builder, region, endpoint: shown, place, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;

    const FILES: &str = "[default]\naws_access_key_id = DEF\naws_secret_access_key=defsecret\n\n[lab]\n\
        # a comment\naws_access_key_id=LAB\naws_secret_access_key = labsecret\naws_session_token=labtoken\n\
        s3 =\n  aws_access_key_id = nested\n[sso]\nsso_session=x\n\
        [half]\naws_access_key_id=HALF\n[none]\nregion=x\n";
    const CONFIG: &str = "[default]\nregion=eu-north-1\n[profile lab]\nregion = eu-west-3\n\
        endpoint_url = http://lab:9000\n";

    async fn found(name: &str, extra: &[(&str, &str)]) -> Result<(String, String, String)> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".aws")).unwrap();
        std::fs::write(dir.path().join(".aws/credentials"), FILES).unwrap();
        std::fs::write(dir.path().join(".aws/config"), CONFIG).unwrap();
        let environment = Environment::of([("HOME", dir.path().to_str().unwrap())]).and(extra);
        let Ok(Location::S3(location)) = Location::parse(name) else { panic!("{name}") };
        let Found { builder, region, endpoint, .. } = find(name, &location, &environment)?;
        let store = builder.build().unwrap();
        let credential = store.credentials().get_credential().await.unwrap();
        for shown in [format!("{store:?}"), format!("{credential:?}")] {
            for secret in ["labsecret", "defsecret", "envsecret", "labtoken"] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
        Ok((credential.key_id.clone(), region, endpoint))
    }

    #[tokio::test]
    async fn name_then_environment_then_profile() {
        let text = |a: &str, b: &str, c: &str| (a.to_string(), b.to_string(), c.to_string());
        let keys = [("AWS_ACCESS_KEY_ID", "ENV"), ("AWS_SECRET_ACCESS_KEY", "envsecret")];
        let north = "https://s3.eu-north-1.amazonaws.com";
        assert_eq!(found("s3://b", &[]).await.unwrap(), text("DEF", "eu-north-1", north));
        let lab = text("LAB", "eu-west-3", "http://lab:9000");
        assert_eq!(found("s3://b", &[("AWS_PROFILE", "lab")]).await.unwrap(), lab);
        assert_eq!(found("s3://b?profile=lab", &keys).await.unwrap(), lab);
        let env = found("s3://b", &[keys[0], keys[1], ("AWS_REGION", "r")]).await.unwrap();
        assert_eq!(env, text("ENV", "r", "https://s3.r.amazonaws.com"));
        let named = "s3://b?region=x&endpoint=http://h:1";
        let all = [keys[0], keys[1], ("AWS_REGION", "r"), ("AWS_ENDPOINT_URL_S3", "http://e")];
        assert_eq!(found(named, &all).await.unwrap(), text("ENV", "x", "http://h:1"));
    }

    #[tokio::test]
    async fn profiles_that_cannot_be_used_are_named() {
        for (name, part) in [
            ("s3://b?profile=nobody", "no profile nobody"),
            ("s3://b?profile=sso", "sso_session"),
            ("s3://b?profile=half", "no aws_secret_access_key: add"),
            ("s3://b?profile=none", "no aws_access_key_id: add"),
        ] {
            let error = found(name, &[]).await.unwrap_err();
            assert!(matches!(&error, Error::Config(text) if text.contains(part)), "{error}");
        }
        let error = found("s3://b", &[("AWS_PROFILE", "half")]).await.unwrap_err();
        assert!(error.to_string().contains("profile half has no aws_secret_access_key"), "{error}");
    }

    #[tokio::test]
    async fn one_key_of_two_is_a_mistake() {
        let keys = [("AWS_ACCESS_KEY_ID", "ENV"), ("AWS_SECRET_ACCESS_KEY", "envsecret")];
        let names = [
            "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not",
            "AWS_ACCESS_KEY_ID is not: set both",
        ];
        for (key, part) in keys.into_iter().zip(names) {
            let error = found("s3://b", &[key]).await.unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("envsecret"), "{error}");
            assert_eq!(found("s3://b?profile=lab", &[key]).await.unwrap().0, "LAB");
        }
    }
}
