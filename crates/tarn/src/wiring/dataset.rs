//! One open dataset: its metadata target, the service in front of it, and the client of this node.

use super::far::Tcp;
use crate::address::Address;
use crate::control::MountRequest;
use crate::control::report::{CheckedDataset, Usage};
use crate::node::{Memory, Part};
use crate::progress::{Progress, Sink, Unit};
use crate::telemetry::{DatasetSample, LinkSample, TargetSample};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tarn_base::{ChecksumKind, Compression, DatasetId, Ino, SystemClock};
use tarn_client::{Client, ClientOptions};
use tarn_mdt::{Mdt, MdtOptions, Properties};
use tarn_pool::{DatasetConfig, Pool, Reach, ScrubbedMetadata};
use tarn_proto::wire::Link;
use tarn_server::{Exported, LocalMds};

/// Level of plain `zstd`.
const ZSTD_DEFAULT: i8 = 3;

/// Bytes of memory for one dataset.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Data that is not yet in a bucket.
    pub dirty: u64,
    /// Segments on their way to a bucket.
    pub flights: u64,
    /// Rows and database.
    pub metadata: u64,
}

/// A dataset works with no less of anything, in bytes.
const LEAST: u64 = 8 << 20;

impl Budget {
    /// A dataset's share of `bytes`, of which there are `datasets`: an equal one, but enough to work with.
    pub fn share(bytes: u64, datasets: usize) -> u64 {
        (bytes / datasets.max(1) as u64).max(LEAST)
    }
}

/// What a check does beside walking the metadata.
#[derive(Clone, Copy, Debug)]
pub struct Checking {
    /// Reads and verifies every record.
    pub data: bool,
    /// Frees what is proven leaked.
    pub repair: bool,
}

pub struct Dataset {
    id: DatasetId,
    name: String,
    pool: Arc<Pool>,
    client: Arc<Client>,
    place: Place,
    /// Its client has ended for good: it can only be closed.
    closing: AtomicBool,
}

/// Where a dataset's metadata target is.
enum Place {
    Here {
        mdt: Arc<Mdt>,
        exported: Arc<Exported>,
    },
    /// On another host.
    There(Arc<Link>),
}

/// How a client of this node works, within its budget.
fn client_options(pool: &Pool, dirty: u64, flights: u64) -> ClientOptions {
    let mut options = ClientOptions::new(tokio::runtime::Handle::current());
    options.dirty_max = dirty;
    options.flights_max = flights;
    options.prefetch_max = room_ahead(pool);
    options.told_of_forgetting = true;
    options
}

/// Bytes that may be fetched ahead of readers. Room is left for what they hold that have just passed it.
fn room_ahead(pool: &Pool) -> u64 {
    pool.arc_for_streams() / 4 * 3
}

impl Dataset {
    /// Opens a dataset with the values that hold for it (`properties::effective_all`).
    pub async fn open(
        pool: &Arc<Pool>,
        row: &DatasetConfig,
        values: &BTreeMap<String, String>,
        budget: Budget,
    ) -> Result<Arc<Dataset>> {
        let mut options = MdtOptions::new(Arc::new(SystemClock::default()));
        options.properties = typed(values)?;
        options.memory = budget.metadata;
        if let Some(bits) = test_hash_bits() {
            options.hash_bits = bits;
        }
        options.root_owner = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let mdt = Mdt::open(pool.clone(), row.id, options).await?;
        let options = client_options(pool, budget.dirty, budget.flights);
        let client = Client::new(LocalMds::new(mdt.clone()), pool.clone(), options);
        let exported = Exported::new(&row.name, pool.clone(), mdt.clone(), values.clone());
        let place = Place::Here { mdt, exported };
        Ok(Arc::new(Dataset {
            id: row.id,
            name: row.name.clone(),
            pool: pool.clone(),
            client,
            place,
            closing: AtomicBool::new(false),
        }))
    }

