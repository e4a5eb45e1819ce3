//! Walking the whole of a dataset and saying what does not fit.
//!
//! Everything is read from one snapshot of the database, so a dataset in use can be checked: what is in memory
//! only is not looked at, and a segment under an open grant is not called leaked.

use crate::key::{self, Key, table};
use crate::phys::{
    self, CHUNK_RECORDS, Chunk, DirentPhys, GrantPhys, InodePhys, RefcountPhys, SegmentPhys, VdevPhys,
};
use crate::{Mdt, Stop, pool_error};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tarn_base::block::flag;
use tarn_base::posix::FileKind;
use tarn_base::{BlockPtr, FsError, Grant, Ino, SegmentId, VdevId};

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct CheckReport {
    pub inodes: u64,
    pub names: u64,
    pub records: u64,
    pub segments: u64,
    /// Bytes of records that were read and verified; 0 when only metadata was checked.
    pub bytes_verified: u64,
    /// Segments or inodes that something points to and that are not there.
    pub missing: Vec<String>,
    /// Rows that nothing points to.
    pub leaked: Vec<String>,
    /// Rows that contradict each other, and data that is not what was written.
    pub wrong: Vec<String>,
    /// Segments that no row names, and none that is under way will.
    pub leaked_segments: Vec<SegmentId>,
}

impl CheckReport {
    pub fn is_clean(&self) -> bool {
        self.problems().next().is_none()
    }

    /// A line for each problem.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let lines = |word: &'static str, list: &[String]| {
            list.iter().map(|line| format!("{word}: {line}")).collect::<Vec<_>>()
        };
        let segments =
            self.leaked_segments.iter().map(|id| format!("leaked: segment {id}: no row points to it"));
        let all =
            [lines("missing", &self.missing), lines("leaked", &self.leaked), lines("wrong", &self.wrong)];
        all.into_iter().flatten().chain(segments.collect::<Vec<_>>())
    }
}

/// How far a check has come.
#[derive(Debug, Clone, Copy)]
pub struct CheckProgress {
    pub inodes: u64,
    pub bytes: u64,
}

struct InodeSeen {
    phys: InodePhys,
    links: u32,
    subdirectories: u32,
    entries: u64,
    allocated: u64,
    /// One name it was found by: directory and name.
    name: Option<(Ino, Vec<u8>)>,
}

#[derive(Default)]
struct Walk {
    report: CheckReport,
    inodes: HashMap<Ino, InodeSeen>,
    /// Live bytes by the block maps.
    live: HashMap<SegmentId, u64>,
    /// Files with a record in a segment, for messages: the first one seen.
    owner: HashMap<SegmentId, Ino>,
    /// Pointers to shared records.
    shared: BTreeMap<(SegmentId, u32), (u32, u32)>,
    orphans: HashSet<Ino>,
}

impl Mdt {
    /// Checks metadata and the presence of every segment; with `data`, reads and verifies every record too.
    pub async fn check(
        self: &Arc<Self>,
        data: bool,
        progress: impl Fn(CheckProgress) + Send + Sync,
    ) -> Result<CheckReport, FsError> {
        self.sync().await?;
        let snapshot = self.db.snapshot().await?;
        let mut walk = Walk::default();
        snapshot.each(table::INODE, |key, row| walk.inode(key, row)).await?;
        snapshot
            .each(table::ORPHAN, |key, _| {
                walk.orphans.extend(key::ino_of(key));
                Ok(())
            })
            .await?;
        snapshot.each(table::DIRENT, |key, row| walk.names(key, row)).await?;
        walk.report.inodes = walk.inodes.len() as u64;
        let mut batch = Vec::new();
        let (mut from, end) = key::whole_table(table::CHUNK);
        while let Some(rows) = snapshot.page(&mut from, &end).await? {
            for (key, row) in rows {
                batch.extend(walk.block_map(&key, &row)?);
            }
            if data {
                self.verify(&mut walk, std::mem::take(&mut batch)).await?;
            }
            batch.clear();
            progress(CheckProgress { inodes: walk.report.inodes, bytes: walk.report.bytes_verified });
        }
        walk.compare_inodes();
        snapshot.each(table::REFCOUNT, |key, row| walk.refcount(key, row)).await?;
        walk.compare_shared();
        let mut rows = HashMap::new();
        snapshot
            .each(table::SEGMENT, |key, row| {
                let row: SegmentPhys = phys::decode("segment", row)?;
                rows.extend(SegmentId::from_bytes(&key[1..]).map(|id| (id, row)));
                Ok(())
            })
            .await?;
        let mut carried = HashSet::new();
        snapshot
            .each(table::CARRIED, |key, _| {
                carried.extend(key::carried_of(key));
                Ok(())
            })
            .await?;
        let mut freed = HashSet::new();
        snapshot
            .each(table::RECLAIM, |key, _| {
                freed.extend(key::reclaim_of(key).map(|(_, id)| id));
                Ok(())
            })
            .await?;
        let mut open: HashSet<Grant> = HashSet::new();
        snapshot
            .each(table::GRANT, |_, row| {
                open.insert(phys::decode::<GrantPhys>("grant", row)?.grant);
                Ok(())
            })
            .await?;
        walk.report.segments = rows.len() as u64;
        walk.compare_segments(&rows);
        let mut stored = BTreeMap::new();
        snapshot
            .each(table::VDEV, |key, row| {
                let row: VdevPhys = phys::decode("vdev", row)?;
                stored.extend(key::vdev_of(key).map(|vdev| (vdev, row.stored)));
                Ok(())
            })
            .await?;
        walk.compare_vdevs(&rows, stored);
        self.compare_objects(&mut walk, &rows, &carried, &freed, &open).await?;
        Ok(walk.report)
    }

