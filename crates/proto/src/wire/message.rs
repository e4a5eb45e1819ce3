//! What a call says and what its answer says. Bodies of objects are the bulk bytes of the frame.

use super::calls::{self, Call};
use crate::{Mds, Oss, OssError};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tarn_base::{SegmentId, VdevId};

/// What is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message<'a> {
    Mds(#[serde(borrow)] Call<'a>),
    /// Bytes `start..end` of an object: the answer's bulk bytes.
    Get { segment: SegmentId, start: u64, end: u64 },
    /// The object's last bytes; the answer says how long it is.
    Tail { segment: SegmentId, len: u64 },
    /// The call's bulk bytes as an object.
    Put { segment: SegmentId },
    Room { vdev: VdevId },
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

/// Does what a message asks for.
pub(super) fn answer(mds: &dyn Mds, oss: &dyn Oss, message: Message<'_>, bulk: Bytes) -> Encoded {
    fn apart<T, U>(result: Result<(Bytes, T), OssError>, rest: impl Fn(T) -> U) -> (Vec<u8>, Bytes)
    where
        U: Serialize,
    {
        match result {
            Ok((bytes, more)) => (encode(&Ok::<_, OssError>(rest(more))), bytes),
            Err(error) => (encode(&Err::<U, _>(error)), Bytes::new()),
        }
    }
    match message {
        Message::Mds(call) => calls::make(mds, call),
        Message::Get { segment, start, end } => {
            let got = oss.get(segment, start..end);
            Encoded::Pending(got.map(|got| apart(got.map(|bytes| (bytes, ())), |()| ())).boxed())
        }
        Message::Tail { segment, len } => {
            let got = oss.get_tail(segment, len);
            Encoded::Pending(got.map(|got| apart(got, |size: u64| size)).boxed())
        }
        Message::Put { segment } => {
            let put = oss.put(segment, vec![bulk]);
            Encoded::Pending(put.map(|done| (encode(&done), Bytes::new())).boxed())
        }
        Message::Room { vdev } => {
            Encoded::Pending(oss.room(vdev).map(|room| (encode(&room), Bytes::new())).boxed())
        }
    }
}
