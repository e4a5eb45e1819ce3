//! The locks held on one resource in one space.

use crate::{Held, Kind, Mode, Owner, Range};

/// What makes an owner the same owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerId {
    pub kind: Kind,
    pub token: u64,
}

impl Owner {
    pub(crate) fn id(self) -> OwnerId {
        OwnerId { kind: self.kind, token: self.token }
    }
}

/// Sorted by start. The locks of one owner never overlap, and never touch in the same mode: they are merged.
#[derive(Default)]
pub(crate) struct Holdings {
    locks: Vec<Held>,
}

impl Holdings {
    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Locks of others that stand in the way, by start.
    pub(crate) fn conflicts(&self, owner: OwnerId, range: Range, mode: Mode) -> impl Iterator<Item = &Held> {
        self.locks
            .iter()
            .take_while(move |held| held.range.start <= range.end)
            .filter(move |held| held.owner.id() != owner && held.range.overlaps(range))
            .filter(move |held| held.mode.conflicts(mode))
    }

    /// The mode in which `owner` holds its first lock; all of it, for owners whose locks cover everything.
    pub(crate) fn mode_of(&self, owner: OwnerId) -> Option<Mode> {
        self.locks.iter().find(|held| held.owner.id() == owner).map(|held| held.mode)
    }

    /// Takes `range` out of the hands of `owner`, splitting locks that reach beyond it. Gives back the pieces
    /// taken out.
    pub(crate) fn carve(&mut self, owner: OwnerId, range: Range) -> Vec<Held> {
        let mut cut = Vec::new();
        let mut rest = Vec::new();
        self.locks.retain_mut(|held| {
            if held.owner.id() != owner || !held.range.overlaps(range) {
                return true;
            }
            let (start, end) = (held.range.start, held.range.end);
            cut.push(Held {
                range: Range { start: start.max(range.start), end: end.min(range.end) },
                ..*held
            });
            if end > range.end {
                rest.push(Held { range: Range { start: range.end + 1, end }, ..*held });
            }
            if start < range.start {
                held.range.end = range.start - 1;
            }
            start < range.start
        });
        for held in rest {
            self.insert(held);
        }
        cut
    }

    /// Gives `lock` to its owner, in place of what it held there, and merges it with its neighbours. Gives back
    /// what it held there.
    pub(crate) fn put(&mut self, mut lock: Held) -> Vec<Held> {
        let cut = self.carve(lock.owner.id(), lock.range);
        self.locks.retain(|held| {
            let touches = held.range.end.checked_add(1) == Some(lock.range.start)
                || lock.range.end.checked_add(1) == Some(held.range.start);
            let joins = touches && held.owner.id() == lock.owner.id() && held.mode == lock.mode;
            if joins {
                lock.range.start = lock.range.start.min(held.range.start);
                lock.range.end = lock.range.end.max(held.range.end);
            }
            !joins
        });
        self.insert(lock);
        cut
    }

    fn insert(&mut self, lock: Held) {
        let at = self.locks.partition_point(|held| held.range.start <= lock.range.start);
        self.locks.insert(at, lock);
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> &[Held] {
        &self.locks
    }
}
