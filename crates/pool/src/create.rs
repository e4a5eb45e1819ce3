//! Making a pool, adding vdevs to it, and destroying it.
//!
//! # Nothing half made
//! A vdev joins a pool by its label. Before that, each bucket gets a *claim*, made by create-if-absent: two commands
//! that are given one bucket at once cannot both have it, and one command that is given one bucket under two names
//! finds its own claim. A bucket is looked at once more when it is claimed: another command may have been faster.
//! Labels are written last. When anything fails, what was made is taken away again; if even
//! that cannot be done, the claim stays, and says so to the next command.
//!
//! The label of a vdev that could not be added is taken away only when no label of the pool can name that vdev any more:
//! a pool of which one vdev is not to be found cannot be imported.

use crate::authority::{Authority, Gate, bucket, host};
use crate::codec::{frame, unframe};
use crate::config::{DatasetConfig, PoolConfig, VdevConfig, name_problem};
use crate::label::{self, Features, Found, HostId, LabelState};
use crate::open::{Opened, open};
use crate::pool::Parts;
use crate::props::check_property;
use crate::space::Device;
use crate::text::now_ms;
use crate::vdev::{Vdev, get_whole};
use crate::{Error, Pool, Result, usage};
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_base::{DatasetId, Epoch, PoolGuid, VdevGuid, VdevId};

const CLAIM: &str = "tarn/claim";
pub(crate) const CLAIM_MAGIC: &[u8; 8] = b"TARNCLAI";
/// Everything that Tarn writes into a bucket lies below these.
pub(crate) const PREFIXES: [&str; 4] = ["d/", "m/", "h/", "a/"];
/// Bytes of the ARC of a pool that was just made.
const DEFAULT_MEMORY: u64 = 256 << 20;

/// What to make.
#[derive(Debug, Clone)]
pub struct CreateSpec {
    pub name: String,
    /// Buckets, in order: they become vdevs 0, 1, ...
    pub urls: Vec<String>,
    /// Pool properties.
    pub properties: BTreeMap<String, String>,
    /// Properties of the pool's own dataset; checked by whoever knows them.
    pub root_properties: BTreeMap<String, String>,
    pub host: HostId,
    /// Take buckets that hold a pool which nobody uses, and delete what it had there.
    pub force: bool,
}

impl Pool {
    /// Makes a pool, with its own dataset (id 1), and holds it. Nothing is left behind on failure.
    pub async fn create(spec: CreateSpec) -> Result<Arc<Pool>> {
        if let Some(problem) = name_problem(&spec.name) {
            return Err(usage(problem));
        }
        if spec.urls.is_empty() {
            return Err(usage("a pool needs at least one bucket"));
        }
        for (name, value) in &spec.properties {
            check_property(name, value, true)?;
        }
        let opened = open_all(&spec.urls).await?;
        let mut free = Vec::new();
        for bucket in opened {
            check_free(&bucket, spec.force).await?;
            free.push((VdevGuid(random_guid()), bucket));
        }
        let claimed = claim_all(&free, &spec.host, spec.force).await?;
        let made = create_on(&spec, free).await;
        unclaim(&claimed).await;
        made
    }

    /// Adds buckets as vdevs: new writes use them at once, no data moves. Gives their ids.
    pub async fn add_vdevs(&self, urls: &[String], force: bool) -> Result<Vec<VdevId>> {
        if urls.is_empty() {
            return Err(usage("name at least one bucket to add"));
        }
        let mut free = Vec::new();
        for bucket in open_all(urls).await? {
            let same =
                |v: &&Arc<Vdev>| v.url() == bucket.url() || (v.local.is_some() && v.local == bucket.local);
            if let Some(vdev) = self.vdevs().iter().find(same) {
                return Err(usage(format!("{} is vdev {} of this pool already", bucket.url(), vdev.id)));
            }
            check_free(&bucket, force).await?;
            free.push((VdevGuid(random_guid()), bucket));
        }
        let claimed = claim_all(&free, &self.host, force).await?;
        let added = self.add_claimed(free).await;
        unclaim(&claimed).await;
        added
    }

