//! What is held and who waits, with the rules of the queue. The crate's own page tells them.

use crate::held::{Holdings, OwnerId};
use crate::{Held, Kind, LockError, Mode, Owner, Range};
use std::collections::{HashMap, HashSet};
use std::task::Waker;

pub(crate) type WaiterId = u64;

/// A resource in one of the two spaces of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ResourceKey {
    resource: u64,
    bsd: bool,
}

impl ResourceKey {
    pub(crate) fn new(resource: u64, kind: Kind) -> ResourceKey {
        ResourceKey { resource, bsd: kind == Kind::Bsd }
    }
}

struct Waiter {
    id: WaiterId,
    lock: Held,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Resource {
    held: Holdings,
    /// In the order of arrival.
    queue: Vec<Waiter>,
}

impl Resource {
    /// Waiters among the first `before` that `lock` would stand in the way of.
    fn ahead(&self, lock: Held, before: usize) -> impl Iterator<Item = OwnerId> {
        self.queue[..before]
            .iter()
            .filter(move |w| w.lock.owner.id() != lock.owner.id() && w.lock.range.overlaps(lock.range))
            .filter(move |w| w.lock.mode.conflicts(lock.mode))
            .map(|w| w.lock.owner.id())
    }

    fn blocked(&self, lock: Held) -> bool {
        self.held.conflicts(lock.owner.id(), lock.range, lock.mode).next().is_some()
    }
}

/// Which edges a search among waiting owners follows.
#[derive(Clone, Copy, PartialEq)]
enum Edges {
    /// To holders of conflicting locks.
    Hard,
    /// To waiters ahead in the queue as well.
    All,
}

#[derive(Default)]
pub(crate) struct State {
    /// Those with locks or waiters, and no others.
    resources: HashMap<ResourceKey, Resource>,
    /// Where each owner waits; an owner with several threads may wait in several places.
    waits: HashMap<OwnerId, Vec<(ResourceKey, WaiterId)>>,
    /// Granted, and nobody has looked yet: with what the owner held there before.
    granted: HashMap<WaiterId, Vec<Held>>,
    next_id: WaiterId,
}

impl State {
    /// `None` when the lock was taken, else the place in the queue.
    pub(crate) fn lock(
        &mut self,
        key: ResourceKey,
        owner: Owner,
        range: Range,
        mode: Mode,
        wait: bool,
        wakers: &mut Vec<Waker>,
    ) -> Result<Option<WaiterId>, LockError> {
        let range = if key.bsd { Range::ALL } else { range };
        let lock = Held { owner, range, mode };
        if key.bsd {
            match self.resources.get(&key).and_then(|r| r.held.mode_of(owner.id())) {
                Some(held) if held == mode => return Ok(None),
                Some(_) => self.unlock(key, owner, range, wakers),
                None => {}
            }
        }
        let resource = self.resources.entry(key).or_default();
        let blocked = resource.blocked(lock);
        if !blocked && (!wait || !self.yields(key, lock, usize::MAX)) {
            self.grant(key, lock, wakers);
            return Ok(None);
        }
        let refused = match (wait, owner.kind) {
            (false, _) => Some(LockError::WouldBlock),
            (true, Kind::Posix) if self.closes_cycle(key, lock) => Some(LockError::Deadlock),
            (true, _) => None,
        };
        if let Some(error) = refused {
            self.forget_if_empty(key);
            return Err(error);
        }
        Ok(Some(self.enqueue(key, lock, wakers)))
    }

    fn enqueue(&mut self, key: ResourceKey, lock: Held, wakers: &mut Vec<Waker>) -> WaiterId {
        self.next_id += 1;
        let id = self.next_id;
        self.resources.entry(key).or_default().queue.push(Waiter { id, lock, waker: None });
        self.waits.entry(lock.owner.id()).or_default().push((key, id));
        // This wait may be the missing link in a chain that ends at somebody who yields: it need not any more.
        // It can only yield where it is not alone in the queue.
        let waiting: HashSet<_> = self.waits.values().flatten().map(|(key, _)| *key).collect();
        for key in waiting {
            if self.resources.get(&key).is_some_and(|r| r.queue.len() > 1) {
                self.pump(key, wakers);
            }
        }
        id
    }

    pub(crate) fn unlock(&mut self, key: ResourceKey, owner: Owner, range: Range, wakers: &mut Vec<Waker>) {
        let range = if key.bsd { Range::ALL } else { range };
        let Some(resource) = self.resources.get_mut(&key) else { return };
        if !resource.held.carve(owner.id(), range).is_empty() {
            self.pump(key, wakers);
        }
        self.forget_if_empty(key);
    }

    pub(crate) fn release_owner(&mut self, owner: Owner, wakers: &mut Vec<Waker>) {
        let keys: Vec<_> = self.resources.keys().copied().collect();
        for key in keys {
            if key.bsd == (owner.kind == Kind::Bsd) {
                self.unlock(key, owner, Range::ALL, wakers);
            }
        }
    }

