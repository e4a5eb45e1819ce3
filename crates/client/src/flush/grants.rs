//! Segment numbers: taken from grants, used once, never again.

use crate::client::Client;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tarn_base::{FsError, Grant, SegmentId, VdevId};
use tokio::sync::Mutex as AsyncMutex;

/// A new grant is asked for when this many segments are left.
const LOW: u32 = Grant::SEGMENTS / 4;

#[derive(Default)]
pub(crate) struct Grants {
    by_vdev: Mutex<HashMap<VdevId, Licence>>,
    /// One request at a time.
    asking: AsyncMutex<()>,
}

#[derive(Default)]
struct Licence {
    current: Option<(Grant, u32)>,
    spare: Option<Grant>,
}

impl Licence {
    fn take(&mut self) -> Option<SegmentId> {
        if let Some((grant, seq)) = &mut self.current
            && *seq < Grant::SEGMENTS
        {
            let id = SegmentId { grant: *grant, seq: *seq };
            *seq += 1;
            return Some(id);
        }
        let grant = self.spare.take()?;
        self.current = Some((grant, 1));
        Some(SegmentId { grant, seq: 0 })
    }

    fn is_low(&self) -> bool {
        let left = self.current.map_or(0, |(_, seq)| Grant::SEGMENTS - seq);
        self.spare.is_none() && left < LOW
    }

    fn is_empty(&self) -> bool {
        self.spare.is_none() && self.current.is_none_or(|(_, seq)| seq >= Grant::SEGMENTS)
    }
}

impl Client {
    /// A fresh segment id on the vdev. Whether it is used or not, nobody gets it again.
    pub(super) async fn take_segment(self: &Arc<Self>, vdev: VdevId) -> Result<SegmentId, FsError> {
        loop {
            let (id, low) = {
                let mut vdevs = self.flush.grants.by_vdev.lock();
                let licence = vdevs.entry(vdev).or_default();
                (licence.take(), licence.is_low())
            };
            if let Some(id) = id {
                if low && self.flush.grants.asking.try_lock().is_ok() {
                    let client = self.clone();
                    self.options.runtime.spawn(async move { client.ask_grants(None).await });
                }
                return Ok(id);
            }
            self.ask_grants(Some(vdev)).await?;
        }
    }

    /// Asks for grants of every writable vdev that is low, or at least of `needed`, in one request.
    async fn ask_grants(&self, needed: Option<VdevId>) -> Result<(), FsError> {
        let _one = self.flush.grants.asking.lock().await;
        let mut wanted: Vec<VdevId> = {
            let mut vdevs = self.flush.grants.by_vdev.lock();
            if needed.is_some_and(|v| vdevs.get(&v).is_some_and(|l| !l.is_empty())) {
                return Ok(());
            }
            let writable = self.records.writable_vdevs();
            writable.into_iter().filter(|v| vdevs.entry(*v).or_default().is_low()).collect()
        };
        if let Some(vdev) = needed
            && !wanted.contains(&vdev)
        {
            wanted.push(vdev);
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let grants = self.mds.grants(wanted).wait().await.map_err(|e| self.noted(e))?;
        let mut vdevs = self.flush.grants.by_vdev.lock();
        for grant in grants {
            vdevs.entry(grant.vdev).or_default().spare = Some(grant);
        }
        match needed {
            Some(vdev) if vdevs.get(&vdev).is_none_or(Licence::is_empty) => {
                Err(FsError::Io(format!("no grant to write to vdev {vdev}")))
            }
            _ => Ok(()),
        }
    }
}
