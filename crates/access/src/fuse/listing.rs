//! Listing directories. Stateless: the cookie of the last entry that the kernel got is all that a listing is.

use super::answer::{or_else, then};
use std::sync::Arc;
use tarn_base::posix::DirEntry;
use tarn_base::{Answer, FsError, Ino};
use tarn_client::Client;

/// Bytes of a short name's entry in a reply, and in one with attributes: how many to fetch for a reply follows.
/// Names are longer mostly; what does not fit is fetched again.
pub(super) const ENTRY_SIZE: usize = 40;
pub(super) const ENTRY_PLUS_SIZE: usize = 168;

/// Cookies of the entries that no server stores; all others are greater.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// The next entries of a directory, with `.` and `..` where they belong.
pub(super) struct Listing {
    pub(super) dir: Ino,
    /// What `..` is; only known where it is needed.
    pub(super) parent: Ino,
    pub(super) after: u64,
    pub(super) entries: Vec<DirEntry>,
}

/// An entry on its way to the kernel.
pub(super) enum Entry<'a> {
    /// `.` or `..`: inode, cookie, name.
    Dot(Ino, u64, &'static str),
    Real(&'a DirEntry),
}

/// Entries after the cookie `after`, about as many as fit into `size` bytes of `entry_size` each.
pub(super) fn list(
    client: &Arc<Client>,
    dir: Ino,
    after: u64,
    size: usize,
    entry_size: usize,
) -> Answer<Listing> {
    // A directory that was removed while it was open is nobody's child, and empty.
    let orphan = move |error| match error {
        FsError::Stale => Answer::ok(dir),
        error => Answer::err(error),
    };
    let parent = if after < DOT_DOT { or_else(client.parent(dir), orphan) } else { Answer::ok(dir) };
    let client = client.clone();
    then(parent, move |parent| {
        let cookie = if after <= DOT_DOT { 0 } else { after };
        let entries = client.readdir(dir, cookie, (size / entry_size).max(1));
        entries.map(move |entries| Listing { dir, parent, after, entries })
    })
}

impl Listing {
    /// Hands out entries in order until `add` says that there is no more room.
    pub(super) fn fill(&self, mut add: impl FnMut(Entry<'_>) -> bool) {
        let dots = [(self.dir, DOT, "."), (self.parent, DOT_DOT, "..")];
        let dots = dots.into_iter().filter(|(_, cookie, _)| *cookie > self.after);
        let mut all = dots
            .map(|(ino, cookie, name)| Entry::Dot(ino, cookie, name))
            .chain(self.entries.iter().map(Entry::Real));
        while let Some(entry) = all.next()
            && !add(entry)
        {}
    }
}
