//! An open pool: its configuration, where segments go, writing and deleting them, its room and its properties.

use crate::alloc::Allocator;
use crate::arc::RecordCache;
use crate::authority::Gate;
use crate::config::{DatasetConfig, PoolConfig};
use crate::damage::{DamageLog, DamageRecord};
use crate::l2arc::L2arc;
use crate::label::{self, Features, HostId, Label, LabelState};
use crate::memory::{Reading, Shares};
use crate::metadata::MetadataStore;
use crate::neighbours::Neighbours;
use crate::outage::Side;
use crate::props::{PROPERTIES, PropertyValue, check_property, property_info};
use crate::segment::{SEGMENTS, grant_prefix, parse_key, parse_sequence, segment_key};
use crate::segment::{SegmentBody, SegmentEntry, SegmentTrailer};
use crate::text::{now_ms, parse_duration, parse_size};
use crate::vdev::Vdev;
use crate::{Error, Result};
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tarn_base::block::Sealed;
use tarn_base::point::{self, Point};
use tarn_base::stopwatch::{self, Layer};
use tarn_base::{BlockPtr, DatasetId, Epoch, Grant, PoolGuid, RecordOwner, SegmentId, VdevId};

/// Fetched from the end of a segment to read its directory, in bytes: enough for a segment of 128 KiB records.
const DIRECTORY_TAIL: u64 = 16 << 10;

/// Who asks for figures of space waits no longer than this.
const FIGURES_LIMIT: Duration = Duration::from_secs(3);

/// Room in the pool, in bytes. Stores without a limit count as 1 EiB each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// All there is for data.
    pub total: u64,
    /// What new data may still take: the slop is not in it.
    pub free: u64,
}

/// How a read treats the ARC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Keep as long as it is used.
    Keep,
    /// As `Keep`; and it is likely that records beside this one in its segment are wanted next (small files).
    Together,
    /// Part of a stream: first to go.
    Stream,
    /// Leave no trace (compaction, scrub).
    Bypass,
}

/// An open pool.
pub struct Pool {
    pub(crate) guid: PoolGuid,
    pub(crate) host: HostId,
    pub(crate) held_since_ms: i64,
    pub(crate) features: Features,
    config: RwLock<Arc<PoolConfig>>,
    /// The generation that the next label gets is above this, even if writing the last one failed half-way.
    pub(crate) generation: tokio::sync::Mutex<u64>,
    vdevs: RwLock<Arc<Vec<Arc<Vdev>>>>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) arc: RecordCache,
    /// Bytes of buffers that are kept for their next use, whatever else is in use.
    pub(crate) idle: u64,
    pub(crate) l2arc: L2arc,
    pub(crate) reading: Reading,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) damage: Arc<DamageLog>,
    allocator: Allocator,
    pub(crate) stores: Mutex<HashMap<DatasetId, Arc<MetadataStore>>>,
    /// How often each dataset's database was opened by this process.
    openings: Mutex<HashMap<DatasetId, u64>>,
    /// Grants under which a segment may lie that nothing points to.
    strays: Mutex<BTreeSet<Grant>>,
    /// Bytes of segments, by dataset and vdev.
    booked: Mutex<BTreeMap<DatasetId, BTreeMap<VdevId, u64>>>,
    /// Segments that were committed before they are in their buckets.
    pub(crate) carried: RwLock<HashMap<SegmentId, Bytes>>,
    /// It is let go by force.
    gave_up: AtomicBool,
    /// Set while it could not be written.
    unwritten_failmode: Mutex<Option<String>>,
    runtime: tokio::runtime::Handle,
}

/// What a pool is made of when it is opened.
pub(crate) struct Parts {
    pub config: PoolConfig,
    pub host: HostId,
    pub held_since_ms: i64,
    pub features: Features,
    pub vdevs: Vec<Arc<Vdev>>,
    pub gate: Arc<Gate>,
    /// Bytes of memory for records.
    pub memory: u64,
}

