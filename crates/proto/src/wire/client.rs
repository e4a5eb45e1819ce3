//! The client's end of a connection.

use super::calls::Call;
use super::message::Message;
use super::frame::{Frame, Kind, Outgoing, Reader, Writer};
use super::{Broken, Hello, PING_EVERY, SILENCE, VERSIONS, Welcome};
use crate::{DatasetInfo, Oss, OssError, Room};
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tarn_base::{Answer, FsError, SegmentId, VdevId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, timeout};

type Waiting = oneshot::Sender<Result<Frame, Broken>>;

/// One connection to a server, for any number of calls at a time.
pub struct Connection {
    out: mpsc::UnboundedSender<Outgoing>,
    next: AtomicU64,
    /// Calls that are not answered yet; or why there is no connection any more.
    calls: Mutex<Result<HashMap<u64, Waiting>, Broken>>,
    info: Mutex<DatasetInfo>,
    pool: Vec<u8>,
}

/// A call under way. Dropped before its answer is here, it is cancelled.
struct Pending<'a> {
    connection: &'a Connection,
    id: u64,
    answered: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.answered && self.connection.forget(self.id) {
            self.connection.send(Outgoing::new(Kind::Cancel, self.id, Vec::new()));
        }
    }
}

fn malformed<E>(_: E) -> Broken {
    Broken::Lost("an answer cannot be understood".into())
}

impl Connection {
    /// Greets the server at the other end of a stream. The connection ends with its last user, or when the stream does.
    pub async fn open<R, W>(reader: R, writer: W, client: u64, dataset: &str) -> Result<Arc<Connection>, Broken>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (mut reader, mut writer) = (Reader::new(reader), Writer::new(writer));
        let (oldest, newest) = VERSIONS;
        let hello = Hello { oldest, newest, client, dataset: dataset.into() };
        let hello = postcard::to_stdvec(&hello).map_err(malformed)?;
        writer.send(&Outgoing::new(Kind::Hello, 0, hello)).await?;
        writer.flush().await?;
        let heard = timeout(SILENCE, reader.next()).await;
        let frame = heard.map_err(|_| Broken::Lost("the server does not answer".into()))??;
        let frame = frame.ok_or_else(|| Broken::Lost("the server hung up".into()))?;
        let welcome: Welcome = match frame.kind {
            Kind::Welcome => postcard::from_bytes(&frame.message).map_err(malformed)?,
            Kind::Refused => {
                return Err(Broken::Refused(String::from_utf8_lossy(&frame.message).into_owned()));
            }
            _ => return Err(malformed(())),
        };
        let (out, outgoing) = mpsc::unbounded_channel();
        let connection = Arc::new(Connection {
            out,
            next: AtomicU64::new(1),
            calls: Mutex::new(Ok(HashMap::new())),
            info: Mutex::new(welcome.info),
            pool: welcome.pool,
        });
        tokio::spawn(write(writer, outgoing));
        let weak = Arc::downgrade(&connection);
        tokio::spawn(async move {
            let why = match read(reader, |frame| weak.upgrade().map(|c| c.take(frame))).await {
                Ok(()) => Broken::Lost("the server hung up".into()),
                Err(error) => error,
            };
            if let Some(connection) = weak.upgrade() {
                connection.end(why);
            }
        });
        Ok(connection)
    }

    /// Sends a message; what comes back, once it does.
    pub async fn call(&self, message: Vec<u8>, bulk: Vec<Bytes>) -> Result<Frame, Broken> {
        let (tell, told) = oneshot::channel();
        let id = self.next.fetch_add(1, Relaxed);
        self.calls.lock().as_mut().map_err(|why| why.clone())?.insert(id, tell);
        let mut pending = Pending { connection: self, id, answered: false };
        self.send(Outgoing { kind: Kind::Call, id, message, bulk });
        let answer = told.await.map_err(|_| Broken::Lost("nobody reads answers any more".into()));
        pending.answered = true;
        answer?
    }

    /// What the server said of the pool.
    pub fn pool(&self) -> &[u8] {
        &self.pool
    }

    /// Why there is no connection any more; `None` while there is one.
    pub fn broken(&self) -> Option<Broken> {
        self.calls.lock().as_ref().err().cloned()
    }

    fn send(&self, frame: Outgoing) {
        // The writer ends with the connection, and whoever waits for an answer is told by the reader.
        let _ = self.out.send(frame);
    }

    fn forget(&self, id: u64) -> bool {
        self.calls.lock().as_mut().is_ok_and(|calls| calls.remove(&id).is_some())
    }

    /// Somebody waits for this frame, or nobody does any more.
    fn take(&self, frame: Frame) -> Result<(), Broken> {
        match frame.kind {
            Kind::Answer => {
                let waiting = self.calls.lock().as_mut().ok().and_then(|calls| calls.remove(&frame.id));
                if let Some(waiting) = waiting {
                    let _ = waiting.send(Ok(frame));
                }
            }
            Kind::Pong => *self.info.lock() = postcard::from_bytes(&frame.message).map_err(malformed)?,
            _ => return Err(malformed(())),
        }
        Ok(())
    }

    fn end(&self, why: Broken) {
        let calls = std::mem::replace(&mut *self.calls.lock(), Err(why.clone()));
        for waiting in calls.into_iter().flat_map(HashMap::into_values) {
            let _ = waiting.send(Err(why.clone()));
        }
    }
}

