//! Authority by numbered epochs in one bucket.
//!
//! `a/{epoch}` is made by create-if-absent and never changed or removed while the pool lives; `a/{epoch}.released`
//! beside it says that its holder let go. Whoever takes the pool makes the epoch that follows the highest there is,
//! so a holder of epoch `n` knows that it was taken over by the existence of `n + 1`: one HEAD.
//!
//! A create whose reply was lost finds its own object at the second try and knows it by its nonce. Two processes
//! of one host would see the same host id in the label; a socket name that the kernel frees with the process keeps
//! them apart.

use super::Authority;
use crate::codec::{frame, unframe};
use crate::config::COUNT_MAX;
use crate::label::HostId;
use crate::text::{format_time, now_ms};
use crate::vdev::Vdev;
use crate::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use tarn_base::{Epoch, PoolGuid};

/// Where epochs lie.
pub(crate) const PREFIX: &str = "a/";
pub(crate) const MAGIC: &[u8; 8] = b"TARNEPOC";
const VERSION: u16 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EpochObject {
    epoch: u64,
    pool: PoolGuid,
    holder: HostId,
    since_ms: i64,
    nonce: u64,
}

impl EpochObject {
    pub fn parse(bytes: &[u8]) -> Option<EpochObject> {
        serde_json::from_slice(unframe(MAGIC, VERSION, bytes).ok()?).ok()
    }

    pub fn to_bytes(&self) -> Result<Bytes> {
        let body =
            serde_json::to_vec(self).map_err(|e| Error::Usage(format!("epoch cannot be written: {e}")))?;
        Ok(frame(MAGIC, VERSION, &body))
    }
}

pub(crate) struct BucketAuthority {
    epoch: Epoch,
    vdev: Arc<Vdev>,
    /// Keeps other processes of this host out.
    socket: Mutex<Option<UnixDatagram>>,
}

/// What is asked for.
pub(crate) struct Claim<'a> {
    pub name: &'a str,
    pub pool: PoolGuid,
    pub host: &'a HostId,
    /// The epoch won is higher than this.
    pub above: Epoch,
    /// Take over from another host that did not let go.
    pub force: bool,
}

fn key(epoch: u64) -> String {
    format!("{PREFIX}{epoch:020}")
}

/// Makes the next epoch; [`Error::Held`] when another host has the pool, or was faster.
pub(crate) async fn acquire(vdev: Arc<Vdev>, claim: &Claim<'_>) -> Result<BucketAuthority> {
    let socket = own_socket(claim)?;
    let objects = vdev.list(PREFIX).await?;
    let names: Vec<_> = objects.iter().filter_map(|o| o.key.strip_prefix(PREFIX)).collect();
    let highest = names.iter().filter_map(|name| name.parse::<u64>().ok()).max();
    if let Some(number) = highest.filter(|number| *number >= COUNT_MAX) {
        return Err(Error::Damaged(format!(
            "{}: {} is no epoch of Tarn's: move it away",
            vdev.url(),
            key(number)
        )));
    }
    if let Some(last) = highest
        && !names.iter().any(|name| name.strip_suffix(".released").and_then(|n| n.parse().ok()) == Some(last))
        && !claim.force
        && let Some(holder) = read(&vdev, last).await?
        && holder.holder.id != claim.host.id
    {
        return Err(held(claim, &holder));
    }
    let epoch = highest.unwrap_or(0).max(claim.above.0) + 1;
    let object = EpochObject {
        epoch,
        pool: claim.pool,
        holder: claim.host.clone(),
        since_ms: now_ms(),
        nonce: rand::random(),
    };
    match vdev.create(&key(epoch), vec![object.to_bytes()?]).await {
        Ok(()) => {}
        Err(Error::Bucket(tarn_bucket::Error::Exists(_))) => match read(&vdev, epoch).await? {
            Some(found) if found.nonce == object.nonce => {}
            Some(found) => return Err(held(claim, &found)),
            None => return Err(Error::Held(format!("pool '{}' was just taken by another host", claim.name))),
        },
        Err(error) => return Err(error),
    }
    Ok(BucketAuthority { epoch: Epoch(epoch), vdev, socket: Mutex::new(Some(socket)) })
}

fn held(claim: &Claim<'_>, by: &EpochObject) -> Error {
    Error::Held(held_text(claim.name, &by.holder, by.since_ms))
}

/// The one line that refuses a pool of another host.
pub(crate) fn held_text(name: &str, holder: &HostId, since_ms: i64) -> String {
    format!(
        "pool '{name}' is in use by host {} (id {:016x}) since {}: export it there, or import it with -f if that \
         host is down for good",
        holder.name,
        holder.id,
        format_time(since_ms)
    )
}

fn own_socket(claim: &Claim<'_>) -> Result<UnixDatagram> {
    let name = format!("tarn-pool-{:016x}-{:016x}", claim.pool.0, claim.host.id);
    SocketAddr::from_abstract_name(name.as_bytes())
        .and_then(|address| UnixDatagram::bind_addr(&address))
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::Held(format!(
                "pool '{}' is in use by another process of this host: unmount and export it there first",
                claim.name
            )),
            _ => Error::Usage(format!("pool '{}' cannot be claimed on this host: {error}", claim.name)),
        })
}

async fn read(vdev: &Vdev, epoch: u64) -> Result<Option<EpochObject>> {
    let key = key(epoch);
    let bytes = match vdev.get_whole(&key).await {
        Ok(bytes) => bytes,
        Err(tarn_bucket::Error::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let found = EpochObject::parse(&bytes);
    found.map(Some).ok_or_else(|| Error::Damaged(format!("{}: {key} is damaged", vdev.url())))
}

#[async_trait::async_trait]
impl Authority for BucketAuthority {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    async fn check(&self) -> Result<()> {
        match self.vdev.head(&key(self.epoch.0 + 1)).await {
            Ok(_) => Err(Error::Fenced),
            Err(tarn_bucket::Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn extend(&self, _: &Vdev) -> Result<()> {
        Ok(())
    }

    fn shrink(&self, _: &Vdev) {}

    async fn release(&self) -> Result<()> {
        let released = self.vdev.put_durable(&format!("{}.released", key(self.epoch.0)), Vec::new()).await;
        self.socket.lock().take();
        released
    }
}
