//! Reading records: which GETs to make, and what to believe of what they bring.
//!
//! Records that lie side by side in a segment are fetched by one ranged GET, up to [`RUN_MAX`] bytes, and small gaps
//! between them with them: what is fetched needlessly is less than another request takes. All GETs of a call are in flight
//! together. Each record is verified by the checksum in
//! its pointer, then decompressed; one that was not compressed is a slice of what was fetched, without a copy.
//!
//! A record that does not verify is fetched once more by itself: the error may have happened on the way. If it is
//! wrong again it is damaged in the bucket, and that is counted, noted and reported; wrong bytes are never given.

use crate::arc::{Landing, Missing, arrival};
use crate::damage::DamageRecord;
use crate::segment::segment_key;
use crate::vdev::Vdev;
use crate::{Caching, Error, Pool, Result, checksum, compress};
use bytes::Bytes;
use futures::future::join_all;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tarn_base::block::flag;
use tarn_base::sabotage::{self, Sabotage};
use tarn_base::stopwatch::{self, Layer};
use tarn_base::{BlockPtr, Checksum, Compression, SegmentId, job};

/// A gap between two records of one GET that is always fetched with them; a larger one is while all gaps together are at
/// most one byte in [`NEEDLESS`] of the GET.
const GAP: u32 = 16 << 10;
const NEEDLESS: u32 = 8;
/// Most bytes of one GET, unless a single record is longer.
const RUN_MAX: u32 = 8 << 20;
/// A segment is asked for whole only from this many bytes on.
const WHOLE_MIN: u64 = 1 << 20;
/// Records below this many bytes bring their neighbours.
const SMALL: usize = 256 << 10;
/// Work that takes longer than about this is moved off the threads that do I/O: a hop costs 20 to 50 us.
const INLINE_US: u64 = 200;

/// Records of one segment that are fetched together, with their places in the caller's list.
struct Run {
    segment: SegmentId,
    start: u32,
    end: u32,
    /// Bytes in between that nobody wants.
    gaps: u32,
    members: Vec<usize>,
}

impl Run {
    /// Whether a record belongs to it that lies behind all of its members.
    fn takes(&self, ptr: &BlockPtr) -> bool {
        let gap = ptr.offset.saturating_sub(self.end);
        let span = ptr.end().saturating_sub(self.start);
        let little = gap <= GAP || self.gaps.saturating_add(gap) <= span / NEEDLESS;
        self.segment == ptr.segment && little && span <= RUN_MAX
    }
}

/// Groups records into runs.
fn runs(ptrs: &[BlockPtr], wanted: impl Iterator<Item = usize>) -> Vec<Run> {
    let mut order: Vec<usize> = wanted.collect();
    order.sort_by_key(|&i| (ptrs[i].segment, ptrs[i].offset));
    let mut runs: Vec<Run> = Vec::new();
    for i in order {
        let ptr = &ptrs[i];
        match runs.last_mut() {
            Some(run) if run.takes(ptr) => {
                run.gaps += ptr.offset.saturating_sub(run.end);
                run.end = run.end.max(ptr.end());
                run.members.push(i);
            }
            _ => {
                let (start, end) = (ptr.offset, ptr.end());
                runs.push(Run { segment: ptr.segment, start, end, gaps: 0, members: vec![i] });
            }
        }
    }
    runs
}

/// What a reader wants of each record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Logical,
    Stored,
}

/// Refuses what this version cannot read, in words.
fn readable(ptr: &BlockPtr) -> Result<()> {
    if ptr.flags & !flag::KNOWN != 0 {
        return Err(Error::Damaged(format!(
            "a record of segment {} has flags {:#x} that this version of Tarn does not know: use a newer one",
            ptr.segment, ptr.flags
        )));
    }
    if ptr.offset.checked_add(ptr.stored).is_none() {
        return Err(Error::Damaged(format!("a pointer into segment {} reaches past its end", ptr.segment)));
    }
    Ok(())
}

