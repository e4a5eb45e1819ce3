//! What a call says and what its answer says. Bodies of objects are the bulk bytes of the frame.

use super::Session;
use super::calls::{self, Call};
use super::frame::BULK_MAX;
use crate::{LockMode, LockOwner, LockRange, Mds, Oss, OssError};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tarn_base::{FsError, Ino, Request, SegmentId, Trace, Txg, VdevId};

/// How often what one message asks for is tried anew where it must not fail because a bucket did, and the pause between:
/// the client waits for all of it.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// A call frame's message. The frame's id is the number of the request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Asked<'a> {
    /// Requests with lower numbers will not be asked for once more.
    pub settled: u64,
    #[serde(borrow)]
    pub message: Message<'a>,
}

/// What is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message<'a> {
    Mds(#[serde(borrow)] Call<'a>),
    /// Bytes `start..end` of an object: the answer's bulk bytes.
    Get {
        segment: SegmentId,
        start: u64,
        end: u64,
    },
    /// The object's last bytes; the answer says how long it is.
    Tail {
        segment: SegmentId,
        len: u64,
    },
    /// The call's bulk bytes as an object.
    Put {
        segment: SegmentId,
    },
    Room {
        vdev: VdevId,
    },
    /// What was answered and may be lost, in the order in which it was done: to be done again where it is. The answer has
    /// what each did this time; none where it could not be done.
    #[serde(borrow)]
    Replay(Vec<Past<'a>>),
    /// What the client has, after all that it has lost was done again.
    Resume(Holds),
    /// The client lets the dataset go.
    Leave,
    /// The client has written a segment itself, whose records take so many bytes.
    Stored {
        segment: SegmentId,
        bytes: u64,
    },
}

/// A request that was answered.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Past<'a> {
    pub number: u64,
    pub trace: Trace,
    /// A [`Message`].
    pub message: &'a [u8],
}

/// Open inodes and advisory locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holds {
    /// How often each is open.
    pub opens: Vec<(Ino, u32)>,
    /// Locks, in any order. One without a mode is an unlock, as earlier clients sent them.
    pub locks: Vec<(Ino, LockOwner, LockRange, Option<LockMode>)>,
}

/// An encoded `Result` of the call's own types, and bulk bytes.
pub(super) enum Encoded {
    Ready(Vec<u8>),
    Pending(BoxFuture<'static, (Vec<u8>, Bytes)>),
}

pub(super) fn encode<T: Serialize, E: Serialize>(result: &Result<T, E>) -> Vec<u8> {
    // Nothing that is said here can fail to be encoded; if it could, an empty answer is malformed to who reads it.
    postcard::to_stdvec(result).unwrap_or_default()
}

/// What is said with every answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    /// What the request did.
    pub trace: Option<Trace>,
    /// All that is in transaction groups up to this one is durable.
    pub durable: Txg,
}

/// An answer's message: what is said with it, and the encoded result behind that.
pub(super) fn answered(told: Told, result: &[u8]) -> Vec<u8> {
    postcard::to_extend(&told, Vec::with_capacity(result.len() + 32)).map_or_else(
        |_| Vec::new(),
        |mut message| {
            message.extend_from_slice(result);
            message
        },
    )
}

/// Takes an answer's message apart.
pub(super) fn parse_answer(message: &Bytes) -> Result<(Told, Bytes), postcard::Error> {
    let (told, rest) = postcard::take_from_bytes(message)?;
    Ok((told, message.slice_ref(rest)))
}

pub(super) fn decode<T: DeserializeOwned, E: DeserializeOwned>(result: &[u8]) -> Option<Result<T, E>> {
    postcard::from_bytes(result).ok()
}

impl Message<'_> {
    /// Most bulk bytes that the answer has.
    pub fn wants(&self) -> u64 {
        match self {
            Message::Get { start, end, .. } => end.saturating_sub(*start),
            Message::Tail { len, .. } => *len,
            _ => 0,
        }
    }
}

/// What a client is served by.
pub(super) struct Services<'a> {
    pub mds: &'a Arc<dyn Mds>,
    pub oss: &'a dyn Oss,
    pub session: &'a Arc<dyn Session>,
}

