//! How many requests may be under way at once, changeable while they are.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A semaphore whose number of permits can be set.
pub(super) struct Limit {
    permits: Semaphore,
    limit: AtomicUsize,
    /// Permits that are to vanish when they are given back, after the limit was lowered below what is in use.
    surplus: AtomicUsize,
}

/// One request's leave to be under way.
pub(super) struct Permit<'a> {
    limit: &'a Limit,
    permit: Option<SemaphorePermit<'a>>,
}

impl Limit {
    pub fn new(limit: usize) -> Limit {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        let (permits, surplus) = (Semaphore::new(limit), AtomicUsize::new(0));
        Limit { permits, limit: AtomicUsize::new(limit), surplus }
    }

    pub fn get(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit, at least 1. A lower one holds as soon as requests that are under way have ended.
    pub fn set(&self, limit: usize) {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        let old = self.limit.swap(limit, Ordering::AcqRel);
        if limit > old {
            let mut more = limit - old;
            while more > 0 && self.settle() {
                more -= 1;
            }
            self.permits.add_permits(more);
        } else {
            let forgotten = self.permits.forget_permits(old - limit);
            self.surplus.fetch_add(old - limit - forgotten, Ordering::AcqRel);
        }
    }

    /// Takes one off the surplus, if there is any.
    fn settle(&self) -> bool {
        let less = |surplus: usize| surplus.checked_sub(1);
        self.surplus.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// A permit, if one is free.
    pub fn try_acquire(&self) -> Option<Permit<'_>> {
        let permit = self.permits.try_acquire().ok()?;
        Some(Permit { limit: self, permit: Some(permit) })
    }

    /// A permit, in the order of asking.
    pub async fn acquire(&self) -> Permit<'_> {
        // Fails only when the semaphore is closed, which nobody does.
        let permit = self.permits.acquire().await.ok();
        Permit { limit: self, permit }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take()
            && self.limit.settle()
        {
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_lowered_and_raised_holds() {
        let limit = Limit::new(4);
        let held: Vec<_> = (0..4).map(|_| limit.try_acquire().unwrap()).collect();
        limit.set(1);
        assert!(limit.try_acquire().is_none());
        drop(held);
        let one = limit.try_acquire().unwrap();
        assert!(limit.try_acquire().is_none());
        limit.set(3);
        let more: Vec<_> = (0..2).map(|_| limit.try_acquire().unwrap()).collect();
        assert!(limit.try_acquire().is_none());
        limit.set(1);
        limit.set(3);
        drop((one, more));
        let all: Vec<_> = (0..3).map(|_| limit.try_acquire().unwrap()).collect();
        assert!(limit.try_acquire().is_none());
        drop(all);
    }
}
