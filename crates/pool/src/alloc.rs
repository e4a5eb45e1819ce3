//! Which vdev takes the next segment.
//!
//! Smooth weighted round-robin over bytes: for every placement of `b` bytes each candidate earns `b` times its
//! share of the weight, the richest is chosen and pays `b`. So over any stretch every vdev gets its share of bytes
//! to within one segment or two, whatever the segments' sizes, and equal vdevs simply take turns. The weight is the
//! room that a vdev has left: a new empty vdev has more of it and is used more from the first write on, and vdevs
//! fill up at the same time.

use parking_lot::Mutex;
use std::collections::HashMap;
use tarn_base::VdevId;

#[derive(Default)]
pub(crate) struct Allocator {
    /// What each vdev is owed, in bytes; sums to about zero.
    owed: Mutex<HashMap<VdevId, f64>>,
}

impl Allocator {
    /// Chooses among candidates with their weights (positive; bytes free). `None` without candidates.
    pub fn choose(&self, candidates: &[(VdevId, u64)], bytes: u64) -> Option<VdevId> {
        let total: f64 = candidates.iter().map(|(_, weight)| *weight as f64).sum();
        let mut owed = self.owed.lock();
        let mut best: Option<(VdevId, f64)> = None;
        for (vdev, weight) in candidates {
            let balance = owed.entry(*vdev).or_insert(0.0);
            *balance += bytes as f64 * (*weight as f64 / total);
            if best.is_none_or(|(_, most)| *balance > most) {
                best = Some((*vdev, *balance));
            }
        }
        let (chosen, _) = best?;
        if let Some(balance) = owed.get_mut(&chosen) {
            *balance -= bytes as f64;
        }
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(allocator: &Allocator, free: &mut [u64], total: u64, sizes: &[u64]) -> Vec<u64> {
        let mut used = vec![0; free.len()];
        let (mut written, mut n) = (0, 0);
        while written < total {
            let bytes = sizes[n % sizes.len()];
            n += 1;
            let candidates: Vec<_> =
                free.iter().enumerate().map(|(i, free)| (VdevId(i as u16), *free)).collect();
            let VdevId(chosen) = allocator.choose(&candidates, bytes).unwrap();
            used[chosen as usize] += bytes;
            free[chosen as usize] -= bytes;
            written += bytes;
        }
        used
    }

    #[test]
    fn twelve_equal_vdevs_carry_equal_bytes() {
        for sizes in [&[4 << 20][..], &[4 << 20, 100, 16 << 20, 70_000, 1 << 20], &[1, 4 << 20]] {
            let mut free = vec![1u64 << 40; 12];
            let used = fill(&Allocator::default(), &mut free, 8 << 30, sizes);
            let (least, sum) = (*used.iter().min().unwrap(), used.iter().sum::<u64>());
            assert!(least as f64 >= 0.95 * (sum as f64 / 12.0), "{used:?}");
        }
    }

    #[test]
    fn a_new_vdev_takes_at_least_its_share_at_once() {
        let allocator = Allocator::default();
        let mut free = vec![100u64 << 30; 12];
        fill(&allocator, &mut free, 600 << 30, &[4 << 20]);
        free.push(100 << 30);
        let used = fill(&allocator, &mut free, 1 << 30, &[4 << 20]);
        assert!(used[12] as f64 >= used.iter().sum::<u64>() as f64 / 13.0 * 0.98, "{used:?}");
    }

    #[test]
    fn unequal_vdevs_fill_up_together() {
        let mut free = vec![10u64 << 30, 20 << 30, 40 << 30];
        fill(&Allocator::default(), &mut free, 63 << 30, &[4 << 20]);
        for (left, size) in free.iter().zip([10u64, 20, 40]) {
            let part = *left as f64 / (size << 30) as f64;
            assert!((0.09..0.11).contains(&part), "{free:?}");
        }
    }
}
