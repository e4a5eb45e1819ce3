//! Mistakes that a test asks for, to show that it would find them.
//!
//! Each place that keeps a promise about what survives names the mistake that would break it. The simulation commits
//! one mistake in its own process and must then find a file system that is wrong. In a build without debug assertions
//! there is no way to commit any, and [`on`] is a constant.

/// One way to break Tarn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Sabotage {
    /// A segment's pointers are committed while its PUT is still under way.
    CommitBeforePut = 1,
    /// What a read brought is believed without its checksum.
    TrustReads,
    /// A segment is deleted when anything in it has died.
    ReclaimLive,
    /// Nobody asks whether the pool was taken over.
    IgnoreEpochs,
    /// A transaction group is durable before the segments that it names are.
    CommitBeforeSync,
    /// What a crash left of segments that are not in their buckets is not brought there.
    ForgetCarried,
}

impl Sabotage {
    pub const ALL: [Sabotage; 6] = [
        Sabotage::CommitBeforePut,
        Sabotage::TrustReads,
        Sabotage::ReclaimLive,
        Sabotage::IgnoreEpochs,
        Sabotage::CommitBeforeSync,
        Sabotage::ForgetCarried,
    ];
}

#[cfg(debug_assertions)]
static COMMITTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Commits the mistake, for the rest of this process.
#[cfg(debug_assertions)]
pub fn commit(sabotage: Sabotage) {
    COMMITTED.store(sabotage as u8, std::sync::atomic::Ordering::Relaxed);
}

/// Whether the mistake is to be made.
#[cfg(debug_assertions)]
pub fn on(sabotage: Sabotage) -> bool {
    COMMITTED.load(std::sync::atomic::Ordering::Relaxed) == sabotage as u8
}

/// Whether the mistake is to be made: never.
#[cfg(not(debug_assertions))]
pub const fn on(_: Sabotage) -> bool {
    false
}
