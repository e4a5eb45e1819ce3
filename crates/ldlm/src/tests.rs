use crate::{Held, Kind, LockError, Locked, Mode, Owner, Range, RangeLocks, Wait};
use proptest::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

const FILE: u64 = 7;

fn posix(token: u64) -> Owner {
    Owner { kind: Kind::Posix, token, pid: token as u32 + 100 }
}

fn ofd(token: u64) -> Owner {
    Owner { kind: Kind::Ofd, ..posix(token) }
}

fn bsd(token: u64) -> Owner {
    Owner { kind: Kind::Bsd, ..posix(token) }
}

fn range(start: u64, end: u64) -> Range {
    Range { start, end }
}

/// Takes a lock that must be free.
fn take(locks: &RangeLocks, file: u64, owner: Owner, range: Range, mode: Mode) {
    match locks.lock(file, owner, range, mode, false) {
        Ok(Locked::Granted) => {}
        other => panic!("{owner:?} {range:?}: {other:?}"),
    }
}

/// Asks for a lock that must not be free.
fn queue(locks: &RangeLocks, file: u64, owner: Owner, range: Range, mode: Mode) -> Wait {
    match locks.lock(file, owner, range, mode, true) {
        Ok(Locked::Wait(wait)) => wait,
        other => panic!("{owner:?} {range:?}: {other:?}"),
    }
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn ready(wait: &mut Wait) -> bool {
    matches!(Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()))
}

fn held(locks: &RangeLocks, kind: Kind) -> Vec<(u64, u64, u64, Mode)> {
    let held = locks.state.lock().held(FILE, kind);
    held.iter().map(|h: &Held| (h.owner.token, h.range.start, h.range.end, h.mode)).collect()
}

use Mode::{Exclusive, Shared};

#[test]
fn a_lock_splits_merges_and_changes_what_its_owner_held() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(0, 99), Exclusive);
    take(&locks, FILE, posix(1), range(40, 59), Shared);
    assert_eq!(
        held(&locks, Kind::Posix),
        [(1, 0, 39, Exclusive), (1, 40, 59, Shared), (1, 60, 99, Exclusive)]
    );
    take(&locks, FILE, posix(1), range(30, 59), Exclusive);
    assert_eq!(held(&locks, Kind::Posix), [(1, 0, 99, Exclusive)]);
    locks.unlock(FILE, posix(1), range(10, 19));
    assert_eq!(held(&locks, Kind::Posix), [(1, 0, 9, Exclusive), (1, 20, 99, Exclusive)]);
    locks.unlock(FILE, posix(1), Range::ALL);
    assert!(locks.is_empty());
}

#[test]
fn the_ends_of_the_range_of_offsets_are_ordinary_offsets() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(0, 0), Exclusive);
    take(&locks, FILE, posix(1), range(u64::MAX, u64::MAX), Exclusive);
    take(&locks, FILE, posix(1), range(1, u64::MAX - 1), Exclusive);
    assert_eq!(held(&locks, Kind::Posix), [(1, 0, u64::MAX, Exclusive)]);
}

#[test]
fn test_names_the_first_lock_in_the_way() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(50, 59), Shared);
    take(&locks, FILE, posix(2), range(10, 19), Exclusive);
    assert!(locks.test(FILE, posix(2), range(0, 100), Shared).is_none());
    assert!(locks.test(FILE, posix(3), range(20, 100), Shared).is_none());
    let first = locks.test(FILE, posix(3), range(0, 100), Exclusive).unwrap();
    assert_eq!((first.owner.pid, first.range, first.mode), (102, range(10, 19), Exclusive));
    assert!(locks.test(FILE + 1, posix(3), range(0, 100), Exclusive).is_none());
}