    async fn add_claimed(&self, free: Vec<(VdevGuid, Opened)>) -> Result<Vec<VdevId>> {
        // An earlier command may have left labels that name what is in the buckets now.
        self.settle_config().await?;
        let mut devices: Vec<Arc<Device>> = self.vdevs().iter().map(|v| v.device.clone()).collect();
        let first = self.config().next_vdev;
        if usize::from(u16::MAX - first) < free.len() {
            return Err(usage("a pool has at most 65535 vdevs"));
        }
        let mut new = Vec::new();
        for (n, (guid, opened)) in free.into_iter().enumerate() {
            let device = opened.device(&mut devices).await?;
            new.push(Arc::new(Vdev::new(VdevId(first + n as u16), guid, opened, device)));
        }
        self.refuse_own(&new).await?;
        let locks = self.lock_out(&new).await?;
        // The labels are the former pools' until all is deleted.
        if let Err(error) = try_join_all(new.iter().map(|vdev| make_empty(vdev))).await {
            new.iter().for_each(|vdev| self.gate.shrink(vdev));
            return Err(error);
        }
        let enter = |config: &mut PoolConfig| {
            if config.next_vdev != first {
                return Err(usage("vdevs were added by another command at the same time: try again"));
            }
            config.vdevs.extend(vdev_configs(&new));
            config.next_vdev += new.len() as u16;
            Ok(())
        };
        if let Err(error) = self.commit_config(enter, &new).await {
            self.leave_out(&new).await;
            return Err(error);
        }
        drop(locks);
        self.set_vdevs(self.vdevs().iter().chain(&new).cloned().collect());
        self.apply_properties();
        Ok(new.iter().map(|vdev| vdev.id).collect())
    }

    /// Has the authority cover vdevs that are to join, all or none. An authority in a bucket does not say whether another
    /// pool is running on this host's disks: the locks given do.
    async fn lock_out(&self, new: &[Arc<Vdev>]) -> Result<Option<host::HostAuthority>> {
        for (n, vdev) in new.iter().enumerate() {
            if let Err(error) = self.gate.extend(vdev).await {
                new[..n].iter().for_each(|vdev| self.gate.shrink(vdev));
                return Err(error);
            }
        }
        let config = self.config();
        match config.properties.get("authority").map_or("host", String::as_str) {
            "host" => Ok(None),
            _ => host_lock(&config, new, &self.host),
        }
    }

    /// Refuses buckets whose labels say that they are vdevs of this pool, under whatever name.
    async fn refuse_own(&self, new: &[Arc<Vdev>]) -> Result<()> {
        for vdev in new {
            if let Found::Label(label) = label::read(&*vdev.bucket).await?
                && label.pool.guid == self.guid
                && let Some(own) = self.vdevs().iter().find(|v| v.guid == label.vdev)
            {
                return Err(usage(format!("{} is vdev {} of this pool already", vdev.url(), own.id)));
            }
        }
        Ok(())
    }

    /// Takes back what a failed addition has made: labels, unless one of the pool's may name these vdevs, and locks.
    async fn leave_out(&self, new: &[Arc<Vdev>]) {
        match self.settle_config().await {
            Ok(()) => {
                let keys = label::keys();
                for (vdev, deleted) in
                    new.iter().zip(join_all(new.iter().map(|vdev| vdev.delete(&keys))).await)
                {
                    if let Err(error) = deleted {
                        tracing::warn!("{}: a label is left behind: {error}", vdev.url());
                    }
                }
                host::forget(new);
            }
            Err(error) => {
                for vdev in new {
                    tracing::warn!("{}: its label stays, the pool may count on it: {error}", vdev.url());
                }
            }
        }
        for vdev in new {
            self.gate.shrink(vdev);
        }
    }

