//! POSIX access control lists, as far as the metadata target must understand them: what a new node inherits, and
//! how mode and ACL follow each other. Checking access against one is the door's work.
//!
//! The format is the kernel's (`system.posix_acl_access`, version 2): a 32-bit version, then entries of tag (16
//! bits), permissions (16) and id (32), little-endian. The rules are those of POSIX.1e draft 17, section 23.

use tarn_base::FsError;

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

impl Acl {
    pub fn parse(bytes: &[u8]) -> Result<Acl, FsError> {
        let bad = FsError::invalid("malformed ACL");
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(bad.clone())?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() % 8 != 0 {
            return Err(bad);
        }
        let entries = rest.chunks_exact(8).map(|e| Entry {
            tag: u16::from_le_bytes([e[0], e[1]]),
            perm: u16::from_le_bytes([e[2], e[3]]),
            id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        });
        let acl = Acl(entries.collect());
        let count = |tag| acl.0.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        let whole = count(USER_OBJ) == 1 && count(GROUP_OBJ) == 1 && count(OTHER) == 1 && count(MASK) <= 1;
        let sound = acl.0.iter().all(|e| known.contains(&e.tag) && e.perm <= 7);
        if whole && sound && (named == 0 || count(MASK) == 1) { Ok(acl) } else { Err(bad) }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    fn entry(&mut self, tag: u16) -> Option<&mut Entry> {
        self.0.iter_mut().find(|e| e.tag == tag)
    }

    /// The entry that the mode's group bits stand for: the mask if there is one.
    fn group_class(&mut self) -> Option<&mut Entry> {
        let tag = if self.0.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ };
        self.entry(tag)
    }

    /// The nine permission bits that the ACL stands for.
    pub fn mode(&self) -> u32 {
        let mut copy = self.clone();
        let bits = |entry: Option<&mut Entry>| u32::from(entry.map_or(0, |e| e.perm));
        let (user, group) = (bits(copy.entry(USER_OBJ)), bits(copy.group_class()));
        user << 6 | group << 3 | bits(copy.entry(OTHER))
    }

    /// Changes the ACL as `chmod` does.
    pub fn chmod(&mut self, mode: u32) {
        let perm = |shift: u32| (mode >> shift & 7) as u16;
        if let Some(e) = self.entry(USER_OBJ) {
            e.perm = perm(6);
        }
        if let Some(e) = self.group_class() {
            e.perm = perm(3);
        }
        if let Some(e) = self.entry(OTHER) {
            e.perm = perm(0);
        }
    }

    /// What a new node made with `mode` gets from a directory's default ACL: its access ACL and its nine
    /// permission bits. Each class keeps only what both the ACL and the mode allow.
    pub fn inherit(&self, mode: u32) -> (Acl, u32) {
        let mut acl = self.clone();
        let limited = acl.mode() & mode;
        acl.chmod(limited);
        (acl, limited)
    }

    /// Whether the nine permission bits say all that the ACL says.
    pub fn is_just_mode(&self) -> bool {
        self.0.len() == 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect())
    }

    #[test]
    fn a_default_acl_limits_the_mode_and_is_limited_by_it() {
        let default =
            acl(&[(USER_OBJ, 7, !0), (USER, 6, 1000), (GROUP_OBJ, 5, !0), (MASK, 7, !0), (OTHER, 0, !0)]);
        let (access, mode) = default.inherit(0o666);
        assert_eq!(mode, 0o660);
        assert_eq!(access.mode(), 0o660);
        assert!(!access.is_just_mode());
        assert_eq!(Acl::parse(&access.to_bytes()), Ok(access));
    }

    #[test]
    fn chmod_moves_the_mask_and_not_the_owning_group() {
        let mut a =
            acl(&[(USER_OBJ, 7, !0), (USER, 7, 5), (GROUP_OBJ, 7, !0), (MASK, 7, !0), (OTHER, 7, !0)]);
        a.chmod(0o640);
        assert_eq!(a.mode(), 0o640);
        assert_eq!(a.entry(GROUP_OBJ).map(|e| e.perm), Some(7));
        assert_eq!(a.entry(MASK).map(|e| e.perm), Some(4));
    }

    #[test]
    fn malformed_lists_are_refused() {
        assert!(Acl::parse(&[]).is_err());
        assert!(Acl::parse(&[2, 0, 0, 0]).is_err());
        assert!(Acl::parse(&[2, 0, 0, 0, 1]).is_err());
        let unmasked = acl(&[(USER_OBJ, 7, !0), (USER, 7, 5), (GROUP_OBJ, 7, !0), (OTHER, 7, !0)]);
        assert!(Acl::parse(&unmasked.to_bytes()).is_err());
    }
}