#[test]
fn bsd_locks_are_whole_and_apart_but_ofd_and_posix_meet() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(0, 9), Exclusive);
    take(&locks, FILE, bsd(1), range(3, 4), Exclusive);
    assert_eq!(held(&locks, Kind::Bsd), [(1, 0, u64::MAX, Exclusive)]);
    assert!(matches!(locks.lock(FILE, bsd(2), range(100, 200), Shared, false), Err(LockError::WouldBlock)));
    assert!(matches!(locks.lock(FILE, ofd(2), range(0, 0), Shared, false), Err(LockError::WouldBlock)));
    take(&locks, FILE, ofd(2), range(10, 10), Shared);
}

#[test]
fn a_waiter_is_woken_once_when_the_last_lock_in_its_way_goes() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(0, 9), Shared);
    take(&locks, FILE, posix(2), range(5, 9), Shared);
    let mut wait = queue(&locks, FILE, posix(3), range(0, 9), Exclusive);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
    locks.unlock(FILE, posix(1), Range::ALL);
    assert_eq!(bell.0.load(Ordering::SeqCst), 0);
    locks.unlock(FILE, posix(2), Range::ALL);
    assert_eq!(bell.0.load(Ordering::SeqCst), 1);
    assert!(ready(&mut wait));
    drop(wait);
    assert_eq!(held(&locks, Kind::Posix), [(3, 0, 9, Exclusive)]);
}

#[test]
fn readers_that_wait_do_not_overtake_a_writer() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(0, 9), Shared);
    let mut writer = queue(&locks, FILE, posix(2), range(0, 9), Exclusive);
    let mut reader = queue(&locks, FILE, posix(3), range(0, 9), Shared);
    // One that will not wait may fail only for a lock that is held.
    take(&locks, FILE, posix(4), range(0, 9), Shared);
    locks.unlock(FILE, posix(1), Range::ALL);
    assert!(!ready(&mut writer) && !ready(&mut reader));
    locks.unlock(FILE, posix(4), Range::ALL);
    assert!(ready(&mut writer) && !ready(&mut reader));
    locks.unlock(FILE, posix(2), Range::ALL);
    assert!(ready(&mut reader));
}

#[test]
fn giving_up_frees_those_behind() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(0, 9), Shared);
    let writer = queue(&locks, FILE, posix(2), range(0, 9), Exclusive);
    let mut reader = queue(&locks, FILE, posix(3), range(0, 9), Shared);
    drop(writer);
    assert!(ready(&mut reader));
    drop(reader);
    locks.unlock(FILE, posix(1), Range::ALL);
    locks.unlock(FILE, posix(3), Range::ALL);
    assert!(locks.is_empty());
}

#[test]
fn a_grant_that_nobody_saw_is_undone_when_the_wait_is_dropped() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(0, 9), Shared);
    take(&locks, FILE, posix(2), range(0, 9), Shared);
    let upgrade = queue(&locks, FILE, posix(2), range(5, 14), Exclusive);
    locks.unlock(FILE, posix(1), Range::ALL);
    assert_eq!(held(&locks, Kind::Posix), [(2, 0, 4, Shared), (2, 5, 14, Exclusive)]);
    drop(upgrade);
    assert_eq!(held(&locks, Kind::Posix), [(2, 0, 9, Shared)]);
}

#[test]
fn posix_owners_that_wait_in_a_circle_are_refused() {
    let locks = RangeLocks::new();
    for token in 1..=3 {
        take(&locks, token, posix(token), range(0, 9), Exclusive);
    }
    let _one = queue(&locks, 2, posix(1), range(0, 0), Shared);
    let mut two = queue(&locks, 3, posix(2), range(0, 0), Shared);
    let closing = locks.lock(1, posix(3), range(9, 9), Shared, true);
    assert!(matches!(closing, Err(LockError::Deadlock)));
    // Refusal leaves nothing behind: the others go on.
    locks.unlock(3, posix(3), Range::ALL);
    assert!(ready(&mut two));
}

