//! Reading: from dirty records, the ARC, or the buckets.
//!
//! The order of looking is what makes it right: dirty records first, then the block map, then the ARC. A flight
//! that ends in between moves a record from the first to the others, never the other way.

use crate::client::Client;
use crate::inode::Inode;
use crate::open::OpenFile;
use crate::stats::add;
use crate::zfetch::{Landed, Limits, Stream};
use crate::{Handle, OpenMode};
use bytes::Bytes;
use std::sync::Arc;
use tarn_base::stopwatch::{self, Layer};
use tarn_base::{Answer, BlockPtr, FsError, Ino, RecordOwner, job};
use tarn_pool::{Caching, Error};

/// What was read: pieces in order.
#[derive(Clone, Debug, Default)]
pub struct ReadBuf {
    pub pieces: Vec<Bytes>,
    /// Bytes in all pieces together.
    pub len: usize,
}

static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

impl ReadBuf {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it as one slice, if it lies in one place.
    pub fn contiguous(&self) -> Option<&[u8]> {
        match self.pieces.as_slice() {
            [] => Some(&[]),
            [piece] => Some(piece),
            _ => None,
        }
    }

    /// A copy in one place.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }

    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }

    fn push_zeros(&mut self, mut len: usize) {
        while len > 0 {
            let part = len.min(ZEROS.len());
            self.push(Bytes::from_static(&ZEROS[..part]));
            len -= part;
        }
    }
}

/// What zfetch says of a read.
struct Advised {
    /// How to treat the ARC.
    caching: Caching,
    /// Windows to wait for.
    on_the_way: Vec<Arc<Landed>>,
    /// It belongs to no sequence.
    scattered: bool,
}

/// A range of a file and what is dirty in it.
struct Span {
    offset: u64,
    end: u64,
    record_size: u64,
    first: u64,
    /// For each record its dirty content.
    dirty: Vec<Option<Bytes>>,
    /// Records of it have patches: they must be made whole before.
    patched: bool,
}

impl Span {
    /// The part of `offset..offset + len` in front of the visible end; `None` when nothing is.
    fn take(inode: &Inode, offset: u64, len: u64) -> Option<Span> {
        let state = inode.state.lock();
        let end = offset.saturating_add(len).min(state.size);
        if offset >= end {
            return None;
        }
        let record_size = state.record_size;
        let (first, last) = (offset / record_size, (end - 1) / record_size);
        let dirty = (first..=last).map(|r| state.dirty_content(r)).collect();
        let patched = state.patches.range(first..=last).next().is_some();
        Some(Span { offset, end, record_size, first, dirty, patched })
    }

    /// Records to look up in the map: from the first to the last that is not dirty.
    fn unknown(&self) -> Option<(u64, u32)> {
        let from = self.dirty.iter().position(Option::is_none)?;
        let to = self.dirty.iter().rposition(Option::is_none)?;
        Some((self.first + from as u64, (to - from + 1) as u32))
    }

    /// Cuts the records' contents to the span; what they lack reads as zeros.
    fn assemble(&self, contents: impl Iterator<Item = Option<Bytes>>) -> ReadBuf {
        let mut buf = ReadBuf { pieces: Vec::with_capacity(self.dirty.len()), len: 0 };
        for (record, content) in (self.first..).zip(contents) {
            let start = record * self.record_size;
            let from = self.offset.saturating_sub(start) as usize;
            let to = (self.end - start).min(self.record_size) as usize;
            let content = content.unwrap_or_default();
            let valid = content.len().clamp(from, to);
            if from < valid {
                buf.push(content.slice(from..valid));
            }
            buf.push_zeros(to - valid);
        }
        buf
    }
}

