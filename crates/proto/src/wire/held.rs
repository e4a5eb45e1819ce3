//! What a client holds at a server that knows it only in memory: open inodes and advisory locks.

use super::message::Holds;
use crate::{LockKind, LockMode, LockOwner, LockRange};
use std::collections::HashMap;
use tarn_base::Ino;

#[derive(Default)]
pub(super) struct Held {
    opens: HashMap<Ino, u32>,
    /// What an owner has done to a file's locks, as far as later calls have not undone it: done once more in this order,
    /// it gives the same locks.
    locks: HashMap<(Ino, LockKind, u64), Vec<Done>>,
}

type Done = (LockOwner, LockRange, Option<LockMode>);

impl LockRange {
    fn covers(&self, other: &LockRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    fn meets(&self, other: &LockRange) -> bool {
        self.start <= other.end && other.start <= self.end
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
        let done = self.locks.entry(key).or_default();
        done.retain(|(_, earlier, _)| !range.covers(earlier));
        if mode.is_some() || done.iter().any(|(_, earlier, _)| earlier.meets(&range)) {
            done.push((owner, range, mode));
        }
        if done.is_empty() {
            self.locks.remove(&key);
        }
    }

    pub fn all(&self) -> Holds {
        let locks = self.locks.iter().flat_map(|((ino, ..), done)| {
            done.iter().map(|(owner, range, mode)| (*ino, *owner, *range, *mode))
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
        let split = [(ino, owner, range(0, 9), Some(LockMode::Shared)), (ino, owner, range(4, 5), None)];
        assert_eq!(held.all().locks, split);
        held.lock(ino, owner, range(0, u64::MAX), None);
        assert_eq!(held.all(), Holds::default());
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