    pub(crate) fn test(&self, key: ResourceKey, owner: Owner, range: Range, mode: Mode) -> Option<Held> {
        let range = if key.bsd { Range::ALL } else { range };
        self.resources.get(&key)?.held.conflicts(owner.id(), range, mode).next().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// Whether the wait is over; if not, `waker` is woken when it is.
    pub(crate) fn collect(&mut self, key: ResourceKey, id: WaiterId, waker: &Waker) -> bool {
        if self.granted.remove(&id).is_some() {
            return true;
        }
        let waiter = self.resources.get_mut(&key).and_then(|r| r.queue.iter_mut().find(|w| w.id == id));
        if let Some(waiter) = waiter {
            waiter.waker = Some(waker.clone());
        }
        false
    }

    pub(crate) fn give_up(
        &mut self,
        key: ResourceKey,
        id: WaiterId,
        owner: Owner,
        range: Range,
        wakers: &mut Vec<Waker>,
    ) {
        if let Some(before) = self.granted.remove(&id) {
            self.take_back(key, owner, range, before);
        } else if let Some(resource) = self.resources.get_mut(&key) {
            resource.queue.retain(|w| w.id != id);
            self.no_longer_waits(owner.id(), id);
        }
        self.pump(key, wakers);
        self.forget_if_empty(key);
    }

    /// Undoes a grant that nobody saw. What the owner held exclusively and then was granted shared stays shared:
    /// others may share it by now.
    fn take_back(&mut self, key: ResourceKey, owner: Owner, range: Range, before: Vec<Held>) {
        let range = if key.bsd { Range::ALL } else { range };
        let Some(resource) = self.resources.get_mut(&key) else { return };
        for granted in resource.held.carve(owner.id(), range) {
            for old in before.iter().filter(|old| old.range.overlaps(granted.range)) {
                let both = Range {
                    start: old.range.start.max(granted.range.start),
                    end: old.range.end.min(granted.range.end),
                };
                let mode = if granted.mode == Mode::Shared { Mode::Shared } else { old.mode };
                resource.held.put(Held { range: both, mode, ..*old });
            }
        }
    }

    fn grant(&mut self, key: ResourceKey, lock: Held, wakers: &mut Vec<Waker>) -> Vec<Held> {
        let before = self.resources.entry(key).or_default().held.put(lock);
        if lock.mode == Mode::Shared && before.iter().any(|old| old.mode == Mode::Exclusive) {
            self.pump(key, wakers);
        }
        before
    }

    /// Hands out whatever the queue of a resource now allows.
    fn pump(&mut self, key: ResourceKey, wakers: &mut Vec<Waker>) {
        let mut at = 0;
        while let Some(resource) = self.resources.get_mut(&key)
            && at < resource.queue.len()
        {
            let lock = resource.queue[at].lock;
            if resource.blocked(lock) || self.yields(key, lock, at) {
                at += 1;
                continue;
            }
            let Some(resource) = self.resources.get_mut(&key) else { return };
            let waiter = resource.queue.remove(at);
            let before = resource.held.put(lock);
            self.granted.insert(waiter.id, before);
            self.no_longer_waits(lock.owner.id(), waiter.id);
            wakers.extend(waiter.waker);
            // A grant may weaken what its owner held, and one wait less may free those who yielded to it.
            at = 0;
        }
    }

    fn no_longer_waits(&mut self, owner: OwnerId, id: WaiterId) {
        if let Some(waits) = self.waits.get_mut(&owner) {
            waits.retain(|(_, w)| *w != id);
            if waits.is_empty() {
                self.waits.remove(&owner);
            }
        }
    }

    fn forget_if_empty(&mut self, key: ResourceKey) {
        if self.resources.get(&key).is_some_and(|r| r.held.is_empty() && r.queue.is_empty()) {
            self.resources.remove(&key);
        }
    }

    /// Whether a waiter among the first `before` of the queue goes first: one that does not itself wait for the
    /// owner of `lock`.
    fn yields(&self, key: ResourceKey, lock: Held, before: usize) -> bool {
        let Some(resource) = self.resources.get(&key) else { return false };
        let before = before.min(resource.queue.len());
        resource.ahead(lock, before).any(|other| !self.waits_for(other, lock.owner.id(), Edges::All))
    }

    fn closes_cycle(&self, key: ResourceKey, lock: Held) -> bool {
        let Some(resource) = self.resources.get(&key) else { return false };
        let me = lock.owner.id();
        resource
            .held
            .conflicts(me, lock.range, lock.mode)
            .any(|held| self.waits_for(held.owner.id(), me, Edges::Hard))
    }

    /// Whether `from` waits, directly or through others, for something that `target` holds (or, with
    /// [`Edges::All`], for a place behind it).
    fn waits_for(&self, from: OwnerId, target: OwnerId, edges: Edges) -> bool {
        let mut seen = HashSet::from([from]);
        let mut stack = vec![from];
        while let Some(owner) = stack.pop() {
            for (key, id) in self.waits.get(&owner).into_iter().flatten() {
                let Some(resource) = self.resources.get(key) else { continue };
                let Some(at) = resource.queue.iter().position(|w| w.id == *id) else { continue };
                let lock = resource.queue[at].lock;
                let holders = resource.held.conflicts(owner, lock.range, lock.mode).map(|h| h.owner.id());
                let ahead = resource.ahead(lock, if edges == Edges::All { at } else { 0 });
                for next in holders.chain(ahead) {
                    if next == target {
                        return true;
                    }
                    // An open file description is nobody who waits: another thread may unlock it.
                    let follow = edges == Edges::All || next.kind == Kind::Posix;
                    if follow && seen.insert(next) {
                        stack.push(next);
                    }
                }
            }
        }
        false
    }

    #[cfg(test)]
    pub(crate) fn held(&self, resource: u64, kind: Kind) -> Vec<Held> {
        let key = ResourceKey::new(resource, kind);
        self.resources.get(&key).map(|r| r.held.all().to_vec()).unwrap_or_default()
    }
}