impl Client {
    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    pub fn read(self: &Arc<Self>, handle: Handle, offset: u64, len: usize) -> Answer<ReadBuf> {
        let file = match self.check_fenced().and_then(|()| self.handles.get(handle)) {
            Ok(file) => file,
            Err(e) => return Answer::err(e),
        };
        add(&self.stats.reads, 1);
        self.touch(&file.inode);
        let Some(span) = Span::take(&file.inode, offset, len as u64) else {
            add(&self.stats.reads_ready, 1);
            return Answer::ok(ReadBuf::default());
        };
        let Advised { caching, on_the_way, scattered } = self.advise(&file, &span);
        if let Some(buf) = self.read_ready(&file.inode, &span) {
            add(&self.stats.reads_ready, 1);
            add(&self.stats.record_hits, span.dirty.len() as u64);
            self.count_read(&buf);
            if scattered {
                self.note_scattered(&file.inode, offset, false);
            }
            return Answer::ok(buf);
        }
        add(&self.stats.reads_pending, 1);
        file.stream.lock().waited();
        let waits = scattered.then(|| {
            self.note_scattered(&file.inode, offset, true);
            self.options.clock.monotonic()
        });
        let client = self.clone();
        Answer::pending(async move {
            {
                // Whoever fetches it waits for a bucket, and so does this one.
                let _fetching = stopwatch::enter(Layer::Bucket);
                for window in on_the_way {
                    window.wait().await;
                }
            }
            let buf = client.read_waiting(&file.inode, offset, len as u64, caching).await?;
            client.count_read(&buf);
            if let Some(since) = waits {
                client.scattered.waited(client.options.clock.monotonic().saturating_sub(since));
            }
            Ok(buf)
        })
    }

    fn count_read(&self, buf: &ReadBuf) {
        add(&self.stats.read_bytes, buf.len as u64);
        job::charged(|job| job.read(buf.len as u64));
    }

    /// Lets zfetch know of a read and does what it says.
    fn advise(self: &Arc<Self>, file: &Arc<OpenFile>, span: &Span) -> Advised {
        let limits = self.limits(&file.inode);
        let (advice, on_the_way) = {
            let mut stream = file.stream.lock();
            let stream: &mut Stream = &mut stream;
            stream.reader = job::current();
            let advice = stream.on_read(span.offset, span.end - span.offset, limits);
            (advice, stream.on_the_way(span.offset, span.end))
        };
        self.pass(file, advice.let_go);
        let OpenMode { direct, .. } = file.mode;
        let caching = if direct { Caching::Stream } else { advice.caching };
        for fetch in advice.fetch {
            self.prefetch(file, fetch, caching);
        }
        Advised { caching, on_the_way, scattered: advice.scattered }
    }