    /// Deletes the leaked segments of a report, each only if still no row names it, and takes them out of it. Gives how
    /// many there were.
    pub async fn free_leaked(self: &Arc<Self>, report: &mut CheckReport) -> Result<usize, FsError> {
        let mut leaked = Vec::new();
        for &id in &report.leaked_segments {
            if !self.may_be_needed(id).await? {
                leaked.push(id);
            }
        }
        self.pool.check_authority().await.map_err(pool_error)?;
        self.pool.delete_segments(&leaked).await.map_err(pool_error)?;
        report.leaked_segments.clear();
        Ok(leaked.len())
    }

    /// Whether a row, a grant or the list of what is to be deleted names a segment now.
    async fn may_be_needed(self: &Arc<Self>, id: SegmentId) -> Result<bool, FsError> {
        let rows = self.look(move |tx| Ok((tx.get(&key::segment(id))?, tx.get(&key::grant(id.grant))?)));
        Ok(rows.wait().await? != (None, None) || self.reclaimer.contains(id))
    }

    /// The buckets are listed after the snapshot was taken, so what seems missing or leaked is asked for again: its
    /// grant may be younger than the snapshot, or its segment freed and deleted since.
    async fn compare_objects(
        self: &Arc<Self>,
        walk: &mut Walk,
        rows: &HashMap<SegmentId, SegmentPhys>,
        carried: &HashSet<SegmentId>,
        freed: &HashSet<SegmentId>,
        open: &HashSet<Grant>,
    ) -> Result<(), FsError> {
        let listed = self.pool.list_segments(self.dataset).await.map_err(pool_error)?;
        let objects: HashMap<SegmentId, u64> = listed.into_iter().collect();
        for (&id, &stored) in &objects {
            if let Some(row) = rows.get(&id).filter(|row| stored < row.size) {
                let file = walk.owner.get(&id).map(|ino| walk.path(*ino)).unwrap_or_default();
                let size = row.size;
                walk.report
                    .wrong
                    .push(format!("segment {id} has {stored} bytes, its records {size}: {file}"));
            }
        }
        for &id in rows.keys().filter(|id| !objects.contains_key(id) && !carried.contains(id)) {
            if self.look(move |tx| tx.get(&key::segment(id))).wait().await?.is_none() {
                continue;
            }
            let file = walk.owner.get(&id).map(|ino| walk.path(*ino)).unwrap_or_default();
            walk.report.missing.push(format!("segment {id} is not in its bucket: {file}"));
        }
        for id in objects.into_keys() {
            let named = rows.contains_key(&id) || freed.contains(&id) || open.contains(&id.grant);
            if !named && !self.may_be_needed(id).await? {
                walk.report.leaked_segments.push(id);
            }
        }
        Ok(())
    }