    /// Deletes every object of the pool in every bucket, labels last, and lets go of it. The labels first say that
    /// the pool is being destroyed, so that what a crash leaves cannot be imported.
    pub async fn destroy(&self) -> Result<()> {
        let generation = {
            let mut generation = self.generation.lock().await;
            *generation += 1;
            *generation
        };
        self.gate.check(true).await?;
        let config = PoolConfig { generation, epoch: self.gate.epoch(), ..(*self.config()).clone() };
        let vdevs = self.vdevs();
        self.write_labels(&config, LabelState::Destroyed, &vdevs, vdevs.len()).await?;
        self.destroy_caches().await;
        try_join_all(vdevs.iter().map(|vdev| clear(vdev))).await?;
        host::forget(&vdevs);
        self.gate.release().await?;
        try_join_all(vdevs.iter().map(|vdev| async move {
            let mut keys: Vec<String> = vdev.list("a/").await?.into_iter().map(|o| o.key).collect();
            keys.extend(label::keys());
            vdev.delete(&keys).await?;
            vdev.sync().await
        }))
        .await
        .map(drop)
    }
}

/// Deletes what a pool has in a bucket, except its epochs and label.
async fn clear(vdev: &Vdev) -> Result<()> {
    for prefix in PREFIXES.iter().filter(|p| **p != bucket::PREFIX) {
        let keys: Vec<String> = vdev.list(prefix).await?.into_iter().map(|o| o.key).collect();
        if !keys.is_empty() {
            vdev.delete(&keys).await?;
        }
    }
    vdev.sync().await
}

/// Deletes all that a former pool has left in a bucket. Without force that is at most the label of one that was
/// destroyed. Whoever might use the bucket is locked out.
async fn make_empty(vdev: &Vdev) -> Result<()> {
    clear(vdev).await?;
    let mut old: Vec<String> = vdev.list(bucket::PREFIX).await?.into_iter().map(|o| o.key).collect();
    old.extend(label::keys());
    vdev.delete(&old).await
}

/// A new identity; 0 is nobody's.
fn random_guid() -> u64 {
    rand::random_range(1..=u64::MAX)
}

fn vdev_configs(vdevs: &[Arc<Vdev>]) -> impl Iterator<Item = VdevConfig> {
    let added_ms = now_ms();
    vdevs.iter().map(move |v| VdevConfig { id: v.id, guid: v.guid, url: v.url().to_string(), added_ms })
}

async fn open_all(urls: &[String]) -> Result<Vec<Opened>> {
    let opened: Vec<Opened> = try_join_all(urls.iter().map(|url| open(url))).await?;
    for (n, a) in opened.iter().enumerate() {
        for b in &opened[..n] {
            if a.url() == b.url() || (a.local.is_some() && a.local == b.local) {
                return Err(usage(format!("{} and {} are the same bucket: name it once", b.url(), a.url())));
            }
        }
    }
    Ok(opened)
}

/// Refuses a bucket that holds a pool or what is left of one; with force, what nobody uses is deleted later.
async fn check_free(bucket: &Opened, force: bool) -> Result<()> {
    let url = bucket.url();
    match bucket.label().await? {
        Found::None => {}
        Found::Label(label) if label.state == LabelState::Destroyed => {}
        Found::Label(_) | Found::Damaged(_) | Found::Unusable(_) if force => {}
        Found::Label(label) => {
            let state = match label.state {
                LabelState::Exported => "exported",
                _ => "active",
            };
            return Err(usage(format!(
                "{url} is part of {state} pool '{}': import that pool, or use -f to take the bucket and lose it",
                label.pool.name
            )));
        }
        Found::Damaged(problem) | Found::Unusable(problem) => {
            return Err(usage(format!("{problem}; use -f to take the bucket and lose what it holds")));
        }
    }
    if !force {
        for prefix in PREFIXES {
            if !bucket.bucket.list_page(prefix, None).await?.objects.is_empty() {
                return Err(usage(format!(
                    "{url} holds objects of a former pool (below {prefix}): use -f to delete them"
                )));
            }
        }
    }
    Ok(())
}

/// Claims every bucket, or none.
async fn claim_all(free: &[(VdevGuid, Opened)], host: &HostId, force: bool) -> Result<Vec<Opened>> {
    let mut claimed: Vec<(VdevGuid, Opened)> = Vec::new();
    for (guid, opened) in free {
        let mut result = claim(*guid, opened, &claimed, host, force).await;
        if result.is_ok() {
            claimed.push((*guid, opened.clone()));
            result = check_free(opened, force).await;
        }
        if let Err(error) = result {
            let done: Vec<Opened> = claimed.into_iter().map(|(_, opened)| opened).collect();
            unclaim(&done).await;
            return Err(error);
        }
    }
    Ok(claimed.into_iter().map(|(_, opened)| opened).collect())
}

