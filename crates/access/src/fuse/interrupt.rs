//! Signals for processes whose requests wait.
//!
//! Several threads read requests, so an interrupt may be handled before the request that it names. Those that
//! name nothing known are remembered for a while; request numbers are never reused.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Interrupts that came before their request, or after its answer; the latter only fill the list.
const EARLY: usize = 256;

#[derive(Default)]
struct Waiting {
    requests: HashMap<u64, oneshot::Sender<()>>,
    early: VecDeque<u64>,
}

/// The requests that wait and may be interrupted.
#[derive(Default)]
pub(super) struct Interrupts {
    waiting: Mutex<Waiting>,
}

impl Interrupts {
    /// Begins to listen for an interrupt of the request numbered `unique`.
    pub(super) fn watch(self: &Arc<Self>, unique: u64) -> Watch {
        let (sender, signal) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if let Some(at) = waiting.early.iter().position(|early| *early == unique) {
            waiting.early.remove(at);
            // Nobody is left to lose it: the receiver is in this function's hands.
            let _ = sender.send(());
        } else {
            waiting.requests.insert(unique, sender);
        }
        Watch { all: self.clone(), unique, signal }
    }

    /// The kernel says that whoever waits for `unique` got a signal.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut waiting = self.waiting.lock();
        match waiting.requests.remove(&unique) {
            Some(sender) => {
                // The request may just have been answered.
                let _ = sender.send(());
            }
            None => {
                if waiting.early.len() == EARLY {
                    waiting.early.pop_front();
                }
                waiting.early.push_back(unique);
            }
        }
    }
}

/// One request's ear; dropped, it is forgotten.
pub(super) struct Watch {
    all: Arc<Interrupts>,
    unique: u64,
    signal: oneshot::Receiver<()>,
}

impl Watch {
    /// Ends when the request is interrupted; never, if it is not.
    pub(super) async fn interrupted(&mut self) {
        if (&mut self.signal).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.all.waiting.lock().requests.remove(&self.unique);
    }
}

/// Whether the thread has a fatal signal before it: the kernel marks every thread of a dying process with
/// SIGKILL, whichever signal it dies of.
pub(super) fn is_dying(thread: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else { return true };
    dying_by_status(&status)
}

/// See `proc_pid_status(5)`: pending signals as a mask in hexadecimal, signal 1 in the lowest bit.
fn dying_by_status(status: &str) -> bool {
    let pending = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    (pending("SigPnd:") | pending("ShdPnd:")) & (1 << (libc::SIGKILL - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn an_interrupt_finds_its_request_before_and_after() {
        let all = Arc::new(Interrupts::default());
        let mut first = all.watch(7);
        assert!(first.interrupted().now_or_never().is_none());
        all.interrupt(7);
        assert!(first.interrupted().now_or_never().is_some());
        drop(first);
        all.interrupt(8);
        assert!(all.watch(8).interrupted().now_or_never().is_some());
        assert!(all.watch(8).interrupted().now_or_never().is_none());
    }

    #[test]
    fn what_nobody_waits_for_does_not_pile_up() {
        let all = Arc::new(Interrupts::default());
        for unique in 0..10_000 {
            all.interrupt(unique);
            drop(all.watch(unique + 1_000_000));
        }
        let waiting = all.waiting.lock();
        assert_eq!((waiting.early.len(), waiting.requests.len()), (EARLY, 0));
    }

    #[test]
    fn only_sigkill_is_fatal() {
        assert!(dying_by_status("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(!dying_by_status("SigPnd:\t0000000000000000\nShdPnd:\t0000000000004002\n"));
        assert!(!is_dying(std::process::id()));
    }
}
