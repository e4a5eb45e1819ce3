//! Directory entries: the hash of a name, the cookie that follows from it, and the rows that hold names.
//!
//! # The cookie rule
//! A name hashes to 47 bits (never 0), seeded per dataset so that nobody outside can aim at a collision. All names
//! of one hash share a row, and each has a slot of 16 bits there, the lowest that is free when it is added. The
//! cookie is `hash << 16 | slot`: it stays while the name lives, whatever comes and goes around it, fits into 63
//! bits, and is above 2, which belong to `.` and `..`.

use crate::phys::{DirentPhys, NamePhys};
use crate::tx::Tx;
use crate::{Outcome, Stop};
use tarn_base::posix::{FileKind, NAME_MAX};
use tarn_base::{FsError, Ino};
use twox_hash::XxHash3_64;

/// Bits of the hash that are kept, unless a test keeps fewer to force collisions.
pub const HASH_BITS: u8 = 47;
const SLOT_BITS: u32 = 16;

pub fn check(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) || name == b"." || name == b".." {
        return Err(FsError::invalid("not a name"));
    }
    Ok(())
}

/// The hash of a name in the dataset whose numbers the transaction holds.
pub fn hash(seed: u64, bits: u8, name: &[u8]) -> u64 {
    let hash = XxHash3_64::oneshot_with_seed(seed, name) >> (64 - u32::from(bits));
    hash.max(1)
}

pub fn cookie(hash: u64, slot: u16) -> u64 {
    hash << SLOT_BITS | u64::from(slot)
}

/// Hash and slot of a cookie.
pub fn of_cookie(cookie: u64) -> (u64, u16) {
    (cookie >> SLOT_BITS, cookie as u16)
}

/// How a dataset hashes; the same for its whole life.
#[derive(Clone, Copy, Debug)]
pub struct Hashing {
    pub seed: u64,
    pub bits: u8,
}

impl Hashing {
    pub fn of(self, name: &[u8]) -> u64 {
        hash(self.seed, self.bits, name)
    }
}

/// Where a name is in its directory, or would be: the row of all names that share its hash. What is done to it counts
/// from then on for everybody who looks, so another place of the same transaction is to be looked up after that.
pub struct Place<'a> {
    dir: Ino,
    hash: u64,
    name: &'a [u8],
    names: DirentPhys,
}

pub fn place<'a>(tx: &Tx, hashing: Hashing, dir: Ino, name: &'a [u8]) -> Outcome<Place<'a>> {
    let hash = hashing.of(name);
    Ok(Place { dir, hash, name, names: tx.dirents(dir, hash)? })
}

impl Place<'_> {
    /// What the name stands for, if it is there.
    pub fn entry(&self) -> Option<&NamePhys> {
        self.names.entries.iter().find(|entry| entry.name == self.name)
    }

    /// What the name stands for, which must be there.
    pub fn found(&self) -> Outcome<&NamePhys> {
        self.entry().ok_or(Stop::Fail(FsError::NotFound))
    }

    /// Adds the name, which is not there.
    pub fn add(mut self, tx: &mut Tx, ino: Ino, kind: FileKind) -> Outcome<()> {
        let slot = free_slot(&self.names).ok_or(Stop::Fail(FsError::NoSpace))?;
        self.names.entries.push(NamePhys { slot, ino, kind, name: self.name.to_vec() });
        self.names.entries.sort_by_key(|entry| entry.slot);
        tx.put_dirents(self.dir, self.hash, &self.names);
        Ok(())
    }

    pub fn remove(mut self, tx: &mut Tx) {
        self.names.entries.retain(|entry| entry.name != self.name);
        tx.put_dirents(self.dir, self.hash, &self.names);
    }

    /// Lets the name, which is there and keeps its place, stand for another inode.
    pub fn point(mut self, tx: &mut Tx, ino: Ino, kind: FileKind) {
        for entry in self.names.entries.iter_mut().filter(|entry| entry.name == self.name) {
            entry.ino = ino;
            entry.kind = kind;
        }
        tx.put_dirents(self.dir, self.hash, &self.names);
    }
}

fn free_slot(names: &DirentPhys) -> Option<u16> {
    let taken = names.entries.iter().map(|entry| entry.slot);
    let gap = taken.zip(0u16..).find(|(slot, expected)| slot != expected).map(|(_, free)| free);
    gap.or_else(|| u16::try_from(names.entries.len()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_63_bits_above_the_dots() {
        let hashing = Hashing { seed: 1, bits: HASH_BITS };
        for name in ["a", "b", "lost+found", "\u{e9}"] {
            let cookie = cookie(hashing.of(name.as_bytes()), u16::MAX);
            assert!(cookie > 2 && cookie < 1 << 63);
            assert_eq!(of_cookie(cookie), (hashing.of(name.as_bytes()), u16::MAX));
        }
    }

    #[test]
    fn the_lowest_slot_is_taken_and_kept() {
        let name = |slot| NamePhys { slot, ino: Ino(2), kind: FileKind::Regular, name: vec![b'a'] };
        let names = |slots: &[u16]| DirentPhys { entries: slots.iter().map(|s| name(*s)).collect() };
        assert_eq!(free_slot(&names(&[])), Some(0));
        assert_eq!(free_slot(&names(&[0, 1])), Some(2));
        assert_eq!(free_slot(&names(&[1, 2])), Some(0));
        assert_eq!(free_slot(&names(&[0, 2])), Some(1));
    }

    #[test]
    fn names_are_bytes_with_rules() {
        assert!(check(b"\xff\xfe").is_ok());
        assert!(check(&[b'a'; 255]).is_ok());
        assert_eq!(check(&[b'a'; 256]), Err(FsError::NameTooLong));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert!(matches!(check(bad), Err(FsError::Invalid(_))));
        }
    }
}