/// Verifies and unpacks one record; `None` when it is not what was written.
pub(crate) fn unpack(ptr: &BlockPtr, stored: Bytes, form: Form) -> Option<Bytes> {
    let right = checksum::verify(&ptr.checksum, &stored) || sabotage::on(Sabotage::TrustReads);
    if stored.len() != ptr.stored as usize || !right {
        return None;
    }
    match (form, ptr.compression) {
        (Form::Stored, _) => Some(stored),
        (_, Compression::Off) => (ptr.logical == ptr.stored).then_some(stored),
        (_, how) => compress::decompress(&stored, how, ptr.logical as usize),
    }
}

/// [`unpack`], off the threads that do I/O where it takes long.
pub(crate) async fn unpack_here(ptr: &BlockPtr, stored: Bytes, form: Form) -> Option<Bytes> {
    if cost_us(ptr, form) <= INLINE_US {
        return unpack(ptr, stored, form);
    }
    let ptr = *ptr;
    crate::offload(move || unpack(&ptr, stored, form)).await.ok().flatten()
}

/// Cuts records out of what was fetched of their segment, from `start` on, and unpacks them; off the threads that do I/O
/// where it takes long.
async fn unpack_run(body: Bytes, start: u32, members: &[BlockPtr], form: Form) -> Vec<Option<Bytes>> {
    let cost: u64 = members.iter().map(|ptr| cost_us(ptr, form)).sum();
    let cut = move |ptr: &BlockPtr| {
        let (from, to) = ((ptr.offset - start) as usize, (ptr.end() - start) as usize);
        unpack(ptr, (to <= body.len()).then(|| body.slice(from..to))?, form)
    };
    if cost <= INLINE_US {
        return members.iter().map(cut).collect();
    }
    let (members, count) = (members.to_vec(), members.len());
    crate::offload(move || members.iter().map(cut).collect()).await.unwrap_or_else(|_| vec![None; count])
}

/// Bytes of memory that a record takes when it was unpacked, beside those of what was fetched.
fn unpacked_len(ptr: &BlockPtr) -> u64 {
    if ptr.compression == Compression::Off { 0 } else { u64::from(ptr.logical) }
}

/// The bytes of a segment in which records lie that are in the order of their offsets.
pub(crate) fn run_range(members: &[BlockPtr]) -> Range<u32> {
    let start = members.first().map_or(0, |ptr| ptr.offset);
    start..members.iter().map(|ptr| ptr.end()).max().unwrap_or(start)
}

/// Roughly how long [`unpack`] takes, in microseconds.
fn cost_us(ptr: &BlockPtr, form: Form) -> u64 {
    let hash = match ptr.checksum {
        Checksum::Xxh3(_) => u64::from(ptr.stored) / 30_000,
        Checksum::Blake3(_) => u64::from(ptr.stored) / 4_000,
    };
    let unpack = match (form, ptr.compression) {
        (Form::Stored, _) | (_, Compression::Off) => 0,
        (_, Compression::Lz4) => u64::from(ptr.logical) / 2_000,
        (_, Compression::Zstd(_)) => u64::from(ptr.logical) / 800,
    };
    hash + unpack
}

impl Pool {
    /// The record, decompressed and verified, if the ARC has it. Never waits.
    pub fn cached(&self, ptr: &BlockPtr) -> Option<Bytes> {
        self.arc.get(ptr)
    }

    /// Lets the ARC have a record that the caller has just written, so that reading it back costs nothing.
    /// `logical` must be what was written. The ARC takes a copy: the writer wants its buffer back.
    pub fn insert_cached(&self, ptr: &BlockPtr, logical: &Bytes, caching: Caching) {
        if logical.len() == ptr.logical as usize {
            self.arc.insert(ptr, logical, caching, false);
        }
    }

    /// A stream has passed these records: the ARC need not have them any longer.
    pub fn passed(&self, ptrs: &[BlockPtr]) {
        self.arc.passed(ptrs);
    }

