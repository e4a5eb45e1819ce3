//! The call shape of every layer on the hot path.

use crate::FsError;
use futures::FutureExt;
use futures::future::BoxFuture;

/// What a call gives back: an answer from memory, or a promise of one.
///
/// A layer first tries to answer under short locks, without waiting: `Ready`. What needs a bucket, a lock or a
/// transaction group says `Pending`, and only that crosses into the asynchronous runtime: a hop costs 20 to 50
/// microseconds, several times what a hot lookup does.
pub enum Answer<T> {
    Ready(Result<T, FsError>),
    Pending(BoxFuture<'static, Result<T, FsError>>),
}

impl<T: Send + 'static> Answer<T> {
    pub fn ok(value: T) -> Self {
        Answer::Ready(Ok(value))
    }

    pub fn err(error: FsError) -> Self {
        Answer::Ready(Err(error))
    }

    pub fn pending(future: impl Future<Output = Result<T, FsError>> + Send + 'static) -> Self {
        Answer::Pending(Box::pin(future))
    }

    /// Goes as far as it comes without waiting: what is in memory after all is ready then.
    pub fn begun(self) -> Self {
        match self {
            Answer::Ready(result) => Answer::Ready(result),
            Answer::Pending(mut future) => match (&mut future).now_or_never() {
                Some(result) => Answer::Ready(result),
                None => Answer::Pending(future),
            },
        }
    }

    /// Waits for the answer, whichever kind it is.
    pub async fn wait(self) -> Result<T, FsError> {
        match self {
            Answer::Ready(result) => result,
            Answer::Pending(future) => future.await,
        }
    }

    /// Changes a success without waiting for it.
    pub fn map<U: Send + 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Answer<U> {
        match self {
            Answer::Ready(result) => Answer::Ready(result.map(f)),
            Answer::Pending(future) => Answer::pending(async move { future.await.map(f) }),
        }
    }
}

impl<T> From<Result<T, FsError>> for Answer<T> {
    fn from(result: Result<T, FsError>) -> Self {
        Answer::Ready(result)
    }
}
