//! From the client's answers to the kernel's replies: the one way for all operations.

use super::counters::{Counters, Timer};
use super::errno::errno;
use super::interrupt::{Interrupts, is_dying};
use fuser::{Errno, Request};
use std::sync::Arc;
use std::time::Duration;
use tarn_base::{Answer, FsError, job};
use tokio::runtime::Handle as Runtime;

/// How often a wait looks whether its process, which had some signal before, is dying.
const DYING_CHECK: Duration = Duration::from_secs(1);
/// How long a dying process still waits: an operation goes on without it, and what the kernel keeps of a name for the next
/// caller is wrong if it was not told what became of it.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A reply that can say no.
pub(super) trait Refuse: Send + 'static {
    fn refuse(self, errno: Errno);
}

macro_rules! refuse {
    ($($reply:ident)*) => {$(
        impl Refuse for fuser::$reply {
            fn refuse(self, errno: Errno) {
                self.error(errno);
            }
        }
    )*};
}

refuse!(ReplyAttr ReplyCreate ReplyData ReplyDirectory ReplyDirectoryPlus ReplyEmpty ReplyEntry ReplyLock);
refuse!(ReplyLseek ReplyOpen ReplyStatfs ReplyStatx ReplyWrite ReplyXattr);

/// Who waits for an answer.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    /// The request's number.
    pub unique: u64,
    /// The thread that made it, by its number in `/proc`.
    pub thread: u32,
}

impl From<&Request> for Caller {
    fn from(request: &Request) -> Caller {
        Caller { unique: request.unique().0, thread: request.pid() }
    }
}

/// What a signal does to a request that waits.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Signals {
    /// Nothing: nobody waits for the answer.
    Ignore,
    /// A dying process is let go after a moment; the operation goes on to its end without it.
    Killable,
    /// A dying process is let go after a moment, and the operation with it: nothing is left half done.
    LetGo,
    /// Any signal gives the operation up.
    GiveUp,
}

/// Where what must wait runs, and what can interrupt it.
pub(super) struct Waits {
    pub(super) runtime: Runtime,
    pub(super) interrupts: Arc<Interrupts>,
    pub(super) counters: Arc<Counters>,
}

impl Waits {
    /// Replies at once to what is ready; lets what is not wait in the runtime, and replies from there.
    pub(super) fn answer<T, R>(
        &self,
        caller: impl Into<Caller>,
        signals: Signals,
        answer: Answer<T>,
        reply: R,
        send: impl FnOnce(R, T) + Send + 'static,
    ) where
        T: Send + 'static,
        R: Refuse,
    {
        self.answer_or_undo(caller, signals, answer, reply, send, drop);
    }

    /// As [`Waits::answer`], for an answer that carries something that somebody must hold: what comes too late for a
    /// dying process goes to `undo`.
    pub(super) fn answer_or_undo<T, R>(
        &self,
        caller: impl Into<Caller>,
        signals: Signals,
        answer: Answer<T>,
        reply: R,
        send: impl FnOnce(R, T) + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) where
        T: Send + 'static,
        R: Refuse,
    {
        let timer = self.counters.timer();
        let future = match answer {
            Answer::Ready(result) => return settle(result, reply, send, timer),
            // It goes on to work for whoever asked.
            Answer::Pending(future) => job::carried(future),
        };
        let timer = timer.map(Timer::waits);
        if signals == Signals::Ignore {
            self.runtime.spawn(async move { settle(future.await, reply, send, timer) });
            return;
        }
        let Caller { unique, thread } = caller.into();
        let mut watch = self.interrupts.watch(unique);
        self.runtime.spawn(async move {
            let mut future = future;
            tokio::select! {
                biased;
                result = &mut future => return settle(result, reply, send, timer),
                () = watch.interrupted() => {}
            }
            if signals == Signals::GiveUp {
                drop(future);
                return settle(Err(FsError::Interrupted), reply, send, timer);
            }
            // The kernel tells of the first signal only, and that may have been a harmless one.
            while !is_dying(thread) {
                if let Ok(result) = tokio::time::timeout(DYING_CHECK, &mut future).await {
                    return settle(result, reply, send, timer);
                }
            }
            if let Ok(result) = tokio::time::timeout(LAST_WAIT, &mut future).await {
                return settle(result, reply, send, timer);
            }
            if signals == Signals::LetGo {
                // Before others are told that it is over.
                drop(future);
                return settle(Err(FsError::Interrupted), reply, send, timer);
            }
            settle(Err(FsError::Interrupted), reply, send, timer);
            // Nobody waits for the result any more, but it must not stop half-way.
            if let Ok(value) = future.await {
                undo(value);
            }
        });
    }
}

fn settle<T, R: Refuse>(result: Result<T, FsError>, reply: R, send: impl FnOnce(R, T), timer: Option<Timer>) {
    let refused = result.is_err();
    match result {
        Ok(value) => send(reply, value),
        Err(error) => {
            if let FsError::Io(what) = &error {
                tracing::warn!(what, "input/output error");
            }
            reply.refuse(errno(&error));
        }
    }
    if let Some(timer) = timer {
        timer.end(refused);
    }
}

/// Goes on with the next operation when one has succeeded: at once if that is ready.
pub(super) fn then<T, U>(answer: Answer<T>, next: impl FnOnce(T) -> Answer<U> + Send + 'static) -> Answer<U>
where
    T: Send + 'static,
    U: Send + 'static,
{
    match answer {
        Answer::Ready(Ok(value)) => next(value),
        Answer::Ready(Err(error)) => Answer::err(error),
        Answer::Pending(future) => Answer::pending(async move { next(future.await?).wait().await }),
    }
}

/// Goes on with another operation when one has failed in a way that `next` has an answer to.
pub(super) fn or_else<T: Send + 'static>(
    answer: Answer<T>,
    next: impl FnOnce(FsError) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    match answer {
        Answer::Ready(Err(error)) => next(error),
        Answer::Ready(Ok(value)) => Answer::ok(value),
        Answer::Pending(future) => Answer::pending(async move {
            match future.await {
                Ok(value) => Ok(value),
                Err(error) => next(error).wait().await,
            }
        }),
    }
}