    /// Reads records: from the ARC, or by as few ranged GETs as their places allow (adjacent records in one
    /// segment are one GET, all GETs in flight together, one fetch for several waiters). Every record is
    /// verified and decompressed; `result[i]` belongs to `ptrs[i]` and has `ptrs[i].logical` bytes.
    pub async fn read(self: &Arc<Self>, ptrs: &[BlockPtr], caching: Caching) -> Result<Vec<Bytes>> {
        let _span = stopwatch::enter(Layer::Pool);
        ptrs.iter().try_for_each(readable)?;
        let mut found: Vec<Option<Bytes>> = vec![None; ptrs.len()];
        let Missing { mine, others } = self.arc.lookup(ptrs, &mut found);
        let mut fetches = Vec::new();
        for (landing, places) in mine {
            let landing = Some(Arc::new(landing));
            fetches.extend(runs(ptrs, places.into_iter()).into_iter().map(|run| (run, landing.clone())));
        }
        self.fetch(ptrs, fetches, caching, &mut found).await?;
        if !others.is_empty() {
            {
                // Whoever fetches it waits for a bucket, and so does this one.
                let _fetching = stopwatch::enter(Layer::Bucket);
                for flight in others {
                    arrival(flight).await;
                }
            }
            // What did not come by them is fetched here, even if others do the same: nobody waits twice.
            let absent = (0..ptrs.len()).filter(|&i| {
                found[i] = found[i].take().or_else(|| self.arc.get(&ptrs[i]));
                found[i].is_none()
            });
            let fetches = runs(ptrs, absent).into_iter().map(|run| (run, None)).collect();
            self.fetch(ptrs, fetches, caching, &mut found).await?;
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Fetches what fell to this reader. The landings go when what was fetched is in the ARC.
    async fn fetch(
        self: &Arc<Self>,
        ptrs: &[BlockPtr],
        fetches: Vec<(Run, Option<Arc<Landing>>)>,
        caching: Caching,
        found: &mut [Option<Bytes>],
    ) -> Result<()> {
        let alone = fetches.len() == 1;
        let fetches = fetches.into_iter().map(|(run, landing)| {
            let members: Vec<BlockPtr> = run.members.iter().map(|&i| ptrs[i]).collect();
            let pool = self.clone();
            let fetch = async move {
                let results = pool.fetch_members(run.segment, run.start..run.end, &members, caching).await;
                drop(landing);
                (run.members, results)
            };
            async move {
                // Several runs are spread over the threads, so that unpacking one does not delay another.
                if alone { Ok(fetch.await) } else { tokio::spawn(job::carried(fetch)).await }
            }
        });
        let mut first_error = None;
        for fetched in join_all(fetches).await {
            let (members, results) = fetched
                .map_err(|e| Error::Bucket(tarn_bucket::Error::Io(format!("a read was interrupted: {e}"))))?;
            for (i, result) in members.into_iter().zip(results) {
                match result {
                    Ok(bytes) => found[i] = Some(bytes),
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Records that lie together, in the order of their offsets, into the ARC.
    async fn fetch_members(
        self: &Arc<Self>,
        segment: SegmentId,
        range: Range<u32>,
        members: &[BlockPtr],
        caching: Caching,
    ) -> Vec<Result<Bytes>> {
        if self.l2arc.concerns(caching) {
            return self.fetch_with_caches(segment, members, caching).await;
        }
        self.fetch_by_get(segment, range, members, caching).await
    }

    /// Records that lie together, by one GET, into the ARC.
    pub(crate) async fn fetch_by_get(
        self: &Arc<Self>,
        segment: SegmentId,
        range: Range<u32>,
        members: &[BlockPtr],
        caching: Caching,
    ) -> Vec<Result<Bytes>> {
        let small = caching == Caching::Together && range.len() < SMALL;
        let guessed = if small { self.guess(segment, members).await } else { None };
        // Whether a record that was not compressed has its memory for itself.
        let single = members.len() == 1 && guessed.is_none();
        let results = match guessed {
            Some(found) => found.into_iter().map(Ok).collect(),
            None => self.fetch_run(segment, range, members, Form::Logical, caching).await,
        };
        for (ptr, result) in members.iter().zip(&results) {
            if let Ok(bytes) = result {
                self.arc.insert(ptr, bytes, caching, single || ptr.compression != Compression::Off);
            }
        }
        results
    }

    /// A record's stored bytes, verified but not decompressed (compaction). Leaves no trace in the ARC.
    pub async fn read_stored(&self, ptrs: &[BlockPtr]) -> Result<Vec<Bytes>> {
        ptrs.iter().try_for_each(readable)?;
        let fetches = runs(ptrs, 0..ptrs.len()).into_iter().map(|run| async move {
            let members: Vec<BlockPtr> = run.members.iter().map(|&i| ptrs[i]).collect();
            let range = run.start..run.end;
            let results = self.fetch_run(run.segment, range, &members, Form::Stored, Caching::Bypass).await;
            (run.members, results)
        });
        let mut found = vec![Bytes::new(); ptrs.len()];
        for (members, results) in join_all(fetches).await {
            for (i, result) in members.into_iter().zip(results) {
                found[i] = result?;
            }
        }
        Ok(found)
    }

    /// One GET, and what each record in it turns out to be. Those that are right are offered to the caches.
    async fn fetch_run(
        &self,
        segment: SegmentId,
        range: Range<u32>,
        members: &[BlockPtr],
        form: Form,
        caching: Caching,
    ) -> Vec<Result<Bytes>> {
        let fail = |error: Error| members.iter().map(|_| Err(error.clone())).collect();
        let vdev = match self.vdev(segment.grant.vdev) {
            Ok(vdev) => vdev,
            Err(error) => return fail(error),
        };
        let key = segment_key(segment);
        let wanted = u64::from(range.start)..u64::from(range.end);
        let unpacked: u64 = members.iter().map(unpacked_len).sum();
        // As good as all of its records: what is left is the directory.
        let most = wanted.end >= (self.segment_size() / 16 * 15).max(WHOLE_MIN)
            && wanted.start <= wanted.end / u64::from(NEEDLESS);
        let from = if most { 0 } else { wanted.start };
        let room = wanted.end - from + unpacked;
        let get = || async {
            if !most {
                return vdev.bucket.get(&key, wanted.clone()).await;
            }
            let whole = vdev.bucket.get_start(&key, wanted.end).await?;
            Ok(whole.slice(whole.len().min(wanted.start as usize)..))
        };
        let mut fetched = None;
        let (body, room) = match self.carried_part(segment, &wanted) {
            Some(body) => (body, None),
            None => match vdev.reading_in(&self.reading, room, get).await {
                Ok((body, room)) => {
                    fetched = self.l2arc.concerns(caching).then(|| body.clone());
                    (body, room)
                }
                Err(error) => return fail(self.fetch_failed(&vdev, segment, error)),
            },
        };
        let unpacked = unpack_run(body, range.start, members, form).await;
        if let Some(body) = fetched {
            let right = members.iter().zip(&unpacked).filter(|(_, bytes)| bytes.is_some());
            let right: Vec<BlockPtr> = right.map(|(ptr, _)| *ptr).collect();
            self.l2arc.offer(caching, segment, &body, range.start, &right);
        }
        // What is with the reader now is the reader's. What is fetched again has room of its own: the bucket may be gone
        // by now, and whoever waits for it must not keep others from theirs.
        drop(room);
        let mut results = Vec::with_capacity(members.len());
        for (ptr, bytes) in members.iter().zip(unpacked) {
            results.push(match bytes {
                Some(bytes) => Ok(bytes),
                None => self.fetch_again(&vdev, &key, ptr, form).await,
            });
        }
        results
    }

    /// A part of a segment that is not in its bucket yet; less where it ends before.
    fn carried_part(&self, segment: SegmentId, range: &Range<u64>) -> Option<Bytes> {
        let object = self.carried.read().get(&segment)?.clone();
        let end = (range.end as usize).min(object.len());
        Some(object.slice((range.start as usize).min(end)..end))
    }

    /// Second try for a record that was wrong, by itself. To be called without room for what is read.
    async fn fetch_again(&self, vdev: &Vdev, key: &str, ptr: &BlockPtr, form: Form) -> Result<Bytes> {
        let get = || vdev.bucket.get(key, u64::from(ptr.offset)..u64::from(ptr.end()));
        let room = u64::from(ptr.stored) + unpacked_len(ptr);
        match vdev.reading_in(&self.reading, room, get).await {
            Ok((body, _room)) => {
                let short = body.len() < ptr.stored as usize;
                if let Some(bytes) = unpack(ptr, body, form) {
                    tracing::warn!(
                        "{}: {key}: a record was wrong once and right when read again",
                        vdev.url()
                    );
                    return Ok(bytes);
                }
                let problem = if short { "the segment is cut short" } else { "its checksum is wrong" };
                Err(self.damaged(vdev, key, ptr, problem))
            }
            Err(error) => Err(self.fetch_failed(vdev, ptr.segment, error)),
        }
    }

    fn damaged(&self, vdev: &Vdev, key: &str, ptr: &BlockPtr, problem: &str) -> Error {
        vdev.checksum_errors.fetch_add(1, Relaxed);
        self.damage.note(DamageRecord {
            seen_ms: 0,
            vdev: vdev.url().to_string(),
            object: key.to_string(),
            segment: Some(ptr.segment),
            offset: Some(ptr.offset),
            owner: None,
            file: None,
            problem: problem.to_string(),
            repaired: false,
        });
        Error::Damaged(format!(
            "{}: segment {} ({key}) at {}: {problem}",
            vdev.url(),
            ptr.segment,
            ptr.offset
        ))
    }

    /// A segment that is gone may have been freed: the caller looks its pointer up again before it says more.
    pub(crate) fn fetch_failed(&self, vdev: &Vdev, segment: SegmentId, error: tarn_bucket::Error) -> Error {
        match error {
            tarn_bucket::Error::NotFound(_) => Error::Missing(format!(
                "{}: segment {segment} ({}) is not there",
                vdev.url(),
                segment_key(segment)
            )),
            other => other.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::{DatasetId, Grant, Txg, VdevId};

    const KIB: u32 = 1 << 10;

    /// The runs of records of 128 KiB at these places of a segment, in records: first, end, and how many members.
    fn of(places: &[u32]) -> Vec<(u32, u32, usize)> {
        let grant = Grant { vdev: VdevId(0), dataset: DatasetId(1), number: 1 };
        let ptr = |place: &u32| BlockPtr {
            segment: SegmentId { grant, seq: 0 },
            offset: place * 128 * KIB,
            stored: 128 * KIB,
            logical: 128 * KIB,
            compression: Compression::Off,
            checksum: Checksum::Xxh3(0),
            flags: 0,
            birth: Txg(0),
        };
        let ptrs: Vec<BlockPtr> = places.iter().map(ptr).collect();
        let runs = runs(&ptrs, 0..ptrs.len());
        let record = 128 * KIB;
        runs.iter().map(|run| (run.start / record, run.end / record, run.members.len())).collect()
    }

    #[test]
    fn a_gap_that_is_small_beside_what_is_wanted_is_fetched_with_it() {
        assert_eq!(of(&[0, 1, 2, 3]), [(0, 4, 4)]);
        assert_eq!(of(&[0, 2]), [(0, 1, 1), (2, 3, 1)]);
        assert_eq!(of(&[0, 1, 2, 3, 4, 5, 7]), [(0, 8, 7)]);
        assert_eq!(of(&[0, 1, 2, 3, 4, 5, 7, 9]), [(0, 8, 7), (9, 10, 1)]);
        let all_but_three = (0..32).filter(|n| ![9, 17, 25].contains(n));
        assert_eq!(of(&all_but_three.collect::<Vec<_>>()), [(0, 32, 29)]);
    }
}
