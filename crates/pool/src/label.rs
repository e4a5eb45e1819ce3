//! Labels: what every vdev carries of its pool, so that the buckets alone are enough to find and import it.
//!
//! A label is one object, [`KEY`], replaced whole and durably. Every change of the pool's configuration writes all
//! of them with a higher generation; the one with the highest (epoch, generation) counts. The epoch comes first
//! because a holder that was taken over may still have a label write under way: whatever generation it carries,
//! its epoch is lower.
//!
//! Each bucket has a second copy, [`SPARE`], written after the first, so that it is never newer. It is read where the
//! first is gone or damaged, and nowhere else: no one object of a bucket is the only one of its kind. The next change
//! puts the first right again.

use crate::codec::{FrameError, frame, unframe};
use crate::config::PoolConfig;
use crate::vdev::{Vdev, get_whole};
use crate::{Error, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tarn_base::VdevGuid;
use tarn_bucket::Bucket;

/// The label's object key.
pub(crate) const KEY: &str = "tarn/label";
/// The key of its second copy.
pub(crate) const SPARE: &str = "tarn/spare-label";
pub(crate) const MAGIC: &[u8; 8] = b"TARNLABL";
/// The label format that this program writes, and the newest that it reads.
pub const LABEL_VERSION: u16 = 1;

/// A host, as far as pools are concerned.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostId {
    /// Random, kept by the host; two hosts must not have the same.
    pub id: u64,
    /// For people.
    pub name: String,
}

/// What became of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LabelState {
    /// In use by the holder, or left so by its crash.
    Active,
    Exported,
    /// Being deleted.
    Destroyed,
}

/// Names of format features in use, in zpool's three classes. A name is added before the first byte that needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Features {
    /// Who does not know them may read and write.
    #[serde(default)]
    pub compatible: Vec<String>,
    /// Who does not know them may only read.
    #[serde(default)]
    pub read_only_compatible: Vec<String>,
    /// Who does not know them may do nothing.
    #[serde(default)]
    pub incompatible: Vec<String>,
}

impl Features {
    /// Features that keep this program from importing the pool; it knows none beyond version 1 as yet.
    fn unknown(&self) -> impl Iterator<Item = &String> {
        self.incompatible.iter().chain(&self.read_only_compatible)
    }
}

/// One vdev's label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Label {
    pub pool: PoolConfig,
    /// The vdev that carries this label.
    pub vdev: VdevGuid,
    pub state: LabelState,
    /// Who holds or held it.
    #[serde(default)]
    pub holder: Option<HostId>,
    /// Since when it is held, milliseconds since 1970.
    #[serde(default)]
    pub held_since_ms: i64,
    #[serde(default)]
    pub features: Features,
    #[serde(default)]
    pub written_ms: i64,
}

impl Label {
    /// What decides which of two labels counts.
    pub fn rank(&self) -> (u64, u64) {
        (self.pool.epoch.0, self.pool.generation)
    }

    /// Why this program must not import the pool, in one line.
    pub fn feature_problem(&self) -> Option<String> {
        let unknown: Vec<_> = self.features.unknown().map(String::as_str).collect();
        (!unknown.is_empty()).then(|| {
            format!(
                "pool '{}' uses features that this version of Tarn does not know: {}: use a newer one",
                self.pool.name,
                unknown.join(", ")
            )
        })
    }

    pub fn to_bytes(&self) -> Result<Bytes> {
        let body =
            serde_json::to_vec(self).map_err(|e| Error::Usage(format!("label cannot be written: {e}")))?;
        Ok(frame(MAGIC, LABEL_VERSION, &body))
    }
}

/// What a bucket carries at the label's place.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    None,
    Label(Box<Label>),
    /// What was a label, or something else; the text says so, in one line.
    Damaged(String),
    /// Something that cannot be used; the text says why, in one line.
    Unusable(String),
}

/// The keys of both copies, in the order in which they are deleted: where the first copy is gone, both are.
pub(crate) fn keys() -> [String; 2] {
    [SPARE.to_string(), KEY.to_string()]
}

/// Writes a bucket's label: done when both copies are durable.
pub(crate) async fn write(vdev: &Vdev, label: &Label) -> Result<()> {
    let bytes = label.to_bytes()?;
    for key in [KEY, SPARE] {
        vdev.put_durable_hasty(key, vec![bytes.clone()]).await?;
    }
    Ok(())
}

/// Reads a bucket's label: its second copy where the first cannot be used.
pub(crate) async fn read(bucket: &dyn Bucket) -> Result<Found> {
    let first = read_copy(bucket, KEY).await?;
    // What can be read, but is of a newer Tarn, says what holds.
    if !matches!(first, Found::None | Found::Damaged(_)) {
        return Ok(first);
    }
    let spare = read_copy(bucket, SPARE).await?;
    if let Found::Label(_) = spare {
        tracing::warn!("{}: its label is gone or damaged: the second copy is taken", bucket.url());
    }
    Ok(if let Found::None = spare { first } else { spare })
}

/// Whether both copies of a bucket's label can be read and are as new as `config`. An error where one is another pool's: it
/// must not be written over.
pub(crate) async fn is_whole(bucket: &dyn Bucket, config: &PoolConfig) -> Result<bool> {
    for key in [KEY, SPARE] {
        match read_copy(bucket, key).await? {
            Found::Label(label) if label.pool.guid != config.guid => {
                let (url, other) = (bucket.url(), label.pool.name);
                return Err(Error::Held(format!("{url} has been taken into another pool, '{other}'")));
            }
            Found::Label(label) if label.rank() >= (config.epoch.0, config.generation) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

async fn read_copy(bucket: &dyn Bucket, key: &str) -> Result<Found> {
    match get_whole(bucket, key).await {
        Ok(bytes) => Ok(parse(bucket.url(), &bytes)),
        Err(tarn_bucket::Error::NotFound(_)) => Ok(Found::None),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn parse(url: &str, bytes: &[u8]) -> Found {
    let body = match unframe(MAGIC, LABEL_VERSION, bytes) {
        Ok(body) => body,
        Err(FrameError::Newer(version)) => {
            return Found::Unusable(format!(
                "{url}: its label has format {version}, and this Tarn reads up to {LABEL_VERSION}: use a newer one"
            ));
        }
        Err(FrameError::Damaged) => return Found::Damaged(format!("{url}: its label is damaged")),
    };
    let problem = match serde_json::from_slice::<Label>(body) {
        Ok(label) => match label.pool.problem() {
            None => return Found::Label(Box::new(label)),
            Some(problem) => problem,
        },
        Err(error) => error.to_string(),
    };
    Found::Unusable(format!("{url}: its label cannot be understood: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_of_a_newer_format_is_refused_in_one_line() {
        let Found::Unusable(text) = parse("/d1", &frame(MAGIC, 2, b"{}")) else { panic!() };
        assert!(text.contains("format 2") && !text.contains('\n'), "{text}");
        assert!(matches!(parse("/d1", &frame(MAGIC, 1, b"{}")), Found::Unusable(_)));
        assert!(matches!(parse("/d1", b"junk"), Found::Damaged(_)));
    }
}
