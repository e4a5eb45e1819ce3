//! Licences to write segments.

use crate::phys::{GrantPhys, encode};
use crate::{Mdt, key};
use std::sync::Arc;
use tarn_base::point::{self, Point};
use tarn_base::{Answer, Grant, VdevId};

impl Mdt {
    /// One grant for each vdev named. Durable when it is answered: after a crash, a segment that was written but
    /// not committed is found through the grant it belongs to.
    pub fn grants(self: &Arc<Self>, vdevs: Vec<VdevId>) -> Answer<Vec<Grant>> {
        let mdt = self.clone();
        Answer::pending(async move {
            let dataset = mdt.dataset;
            let op = |tx: &mut crate::tx::Tx| {
                // Asked for once more, others are as good.
                tx.unfinished = true;
                let mut grants = Vec::with_capacity(vdevs.len());
                for &vdev in &vdevs {
                    let grant = Grant { vdev, dataset, number: tx.numbers.next_grant };
                    tx.numbers.next_grant += 1;
                    tx.put(key::grant(grant), encode(&GrantPhys { grant, granted_ms: tx.now_ms() }));
                    grants.push(grant);
                }
                Ok(grants)
            };
            let grants = mdt.change_slowly(&op).await?;
            mdt.sync().await?;
            point::pass(Point::GrantDurable);
            Ok(grants)
        })
    }
}