impl Pool {
    pub(crate) fn assemble(parts: Parts) -> Arc<Pool> {
        let shares = Shares::of(parts.memory);
        let pool = Arc::new(Pool {
            l2arc: L2arc::new(&parts.host, &parts.config, shares.reading),
            guid: parts.config.guid,
            host: parts.host,
            held_since_ms: parts.held_since_ms,
            features: parts.features,
            generation: tokio::sync::Mutex::new(parts.config.generation),
            config: RwLock::new(Arc::new(parts.config)),
            vdevs: RwLock::new(Arc::new(parts.vdevs)),
            gate: parts.gate,
            arc: RecordCache::new(shares.arc),
            idle: shares.idle,
            reading: Reading::new(shares.reading),
            neighbours: Arc::default(),
            damage: Arc::default(),
            allocator: Allocator::default(),
            stores: Mutex::default(),
            openings: Mutex::default(),
            strays: Mutex::default(),
            booked: Mutex::default(),
            carried: RwLock::default(),
            gave_up: AtomicBool::new(false),
            unwritten_failmode: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
        });
        pool.bound_buffers();
        pool.apply_properties();
        for dataset in &pool.config().datasets {
            pool.set_booked(dataset.id, dataset.stored.clone());
        }
        pool
    }

    pub fn guid(&self) -> PoolGuid {
        self.guid
    }

    /// The number of this ownership of the pool; everything written carries it.
    pub fn epoch(&self) -> Epoch {
        self.gate.epoch()
    }

    pub fn config(&self) -> Arc<PoolConfig> {
        self.config.read().clone()
    }

    /// Changes the configuration and writes it to every label before it returns. An error of `change` is given
    /// back and changes nothing. [`Error::Fenced`] when the pool was taken over.
    pub async fn update_config(
        &self,
        change: impl FnOnce(&mut PoolConfig) -> Result<()> + Send,
    ) -> Result<()> {
        self.commit_config(change, &[]).await
    }

    /// The same while vdevs join: they get their labels first, all of them. A crash in between leaves either a
    /// pool that is found with them, or, where they are not named at the import, one that never had them.
    pub(crate) async fn commit_config(
        &self,
        change: impl FnOnce(&mut PoolConfig) -> Result<()> + Send,
        joining: &[Arc<Vdev>],
    ) -> Result<()> {
        if let Some(why) = self.suspended() {
            // An administrator wants to hear of it rather than wait, and others may be waiting behind.
            return Err(Error::Bucket(tarn_bucket::Error::Timeout(format!("the pool is suspended: {why}"))));
        }
        let mut generation = self.generation.lock().await;
        let mut config = (*self.config()).clone();
        change(&mut config)?;
        self.gate.check(true).await?;
        config.generation = *generation + 1;
        config.epoch = self.gate.epoch();
        *generation = config.generation;
        self.write_labels(&config, LabelState::Active, joining, joining.len()).await?;
        let vdevs = self.vdevs();
        let others: Vec<_> =
            vdevs.iter().filter(|v| joining.iter().all(|j| j.guid != v.guid)).cloned().collect();
        // Two make it count, because an import reads all and takes the highest.
        self.write_labels(&config, LabelState::Active, &others, others.len().min(2)).await?;
        *self.config.write() = Arc::new(config);
        Ok(())
    }

    /// After a change of the configuration that failed half-way: has no label count that tells of it.
    pub(crate) async fn settle_config(&self) -> Result<()> {
        if *self.generation.lock().await == self.config().generation {
            return Ok(());
        }
        self.update_config(|_| Ok(())).await
    }