    /// Has a dataset that another host serves. Its pool is what that host says of it.
    pub async fn visit(address: &Address, request: &MountRequest, memory: &Memory) -> Result<Arc<Dataset>> {
        let dial = Box::new(Tcp::new(address.clone(), &request.certificates)?);
        let link = Link::open(dial, rand::random(), &address.dataset).await?;
        let reach = if request.through_server { Reach::Host } else { Reach::Buckets };
        let options = |pool: &Pool| client_options(pool, memory.dirty, memory.flights);
        // There are no rows or tables to keep here.
        let records = memory.records + memory.metadata;
        let (client, pool) =
            Client::remote(link.clone(), &address.to_string(), reach, records, options).await?;
        let id = link.info().id;
        let (name, place) = (address.to_string(), Place::There(link));
        Ok(Arc::new(Dataset { id, name, pool, client, place, closing: AtomicBool::new(false) }))
    }

    pub fn id(&self) -> DatasetId {
        self.id
    }

    /// Has memory ready for whoever streams first.
    pub fn warm_up(&self) {
        self.pool.warm_up();
    }

    /// Keeps and fetches ahead no more than a mount was asked to. The ARC is the process's: a bound holds until another
    /// is given.
    pub fn limit_caches(&self, request: &MountRequest) {
        if let Some(bytes) = request.arc {
            self.pool.limit_arc(bytes);
        }
        self.client.limit_prefetch(request.prefetch.unwrap_or(u64::MAX).min(room_ahead(&self.pool)));
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Its metadata target, if that is here.
    fn mdt(&self) -> Option<&Arc<Mdt>> {
        match &self.place {
            Place::Here { mdt, .. } => Some(mdt),
            Place::There(_) => None,
        }
    }

    /// For clients on other hosts.
    pub fn exported(&self) -> Result<&Arc<Exported>> {
        match &self.place {
            Place::Here { exported, .. } => Ok(exported),
            Place::There(_) => bail!("'{}' is another host's", self.name),
        }
    }

    /// A client on another host has it, connected or not.
    pub fn taken(&self) -> bool {
        self.exported().is_ok_and(|exported| exported.taken())
    }

    /// A client on another host is connected.
    pub fn visited(&self) -> bool {
        self.exported().is_ok_and(|exported| exported.connected())
    }

    /// Takes it from a client on another host; `false`: none has it.
    pub async fn give_up_client(&self) -> Result<bool> {
        let exported = self.exported()?;
        let taken = exported.taken();
        exported.give_up().await?;
        Ok(taken)
    }

    /// The host that serves it does not answer.
    pub fn server_is_away(&self) -> bool {
        matches!(&self.place, Place::There(link) if link.lost().is_some())
    }

    /// Does not wait for the host that serves it any more.
    pub fn give_up_server(&self) {
        if let Place::There(link) = &self.place {
            link.give_up();
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Bytes that were written and are not committed yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.client.stats().dirty_bytes
    }

    /// Makes everything that was written durable.
    pub async fn flush(&self, sink: &dyn Sink) -> Result<()> {
        let total = self.dirty_bytes();
        let sync = self.client.sync_all().wait();
        tokio::pin!(sync);
        let mut tick = tokio::time::interval(Duration::from_millis(200));
        loop {
            tokio::select! {
                biased;
                done = &mut sync => return Ok(done?),
                _ = tick.tick() => sink.progress(self.flushing(total, self.dirty_bytes())),
            }
        }
    }

    fn flushing(&self, total: u64, left: u64) -> Progress {
        let done = total.saturating_sub(left);
        Progress { what: format!("flushing {}", self.name), done, total, unit: Unit::Bytes }
    }

    /// A close has failed half-way: nothing that is written to it now would reach a bucket. What was written before is
    /// durable.
    pub fn closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Flushes, and ends the client and the metadata target. When the flush fails both go on, so that it can be
    /// tried again. When what follows fails it is [`Dataset::closing`], and another call goes on from there.
    pub async fn close(&self, sink: &dyn Sink) -> Result<()> {
        if !self.closing() {
            let total = self.dirty_bytes();
            self.client.shutdown(|left| sink.progress(self.flushing(total, left))).await?;
            self.closing.store(true, Ordering::Release);
        }
        match &self.place {
            Place::Here { mdt, .. } => {
                mdt.close().await.context("cannot close the metadata database")?;
                if let Err(error) = self.pool.keep_books(self.id).await {
                    tracing::warn!(dataset = self.name, %error, "cannot keep what the dataset occupies in the labels");
                }
            }
            Place::There(link) => {
                link.leave().await.context("the server was not told that it is unmounted")?
            }
        }
        Ok(())
    }

    /// Lets go of it without writing anything more. What was not durable is lost.
    pub fn abandon(&self) {
        self.client.abandon();
        match &self.place {
            Place::Here { mdt, .. } => mdt.abandon(),
            Place::There(link) => link.give_up(),
        }
    }

    pub fn set_properties(&self, values: &BTreeMap<String, String>) -> Result<()> {
        let properties = typed(values)?;
        match &self.place {
            Place::Here { mdt, .. } => mdt.set_properties(properties),
            Place::There(link) => link.keep_atime(properties.atime, properties.relatime),
        }
        Ok(())
    }

    pub async fn usage(&self, pool_free: u64) -> Result<Usage> {
        Ok(match &self.place {
            Place::Here { mdt, .. } => {
                let usage = mdt.usage();
                Usage { used: usage.stored, referenced: usage.live, pool_free, inodes: usage.inodes }
            }
            Place::There(_) => {
                let usage = self.client.statfs().wait().await?;
                let used = usage.total.saturating_sub(usage.free);
                Usage { used, referenced: used, pool_free: usage.free, inodes: usage.inodes }
            }
        })
    }

    pub async fn check(
        &self,
        Checking { data, repair }: Checking,
        sink: &dyn Sink,
    ) -> Result<CheckedDataset> {
        let Some(mdt) = self.mdt() else { bail!("'{}' is checked on the host that serves it", self.name) };
        // What cannot be written is a finding; what is in the buckets can be looked at all the same.
        let unwritten = self.flush(sink).await.err();
        let unwritten = unwritten.map(|e| format!("what was written last is not in the buckets: {e:#}"));
        // First: what the walk below reads is then read from what is whole.
        let metadata = self.scrub_metadata(sink).await?;
        let what = format!("checking {}", self.name);
        let total = if data { mdt.usage().live } else { 0 };
        let mut found = mdt
            .check(data, |p| {
                let (done, unit) = if data { (p.bytes, Unit::Bytes) } else { (p.inodes, Unit::Items) };
                sink.progress(Progress { what: what.clone(), done, total, unit });
            })
            .await?;
        let freed = if repair { mdt.free_leaked(&mut found).await? } else { 0 };
        Ok(CheckedDataset {
            name: self.name.clone(),
            inodes: found.inodes,
            names: found.names,
            records: found.records,
            segments: found.segments,
            bytes_verified: found.bytes_verified,
            problems: unwritten.into_iter().chain(metadata.bad).chain(found.problems()).collect(),
            repaired: metadata.repaired,
            freed: freed as u64,
        })
    }

    async fn scrub_metadata(&self, sink: &dyn Sink) -> Result<ScrubbedMetadata> {
        let config = self.pool.config();
        let Some(row) = config.datasets.iter().find(|row| row.id == self.id) else {
            bail!("'{}' was destroyed meanwhile", self.name);
        };
        let what = format!("checking the metadata of {}", self.name);
        let progress =
            |done, total| sink.progress(Progress { what: what.clone(), done, total, unit: Unit::Items });
        Ok(self.pool.scrub_metadata(row, progress).await?)
    }

    /// Gives damage that was noted in files of this dataset their names.
    pub async fn name_damage(&self) -> Result<()> {
        let Some(mdt) = self.mdt() else { return Ok(()) };
        let id = self.id;
        let unnamed = |d: &tarn_pool::DamageRecord| d.owner.filter(|o| o.dataset == id && d.file.is_none());
        let wanted: HashSet<Ino> =
            self.pool.damage().iter().filter_map(unnamed).map(|owner| owner.ino).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let paths = mdt.paths(&wanted).await?;
        self.pool.name_damage(|owner| {
            let path = paths.get(&owner.ino).filter(|_| owner.dataset == id)?;
            Some(format!("{}:{}", self.name, String::from_utf8_lossy(path)))
        });
        Ok(())
    }

    /// Memory in use, by purpose.
    pub fn memory(&self) -> Vec<Part> {
        let client = self.client.memory();
        let part = |name, used, limit| Part { name, used: Some(used), limit };
        let mut parts = vec![
            part("dirty", client.dirty + client.idle, client.dirty_max),
            part("flights", client.flights, client.flights_max),
        ];
        let Some(mdt) = self.mdt().map(|mdt| mdt.memory()) else { return parts };
        parts.extend([
            part("metadata_rows", mdt.rows, mdt.rows_max),
            part("metadata_blocks", mdt.blocks, mdt.blocks_max),
            part("metadata_regions", mdt.regions, mdt.regions_max),
            part("metadata_changes", mdt.changes, mdt.changes_max),
            Part { name: "metadata_tables", used: None, limit: mdt.tables_max },
        ]);
        parts
    }

    /// Counters of client and metadata target.
    pub fn sample(&self) -> DatasetSample {
        let link = match &self.place {
            Place::Here { .. } => None,
            Place::There(link) => {
                Some(LinkSample { connections: link.connections(), lost: link.lost(), unmade: link.unmade() })
            }
        };
        DatasetSample {
            client: self.client.stats(),
            target: self.mdt().map(|mdt| TargetSample { mdt: mdt.stats(), usage: mdt.usage() }),
            link,
            dirty_max: self.client.memory().dirty_max,
            fuse: None,
        }
    }
}

/// Frees all that a destroyed dataset has in the buckets.
pub async fn destroy_dataset(pool: &Arc<Pool>, id: DatasetId) -> Result<()> {
    Ok(tarn_mdt::destroy(pool, id).await?)
}

/// For tests of the daemon as it is: new datasets hash names to so few bits that they collide.
fn test_hash_bits() -> Option<u8> {
    if cfg!(debug_assertions) { std::env::var("TARN_TEST_HASH_BITS").ok()?.parse().ok() } else { None }
}

/// Canonical values as the metadata target wants them.
fn typed(values: &BTreeMap<String, String>) -> Result<Properties> {
    let value =
        |name: &str| values.get(name).map(String::as_str).with_context(|| format!("no value for {name}"));
    let on = |name: &str| value(name).map(|v| v == "on");
    let quota = value("quota")?;
    Ok(Properties {
        record_size: value("recordsize")?.parse().context("recordsize")?,
        compression: compression(value("compression")?)?,
        checksum: match value("checksum")? {
            "blake3" => ChecksumKind::Blake3,
            _ => ChecksumKind::Xxh3,
        },
        atime: on("atime")?,
        relatime: on("relatime")?,
        read_only: on("readonly")?,
        quota: if quota == "none" { None } else { Some(quota.parse().context("quota")?) },
    })
}

fn compression(value: &str) -> Result<Compression> {
    Ok(match value {
        "off" => Compression::Off,
        "lz4" => Compression::Lz4,
        "zstd" => Compression::Zstd(ZSTD_DEFAULT),
        other => match other.strip_prefix("zstd-").and_then(|level| level.parse().ok()) {
            Some(level) => Compression::Zstd(level),
            None => bail!("compression={other} was set by a newer tarn: use that one"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties;

    #[test]
    fn defaults_are_the_metadata_targets_own() {
        let values = properties::effective_all(&[], "tank");
        assert_eq!(typed(&values).unwrap(), Properties::default());
    }

    #[test]
    fn values_are_understood() {
        let mut values = properties::effective_all(&[], "tank");
        for (name, value) in
            [("compression", "zstd-7"), ("quota", "1024"), ("readonly", "on"), ("checksum", "blake3")]
        {
            values.insert(name.into(), value.into());
        }
        let typed = typed(&values).unwrap();
        assert_eq!(typed.compression, Compression::Zstd(7));
        assert_eq!((typed.quota, typed.read_only, typed.checksum), (Some(1024), true, ChecksumKind::Blake3));
        assert!(compression("snappy").is_err());
    }
}