/// Which vdev a bucket is to be, who takes it, and when.
type Claim = (VdevGuid, HostId, i64);

pub(crate) fn parse_claim(bytes: &[u8]) -> Option<Claim> {
    serde_json::from_slice(unframe(CLAIM_MAGIC, 1, bytes).ok()?).ok()
}

pub(crate) fn claim_bytes(claim: &Claim) -> Result<Bytes> {
    let text = serde_json::to_vec(claim).map_err(|e| usage(e.to_string()))?;
    Ok(frame(CLAIM_MAGIC, 1, &text))
}

async fn claim(
    guid: VdevGuid,
    opened: &Opened,
    claimed: &[(VdevGuid, Opened)],
    host: &HostId,
    force: bool,
) -> Result<()> {
    let body = claim_bytes(&(guid, host.clone(), now_ms()))?;
    match opened.bucket.create(CLAIM, vec![body.clone()]).await {
        Ok(()) => Ok(()),
        Err(tarn_bucket::Error::Exists(_)) => {
            let bytes = match get_whole(&*opened.bucket, CLAIM).await {
                Err(tarn_bucket::Error::NotFound(_)) => {
                    return Err(usage(format!(
                        "{}: another command has just let go of the bucket, or the store counts an object that was \
                         deleted as one that is there: try again, or use another prefix",
                        opened.url()
                    )));
                }
                found => found?,
            };
            let found = parse_claim(&bytes);
            if let Some((_, other)) = claimed.iter().find(|(g, _)| found.as_ref().is_some_and(|f| f.0 == *g))
            {
                return Err(usage(format!(
                    "{} and {} are the same bucket: name it once",
                    other.url(),
                    opened.url()
                )));
            }
            if force {
                opened.bucket.put(CLAIM, vec![body]).await?;
                return Ok(());
            }
            let who = found.map(|(_, host, _)| format!(" on host {}", host.name)).unwrap_or_default();
            Err(usage(format!(
                "{} is being taken by another command{who}, or one was interrupted: if none runs, use -f",
                opened.url()
            )))
        }
        Err(error) => Err(error.into()),
    }
}

async fn unclaim(claimed: &[Opened]) {
    let keys = [CLAIM.to_string()];
    for (opened, result) in claimed.iter().zip(join_all(claimed.iter().map(|o| o.bucket.delete(&keys))).await)
    {
        if let Err(error) = result {
            tracing::warn!("{}: a claim is left behind: {error}", opened.url());
        }
    }
}

/// Makes the pool on buckets that were claimed.
async fn create_on(spec: &CreateSpec, free: Vec<(VdevGuid, Opened)>) -> Result<Arc<Pool>> {
    let mut devices = Vec::new();
    let mut vdevs = Vec::new();
    for (n, (guid, opened)) in free.into_iter().enumerate() {
        let device = opened.device(&mut devices).await?;
        vdevs.push(Arc::new(Vdev::new(VdevId(n as u16), guid, opened, device)));
    }
    let mut config = first_config(spec, &vdevs);
    let authority_property = choose_authority(spec, &vdevs)?;
    // The lock comes before anything is deleted: nobody else uses these buckets.
    let locks = host_lock(&config, &vdevs, &spec.host)?;
    for vdev in &vdevs {
        make_empty(vdev).await?;
    }
    config.properties.insert("authority".into(), authority_property.clone());
    let authority: Box<dyn Authority> = match (authority_property.as_str(), locks) {
        ("host", Some(locks)) => Box::new(locks),
        (property, locks) => {
            drop(locks);
            Box::new(claim_epoch(property, &config, &vdevs, &spec.host, false).await?)
        }
    };
    config.epoch = authority.epoch();
    let pool = Pool::assemble(Parts {
        config,
        host: spec.host.clone(),
        held_since_ms: now_ms(),
        features: Features::default(),
        vdevs: vdevs.clone(),
        gate: Arc::new(Gate::new(authority)),
        memory: DEFAULT_MEMORY,
    });
    // Every vdev is joining: a pool is made whole or not at all.
    if let Err(error) = pool.commit_config(|_| Ok(()), &vdevs).await {
        undo(&pool, &vdevs).await;
        return Err(error);
    }
    Ok(pool)
}

