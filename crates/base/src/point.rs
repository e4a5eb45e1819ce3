//! Named points at which a test has this process end or stop on the spot.
//!
//! Between what a process writes first and what it writes next lies a moment at which it may end, or sleep so long that
//! another host takes its pool. Each such moment that a promise hangs on has a name here and is passed by [`pass`]. A
//! test arms one by the environment:
//!
//! - `TARN_CRASH_AT=NAME:N`: the process kills itself, as by kill -9, when it passes the point for the Nth time (the
//!   first time without `:N`);
//! - `TARN_STOP_AT=NAME:N`: it stops itself, as by SIGSTOP, and goes on when it is told to (SIGCONT).
//!
//! `tarn points` prints all names. In a build without debug assertions nobody reads the environment, [`pass`] does nothing,
//! and there is no such verb.

macro_rules! points {
    ($($(#[$doc:meta])* $point:ident = $name:literal,)*) => {
        /// One point.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point {
            $($(#[$doc])* $point,)*
        }

        impl Point {
            pub const ALL: &[Point] = &[$(Point::$point,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Point::$point => $name,)*
                }
            }
        }
    };
}

points! {
    /// A grant is durable, and no segment is written under it yet.
    GrantDurable = "grant.durable",
    /// A segment was PUT, and nothing points to it.
    SegmentWritten = "segment.written",
    /// The records of a segment are in the open txg.
    SegmentCommitted = "segment.committed",
    /// A txg is closed; its segments are not durable yet.
    TxgClosed = "txg.closed",
    /// A txg's segments are durable; its rows are not written.
    TxgSynced = "txg.synced",
    /// A txg is durable, and nobody knows.
    TxgWritten = "txg.written",
    /// A metadata object has one copy of two.
    MetadataOneCopy = "metadata.one-copy",
    /// A file's data is committed for an fsync, and not durable.
    FsyncCommitted = "fsync.committed",
    /// All is durable that an fsync is for; it has not answered.
    FsyncDurable = "fsync.durable",
    /// The data of a file that is renamed over another is committed; its names are as before.
    RenameFlushed = "rename.flushed",
    /// A rename is in the open txg.
    RenameDone = "rename.done",
    /// A file's record is cut for a truncation; its size is as before.
    TruncateCut = "truncate.cut",
    /// The note of a truncation in steps is in the open txg, and no step is made.
    TruncateNoted = "truncate.noted",
    /// A step of freeing a file's records or attributes is in the open txg.
    FreeStep = "free.step",
    /// All steps of a truncation are made; its note still stands.
    TruncateFreed = "truncate.freed",
    /// An inode without names is flagged, to be freed in steps.
    ReapFlagged = "reap.flagged",
    /// Its records are freed; the inode and its attributes are still there.
    ReapFreed = "reap.freed",
    /// Segments that were committed first are in their buckets; their rows still stand.
    CarriedBrought = "carried.brought",
    /// Freed segments may be deleted now.
    ReclaimDue = "reclaim.due",
    /// They are deleted; their rows still stand.
    ReclaimDeleted = "reclaim.deleted",
    /// The rows' end is in the open txg.
    ReclaimDropped = "reclaim.dropped",
    /// What lives in thin segments is read; nothing is moved.
    CompactRead = "compact.read",
    /// It is written into a new segment; pointers are as before.
    CompactWritten = "compact.written",
    /// The pointers' change is in the open txg.
    CompactMoved = "compact.moved",
    /// A host holds a pool's authority; the labels do not say so.
    ImportClaimed = "import.claimed",
    /// The first label of several says what is new.
    LabelFirst = "label.first",
    /// All labels name the new host, and its state does not know the pool.
    ImportLabelled = "import.labelled",
    /// All is durable before an export; the labels are as before.
    ExportSynced = "export.synced",
    /// All labels say that the pool is exported; its authority is not released.
    ExportLabelled = "export.labelled",
    /// A pool is exported, and its host's state does not know.
    ExportReleased = "export.released",
    /// A dataset's database is about to be opened by who has just asked whether it may.
    OpenConfirmed = "open.confirmed",
    /// It is open, and its earlier owner fenced; nothing was read or written.
    OpenBuilt = "open.built",
}

/// Passes a point.
#[cfg(debug_assertions)]
pub fn pass(point: Point) {
    armed::pass(point);
}

/// Passes a point: nothing happens.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn pass(_: Point) {}

#[cfg(debug_assertions)]
mod armed {
    use super::Point;
    use nix::sys::signal::{Signal, raise};
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    struct Armed {
        point: Point,
        /// What happens when it is passed for the `at`th time.
        signal: Signal,
        at: u64,
        passed: AtomicU64,
    }

    static ARMED: LazyLock<Vec<Armed>> = LazyLock::new(|| {
        let ways = [("TARN_CRASH_AT", Signal::SIGKILL), ("TARN_STOP_AT", Signal::SIGSTOP)];
        let asked = ways.into_iter().filter_map(|(name, signal)| Some((std::env::var(name).ok()?, signal)));
        asked.map(|(text, signal)| parse(&text, signal)).collect()
    });

    /// A test that misspells a point must not pass for one that never hits it.
    fn parse(text: &str, signal: Signal) -> Armed {
        let (name, at) = text.split_once(':').unwrap_or((text, "1"));
        let point = Point::ALL.iter().find(|point| point.name() == name);
        match (point, at.parse()) {
            (Some(&point), Ok(at)) => Armed { point, signal, at, passed: AtomicU64::new(0) },
            _ => panic!("{text}: no such point; see 'tarn points'"),
        }
    }

    pub fn pass(point: Point) {
        for armed in ARMED.iter().filter(|armed| armed.point == point) {
            if armed.passed.fetch_add(1, Relaxed) + 1 == armed.at {
                eprintln!("tarn: at the point {}", point.name());
                // To this very thread, so that it does not take one step further. There is no way to fail.
                let _ = raise(armed.signal);
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn points_are_armed_by_name_and_number() {
            let armed = parse("txg.synced:3", Signal::SIGKILL);
            assert_eq!((armed.point, armed.at), (Point::TxgSynced, 3));
            assert_eq!(parse("label.first", Signal::SIGSTOP).at, 1);
            assert!(std::panic::catch_unwind(|| parse("no.such-point", Signal::SIGKILL)).is_err());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_points_have_one_name() {
        let mut names: Vec<_> = Point::ALL.iter().map(|point| point.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Point::ALL.len());
    }
}
