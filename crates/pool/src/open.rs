//! Opening buckets: the one place that turns a name into a [`Bucket`].

use crate::label::{self, Found};
use crate::space::Device;
use crate::{Result, usage};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use tarn_bucket::{Bucket, Guarded, Location, OpenOptions};

/// A bucket that was opened.
#[derive(Clone)]
pub(crate) struct Opened {
    pub bucket: Arc<dyn Bucket>,
    /// The bucket's wrapper, for statistics and the deadline.
    pub guarded: Option<Arc<Guarded>>,
    /// The directory, for a bucket that is one, without symbolic links.
    pub local: Option<PathBuf>,
}

/// Opens a bucket and asks it once whether it can be used.
pub(crate) async fn open(url: &str) -> Result<Opened> {
    let location = Location::parse(url)?;
    let guarded = tarn_bucket::open(url, &OpenOptions::default())?;
    guarded.check().await?;
    let local = match location {
        Location::Local(path) => {
            Some(path.canonicalize().map_err(|e| usage(format!("{}: {e}", path.display())))?)
        }
        _ => None,
    };
    let opened = Opened { bucket: guarded.clone(), guarded: Some(guarded), local };
    #[cfg(test)]
    let opened = crate::tests::world::interpose(opened);
    Ok(opened)
}

impl Opened {
    pub fn url(&self) -> &str {
        self.bucket.url()
    }

    /// Number of the file system, for a local directory.
    fn device_number(&self) -> Option<u64> {
        std::fs::metadata(self.local.as_deref()?).ok().map(|m| m.dev())
    }

    /// The device on which it lies: one of `known`, or a new one.
    pub async fn device(&self, known: &mut Vec<Arc<Device>>) -> Result<Arc<Device>> {
        let number = self.device_number();
        if number.is_some()
            && let Some(device) = known.iter().find(|d| d.number == number)
        {
            return Ok(device.clone());
        }
        let device = Device::open(number, self.bucket.clone()).await?;
        known.push(device.clone());
        Ok(device)
    }

    pub async fn label(&self) -> Result<Found> {
        label::read(&*self.bucket).await
    }
}