/// Does what a message asks for, in the name of a request.
pub(super) fn answer(
    at: &Services<'_>,
    request: &Arc<Request>,
    message: Message<'_>,
    bulk: Bytes,
) -> Encoded {
    fn apart<T, U>(result: Result<(Bytes, T), OssError>, rest: impl Fn(T) -> U) -> (Vec<u8>, Bytes)
    where
        U: Serialize,
    {
        match result {
            Ok((bytes, _)) if bytes.len() > BULK_MAX => {
                let long =
                    OssError::Denied(format!("{} bytes are more than goes into an answer", bytes.len()));
                (encode(&Err::<U, _>(long)), Bytes::new())
            }
            Ok((bytes, more)) => (encode(&Ok::<_, OssError>(rest(more))), bytes),
            Err(error) => (encode(&Err::<U, _>(error)), Bytes::new()),
        }
    }
    match message {
        Message::Mds(call) => match at.session.done(request.number) {
            Some(done) => {
                if let Some(trace) = done.trace() {
                    request.note(trace);
                }
                calls::answer_again(&**at.mds, call, done.ino())
            }
            None => calls::make(&**at.mds, request, call),
        },
        Message::Get { segment, start, end } => {
            let got = at.oss.get(segment, start..end);
            Encoded::Pending(got.map(|got| apart(got.map(|bytes| (bytes, ())), |()| ())).boxed())
        }
        Message::Tail { segment, len } => {
            let got = at.oss.get_tail(segment, len);
            Encoded::Pending(got.map(|got| apart(got, |size: u64| size)).boxed())
        }
        Message::Put { segment } => {
            let put = at.oss.put(segment, vec![bulk]);
            Encoded::Pending(put.map(|done| (encode(&done), Bytes::new())).boxed())
        }
        Message::Room { vdev } => {
            Encoded::Pending(at.oss.room(vdev).map(|room| (encode(&room), Bytes::new())).boxed())
        }
        Message::Stored { segment, bytes } => {
            let stored = at.oss.stored(segment, bytes);
            Encoded::Pending(stored.map(|done| (encode(&done), Bytes::new())).boxed())
        }
        Message::Replay(past) => replay(at, past),
        Message::Resume(holds) => resume(at, holds),
        Message::Leave => {
            let session = at.session.clone();
            Encoded::Pending(async move { (encode(&session.leave().await), Bytes::new()) }.boxed())
        }
    }
}

/// Does one after the other again.
fn replay(at: &Services<'_>, past: Vec<Past<'_>>) -> Encoded {
    let past: Vec<(u64, Trace, Vec<u8>)> =
        past.iter().map(|past| (past.number, past.trace, past.message.to_vec())).collect();
    let (mds, session) = (at.mds.clone(), at.session.clone());
    let replayed = async move {
        let mut traces: Vec<Option<Trace>> = Vec::with_capacity(past.len());
        let mut tries = TRIES;
        for (number, trace, message) in past {
            // Durable before the server's end, or made again when the client was here before.
            if let Some(done) = session.done(number) {
                traces.push(Some(done.trace().unwrap_or(Trace { txg: Txg(0), ..trace })));
                continue;
            }
            let request = Request::new(number, 0, Some(trace));
            let Ok(Message::Mds(call)) = postcard::from_bytes(&message) else {
                return encode(&Err::<(), _>(FsError::invalid("only changes are made again")));
            };
            let made = match session.recall(calls::segments(&call)).await {
                Ok(()) => {
                    patiently(&*session, &mut tries, || make_again(&*mds, &request, call.clone())).await
                }
                Err(lost) => Err(lost),
            };
            let trace = match made {
                Ok(()) => request.trace(),
                Err(error) if session.failing() => return encode(&Err::<(), _>(error)),
                Err(error) => {
                    tracing::error!(number, %error, "a change that was lost cannot be made again");
                    None
                }
            };
            traces.push(trace);
        }
        encode(&Ok::<_, FsError>(traces))
    };
    Encoded::Pending(replayed.map(|result| (result, Bytes::new())).boxed())
}

/// Makes a call once more. Only whether it succeeds is of interest.
fn make_again(
    mds: &dyn Mds,
    request: &Arc<Request>,
    call: Call<'_>,
) -> impl Future<Output = Result<(), FsError>> + use<> {
    let made = calls::make(mds, request, call);
    async move {
        let result = match made {
            Encoded::Ready(result) => result,
            Encoded::Pending(result) => result.await.0,
        };
        // The first byte of a result says whether it is one; an error follows it.
        match result.split_first() {
            Some((0, _)) => Ok(()),
            error => {
                let error = error.and_then(|(_, error)| postcard::from_bytes(error).ok());
                Err(error.unwrap_or_else(|| FsError::invalid("an answer that cannot be sent")))
            }
        }
    }
}

/// Tries something that must not fail because a bucket did, as often as `tries` says.
async fn patiently<F: Future<Output = Result<(), FsError>>>(
    session: &dyn Session,
    tries: &mut u32,
    attempt: impl Fn() -> F,
) -> Result<(), FsError> {
    loop {
        match attempt().await {
            // While buckets fail the client had better come again.
            Err(FsError::Io(why)) if *tries > 0 && !session.failing() => {
                *tries -= 1;
                tracing::warn!(why, "trying again what a client has lost");
                tokio::time::sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

fn resume(at: &Services<'_>, holds: Holds) -> Encoded {
    let (mds, session) = (at.mds.clone(), at.session.clone());
    let resumed = async move {
        patiently(&*session, &mut { TRIES }, || session.resumed(holds.opens.clone())).await?;
        // One that cannot be had is no reason to lose the others.
        let mut outcome = Ok::<_, FsError>(());
        for (ino, owner, range, mode) in holds.locks {
            let done = match mode {
                Some(mode) => mds.lock(ino, owner, range, mode, false).wait().await,
                None => mds.unlock(ino, owner, range).wait().await,
            };
            outcome = outcome.and(done);
        }
        outcome
    };
    Encoded::Pending(resumed.map(|done| (encode(&done), Bytes::new())).boxed())
}