    /// Writes labels; an error when fewer than `needed` could be written, a warning for each that could not.
    ///
    /// One goes ahead of the others, and between it and them the authority is asked again. A label is replaced whole,
    /// so a host that slept since it last asked would put its old one over those of who has taken the pool meanwhile:
    /// this way over one at the most, because after a second answer the first label was written before that host's.
    pub(crate) async fn write_labels(
        &self,
        config: &PoolConfig,
        state: LabelState,
        vdevs: &[Arc<Vdev>],
        needed: usize,
    ) -> Result<()> {
        let held = state == LabelState::Active;
        let write = |vdev: Arc<Vdev>| async move {
            let label = Label {
                pool: config.clone(),
                vdev: vdev.guid,
                state,
                holder: held.then(|| self.host.clone()),
                held_since_ms: if held { self.held_since_ms } else { 0 },
                features: self.features.clone(),
                written_ms: now_ms(),
            };
            label::write(&vdev, &label).await.inspect_err(|error| {
                tracing::warn!("{}: its label could not be written: {error}", vdev.url());
            })
        };
        let mut results = Vec::with_capacity(vdevs.len());
        let mut others = vdevs.iter().cloned();
        for vdev in others.by_ref() {
            results.push(write(vdev).await);
            if results.last().is_some_and(Result::is_ok) {
                break;
            }
        }
        if others.len() > 0 {
            point::pass(Point::LabelFirst);
            self.gate.check(true).await?;
            results.extend(join_all(others.map(write)).await);
        }
        let written = results.iter().filter(|result| result.is_ok()).count();
        let failed = results.into_iter().find_map(Result::err);
        match failed {
            Some(error) if written < needed => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads both copies of every vdev's label and writes them anew where one is gone, damaged or old. Gives the names of
    /// the vdevs whose labels were put right, and of those where they still are not.
    pub async fn scrub_labels(&self) -> Result<(Vec<String>, Vec<String>)> {
        let config = self.config();
        let bad = self.wrong_labels(&self.vdevs(), &config).await?;
        if bad.is_empty() {
            return Ok(Default::default());
        }
        self.update_config(|_| Ok(())).await?;
        let still = self.wrong_labels(&bad, &self.config()).await?;
        let urls = |vdevs: &[Arc<Vdev>]| vdevs.iter().map(|vdev| vdev.url().to_string()).collect::<Vec<_>>();
        let repaired: Vec<_> = bad.into_iter().filter(|b| !still.iter().any(|s| s.id == b.id)).collect();
        Ok((urls(&repaired), urls(&still)))
    }

    async fn wrong_labels(&self, vdevs: &[Arc<Vdev>], config: &PoolConfig) -> Result<Vec<Arc<Vdev>>> {
        let looked = join_all(vdevs.iter().map(|vdev| label::is_whole(&*vdev.bucket, config))).await;
        let mut wrong = Vec::new();
        for (vdev, whole) in vdevs.iter().zip(looked) {
            if !whole? {
                wrong.push(vdev.clone());
            }
        }
        Ok(wrong)
    }

    /// What the administrator should know of the vdevs `of` (of all, if none is named): one line for each bucket that
    /// would keep what Tarn deletes from it. Asks each bucket; one that does not tell is passed over.
    pub async fn cautions(&self, of: &[VdevId]) -> Vec<String> {
        let vdevs = self.vdevs();
        let chosen = vdevs.iter().filter(|vdev| of.is_empty() || of.contains(&vdev.id));
        let asked = futures::future::join_all(chosen.map(|vdev| vdev.bucket.keeps())).await;
        asked.into_iter().flatten().collect()
    }

    pub(crate) fn vdevs(&self) -> Arc<Vec<Arc<Vdev>>> {
        self.vdevs.read().clone()
    }

    /// How many vdevs there are.
    pub fn vdev_count(&self) -> u64 {
        self.vdevs.read().len() as u64
    }

    pub(crate) fn set_vdevs(&self, vdevs: Vec<Arc<Vdev>>) {
        *self.vdevs.write() = Arc::new(vdevs);
    }

    pub(crate) fn vdev(&self, id: VdevId) -> Result<Arc<Vdev>> {
        let vdevs = self.vdevs.read();
        // Ids count up from 0 and are in order.
        let vdev =
            vdevs.get(id.0 as usize).filter(|v| v.id == id).or_else(|| vdevs.iter().find(|v| v.id == id));
        vdev.cloned().ok_or_else(|| Error::Missing(format!("the pool has no vdev {id}")))
    }

    /// [`Error::Fenced`] once another host has taken the pool over. Asks the authority at most every few seconds;
    /// an error of its bucket means that it is not known.
    pub async fn check_authority(&self) -> Result<()> {
        self.gate.check(false).await
    }

    /// As [`Pool::check_authority`], asking now: before something is taken that another host may have by now.
    pub async fn confirm_authority(&self) -> Result<()> {
        self.gate.check(true).await
    }

    /// Numbers an opening of a dataset's database in this process. Of several only the newest counts.
    pub fn count_opening(&self, dataset: DatasetId) -> u64 {
        let mut openings = self.openings.lock();
        let count = openings.entry(dataset).or_default();
        *count += 1;
        *count
    }

    /// The number of the newest opening.
    pub fn newest_opening(&self, dataset: DatasetId) -> u64 {
        self.openings.lock().get(&dataset).copied().unwrap_or_default()
    }

    /// The top-level vdev that the next segment of `bytes` should go to: weighted round-robin by free space and
    /// health, so that buckets carry equal load. [`Error::NoSpace`] when none has room beyond its slop.
    pub fn place(&self, bytes: u64) -> Result<VdevId> {
        self.gate.pass()?;
        let vdevs = self.vdevs();
        self.refresh_stale(&vdevs);
        let mut sharing: HashMap<*const crate::space::Device, u64> = HashMap::new();
        for vdev in vdevs.iter() {
            *sharing.entry(Arc::as_ptr(&vdev.device)).or_insert(0) += 1;
        }
        let mut healthy = Vec::with_capacity(vdevs.len());
        let mut faulted = Vec::new();
        for vdev in vdevs.iter() {
            let free = vdev.device.space().free;
            if free < bytes {
                continue;
            }
            let part = free / sharing[&Arc::as_ptr(&vdev.device)];
            let weight = part.saturating_sub(if vdev.device.unlimited() { vdev.allocated() } else { 0 });
            let list = if vdev.shunned() { &mut faulted } else { &mut healthy };
            list.push((vdev.id, weight.max(1)));
        }
        let candidates = if healthy.is_empty() { &faulted } else { &healthy };
        self.allocator.choose(candidates, bytes).ok_or(Error::NoSpace)
    }

    /// Has the figures of devices fetched that are due, in the background.
    fn refresh_stale(&self, vdevs: &[Arc<Vdev>]) {
        let mut last = std::ptr::null();
        for vdev in vdevs {
            if Arc::as_ptr(&vdev.device) != last && vdev.device.stale() {
                let device = vdev.device.clone();
                self.runtime.spawn(async move { device.refresh().await });
            }
            last = Arc::as_ptr(&vdev.device);
        }
    }

    /// Top-level vdevs that take new segments.
    pub fn writable_vdevs(&self) -> Vec<VdevId> {
        let vdevs = self.vdevs();
        let healthy: Vec<_> = vdevs.iter().filter(|v| !v.shunned()).map(|v| v.id).collect();
        if healthy.is_empty() { vdevs.iter().map(|v| v.id).collect() } else { healthy }
    }

    /// PUTs a segment. Durable only after [`Pool::sync`]. The vdev's books count its payload. Waits for a bucket that
    /// fails, where calls wait, only if no other can take it: otherwise the caller makes a segment for another one.
    pub async fn put_segment(&self, body: SegmentBody) -> Result<()> {
        self.gate.pass()?;
        let (id, payload) = (body.id, body.payload);
        self.store_segment(id, payload, body.seal(self.guid, self.gate.epoch())).await
    }

    /// The segment as it is to be stored.
    pub fn seal(&self, body: SegmentBody) -> Sealed {
        let (id, payload) = (body.id, body.payload);
        let object = body.seal(self.guid, self.gate.epoch()).concat().into();
        Sealed { id, payload, object }
    }

    /// From now on a segment can be read though it is not in its bucket yet: somebody else answers for it.
    pub fn carry(&self, segment: &Sealed) {
        self.carried.write().insert(segment.id, segment.object.clone());
    }

    /// The segment needs no longer be carried, whether it came to its bucket or nothing points to it.
    pub fn carried_no_more(&self, segment: SegmentId) {
        self.carried.write().remove(&segment);
    }

    /// PUTs a segment that is carried. It is in the books already.
    pub async fn put_carried(&self, segment: &Sealed) -> Result<()> {
        self.put_pieces(segment.id, vec![segment.object.clone()]).await
    }

    /// PUTs a segment that is ready, whose records take `payload` bytes.
    pub(crate) async fn store_segment(&self, id: SegmentId, payload: u64, pieces: Vec<Bytes>) -> Result<()> {
        self.put_pieces(id, pieces).await?;
        self.book(id.grant.dataset, id.grant.vdev, payload as i64);
        Ok(())
    }

    async fn put_pieces(&self, id: SegmentId, pieces: Vec<Bytes>) -> Result<()> {
        let _span = stopwatch::enter(Layer::Pool);
        self.gate.pass()?;
        let vdev = self.vdev(id.grant.vdev)?;
        let key = segment_key(id);
        loop {
            match vdev.put_hasty(&key, pieces.clone()).await {
                Ok(()) => return Ok(()),
                Err(error @ Error::Bucket(_)) => {
                    self.note_stray(id.grant);
                    if self.others_take(&vdev) || !vdev.outages.outlast(Side::Write).await {
                        return Err(error);
                    }
                    self.gate.pass()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether a vdev other than this one has room and does well.
    fn others_take(&self, vdev: &Vdev) -> bool {
        self.vdevs().iter().any(|v| v.id != vdev.id && !v.shunned() && v.device.space().free > 0)
    }

    /// Every segment PUT answered before the call is durable when it returns.
    pub async fn sync(&self) -> Result<()> {
        let vdevs = self.vdevs();
        try_join_all(vdevs.iter().map(|vdev| vdev.sync())).await.map(drop)
    }

    /// Deletes segments; one that is not there is no error. The books are the caller's to change ([`Pool::book`]):
    /// only it knows how long they were.
    pub async fn delete_segments(&self, ids: &[SegmentId]) -> Result<()> {
        self.gate.pass()?;
        let mut by_vdev: BTreeMap<VdevId, Vec<String>> = BTreeMap::new();
        for id in ids {
            by_vdev.entry(id.grant.vdev).or_default().push(segment_key(*id));
        }
        let deletes = by_vdev.iter().map(|(&id, keys)| async move { self.vdev(id)?.delete(keys).await });
        join_all(deletes).await.into_iter().collect()
    }

    /// A segment of this grant may lie in its bucket, now or later, although nothing will point to it.
    pub fn note_stray(&self, grant: Grant) {
        self.strays.lock().insert(grant);
    }

    /// Grants of a dataset of which that is so.
    pub fn strays(&self, dataset: DatasetId) -> Vec<Grant> {
        self.strays.lock().iter().filter(|grant| grant.dataset == dataset).copied().collect()
    }

    /// Segments of a grant that exist, with their object sizes in bytes.
    pub async fn list_grant(&self, grant: Grant) -> Result<Vec<(SegmentId, u64)>> {
        let prefix = grant_prefix(grant);
        let objects = self.vdev(grant.vdev)?.list(&prefix).await?;
        let segment = |object: tarn_bucket::ObjectInfo| {
            Some((parse_sequence(grant, object.key.strip_prefix(&prefix)?)?, object.size))
        };
        Ok(objects.into_iter().filter_map(segment).collect())
    }

    /// Every segment of a dataset that exists in any bucket, with its object size in bytes. Lists whole buckets: for
    /// checks only.
    pub async fn list_segments(&self, dataset: DatasetId) -> Result<Vec<(SegmentId, u64)>> {
        let vdevs = self.vdevs();
        let listings = vdevs.iter().map(|vdev| async move { vdev.list(SEGMENTS).await });
        let objects = try_join_all(listings).await?.into_iter().flatten();
        let segments = objects.filter_map(|object| Some((parse_key(&object.key)?, object.size)));
        Ok(segments.filter(|(id, _)| id.grant.dataset == dataset).collect())
    }

    /// What a segment holds, by its own directory. [`Error::Damaged`] says what is wrong with it.
    pub async fn segment_directory(&self, id: SegmentId) -> Result<Vec<SegmentEntry>> {
        let vdev = self.vdev(id.grant.vdev)?;
        let key = segment_key(id);
        let (tail, size) =
            vdev.get_tail(&key, DIRECTORY_TAIL).await.map_err(|e| self.fetch_failed(&vdev, id, e))?;
        let damaged = |problem: String| {
            self.damage.note(DamageRecord {
                seen_ms: 0,
                vdev: vdev.url().to_string(),
                object: key.clone(),
                segment: Some(id),
                offset: None,
                owner: None,
                file: None,
                problem: problem.clone(),
                repaired: false,
            });
            Error::Damaged(format!("{}: segment {id} ({key}): {problem}", vdev.url()))
        };
        let trailer = SegmentTrailer::of(id, self.guid, &tail, size).map_err(&damaged)?;
        let (range, tail_start) = (trailer.directory_range(), size - tail.len() as u64);
        let directory = if range.start >= tail_start {
            tail.slice((range.start - tail_start) as usize..(range.end - tail_start) as usize)
        } else {
            vdev.get(&key, range).await.map_err(|e| self.fetch_failed(&vdev, id, e))?
        };
        trailer.directory(&directory).map_err(damaged)
    }

    /// Room in the pool. Agrees with [`Pool::place`]: both leave the slop alone.
    pub fn space(&self) -> Space {
        let vdevs = self.vdevs();
        self.refresh_stale(&vdevs);
        let mut seen = Vec::with_capacity(vdevs.len());
        let mut sum = Space::default();
        for vdev in vdevs.iter() {
            let mut space = vdev.device.space();
            if vdev.device.unlimited() {
                space.free = space.free.saturating_sub(vdev.allocated());
            }
            if !seen.contains(&Arc::as_ptr(&vdev.device)) {
                seen.push(Arc::as_ptr(&vdev.device));
                sum.total = sum.total.saturating_add(space.total);
                sum.free = sum.free.saturating_add(space.free);
            }
        }
        sum
    }

    /// Whether nobody has asked for so long that [`Pool::space`] tells of the past.
    pub fn space_is_old(&self) -> bool {
        self.vdevs().iter().any(|vdev| vdev.device.is_old())
    }

    /// Fetches every device's figures now (after deletes, or before a figure is shown), but waits only some seconds for
    /// a store that does not tell.
    pub async fn refresh_space(&self) {
        let vdevs = self.vdevs();
        let refresh = |vdev: &Arc<Vdev>| {
            let device = vdev.device.clone();
            // A task of its own: it goes on to its end when nobody waits any more.
            tokio::time::timeout(FIGURES_LIMIT, tokio::spawn(async move { device.refresh().await }))
        };
        join_all(vdevs.iter().map(refresh)).await;
    }

    /// Enters what a dataset's segments take into the vdevs' books, in the place of what stood there.
    pub fn set_booked(&self, dataset: DatasetId, stored: BTreeMap<VdevId, u64>) {
        let mut booked = self.booked.lock();
        let before = booked.insert(dataset, stored.clone()).unwrap_or_default();
        let changes = stored.iter().map(|(vdev, bytes)| (vdev, *bytes as i64));
        for (vdev, change) in changes.chain(before.iter().map(|(vdev, bytes)| (vdev, -(*bytes as i64)))) {
            if let Ok(vdev) = self.vdev(*vdev) {
                vdev.add_allocated(change);
            }
        }
    }

    /// Enters bytes of segments that were written, or, below zero, deleted.
    pub fn book(&self, dataset: DatasetId, vdev: VdevId, change: i64) {
        let mut booked = self.booked.lock();
        let bytes = booked.entry(dataset).or_default().entry(vdev).or_default();
        let before = *bytes;
        *bytes = before.saturating_add_signed(change);
        if let Ok(vdev) = self.vdev(vdev) {
            vdev.add_allocated(*bytes as i64 - before as i64);
        }
    }

    /// Keeps a dataset's share of the books in the labels, for the time while nobody has it open.
    pub async fn keep_books(&self, dataset: DatasetId) -> Result<()> {
        let booked = self.booked.lock().get(&dataset).cloned().unwrap_or_default();
        let known = |row: &DatasetConfig| row.id == dataset && row.stored != booked;
        if !self.config().datasets.iter().any(known) {
            return Ok(());
        }
        self.update_config(|config| {
            if let Some(row) = config.datasets.iter_mut().find(|row| row.id == dataset) {
                row.stored = booked;
            }
            Ok(())
        })
        .await
    }

    /// Has buffers for segments ready before anybody streams, where streams have memory at all. Takes some tenths of a
    /// second of a thread of its own.
    pub fn warm_up(&self) {
        // Stores elsewhere send the directory along.
        let whole = self.vdevs().iter().any(|vdev| vdev.local.is_none());
        let len = self.segment_size() as usize + usize::from(whole);
        if self.arc.for_streams() > 0 {
            self.runtime.spawn_blocking(move || tarn_bucket::buffer::warm(len));
        }
    }

    /// Remembers damage for `status -v`: whoever knows whose record it was tells.
    pub fn note_error(&self, record: DamageRecord) {
        self.damage.note(record);
    }

    /// A record could not be read for good: says whose it is, so that `status -v` can name the file.
    pub fn note_lost(&self, ptr: &BlockPtr, owner: RecordOwner, error: &Error) {
        let missing = matches!(error, Error::Missing(_));
        if !missing && !matches!(error, Error::Damaged(_)) {
            return;
        }
        if self.damage.own(ptr.segment, ptr.offset, owner) || !missing {
            return;
        }
        let vdev = self.vdev(ptr.segment.grant.vdev);
        self.damage.note(DamageRecord {
            seen_ms: 0,
            vdev: vdev.map_or_else(|_| "?".into(), |vdev| vdev.url().to_string()),
            object: segment_key(ptr.segment),
            segment: Some(ptr.segment),
            offset: Some(ptr.offset),
            owner: Some(owner),
            file: None,
            problem: "the segment is not there".into(),
            repaired: false,
        });
    }

    /// Gives damage that was noted the names of files.
    pub fn name_damage(&self, name: impl Fn(&RecordOwner) -> Option<String>) {
        self.damage.name(name);
    }

    pub fn damage(&self) -> Vec<DamageRecord> {
        self.damage.list()
    }

    /// Forgets errors counted and noted, as `zpool clear` does.
    pub fn clear_errors(&self) {
        self.damage.clear();
        self.vdevs().iter().for_each(|vdev| vdev.clear_errors());
        self.l2arc.clear_errors();
    }

    /// A pool property's value, set, default or computed; `None` when there is no such property.
    pub fn property(&self, name: &str) -> Option<String> {
        let info = property_info(name).ok()?;
        let config = self.config();
        if name == "failmode"
            && let Some(value) = self.unwritten_failmode.lock().clone()
        {
            return Some(value);
        }
        if let Some(value) = config.properties.get(name) {
            return Some(value.clone());
        }
        if let Some(default) = info.default {
            return Some(default.to_string());
        }
        let space = self.space();
        Some(match name {
            "guid" => config.guid.to_string(),
            "size" => space.total.to_string(),
            "allocated" => self.vdevs().iter().map(|v| v.allocated()).sum::<u64>().to_string(),
            "free" => space.free.to_string(),
            "capacity" => {
                let used = space.total.saturating_sub(space.free) as u128;
                (used * 100 / u128::from(space.total.max(1))).to_string()
            }
            "health" => self.state().to_string(),
            "generation" => config.generation.to_string(),
            _ => return None,
        })
    }

    /// Every property. Sizes are in bytes, `capacity` in percent.
    pub fn properties(&self) -> Vec<PropertyValue> {
        let config = self.config();
        let value = |info: &'static crate::props::PropertyInfo| {
            let source = match info.default {
                None => "-",
                Some(_) if info.name == "failmode" && self.unwritten_failmode.lock().is_some() => "temporary",
                Some(_) if config.properties.contains_key(info.name) => "local",
                Some(_) => "default",
            };
            Some(PropertyValue { name: info.name, value: self.property(info.name)?, source })
        };
        PROPERTIES.iter().filter_map(value).collect()
    }

    /// Sets a property, durably.
    pub async fn set_property(&self, name: &str, value: &str) -> Result<()> {
        check_property(name, value, false)?;
        if name == "failmode" {
            // First of all: a pool whose calls wait must be told to let them go, and this one is a call.
            self.apply_failmode(value);
        }
        let set = self
            .update_config(|config| {
                config.properties.insert(name.to_string(), value.to_string());
                Ok(())
            })
            .await;
        match set {
            Err(Error::Bucket(error)) if name == "failmode" => {
                *self.unwritten_failmode.lock() = Some(value.to_string());
                Err(Error::Bucket(tarn_bucket::Error::Timeout(format!(
                    "failmode={value} holds until the pool is closed, but could not be written: {error}"
                ))))
            }
            set => {
                if name == "failmode" && set.is_ok() {
                    *self.unwritten_failmode.lock() = None;
                }
                self.apply_properties();
                set
            }
        }
    }

    /// How long freed segments are kept.
    pub fn rewind(&self) -> Duration {
        self.property("rewind").and_then(|v| parse_duration(&v)).unwrap_or(Duration::from_secs(600))
    }

    /// How long a bucket may take to answer, retries included.
    pub fn deadline(&self) -> Duration {
        self.property("deadline").and_then(|v| parse_duration(&v)).unwrap_or(Duration::from_secs(60))
    }

    /// Bytes that should be packed into one segment.
    pub fn segment_size(&self) -> u64 {
        self.property("segment_size").and_then(|v| parse_size(&v)).unwrap_or(4 << 20)
    }

    /// Has every vdev heed the properties that concern it.
    pub(crate) fn apply_properties(&self) {
        let deadline = self.deadline();
        for vdev in self.vdevs().iter() {
            if let Some(guarded) = &vdev.guarded {
                guarded.set_deadline(deadline);
            }
        }
        self.apply_failmode(&self.property("failmode").unwrap_or_default());
        let rate = self.property("l2arc_write_max").and_then(|v| parse_size(&v));
        self.l2arc.heed(&self.property("secondarycache").unwrap_or_default(), rate);
    }

    fn apply_failmode(&self, value: &str) {
        let wait = value == "wait" && !self.gave_up.load(SeqCst);
        self.vdevs().iter().for_each(|vdev| vdev.outages.set_waits(wait));
    }

    /// From now on nothing waits for a bucket that fails, whatever `failmode` says: the pool is being let go by force.
    pub fn give_up(&self) {
        self.gave_up.store(true, SeqCst);
        self.apply_failmode("continue");
    }

    /// Whether calls wait for buckets that fail.
    pub fn waits(&self) -> bool {
        self.vdevs().iter().any(|vdev| vdev.outages.waits())
    }
}
