//! What a client holds at a server that knows it only in memory: open inodes and advisory locks.

use super::message::Holds;
use crate::{LockKind, LockMode, LockOwner, LockRange};
use std::collections::HashMap;
use tarn_base::Ino;

#[derive(Default)]
pub(super) struct Held {
    opens: HashMap<Ino, u32>,
    /// What an owner has of a file: ranges that do not meet. Those of different owners do not conflict either, so they can
    /// be taken anew in any order, which would not hold for what was done to come by them.
    locks: HashMap<(Ino, LockKind, u64), Vec<Has>>,
}

type Has = (LockOwner, LockRange, LockMode);

impl LockRange {
    /// What is left without `other`: before it and behind it.
    fn without(self, other: LockRange) -> impl Iterator<Item = LockRange> {
        let before = other.start.checked_sub(1).map(|end| LockRange { end: end.min(self.end), ..self });
        let behind = other.end.checked_add(1).map(|start| LockRange { start: start.max(self.start), ..self });
        before.into_iter().chain(behind).filter(|range| range.start <= range.end)
    }
}

impl Held {
    pub fn open(&mut self, ino: Ino) {
        *self.opens.entry(ino).or_default() += 1;
    }

    pub fn close(&mut self, ino: Ino) {
        if let Some(count) = self.opens.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.opens.remove(&ino);
            }
        }
    }

    /// The owner has locked a range, or unlocked it.
    pub fn lock(&mut self, ino: Ino, owner: LockOwner, range: LockRange, mode: Option<LockMode>) {
        let key = (ino, owner.kind, owner.token);
        let has = self.locks.remove(&key).unwrap_or_default().into_iter();
        let mut has: Vec<Has> =
            has.flat_map(|(who, at, how)| at.without(range).map(move |left| (who, left, how))).collect();
        has.extend(mode.map(|mode| (owner, range, mode)));
        if !has.is_empty() {
            self.locks.insert(key, has);
        }
    }

    /// What the owner has of a range, part by part; `None` where it has nothing.
    pub fn parts(&self, ino: Ino, owner: LockOwner, range: LockRange) -> Vec<(LockRange, Option<LockMode>)> {
        let has = self.locks.get(&(ino, owner.kind, owner.token)).map_or(&[][..], Vec::as_slice);
        let mut free = vec![range];
        let mut parts = Vec::new();
        for (_, at, mode) in has {
            free = free.into_iter().flat_map(|left| left.without(*at)).collect();
            let part = LockRange { start: at.start.max(range.start), end: at.end.min(range.end) };
            if part.start <= part.end {
                parts.push((part, Some(*mode)));
            }
        }
        parts.extend(free.into_iter().map(|left| (left, None)));
        parts
    }

    pub fn all(&self) -> Holds {
        let locks = self.locks.iter().flat_map(|((ino, ..), has)| {
            has.iter().map(|(owner, range, mode)| (*ino, *owner, *range, Some(*mode)))
        });
        Holds {
            opens: self.opens.iter().map(|(ino, count)| (*ino, *count)).collect(),
            locks: locks.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_undone_is_forgotten() {
        let owner = LockOwner { kind: LockKind::Posix, token: 1, pid: 1 };
        let range = |start, end| LockRange { start, end };
        let (ino, mut held) = (Ino(5), Held::default());
        for n in 0..1000 {
            held.lock(ino, owner, range(n, n), Some(LockMode::Exclusive));
            held.lock(ino, owner, range(n, n), None);
        }
        assert_eq!(held.all(), Holds::default());
        held.lock(ino, owner, range(0, 9), Some(LockMode::Shared));
        held.lock(ino, owner, range(4, 5), None);
        held.lock(ino, owner, range(8, 12), Some(LockMode::Exclusive));
        let (shared, exclusive) = (Some(LockMode::Shared), Some(LockMode::Exclusive));
        let parts = [(range(0, 3), shared), (range(6, 7), shared), (range(8, 12), exclusive)];
        assert_eq!(held.all().locks, parts.map(|(range, mode)| (ino, owner, range, mode)));
        let within =
            [(range(3, 3), shared), (range(6, 7), shared), (range(8, 8), exclusive), (range(4, 5), None)];
        assert_eq!(held.parts(ino, owner, range(3, 8)), within);
        held.lock(ino, owner, range(0, u64::MAX), None);
        assert_eq!(held.all(), Holds::default());
    }

    /// Whoever takes them anew does so in any order.
    #[test]
    fn what_one_owner_gave_to_another_is_the_others_alone() {
        let owner = |token| LockOwner { kind: LockKind::Posix, token, pid: 1 };
        let range = |start, end| LockRange { start, end };
        let (ino, exclusive, mut held) = (Ino(5), Some(LockMode::Exclusive), Held::default());
        held.lock(ino, owner(1), range(0, 9), exclusive);
        held.lock(ino, owner(1), range(5, 9), None);
        held.lock(ino, owner(2), range(5, 9), exclusive);
        let mut locks = held.all().locks;
        locks.sort_by_key(|(_, owner, ..)| owner.token);
        let whole = [(ino, owner(1), range(0, 4), exclusive), (ino, owner(2), range(5, 9), exclusive)];
        assert_eq!(locks, whole);
    }

    #[test]
    fn opens_are_counted() {
        let mut held = Held::default();
        held.open(Ino(3));
        held.open(Ino(3));
        held.close(Ino(3));
        held.close(Ino(4));
        assert_eq!(held.all().opens, [(Ino(3), 1)]);
        held.close(Ino(3));
        assert_eq!(held.all(), Holds::default());
    }
}
