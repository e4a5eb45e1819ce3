//! Listing directories. Stateless: the cookie of the last entry that the kernel got is all that a listing is.

use super::answer::{or_else, then};
use std::sync::Arc;
use tarn_base::posix::{DirEntry, NameEntry};
use tarn_base::{Answer, FsError, Ino};
use tarn_client::Client;

/// Bytes of a short name's entry in a reply, and in one with attributes: how many to fetch for a reply follows.
/// Names are longer mostly; what does not fit is fetched again.
const ENTRY_SIZE: usize = 40;
const ENTRY_PLUS_SIZE: usize = 168;

/// Cookies of the entries that no server stores; all others are greater.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// The next entries of a directory, with `.` and `..` where they belong.
pub(super) struct Listing<E> {
    pub(super) dir: Ino,
    /// What `..` is; only known where it is needed.
    pub(super) parent: Ino,
    pub(super) after: u64,
    pub(super) entries: Vec<E>,
}

/// An entry on its way to the kernel.
pub(super) enum Entry<'a, E> {
    /// `.` or `..`: inode, cookie, name.
    Dot(Ino, u64, &'static str),
    Real(&'a E),
}

/// Entries with attributes after the cookie `after`, about as many as fit into `size` bytes.
pub(super) fn list(client: &Arc<Client>, dir: Ino, after: u64, size: usize) -> Answer<Listing<DirEntry>> {
    let max = (size / ENTRY_PLUS_SIZE).max(1);
    listing(client, dir, after, move |client, cookie| client.readdir(dir, cookie, max))
}

/// Names after the cookie `after`, about as many as fit into `size` bytes.
pub(super) fn list_names(
    client: &Arc<Client>,
    dir: Ino,
    after: u64,
    size: usize,
) -> Answer<Listing<NameEntry>> {
    let max = (size / ENTRY_SIZE).max(1);
    listing(client, dir, after, move |client, cookie| client.names(dir, cookie, max))
}

/// What `entries` gives after a cookie, with what the dots need.
fn listing<E: Send + 'static>(
    client: &Arc<Client>,
    dir: Ino,
    after: u64,
    entries: impl FnOnce(&Arc<Client>, u64) -> Answer<Vec<E>> + Send + 'static,
) -> Answer<Listing<E>> {
    // A directory that was removed while it was open is nobody's child, and empty.
    let orphan = move |error| match error {
        FsError::Stale => Answer::ok(dir),
        error => Answer::err(error),
    };
    let parent = if after < DOT_DOT { or_else(client.parent(dir), orphan) } else { Answer::ok(dir) };
    let client = client.clone();
    then(parent, move |parent| {
        let cookie = if after <= DOT_DOT { 0 } else { after };
        entries(&client, cookie).map(move |entries| Listing { dir, parent, after, entries })
    })
}

impl<E> Listing<E> {
    /// Hands out entries in order until `add` says that there is no more room.
    pub(super) fn fill(&self, mut add: impl FnMut(Entry<'_, E>) -> bool) {
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
