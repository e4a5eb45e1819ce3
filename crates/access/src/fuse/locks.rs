//! Which owners may hold locks on which files, so that they are given up when the kernel says so.
//!
//! The kernel keeps no list of the locks that it asks for. It tells of every close of a descriptor (flush), with
//! the process as an owner: its POSIX locks on the file end there. It tells of the end of an open file (release):
//! BSD locks and those of open file descriptions end there. For the latter it names no owner, so the book
//! remembers through which handle each owner last asked. A process is forgotten when it closes any descriptor of
//! the file, so what is left under a handle at its end belongs to the open file.
//!
//! Nearly all files are never locked: for them nothing is asked of the server.

use super::answer::{Signals, Waits, or_else, then};
use super::convert::{lock_mode, lock_range, lock_type};
use fuser::{ReplyEmpty, ReplyLock, Request};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tarn_base::{Answer, FsError, Ino};
use tarn_client::{Client, LockKind, LockOwner, LockRange};

/// A lock as the kernel asks for it.
pub(super) struct Asked {
    pub ino: Ino,
    pub handle: u64,
    pub owner: u64,
    pub start: u64,
    pub end: u64,
    pub typ: i32,
    pub pid: u32,
    pub flock: bool,
}

impl Asked {
    fn lock_owner(&self) -> LockOwner {
        LockOwner { kind: kind(self.flock), token: self.owner, pid: self.pid }
    }
}

fn kind(flock: bool) -> LockKind {
    if flock { LockKind::Bsd } else { LockKind::Posix }
}

const ALL: LockRange = LockRange { start: 0, end: u64::MAX };

#[derive(Clone, Copy)]
struct Holder {
    kind: LockKind,
    token: u64,
    handle: u64,
}

/// For each file the owners that have asked for a lock, or were given one, since they last gave up all.
#[derive(Clone, Default)]
pub(super) struct LockBook {
    files: Arc<Mutex<HashMap<Ino, Vec<Holder>>>>,
}

impl LockBook {
    fn note(&self, asked: &Asked) {
        let holder = Holder { kind: kind(asked.flock), token: asked.owner, handle: asked.handle };
        let mut files = self.files.lock();
        let holders = files.entry(asked.ino).or_default();
        match holders.iter_mut().find(|h| h.kind == holder.kind && h.token == holder.token) {
            Some(known) => *known = holder,
            None => holders.push(holder),
        }
    }

    /// While a lock is waited for, another thread of the process may close a descriptor of the file, and its owner is
    /// forgotten. It is known again before anybody hears that it has the lock.
    fn note_when_granted(&self, asked: Asked, answer: Answer<()>) -> Answer<()> {
        match answer {
            Answer::Pending(granted) => {
                let book = self.clone();
                Answer::pending(async move {
                    granted.await?;
                    book.note(&asked);
                    Ok(())
                })
            }
            ready => ready,
        }
    }

    fn take(&self, ino: Ino, ends: impl Fn(&Holder) -> bool) -> Vec<Holder> {
        let mut files = self.files.lock();
        let Some(holders) = files.get_mut(&ino) else { return Vec::new() };
        let taken = holders.extract_if(.., |holder| ends(holder)).collect();
        if holders.is_empty() {
            files.remove(&ino);
        }
        taken
    }

    pub(super) fn set(
        &self,
        client: &Arc<Client>,
        waits: &Waits,
        request: &Request,
        asked: Asked,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let range = lock_range(asked.start, asked.end);
        let answer = match lock_mode(asked.typ) {
            Err(error) => Answer::err(error),
            Ok(None) => client.unlock(asked.ino, asked.lock_owner(), range),
            Ok(Some(mode)) => {
                self.note(&asked);
                let answer = client.lock(asked.ino, asked.lock_owner(), range, mode, wait);
                self.note_when_granted(asked, answer)
            }
        };
        let signals = if wait { Signals::GiveUp } else { Signals::Killable };
        waits.answer(request, signals, answer, reply, |reply, ()| reply.ok());
    }