/// Takes away what a failed creation has written.
async fn undo(pool: &Pool, vdevs: &[Arc<Vdev>]) {
    for vdev in vdevs {
        let epochs = vdev.list(bucket::PREFIX).await.unwrap_or_default();
        let keys: Vec<String> = epochs.into_iter().map(|o| o.key).chain(label::keys()).collect();
        if let Err(error) = vdev.delete(&keys).await {
            tracing::warn!("{}: a label is left behind: {error}", vdev.url());
        }
    }
    host::forget(vdevs);
    pool.gate.abandon();
}

fn first_config(spec: &CreateSpec, vdevs: &[Arc<Vdev>]) -> PoolConfig {
    let created_ms = now_ms();
    let root = DatasetConfig {
        id: DatasetId(1),
        name: spec.name.clone(),
        guid: random_guid(),
        created_ms,
        properties: spec.root_properties.clone(),
        metadata_vdevs: vdevs.iter().map(|v| v.guid).collect(),
        stored: BTreeMap::new(),
        destroying: false,
    };
    PoolConfig {
        guid: PoolGuid(random_guid()),
        name: spec.name.clone(),
        generation: 0,
        epoch: Epoch(0),
        created_ms,
        properties: spec.properties.clone(),
        datasets: vec![root],
        next_dataset: 2,
        vdevs: vdev_configs(vdevs).collect(),
        next_vdev: vdevs.len() as u16,
        caches: Vec::new(),
    }
}

/// The authority property as it is stored: `host`, or `bucket:` and a vdev's guid.
fn choose_authority(spec: &CreateSpec, vdevs: &[Arc<Vdev>]) -> Result<String> {
    let all_local = vdevs.iter().all(|v| v.local.is_some());
    let in_bucket = |vdev: &Vdev| format!("bucket:{}", vdev.guid);
    match spec.properties.get("authority").map(String::as_str) {
        None if all_local => Ok("host".into()),
        None | Some("bucket") => Ok(in_bucket(&vdevs[0])),
        Some("host") if all_local => Ok("host".into()),
        Some("host") => {
            Err(usage("authority=host is for local directories only: leave it out, or use authority=bucket"))
        }
        Some(other) => {
            let url = other.strip_prefix("bucket:").unwrap_or(other);
            let parsed = tarn_bucket::Location::parse(url)?.url();
            let named = vdevs.iter().find(|v| v.url() == parsed);
            named
                .map(|v| in_bucket(v))
                .ok_or_else(|| usage(format!("authority={other}: {parsed} is not one of the pool's buckets")))
        }
    }
}

/// Locks the local vdevs of a pool to be, whatever its authority: a running pool on one of them is noticed.
fn host_lock(config: &PoolConfig, vdevs: &[Arc<Vdev>], host: &HostId) -> Result<Option<host::HostAuthority>> {
    if !vdevs.iter().any(|v| v.local.is_some()) {
        return Ok(None);
    }
    host::acquire(config, vdevs, host, Epoch(1)).map(Some)
}

/// Makes the next epoch in the bucket that the stored property names.
pub(crate) async fn claim_epoch(
    property: &str,
    config: &PoolConfig,
    vdevs: &[Arc<Vdev>],
    host: &HostId,
    force: bool,
) -> Result<bucket::BucketAuthority> {
    let guid = property.strip_prefix("bucket:").and_then(|g| g.parse().ok()).map(VdevGuid);
    let vdev = match guid {
        Some(guid) => vdevs.iter().find(|v| v.guid == guid),
        None => vdevs.first(),
    };
    let vdev = vdev.cloned().ok_or_else(|| {
        Error::Missing(format!(
            "pool '{}': the bucket of its authority is not among those found",
            config.name
        ))
    })?;
    let claim = bucket::Claim { name: &config.name, pool: config.guid, host, above: config.epoch, force };
    bucket::acquire(vdev, &claim).await
}
