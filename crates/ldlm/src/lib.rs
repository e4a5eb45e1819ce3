//! The lock engine for advisory byte-range locks: Lustre's `flock` resources. It knows nothing of files: a
//! resource is a number, an owner is a kind and a token.
//!
//! # What a lock means
//! Two owners may hold overlapping ranges of one resource only if both hold them shared. An owner never
//! conflicts with itself: what it asks for replaces what it held in that range, which splits, merges, upgrades
//! or downgrades its older locks as POSIX wants it. BSD locks always cover the whole resource and live in a
//! space of their own, as on Linux: `flock` and `fcntl` do not see each other. Changing the mode of a BSD lock
//! gives up the old one first, so that two owners who both upgrade do not wait for each other for ever.
//!
//! # Who goes first
//! Waiters of a resource stand in a queue. A lock is *held back* by locks in other owners' hands (hard), and,
//! if it is willing to wait, by waiters that came before it and would conflict with it (soft): otherwise a
//! stream of readers would starve a writer. A request that will not wait never yields to a waiter, because it
//! may fail only for a lock that is held.
//!
//! Yielding must not cause a deadlock by itself: the waiter ahead may be waiting, through whatever chain, for
//! the very owner that would yield. So a request passes every waiter that waits for its own owner. With this
//! rule each cycle of owners waiting for each other consists of hard edges alone, and no cycle of that kind can
//! be broken by reordering. For [`Kind::Posix`] the request that would close such a cycle is refused with
//! [`LockError::Deadlock`]; the others have no process behind them whose waiting could be seen, and wait.
//!
//! # Locking
//! One mutex, held for a few comparisons, guards all resources: the search for cycles crosses them. Nobody is
//! woken and nothing is awaited under it.

mod held;
mod state;
#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use state::{ResourceKey, State, WaiterId};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use thiserror::Error;

/// What stands behind an owner; decides the space it locks in and whether deadlocks are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A process: `fcntl(F_SETLK)`. Deadlocks are detected.
    Posix,
    /// An open file description: `fcntl(F_OFD_SETLK)`. Conflicts with [`Kind::Posix`]; no deadlock detection.
    Ofd,
    /// An open file description: `flock`. Whole resource, a space of its own, no deadlock detection.
    Bsd,
}

/// Who holds a lock or asks for one. `kind` and `token` are the identity; `pid` is told to whoever asks.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    pub kind: Kind,
    pub token: u64,
    pub pid: u32,
}

/// Both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub end: u64,
}

impl Range {
    /// Everything that a resource can have.
    pub const ALL: Range = Range { start: 0, end: u64::MAX };

    fn overlaps(self, other: Range) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Shared,
    Exclusive,
}

impl Mode {
    fn conflicts(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }
}

/// A lock in somebody's hands.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub owner: Owner,
    pub range: Range,
    pub mode: Mode,
}

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LockError {
    #[error("another owner holds a conflicting lock")]
    WouldBlock,
    #[error("waiting would never end: the holder waits for this owner")]
    Deadlock,
}

/// What [`RangeLocks::lock`] gives back.
#[derive(Debug)]
pub enum Locked {
    Granted,
    /// Another owner stands in the way: await this.
    Wait(Wait),
}

/// All locks of all resources. A clone is another handle on the same locks.
#[derive(Clone, Default)]
pub struct RangeLocks {
    state: Arc<Mutex<State>>,
}

impl RangeLocks {
    pub fn new() -> RangeLocks {
        RangeLocks::default()
    }

    /// Takes `range` of `resource` in `mode`, replacing what `owner` held there. A [`Kind::Bsd`] owner gets the
    /// whole resource whatever the range.
    ///
    /// Without `wait`, [`LockError::WouldBlock`] if a conflicting lock is held. With it, a conflict gives
    /// [`Locked::Wait`], or [`LockError::Deadlock`] where waiting would close a cycle of POSIX owners.
    pub fn lock(
        &self,
        resource: u64,
        owner: Owner,
        range: Range,
        mode: Mode,
        wait: bool,
    ) -> Result<Locked, LockError> {
        let key = ResourceKey::new(resource, owner.kind);
        let mut wakers = Vec::new();
        let outcome = self.state.lock().lock(key, owner, range, mode, wait, &mut wakers);
        wake(wakers);
        match outcome? {
            None => Ok(Locked::Granted),
            Some(id) => {
                Ok(Locked::Wait(Wait { state: self.state.clone(), key, owner, range, id, over: false }))
            }
        }
    }

    /// Gives up whatever `owner` holds in `range` of `resource`. Its waits stay.
    pub fn unlock(&self, resource: u64, owner: Owner, range: Range) {
        let mut wakers = Vec::new();
        let key = ResourceKey::new(resource, owner.kind);
        self.state.lock().unlock(key, owner, range, &mut wakers);
        wake(wakers);
    }

    /// Gives up everything that `owner` holds on any resource, as when its client is gone. Costs a walk over all
    /// resources that have locks.
    pub fn release_owner(&self, owner: Owner) {
        let mut wakers = Vec::new();
        self.state.lock().release_owner(owner, &mut wakers);
        wake(wakers);
    }

    /// The first lock, by start, that would stand in the way of `owner`; `None` when nothing would.
    pub fn test(&self, resource: u64, owner: Owner, range: Range, mode: Mode) -> Option<Held> {
        let key = ResourceKey::new(resource, owner.kind);
        self.state.lock().test(key, owner, range, mode)
    }

    /// Whether nobody holds or awaits anything anywhere.
    pub fn is_empty(&self) -> bool {
        self.state.lock().is_empty()
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

/// A place in the queue of a resource; resolves when the lock is in the owner's hands. Dropping it before that
/// gives up the place; if the lock was granted but nobody looked yet, it is given back and the owner holds there
/// what it held before, at most as strongly as it was granted.
#[must_use = "dropping it gives up the lock"]
pub struct Wait {
    state: Arc<Mutex<State>>,
    key: ResourceKey,
    owner: Owner,
    range: Range,
    id: WaiterId,
    over: bool,
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.over || self.state.lock().collect(self.key, self.id, cx.waker()) {
            self.over = true;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if !self.over {
            let mut wakers = Vec::new();
            self.state.lock().give_up(self.key, self.id, self.owner, self.range, &mut wakers);
            wake(wakers);
        }
    }
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("owner", &self.owner).field("range", &self.range).finish()
    }
}
