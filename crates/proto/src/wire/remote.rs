//! Servers at the other end of a link.

use super::Broken;
use super::calls::Call;
use super::link::{After, Ends, Link};
use super::message::{Message, decode};
use crate::{DatasetInfo, Oss, OssError, Room};
use bytes::Bytes;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::sync::Arc;
use tarn_base::{Answer, FsError, Ino, SegmentId, VdevId};

/// A metadata server.
pub struct RemoteMds {
    link: Arc<Link>,
}

/// What a link that is no more is to who calls.
fn fs_error(broken: Broken) -> FsError {
    match broken {
        // Others may have changed what we know, so nothing of it holds any more.
        Broken::Gone(_) => FsError::Fenced,
        other => FsError::Io(other.to_string()),
    }
}

impl RemoteMds {
    pub fn new(link: Arc<Link>) -> RemoteMds {
        RemoteMds { link }
    }

    pub(super) fn known_info(&self) -> DatasetInfo {
        self.link.info()
    }

    pub(super) fn call<T: DeserializeOwned + Send + 'static>(
        &self,
        call: Call<'_>,
        after: After,
        ends: Ends,
    ) -> Answer<T> {
        let Ok(message) = postcard::to_stdvec(&Message::Mds(call)) else {
            return Answer::err(FsError::invalid("a call that cannot be sent"));
        };
        let link = self.link.clone();
        Answer::pending(async move {
            let (result, _) = link.call(message.into(), Vec::new(), ends, after).await.map_err(fs_error)?;
            decode(&result)
                .unwrap_or_else(|| Err(FsError::Io("the server's answer cannot be understood".into())))
        })
    }

    pub(super) fn tell_closed(&self, ino: Ino) {
        self.link.tell_closed(ino);
    }
}

/// An object storage server.
pub struct RemoteOss {
    link: Arc<Link>,
}

impl RemoteOss {
    pub fn new(link: Arc<Link>) -> RemoteOss {
        RemoteOss { link }
    }

    /// The answer, and the bulk bytes that came with it.
    fn call<T: DeserializeOwned + Send + 'static>(
        &self,
        message: &Message<'_>,
        bulk: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<(T, Bytes), OssError>> {
        let message = postcard::to_stdvec(message);
        let link = self.link.clone();
        Box::pin(async move {
            let failed = |what: &str| OssError::Io(what.to_string());
            let message = message.map_err(|_| failed("a call that cannot be sent"))?;
            let answered =
                link.call(message.into(), bulk, Ends::WithWhoWaits(None), None).await.map_err(|broken| {
                    match broken {
                        Broken::Gone(why) => OssError::Fenced(why),
                        other => failed(&other.to_string()),
                    }
                });
            let (result, bulk) = answered?;
            let result = decode(&result).ok_or_else(|| failed("the server's answer cannot be understood"))?;
            Ok((result?, bulk))
        })
    }
}

impl Oss for RemoteOss {
    fn get(&self, segment: SegmentId, range: Range<u64>) -> BoxFuture<'static, Result<Bytes, OssError>> {
        let (start, end) = (range.start, range.end);
        let got = self.call::<()>(&Message::Get { segment, start, end }, Vec::new());
        Box::pin(async move { Ok(got.await?.1) })
    }

    fn get_tail(&self, segment: SegmentId, len: u64) -> BoxFuture<'static, Result<(Bytes, u64), OssError>> {
        let got = self.call(&Message::Tail { segment, len }, Vec::new());
        Box::pin(async move { got.await.map(|(size, bytes)| (bytes, size)) })
    }

    fn put(&self, segment: SegmentId, body: Vec<Bytes>) -> BoxFuture<'static, Result<(), OssError>> {
        let put = self.call(&Message::Put { segment }, body);
        Box::pin(async move { put.await.map(|((), _)| ()) })
    }

    fn stored(&self, segment: SegmentId, bytes: u64) -> BoxFuture<'static, Result<(), OssError>> {
        let stored = self.call(&Message::Stored { segment, bytes }, Vec::new());
        Box::pin(async move { stored.await.map(|((), _)| ()) })
    }

    fn room(&self, vdev: VdevId) -> BoxFuture<'static, Result<Option<Room>, OssError>> {
        let room = self.call(&Message::Room { vdev }, Vec::new());
        Box::pin(async move { room.await.map(|(room, _)| room) })
    }
}