    pub(super) fn test(
        client: &Arc<Client>,
        waits: &Waits,
        request: &Request,
        asked: Asked,
        reply: ReplyLock,
    ) {
        let range = lock_range(asked.start, asked.end);
        let answer = match lock_mode(asked.typ) {
            Ok(Some(mode)) => client.lock_test(asked.ino, asked.lock_owner(), range, mode),
            Ok(None) => Answer::err(FsError::invalid("lock type")),
            Err(error) => Answer::err(error),
        };
        waits.answer(request, Signals::Killable, answer, reply, |reply, held| match held {
            None => reply.locked(0, 0, libc::F_UNLCK, 0),
            Some(held) => {
                let end = held.range.end.min(i64::MAX as u64);
                reply.locked(held.range.start, end, lock_type(held.mode), held.pid);
            }
        });
    }

    /// A process closed a descriptor of the file: gives up its POSIX locks, and goes on with `next`.
    pub(super) fn process_closed<T: Send + 'static>(
        &self,
        client: &Arc<Client>,
        ino: Ino,
        process: u64,
        next: impl FnOnce() -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let ended = self.take(ino, |holder| holder.kind == LockKind::Posix && holder.token == process);
        release(client, ino, ended, next)
    }

    /// Nobody has the open file any more: gives up its locks, and goes on with `next`.
    pub(super) fn file_closed<T: Send + 'static>(
        &self,
        client: &Arc<Client>,
        ino: Ino,
        handle: u64,
        next: impl FnOnce() -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let ended = self.take(ino, |holder| holder.handle == handle);
        release(client, ino, ended, next)
    }
}

fn release<T: Send + 'static>(
    client: &Arc<Client>,
    ino: Ino,
    mut ended: Vec<Holder>,
    next: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let Some(holder) = ended.pop() else { return next() };
    let owner = LockOwner { kind: holder.kind, token: holder.token, pid: 0 };
    let mut unlocked = client.unlock(ino, owner, ALL);
    for holder in ended {
        let (client, owner) = (client.clone(), LockOwner { kind: holder.kind, token: holder.token, pid: 0 });
        unlocked = then(unlocked, move |()| client.unlock(ino, owner, ALL));
    }
    // Whatever became of the locks, the file is closed.
    then(or_else(unlocked, |_| Answer::ok(())), |()| next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(handle: u64, owner: u64, flock: bool) -> Asked {
        Asked { ino: Ino(1), handle, owner, start: 0, end: 9, typ: libc::F_WRLCK, pid: 1, flock }
    }

    #[test]
    fn each_owner_ends_when_its_file_or_process_does() {
        let book = LockBook::default();
        let tokens = |holders: Vec<Holder>| holders.iter().map(|h| h.token).collect::<Vec<_>>();
        let (process, description) = (100, 200);
        book.note(&asked(1, process, false));
        book.note(&asked(1, description, false));
        book.note(&asked(1, description, true));
        book.note(&asked(2, process, false));
        // The process asked last through another handle, so the end of this one is none of its business.
        assert_eq!(tokens(book.take(Ino(1), |h| h.handle == 1)), [description, description]);
        assert_eq!(tokens(book.take(Ino(1), |h| h.kind == LockKind::Posix && h.token == process)), [process]);
        assert!(book.files.lock().is_empty());
        assert!(book.take(Ino(2), |_| true).is_empty());
    }

    #[test]
    fn who_waited_for_a_lock_is_known_again_when_it_is_granted() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let book = LockBook::default();
        let process = |holder: &Holder| holder.kind == LockKind::Posix && holder.token == 100;
        for granted in [Ok(()), Err(FsError::Interrupted)] {
            book.note(&asked(1, 100, false));
            let result = granted.clone();
            let waits = book.note_when_granted(asked(1, 100, false), Answer::pending(async move { result }));
            // Another thread closes another descriptor of the file.
            assert_eq!(book.take(Ino(1), process).len(), 1);
            assert_eq!(runtime.block_on(waits.wait()), granted);
            assert_eq!(book.take(Ino(1), process).len(), usize::from(granted.is_ok()));
        }
    }
}