#[test]
fn two_upgrades_are_a_deadlock_for_posix_and_none_for_bsd() {
    let locks = RangeLocks::new();
    for token in 1..=2 {
        take(&locks, FILE, posix(token), range(0, 9), Shared);
        take(&locks, FILE, bsd(token), Range::ALL, Shared);
    }
    let _first = queue(&locks, FILE, posix(1), range(0, 9), Exclusive);
    let second = locks.lock(FILE, posix(2), range(0, 9), Exclusive, true);
    assert!(matches!(second, Err(LockError::Deadlock)));

    let mut first = queue(&locks, FILE, bsd(1), Range::ALL, Exclusive);
    let mut second = queue(&locks, FILE, bsd(2), Range::ALL, Exclusive);
    assert!(ready(&mut first) && !ready(&mut second));
    locks.unlock(FILE, bsd(1), Range::ALL);
    assert!(ready(&mut second));
}

#[test]
fn open_file_descriptions_wait_where_processes_are_refused() {
    let locks = RangeLocks::new();
    take(&locks, 1, ofd(1), range(0, 9), Exclusive);
    take(&locks, 2, ofd(2), range(0, 9), Exclusive);
    let _one = queue(&locks, 2, ofd(1), range(0, 0), Shared);
    let mut two = queue(&locks, 1, ofd(2), range(0, 0), Shared);
    locks.unlock(1, ofd(1), Range::ALL);
    assert!(ready(&mut two));
}

#[test]
fn whoever_is_waited_for_passes_the_queue() {
    let locks = RangeLocks::new();
    take(&locks, FILE, posix(1), range(0, 9), Shared);
    let mut writer = queue(&locks, FILE, posix(2), range(0, 9), Exclusive);
    // Yielding to the writer, who waits for this very owner, would stop both for ever.
    assert!(matches!(locks.lock(FILE, posix(1), range(0, 19), Shared, true), Ok(Locked::Granted)));
    locks.unlock(FILE, posix(1), Range::ALL);
    assert!(ready(&mut writer));
}

#[test]
fn a_chain_that_closes_later_frees_whoever_yielded() {
    let locks = RangeLocks::new();
    take(&locks, 1, posix(1), Range::ALL, Exclusive);
    take(&locks, 2, posix(3), Range::ALL, Shared);
    let _writer = queue(&locks, 2, posix(2), Range::ALL, Exclusive);
    let mut reader = queue(&locks, 2, posix(1), Range::ALL, Shared);
    assert!(!ready(&mut reader));
    // Now the writer waits for 3, who waits for 1: 1 must not wait for the writer.
    let _holder = queue(&locks, 1, posix(3), Range::ALL, Shared);
    assert!(ready(&mut reader));
}

#[test]
fn an_owner_that_is_gone_leaves_nothing() {
    let locks = RangeLocks::new();
    for file in 0..5 {
        take(&locks, file, posix(1), range(0, 9), Exclusive);
    }
    let mut wait = queue(&locks, 3, posix(2), Range::ALL, Exclusive);
    locks.release_owner(posix(1));
    assert!(ready(&mut wait));
    locks.release_owner(posix(2));
    assert!(locks.is_empty());
}

const BYTES: u64 = 12;

#[derive(Clone, Debug)]
enum Step {
    Lock { owner: u64, start: u64, len: u64, exclusive: bool },
    Unlock { owner: u64, start: u64, len: u64 },
    Wait { owner: u64, start: u64, len: u64, exclusive: bool },
    GiveUp { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..4u64, 0..BYTES, 1..=BYTES, any::<bool>());
    prop_oneof![
        3 => place().prop_map(|(owner, start, len, exclusive)| Step::Lock { owner, start, len, exclusive }),
        3 => place().prop_map(|(owner, start, len, _)| Step::Unlock { owner, start, len }),
        2 => place().prop_map(|(owner, start, len, exclusive)| Step::Wait { owner, start, len, exclusive }),
        1 => any::<usize>().prop_map(|which| Step::GiveUp { which }),
    ]
}

