//! Replies that carry more than a number.

use super::convert::{attr_ttl, file_attr};
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyEntry, ReplyXattr,
};
use std::io::IoSlice;
use std::time::Duration;
use tarn_base::Timespec;
use tarn_base::posix::Attr;
use tarn_client::{Handle, ReadBuf};

/// Inode numbers are never used twice, so there is one generation.
pub(super) const GENERATION: Generation = Generation(0);
/// Most pieces in one reply: `writev` takes 1024 with the header.
const PIECES_MAX: usize = 1023;
/// How long to keep what was answered, by which clock.
#[derive(Clone, Copy)]
pub(super) struct Ttl {
    pub attr: Duration,
    pub entry: Duration,
    pub now: Timespec,
}

impl Ttl {
    pub(super) fn of(&self, attr: &Attr) -> Duration {
        attr_ttl(attr, self.now, self.attr)
    }

    pub(super) fn reply_entry(self, reply: ReplyEntry, attr: Attr) {
        reply.entry_with_ttls(&self.of(&attr), &self.entry, &file_attr(&attr), GENERATION);
    }

    pub(super) fn reply_attr(self, reply: ReplyAttr, attr: Attr) {
        reply.attr(&self.of(&attr), &file_attr(&attr));
    }

    pub(super) fn reply_create(self, reply: ReplyCreate, (attr, handle): (Attr, Handle), direct: bool) {
        let flags = open_flags(direct, true);
        let (valid, made) = (self.of(&attr), file_attr(&attr));
        reply.created(&valid, &self.entry, &made, GENERATION, FileHandle(handle.0), flags);
    }
}

/// How the kernel shall treat an open file.
pub(super) fn open_flags(direct: bool, keep_cache: bool) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    if direct {
        flags |= FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    }
    if keep_cache {
        flags |= FopenFlags::FOPEN_KEEP_CACHE;
    }
    flags
}

pub(super) fn send_read(reply: ReplyData, buf: &ReadBuf) {
    let pieces = buf.pieces.iter().filter(|piece| !piece.is_empty());
    let slices: Vec<_> = pieces.map(|piece| IoSlice::new(piece)).collect();
    if slices.len() <= PIECES_MAX {
        reply.data_vectored(&slices);
    } else {
        reply.data(&buf.pieces.concat());
    }
}

/// A value of unknown length: its size where the caller has no room, an error where it has too little.
pub(super) fn send_sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    match size as usize {
        0 => reply.size(value.len() as u32),
        room if room < value.len() => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
