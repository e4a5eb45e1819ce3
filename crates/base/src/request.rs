//! Who asked for a change, so that one that is asked for twice is made once, and one that a crash has undone can be
//! made again as it was.
//!
//! A request goes with its call through every layer, as the task's own ([`Request::run`]): the layers between know
//! nothing of it. Calls of this process have none.

use crate::{Answer, Ino, Timespec, Txg};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};

/// What a request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// It is durable when this transaction group is.
    pub txg: Txg,
    /// Its place among the changes of the dataset since that was opened.
    pub order: u64,
    /// The time that it gave to what it changed.
    pub at: Timespec,
    /// The inode that it made, or that lost its last name by it.
    pub ino: Option<Ino>,
}

/// What became of a request that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Since the dataset was opened.
    Lately(Trace),
    /// Before that, durably. The inode that it made, or that lost its last name by it.
    Durably(Option<Ino>),
}

impl Done {
    /// The inode that it made, or that lost its last name by it.
    pub fn ino(&self) -> Option<Ino> {
        match self {
            Done::Lately(trace) => trace.ino,
            Done::Durably(ino) => *ino,
        }
    }

    /// What it did, where that can still be lost.
    pub fn trace(&self) -> Option<Trace> {
        match self {
            Done::Lately(trace) => Some(*trace),
            Done::Durably(_) => None,
        }
    }
}

/// One request of a client.
#[derive(Debug)]
pub struct Request {
    /// The client counts them.
    pub number: u64,
    /// Of those with lower numbers the client knows the answers, and that what they did is durable.
    pub settled: u64,
    /// What it did before a crash has undone it.
    pub again: Option<Trace>,
    trace: Mutex<Option<Trace>>,
}

tokio::task_local! {
    static CURRENT: Arc<Request>;
}

impl Request {
    pub fn new(number: u64, settled: u64, again: Option<Trace>) -> Arc<Request> {
        Arc::new(Request { number, settled, again, trace: Mutex::default() })
    }

    /// Makes a call in its name.
    pub fn run<T: Send + 'static>(self: &Arc<Self>, call: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match CURRENT.sync_scope(self.clone(), call) {
            Answer::Pending(future) => Answer::Pending(Box::pin(CURRENT.scope(self.clone(), future))),
            ready => ready,
        }
    }

    /// In whose name the code that asks runs.
    pub fn current() -> Option<Arc<Request>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Notes what it did, and gives all that it did so far. If that is done in steps, the first says in which place, and
    /// the last in which group.
    pub fn note(&self, step: Trace) -> Trace {
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = match *trace {
            Some(first) => Trace { txg: step.txg, ino: first.ino.or(step.ino), ..first },
            None => step,
        };
        *trace = Some(whole);
        whole
    }

    /// What it did so far; `None`: it changed nothing.
    pub fn trace(&self) -> Option<Trace> {
        *self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_goes_with_its_call_wherever_that_is_answered() {
        let number = || Request::current().map(|request| request.number);
        let request = Request::new(7, 0, None);
        assert_eq!(number(), None);
        assert_eq!(request.run(|| Answer::ok(number())).wait().await, Ok(Some(7)));
        let pending = request.run(|| {
            Answer::pending(async move {
                tokio::task::yield_now().await;
                Ok(number())
            })
        });
        assert_eq!(pending.wait().await, Ok(Some(7)));
        assert_eq!(number(), None);
    }

    #[test]
    fn steps_keep_the_first_place_and_the_last_group() {
        let step = |txg, order| Trace { txg: Txg(txg), order, at: Timespec::default(), ino: None };
        let request = Request::new(1, 0, None);
        request.note(Trace { ino: Some(Ino(9)), ..step(3, 10) });
        request.note(step(4, 12));
        assert_eq!(request.trace(), Some(Trace { ino: Some(Ino(9)), ..step(4, 10) }));
    }
}
