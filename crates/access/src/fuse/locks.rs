//! Which owners may hold locks on which files, so that the last word on a file is said only where it is needed.
//!
//! The kernel tells of every close of a descriptor, and POSIX wants the process's locks on the file gone by
//! then. Nearly all files are never locked: for them nothing is asked of the server.

use super::answer::{Signals, Waits, then};
use super::convert::{lock_mode, lock_range, lock_type};
use fuser::{ReplyEmpty, ReplyLock, Request};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tarn_base::{Answer, FsError, Ino};
use tarn_client::{Client, LockKind, LockOwner, LockRange};

/// A lock as the kernel asks for it.
pub(super) struct Asked {
    pub ino: Ino,
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

/// Files and owners that have asked for a lock since they last gave up all.
#[derive(Default)]
pub(super) struct LockBook {
    owners: Mutex<HashSet<(Ino, LockKind, u64)>>,
}

impl LockBook {
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
                self.owners.lock().insert((asked.ino, kind(asked.flock), asked.owner));
                client.lock(asked.ino, asked.lock_owner(), range, mode, wait)
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
            Ok(None) => Answer::err(FsError::Invalid("lock type")),
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

    /// Gives up whatever the owner holds on the file, and goes on with `next`.
    pub(super) fn release<T: Send + 'static>(
        &self,
        client: &Arc<Client>,
        ino: Ino,
        flock: bool,
        token: u64,
        next: impl FnOnce() -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        if !self.owners.lock().remove(&(ino, kind(flock), token)) {
            return next();
        }
        let owner = LockOwner { kind: kind(flock), token, pid: 0 };
        then(client.unlock(ino, owner, ALL), |()| next())
    }
}