/// Gives away frames until the stream ends, or there is nobody to take them.
async fn read<R: AsyncRead + Unpin>(
    mut reader: Reader<R>,
    take: impl Fn(Frame) -> Option<Result<(), Broken>>,
) -> Result<(), Broken> {
    loop {
        let heard = timeout(SILENCE, reader.next()).await;
        let Some(frame) = heard.map_err(|_| Broken::Lost("the server does not answer".into()))?? else {
            return Ok(());
        };
        match take(frame) {
            Some(taken) => taken?,
            None => return Ok(()),
        }
    }
}

/// Sends frames, and pings between them, until nobody is there to give any.
async fn write<W: AsyncWrite + Unpin>(mut writer: Writer<W>, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) {
    let mut pings = interval(PING_EVERY);
    loop {
        let frame = tokio::select! {
            frame = outgoing.recv() => frame,
            _ = pings.tick() => Some(Outgoing::new(Kind::Ping, 0, Vec::new())),
        };
        let Some(frame) = frame else { return };
        let mut sent = writer.send(&frame).await;
        while sent.is_ok()
            && let Ok(frame) = outgoing.try_recv()
        {
            sent = writer.send(&frame).await;
        }
        if sent.is_err() || writer.flush().await.is_err() {
            // The reader finds out by itself, and says so.
            return;
        }
    }
}

/// A metadata server at the other end of a connection.
pub struct RemoteMds {
    connection: Arc<Connection>,
}

impl RemoteMds {
    pub fn new(connection: Arc<Connection>) -> RemoteMds {
        RemoteMds { connection }
    }

    pub(super) fn known_info(&self) -> DatasetInfo {
        *self.connection.info.lock()
    }

    pub(super) fn call<T: DeserializeOwned + Send + 'static>(&self, call: Call<'_>) -> Answer<T> {
        let Ok(message) = postcard::to_stdvec(&Message::Mds(call)) else {
            return Answer::err(FsError::invalid("a call that cannot be sent"));
        };
        let connection = self.connection.clone();
        Answer::pending(async move {
            let frame = connection.call(message, Vec::new()).await.map_err(|e| FsError::Io(e.to_string()))?;
            let answer: Result<Result<T, FsError>, _> = postcard::from_bytes(&frame.message);
            answer.map_err(|_| FsError::Io("the server's answer cannot be understood".into()))?
        })
    }

    /// A call whose answer nobody waits for.
    pub(super) fn tell(&self, call: Call<'_>) {
        if let Ok(message) = postcard::to_stdvec(&Message::Mds(call)) {
            let id = self.connection.next.fetch_add(1, Relaxed);
            self.connection.send(Outgoing::new(Kind::Call, id, message));
        }
    }
}

/// An object storage server at the other end of a connection.
pub struct RemoteOss {
    connection: Arc<Connection>,
}

impl RemoteOss {
    pub fn new(connection: Arc<Connection>) -> RemoteOss {
        RemoteOss { connection }
    }

    /// The answer, and the bulk bytes that came with it.
    fn call<T: DeserializeOwned + Send + 'static>(
        &self,
        message: &Message<'_>,
        bulk: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<(T, Bytes), OssError>> {
        let message = postcard::to_stdvec(message);
        let connection = self.connection.clone();
        Box::pin(async move {
            let failed = |what: &str| OssError::Io(what.to_string());
            let message = message.map_err(|_| failed("a call that cannot be sent"))?;
            let frame = connection.call(message, bulk).await.map_err(|e| failed(&e.to_string()))?;
            let answer: Result<Result<T, OssError>, _> = postcard::from_bytes(&frame.message);
            let answer = answer.map_err(|_| failed("the server's answer cannot be understood"))??;
            Ok((answer, frame.bulk))
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

    fn room(&self, vdev: VdevId) -> BoxFuture<'static, Result<Option<Room>, OssError>> {
        let room = self.call(&Message::Room { vdev }, Vec::new());
        Box::pin(async move { room.await.map(|(room, _)| room) })
    }
}
