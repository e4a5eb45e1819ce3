//! A guest of a pool, which reaches its host by calls.

use super::world::*;
use crate::segment::segment_key;
use crate::{Caching, Capacity, Error, Far, FarError, Pool, Reach, VdevState};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tarn_base::{ChecksumKind, Compression, DatasetId, SegmentId, VdevId};

struct Host(Arc<Pool>);

fn failed(error: Error) -> FarError {
    match error {
        Error::Bucket(error) => FarError::Bucket(error),
        _ => FarError::Fenced,
    }
}

#[async_trait::async_trait]
impl Far for Host {
    async fn get(&self, segment: SegmentId, range: Range<u64>) -> Result<Bytes, FarError> {
        self.0.guest_get(segment, range).await.map_err(FarError::Bucket)
    }

    async fn get_tail(&self, segment: SegmentId, len: u64) -> Result<(Bytes, u64), FarError> {
        self.0.guest_get_tail(segment, len).await.map_err(FarError::Bucket)
    }

    async fn put(&self, segment: SegmentId, body: Vec<Bytes>) -> Result<(), FarError> {
        let whole: BytesMut = body.iter().flatten().collect();
        self.0.guest_put(segment, whole.freeze()).await.map_err(failed)
    }

    async fn stored(&self, segment: SegmentId, bytes: u64) -> Result<(), FarError> {
        self.0.guest_stored(segment, bytes).map_err(failed)
    }

    async fn capacity(&self, vdev: VdevId) -> Result<Option<Capacity>, FarError> {
        self.0.guest_capacity(vdev).map_err(failed)
    }
}

/// A guest that has all by way of its host.
async fn guest(host: &Arc<Pool>) -> Arc<Pool> {
    let invitation = host.invitation(DatasetId(1), &BTreeMap::new()).unwrap();
    Pool::guest(&invitation, "there", Arc::new(Host(host.clone())), Reach::Host, 64 << 20).await.unwrap()
}

#[tokio::test]
async fn a_segment_that_is_cut_short_is_damaged_for_a_guest_too() {
    let urls = memory(1);
    let host = create(&urls).await;
    let guest = guest(&host).await;
    let records: Vec<_> = (0..2).map(|n| data(4096, n, false)).collect();
    let id = segment(VdevId(0), 1, 0);
    let ptrs = write(&guest, id, &records, Compression::Off, ChecksumKind::Xxh3).await.unwrap();
    assert!(guest.read(&ptrs, Caching::Bypass).await.unwrap() == records);
    tamper(&urls[0], &segment_key(id), |bytes| bytes.truncate(5000)).await;
    assert_eq!(guest.read(&ptrs[..1], Caching::Bypass).await.unwrap(), records[..1]);
    let error = guest.read(&ptrs[1..], Caching::Bypass).await.unwrap_err();
    assert!(matches!(&error, Error::Damaged(text) if text.contains("cut short")), "{error}");
    let vdev = &guest.status().vdevs[0];
    assert_eq!((vdev.state, vdev.read_errors, vdev.checksum_errors), (VdevState::Online, 0, 1));
    // Whose it was can be told.
    guest.note_lost(&ptrs[1], owner(1), &error);
    let damage = guest.damage();
    assert_eq!((damage.len(), damage[0].owner), (1, Some(owner(1))));
    host.delete_segments(&[id]).await.unwrap();
    assert!(matches!(guest.read(&ptrs[..1], Caching::Bypass).await, Err(Error::Missing(_))));
}

#[tokio::test]
async fn a_guest_may_ask_how_its_vdevs_do() {
    let urls = memory(2);
    let host = create(&urls).await;
    let guest = guest(&host).await;
    guest.probe().await.unwrap();
    let status = guest.status();
    assert!(status.vdevs.iter().all(|vdev| vdev.state == VdevState::Online && vdev.read_errors == 0));
    assert_eq!(status.status, None);
}