    async fn verify(
        self: &Arc<Self>,
        walk: &mut Walk,
        records: Vec<(Ino, u64, BlockPtr)>,
    ) -> Result<(), FsError> {
        for group in records.chunks(64) {
            let ptrs: Vec<BlockPtr> = group.iter().map(|(_, _, ptr)| *ptr).collect();
            if self.pool.read(&ptrs, tarn_pool::Caching::Bypass).await.is_ok() {
                walk.report.bytes_verified += ptrs.iter().map(|ptr| u64::from(ptr.stored)).sum::<u64>();
                continue;
            }
            for (ino, record, ptr) in group {
                match self.pool.read(&[*ptr], tarn_pool::Caching::Bypass).await {
                    Ok(_) => walk.report.bytes_verified += u64::from(ptr.stored),
                    // The file was written or removed since the snapshot.
                    Err(_) if !self.still_points(*ino, *record, ptr).await? => {}
                    Err(error) => walk.report.wrong.push(format!("{}: {error}", walk.path(*ino))),
                }
            }
        }
        Ok(())
    }

    async fn still_points(self: &Arc<Self>, ino: Ino, record: u64, ptr: &BlockPtr) -> Result<bool, FsError> {
        match self.map(ino, record, 1).wait().await {
            Ok(ptrs) => Ok(ptrs.first() == Some(&Some(*ptr))),
            Err(FsError::Stale) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Walk {
    fn inode(&mut self, key: &Key, row: &[u8]) -> Result<(), Stop> {
        let Some(ino) = key::ino_of(key) else { return Ok(()) };
        let phys: InodePhys = phys::decode("inode", row)?;
        let seen = InodeSeen { phys, links: 0, subdirectories: 0, entries: 0, allocated: 0, name: None };
        self.inodes.insert(ino, seen);
        Ok(())
    }

    fn names(&mut self, key: &Key, row: &[u8]) -> Result<(), Stop> {
        let Some(dir) = key::ino_of(key) else { return Ok(()) };
        let names: DirentPhys = phys::decode("directory", row)?;
        for entry in names.entries {
            self.report.names += 1;
            let shown = String::from_utf8_lossy(&entry.name).into_owned();
            match self.inodes.get_mut(&entry.ino) {
                None => {
                    self.report.missing.push(format!("{shown} in inode {dir}: inode {} is gone", entry.ino))
                }
                Some(seen) => {
                    seen.links += 1;
                    if seen.phys.kind != entry.kind {
                        self.report
                            .wrong
                            .push(format!("{shown} in inode {dir}: kind differs from its inode"));
                    }
                    if seen.phys.kind == FileKind::Directory && seen.phys.parent != dir {
                        self.report
                            .wrong
                            .push(format!("{shown} in inode {dir}: the directory names another parent"));
                    }
                    seen.name = Some((dir, entry.name));
                }
            }
            match self.inodes.get_mut(&dir) {
                None => self.report.leaked.push(format!("{shown}: its directory {dir} is gone")),
                Some(seen) => {
                    seen.entries += 1;
                    seen.subdirectories += u32::from(entry.kind == FileKind::Directory);
                }
            }
        }
        Ok(())
    }

    fn block_map(&mut self, key: &Key, row: &[u8]) -> Result<Vec<(Ino, u64, BlockPtr)>, FsError> {
        let (Some(ino), Some(chunk)) = (key::ino_of(key), key::chunk_of(key)) else { return Ok(Vec::new()) };
        let Some(seen) = self.inodes.get_mut(&ino) else {
            self.report.leaked.push(format!("block map of inode {ino}, which is gone"));
            return Ok(Vec::new());
        };
        let record_size = 1u64 << seen.phys.record_shift;
        let map = match Chunk::decode(row, record_size as u32) {
            Ok(map) => map,
            Err(Stop::Fail(error)) => {
                self.report.wrong.push(format!("inode {ino}: {error}"));
                return Ok(Vec::new());
            }
            Err(Stop::Missing(_)) => return Ok(Vec::new()),
        };
        let mut out = Vec::new();
        for (record, ptr) in (chunk * CHUNK_RECORDS..).zip(map.ptrs) {
            let Some(ptr) = ptr else { continue };
            self.report.records += 1;
            seen.allocated += u64::from(ptr.stored);
            if record * record_size >= seen.phys.size {
                self.report
                    .wrong
                    .push(format!("inode {ino}: record {record} lies behind the end of the file"));
            }
            let first = if ptr.flags & flag::SHARED != 0 {
                let count = self.shared.entry((ptr.segment, ptr.offset)).or_default();
                count.0 += 1;
                count.0 == 1
            } else {
                true
            };
            if first {
                *self.live.entry(ptr.segment).or_default() += u64::from(ptr.stored);
            }
            self.owner.entry(ptr.segment).or_insert(ino);
            out.push((ino, record, ptr));
        }
        Ok(out)
    }

    fn refcount(&mut self, key: &Key, row: &[u8]) -> Result<(), Stop> {
        let count: RefcountPhys = phys::decode("reference count", row)?;
        let (id, offset) = key[1..].split_at(SegmentId::LEN.min(key.len() - 1));
        if let (Some(id), Ok(offset)) = (SegmentId::from_bytes(id), offset.try_into()) {
            self.shared.entry((id, u32::from_be_bytes(offset))).or_default().1 = count.extra;
        }
        Ok(())
    }

    fn compare_shared(&mut self) {
        for ((id, offset), (pointers, extra)) in &self.shared {
            if *pointers != extra + 1 {
                let text = format!("record {id}+{offset}: {pointers} pointers but {extra} extra references");
                self.report.wrong.push(text);
            }
        }
    }

    fn compare_inodes(&mut self) {
        let mut wrong = Vec::new();
        let mut leaked = Vec::new();
        for (ino, seen) in &self.inodes {
            let links = match seen.phys.kind {
                FileKind::Directory if *ino == Ino::ROOT => 2 + seen.subdirectories,
                FileKind::Directory if seen.links > 0 => 2 + seen.subdirectories,
                _ => seen.links,
            };
            let mut say = |what: String| wrong.push(format!("{} (inode {ino}): {what}", self.path(*ino)));
            if seen.phys.nlink != links {
                say(format!("{} links, but {links} names", seen.phys.nlink));
            }
            if seen.phys.kind == FileKind::Directory && seen.phys.size != seen.entries {
                say(format!("{} entries, but {} names in it", seen.phys.size, seen.entries));
            }
            if seen.phys.kind == FileKind::Regular && seen.phys.allocated != seen.allocated {
                say(format!(
                    "{} bytes allocated, but {} in its block map",
                    seen.phys.allocated, seen.allocated
                ));
            }
            if links == 0 && !self.orphans.contains(ino) {
                leaked.push(format!("inode {ino} has no name"));
            }
        }
        self.report.wrong.extend(wrong);
        self.report.leaked.extend(leaked);
    }

    fn compare_segments(&mut self, rows: &HashMap<SegmentId, SegmentPhys>) {
        for (id, row) in rows {
            let live = self.live.get(id).copied().unwrap_or(0);
            if row.live != live {
                let text =
                    format!("segment {id}: {} live bytes by its row, {live} by the block maps", row.live);
                self.report.wrong.push(text);
            }
        }
        let unknown: Vec<SegmentId> = self.live.keys().filter(|id| !rows.contains_key(id)).copied().collect();
        for id in unknown {
            let file = self.owner.get(&id).map(|ino| self.path(*ino)).unwrap_or_default();
            self.report.missing.push(format!("segment {id} has no row: {file}"));
        }
    }

    fn compare_vdevs(&mut self, rows: &HashMap<SegmentId, SegmentPhys>, mut stored: BTreeMap<VdevId, u64>) {
        let mut found: BTreeMap<VdevId, u64> = BTreeMap::new();
        for (id, row) in rows {
            *found.entry(id.grant.vdev).or_default() += row.size;
        }
        stored.retain(|_, bytes| *bytes > 0);
        if found != stored {
            let text = format!("bytes stored by vdev are {found:?}, but {stored:?} by their rows");
            self.report.wrong.push(text);
        }
    }

    /// A path of the inode, as far as names were found.
    fn path(&self, ino: Ino) -> String {
        let mut parts = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT && parts.len() < 256 {
            match self.inodes.get(&at).and_then(|seen| seen.name.as_ref()) {
                Some((dir, name)) => {
                    parts.push(String::from_utf8_lossy(name).into_owned());
                    at = *dir;
                }
                None => {
                    parts.push(format!("<inode {at}>"));
                    break;
                }
            }
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }
}