/// Every byte with the mode in which each owner holds it.
#[derive(Default)]
struct Model([[Option<Mode>; 4]; BYTES as usize]);

impl Model {
    fn free(&self, owner: u64, range: Range, mode: Mode) -> bool {
        (range.start..=range.end).all(|byte| {
            let others = self.0[byte as usize].iter().enumerate().filter(|(who, _)| *who as u64 != owner);
            others.into_iter().all(|(_, held)| held.is_none_or(|held| !held.conflicts(mode)))
        })
    }

    fn set(&mut self, owner: u64, range: Range, mode: Option<Mode>) {
        for byte in range.start..=range.end {
            self.0[byte as usize][owner as usize] = mode;
        }
    }

    fn check(&self, locks: &RangeLocks) -> Result<(), TestCaseError> {
        let mut seen = Model::default();
        let state = locks.state.lock();
        let held = state.held(FILE, Kind::Ofd);
        prop_assert!(held.is_sorted_by_key(|h| h.range.start));
        for (i, lock) in held.iter().enumerate() {
            for other in &held[..i] {
                let same = other.owner.token == lock.owner.token;
                prop_assert!(!same || !other.range.overlaps(lock.range));
                prop_assert!(!same || other.mode != lock.mode || other.range.end + 1 != lock.range.start);
            }
            seen.set(lock.owner.token, lock.range, Some(lock.mode));
        }
        prop_assert_eq!(seen.0, self.0);
        Ok(())
    }
}

proptest! {
    #[test]
    fn locks_are_what_a_table_of_bytes_says(steps in prop::collection::vec(step(), 1..80)) {
        let locks = RangeLocks::new();
        let mut model = Model::default();
        let mut waiting: Vec<(u64, Range, Mode, Wait)> = Vec::new();
        for step in steps {
            match step {
                Step::Lock { owner, start, len, exclusive } => {
                    let range = range(start, (start + len - 1).min(BYTES - 1));
                    let mode = if exclusive { Exclusive } else { Shared };
                    let granted = locks.lock(FILE, ofd(owner), range, mode, false).is_ok();
                    prop_assert_eq!(granted, model.free(owner, range, mode));
                    if granted {
                        model.set(owner, range, Some(mode));
                    }
                }
                Step::Unlock { owner, start, len } => {
                    let range = range(start, (start + len - 1).min(BYTES - 1));
                    locks.unlock(FILE, ofd(owner), range);
                    model.set(owner, range, None);
                }
                Step::Wait { owner, start, len, exclusive } => {
                    let range = range(start, (start + len - 1).min(BYTES - 1));
                    let mode = if exclusive { Exclusive } else { Shared };
                    match locks.lock(FILE, ofd(owner), range, mode, true) {
                        Ok(Locked::Granted) => {
                            prop_assert!(model.free(owner, range, mode));
                            model.set(owner, range, Some(mode));
                        }
                        Ok(Locked::Wait(wait)) => waiting.push((owner, range, mode, wait)),
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                }
                Step::GiveUp { which } => {
                    if !waiting.is_empty() {
                        drop(waiting.remove(which % waiting.len()));
                    }
                }
            }
            // Grants come in an order that the model does not know, each free at its time. A grant can free
            // another, so look until nothing moves.
            while let Some(at) = (0..waiting.len())
                .find(|at| model.free(waiting[*at].0, waiting[*at].1, waiting[*at].2) && ready(&mut waiting[*at].3))
            {
                let (owner, range, mode, _wait) = waiting.remove(at);
                model.set(owner, range, Some(mode));
            }
            model.check(&locks)?;
            // Whoever still waits is held back by somebody: the first in the queue always by a lock.
            if let Some((owner, range, mode, _)) = waiting.first() {
                prop_assert!(!model.free(*owner, *range, *mode));
            }
        }
        waiting.clear();
        for owner in 0..4 {
            locks.release_owner(ofd(owner));
        }
        prop_assert!(locks.is_empty());
    }
}
