//! Memory of one size after another, cut from one mapping: so that what is smaller than a huge page lies on one too.
//!
//! A record is mostly 128 KiB, for which alone the kernel has no huge page, and the first touch of it takes 32 page faults.
//! Cut from a [`Slab`], sixteen of them take one.
//!
//! A [`Part`] that is dropped gives its pages back at once, whatever becomes of its neighbours; the addresses come free
//! with the last of them.

use memmap2::{Advice, MmapMut, UncheckedAdvice};
use nix::unistd::{SysconfVar, sysconf};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of a slab: wherever the kernel puts it, a huge page of 2 MiB fits in.
pub(crate) const SLAB: usize = 4 << 20;

/// A mapping from which parts of one length are cut.
pub(crate) struct Slab {
    mapping: Arc<MmapMut>,
    start: NonNull<u8>,
    part: usize,
    cut: usize,
}

/// Zeroed memory for one owner.
pub(crate) struct Part {
    mapping: Arc<MmapMut>,
    start: NonNull<u8>,
    offset: usize,
    len: usize,
}

// SAFETY: a slab touches only what it has not cut yet, and nobody else has that.
unsafe impl Send for Slab {}
// SAFETY: a part is the only one that has its range of the mapping, which lives as long as it does.
unsafe impl Send for Part {}
// SAFETY: as a slice of bytes: shared, it is only read.
unsafe impl Sync for Part {}

impl Slab {
    /// For parts of `part` bytes, at most [`SLAB`]. An error where they are not whole pages: what one gives back must be
    /// no page of another's.
    pub fn new(part: usize) -> io::Result<Slab> {
        let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|bytes| usize::try_from(bytes).ok());
        if page.is_none_or(|page| !part.is_multiple_of(page)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut mapping = MmapMut::map_anon(SLAB)?;
        // Advice that is not taken does no harm.
        let _ = mapping.advise(Advice::HugePage);
        let start = NonNull::new(mapping.as_mut_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Slab { mapping: Arc::new(mapping), start, part, cut: 0 })
    }

    /// The next part, until there is no room for one more.
    pub fn cut(&mut self) -> Option<Part> {
        let (offset, len) = (self.cut, self.part);
        if len == 0 || offset + len > SLAB {
            return None;
        }
        self.cut += len;
        // SAFETY: the range was found to lie in the mapping.
        let start = unsafe { self.start.add(offset) };
        Some(Part { mapping: self.mapping.clone(), start, offset, len })
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping, is zeroed or written, and is this part's alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the part is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // The last one unmaps all of it.
        if Arc::strong_count(&self.mapping) > 1 {
            // SAFETY: nobody can look at the range any more, and it is of whole pages. If the kernel does not take the pages, they stay until all is
            // unmapped.
            let _ = unsafe {
                self.mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, self.offset, self.len)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_no_page() {
        assert!(Slab::new((64 << 10) + 512).is_err());
        let mut slab = Slab::new(64 << 10).unwrap();
        let [mut before, gone, mut after] = [(); 3].map(|()| slab.cut().unwrap());
        before.fill(1);
        after.fill(3);
        drop(gone);
        assert!(before.iter().all(|&byte| byte == 1) && after.iter().all(|&byte| byte == 3));
    }

    #[test]
    fn parts_are_apart_and_outlive_their_slab() {
        let mut slab = Slab::new(640 << 10).unwrap();
        let mut parts: Vec<Part> = std::iter::from_fn(|| slab.cut()).collect();
        assert_eq!(parts.len(), SLAB / (640 << 10));
        for (n, part) in (1..).zip(&mut parts) {
            assert!(part.len() == 640 << 10 && part.iter().all(|&byte| byte == 0));
            part.fill(n);
        }
        drop(slab);
        parts.remove(2);
        for (part, n) in parts.iter().zip([1, 2, 4, 5, 6]) {
            assert!(part.iter().all(|&byte| byte == n));
        }
    }
}