    /// What bounds a stream of this file now.
    pub(crate) fn limits(&self, inode: &Inode) -> Limits<'_> {
        let (size, record_size) = {
            let state = inode.state.lock();
            (state.size, state.record_size)
        };
        Limits {
            size,
            unit: self.records.segment_size().max(record_size),
            stripes: self.records.stripes(),
            kept: self.records.kept_max(),
            now: self.options.clock.monotonic(),
            ahead: &self.ahead,
        }
    }

    /// The span from memory, if all of it is there.
    fn read_ready(&self, inode: &Inode, span: &Span) -> Option<ReadBuf> {
        if span.patched {
            return None;
        }
        let Some((first, count)) = span.unknown() else {
            return Some(span.assemble(span.dirty.iter().cloned()));
        };
        let ptrs = self.map_ready(inode.ino, first, count)?;
        let mut contents = Vec::with_capacity(span.dirty.len());
        for (record, dirty) in (span.first..).zip(&span.dirty) {
            contents.push(match dirty {
                Some(content) => Some(content.clone()),
                None => match ptrs.get((record - first) as usize).copied().flatten() {
                    Some(ptr) => Some(self.records.cached(&ptr)?),
                    None => None,
                },
            });
        }
        Some(span.assemble(contents.into_iter()))
    }

    /// As [`Client::read`], waiting for what memory lacks.
    pub(crate) async fn read_waiting(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        offset: u64,
        len: u64,
        caching: Caching,
    ) -> Result<ReadBuf, FsError> {
        let mut missed: Option<Vec<BlockPtr>> = None;
        loop {
            let Some(span) = Span::take(inode, offset, len) else { return Ok(ReadBuf::default()) };
            if span.patched {
                self.settle(inode, span.first..span.first + span.dirty.len() as u64, false).await?;
                continue;
            }
            let Some((first, count)) = span.unknown() else {
                return Ok(span.assemble(span.dirty.iter().cloned()));
            };
            let ptrs = self.map_all(inode.ino, first, count).await?;
            let mut contents = span.dirty.clone();
            let mut wanted = Vec::new();
            let mut places = Vec::new();
            for (place, ptr) in ((first - span.first) as usize..).zip(&ptrs) {
                let Some(ptr) = ptr.filter(|_| contents[place].is_none()) else { continue };
                match self.records.cached(&ptr) {
                    Some(content) => contents[place] = Some(content),
                    None => {
                        wanted.push(ptr);
                        places.push(place);
                    }
                }
            }
            add(&self.stats.record_misses, wanted.len() as u64);
            add(&self.stats.record_hits, (contents.len() - wanted.len()) as u64);
            if wanted.is_empty() {
                return Ok(span.assemble(contents.into_iter()));
            }
            match self.records.clone().read(wanted.clone(), caching).await {
                Ok(read) => {
                    for (place, content) in places.into_iter().zip(read) {
                        contents[place] = Some(content);
                    }
                    return Ok(span.assemble(contents.into_iter()));
                }
                // Freed since the map was read: read it anew. The same pointers again mean that it is lost.
                Err(Error::Missing(_)) if missed.as_ref() != Some(&wanted) => missed = Some(wanted),
                Err(e) => {
                    let records = places.iter().map(|place| span.first + *place as u64);
                    self.note_lost(inode.ino, records.zip(wanted), &e).await;
                    return Err(self.pool_error(e));
                }
            }
        }
    }

    /// A read failed for good: lets the pool know which of the records are lost, and whose they are.
    pub(crate) async fn note_lost(
        &self,
        ino: Ino,
        records: impl Iterator<Item = (u64, BlockPtr)>,
        error: &Error,
    ) {
        if !matches!(error, Error::Damaged(_) | Error::Missing(_)) {
            return;
        }
        let dataset = self.mds.info().id;
        for (record, ptr) in records {
            if let Err(error) = self.records.clone().read(vec![ptr], Caching::Bypass).await {
                self.records.note_lost(&ptr, RecordOwner { dataset, ino, record }, &error);
            }
        }
    }

    /// Pointers of `count` records from `first`, if the metadata server has them all at hand.
    pub(crate) fn map_ready(&self, ino: Ino, first: u64, count: u32) -> Option<Vec<Option<BlockPtr>>> {
        let mut ptrs = Vec::new();
        while ptrs.len() < count as usize {
            let have = ptrs.len() as u32;
            let answer = self.mds.map(ino, first + u64::from(have), count - have);
            let Answer::Ready(Ok(map)) = answer else { return None };
            match map.ptrs.len() {
                0 => return None,
                n if have == 0 && n >= count as usize => ptrs = map.ptrs,
                _ => ptrs.extend(map.ptrs),
            }
        }
        Some(ptrs)
    }

    /// Pointers of `count` records from `first`, however many answers it takes.
    pub(crate) async fn map_all(
        &self,
        ino: Ino,
        first: u64,
        count: u32,
    ) -> Result<Vec<Option<BlockPtr>>, FsError> {
        let mut ptrs = Vec::with_capacity(count as usize);
        while (ptrs.len() as u32) < count {
            let have = ptrs.len() as u32;
            let map = self.mds.map(ino, first + u64::from(have), count - have).wait().await?;
            if map.ptrs.is_empty() {
                return Err(FsError::Io("the block map answered with nothing".into()));
            }
            ptrs.extend(map.ptrs.into_iter().take((count - have) as usize));
        }
        Ok(ptrs)
    }
}
