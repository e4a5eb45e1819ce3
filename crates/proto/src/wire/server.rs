//! The server's end of a connection.

use super::frame::{BULK_MAX, Frame, Kind, Outgoing, Reader, Writer};
use super::message::{Asked, Encoded, Services, Told, answer, answered};
use super::{Broken, Hello, PING_EVERY, Pong, SILENCE, VERSIONS, Welcome, listen};
use crate::{Mds, Oss};
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::sync::Arc;
use tarn_base::{Done, FsError, Ino, Request, SegmentId, Txg};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, timeout};
use tokio_io_timeout::TimeoutWriter;
use tokio_util::sync::CancellationToken;

/// Calls of one client that are not answered yet. One more is refused: its client has gone wrong.
const CALLS: usize = 16 << 10;
/// Answers that wait to be sent. Nothing more is read from a client that does not read them.
const ANSWERS: usize = 256;

/// Bulk bytes of one client that are on their way, in pages.
const ROOM: usize = (128 << 20) / PAGE;
const PAGE: usize = 4 << 10;
const _: () = assert!(BULK_MAX <= ROOM * PAGE);

/// What a client is given.
pub struct Served {
    pub mds: Arc<dyn Mds>,
    pub oss: Arc<dyn Oss>,
    pub session: Arc<dyn Session>,
    /// The client had the dataset already.
    pub known: bool,
    /// What it must know of the pool, in the pool's own words.
    pub pool: Vec<u8>,
    /// Ends the connection, because its client has made another or must go.
    pub end: CancellationToken,
    /// Given back when nothing is done for the connection any more.
    pub turn: Box<dyn std::any::Any + Send + Sync>,
}

/// Why a client is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It may try again; one line.
    Not(String),
    /// It had the dataset, and was given up.
    Gone(String),
}

/// What a server has to offer.
pub trait Export: Send + Sync + 'static {
    /// The dataset that a client asks for.
    fn admit<'a>(&'a self, hello: &'a Hello) -> BoxFuture<'a, Result<Served, Refusal>>;
}

/// What a server keeps for a client beyond a connection, and beyond its own end.
pub trait Session: Send + Sync + 'static {
    /// Which of the dataset's openings it is.
    fn instance(&self) -> u64;
    /// All that is in transaction groups up to this one is durable.
    fn durable(&self) -> Txg;
    /// What became of a request, if it was carried out.
    fn done(&self, number: u64) -> Option<Done>;
    /// Takes up segments that were written before a crash. Fails if one of them is not there: what names it cannot be made
    /// again.
    fn recall(&self, segments: Vec<SegmentId>) -> BoxFuture<'static, Result<(), FsError>>;
    /// Buckets fail just now: what does not succeed may do so later.
    fn failing(&self) -> bool;
    /// The client has made again what was lost, and has these open, each so often.
    fn resumed(&self, opens: Vec<(Ino, u32)>) -> BoxFuture<'static, Result<(), FsError>>;
    /// The client lets the dataset go.
    fn leave(&self) -> BoxFuture<'static, Result<(), FsError>>;
}

/// Serves one client until it hangs up; the error is what it did wrong, or why it was lost.
pub async fn serve<R, W>(export: &dyn Export, reader: R, writer: W) -> Result<(), Broken>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    // Who does not read is sent away like who says nothing.
    let mut writer = TimeoutWriter::new(writer);
    writer.set_timeout(Some(SILENCE));
    let (mut reader, mut writer) = (listen(reader), Writer::new(Box::pin(writer)));
    let greeting = timeout(SILENCE, reader.next()).await;
    let greeting = greeting.map_err(|_| Broken::Lost("it does not say who it is".into()))??;
    let Some(frame) = greeting else { return Ok(()) };
    let (served, welcome) = match greet(export, &frame).await {
        Ok(welcomed) => welcomed,
        Err(refusal) => {
            let (kind, why) = match refusal {
                Refusal::Not(why) => (Kind::Refused, why),
                Refusal::Gone(why) => (Kind::Gone, why),
            };
            writer.send(&Outgoing::new(kind, 0, why.clone().into_bytes())).await?;
            writer.flush().await?;
            return Err(Broken::Refused(why));
        }
    };
    writer.send(&Outgoing::new(Kind::Welcome, 0, welcome)).await?;
    writer.flush().await?;
    let (answers, outgoing) = mpsc::channel(ANSWERS);
    let (mds, session) = (served.mds.clone(), served.session.clone());
    let pong = move || Pong { info: mds.info(), durable: session.durable() };
    let writing = tokio::spawn(write(writer, outgoing, pong));
    let room = Arc::new(Semaphore::new(ROOM));
    let end = served.end.clone();
    let mut connection = Connection { served, answers, pending: HashMap::new(), tasks: JoinSet::new(), room };
    let done = tokio::select! {
        done = connection.run(&mut reader) => done,
        _ = end.cancelled() => Err(Broken::Lost("its place was taken, or the server ends".into())),
    };
    // Nobody waits for anything any more; what is under way ends before the next connection begins.
    connection.tasks.shutdown().await;
    drop(connection);
    writing.abort();
    done
}

async fn greet(export: &dyn Export, frame: &Frame) -> Result<(Served, Vec<u8>), Refusal> {
    let refused = |why: String| Refusal::Not(why);
    let hello: Option<Hello> =
        postcard::from_bytes(&frame.message).ok().filter(|_| frame.kind == Kind::Hello);
    let hello =
        hello.ok_or_else(|| refused("this is a server of Tarn, and was not greeted as one".into()))?;
    let (oldest, newest) = VERSIONS;
    let version = newest.min(hello.newest);
    if version < oldest.max(hello.oldest) {
        return Err(refused(format!(
            "the server speaks versions {oldest} to {newest} of the protocol, the client {} to {}: bring the older of \
             the two up to date",
            hello.oldest, hello.newest
        )));
    }
    let served = export.admit(&hello).await?;
    let welcome = Welcome {
        version,
        instance: served.session.instance(),
        known: served.known,
        durable: served.session.durable(),
        info: served.mds.info(),
        pool: served.pool.clone(),
    };
    let welcome = postcard::to_stdvec(&welcome).map_err(|e| refused(e.to_string()))?;
    Ok((served, welcome))
}

/// One client's connection.
struct Connection {
    served: Served,
    answers: mpsc::Sender<Answer>,
    /// Calls that wait for something.
    pending: HashMap<u64, AbortHandle>,
    tasks: JoinSet<()>,
    room: Arc<Semaphore>,
}

/// An answer, and the room that its bulk bytes take until they are sent.
struct Answer(Outgoing, Option<OwnedSemaphorePermit>);

impl Connection {
    async fn run<R: AsyncRead + Unpin>(&mut self, reader: &mut Reader<R>) -> Result<(), Broken> {
        while let Some(frame) = reader.next().await? {
            match frame.kind {
                Kind::Call => self.call(frame).await?,
                Kind::Cancel => {
                    if let Some(call) = self.pending.remove(&frame.id) {
                        call.abort();
                        self.ended(&call).await;
                    }
                }
                // That it is there is all that it says.
                Kind::Ping => {}
                kind => return Err(Broken::Lost(format!("it sent a frame of kind {kind:?}"))),
            }
        }
        Ok(())
    }

    /// Waits until a call that was cancelled has come to its end: what the client calls next builds on that.
    async fn ended(&mut self, call: &AbortHandle) {
        // What is finished may have been taken out of the set.
        while !call.is_finished() {
            match self.tasks.join_next_with_id().await {
                Some(Ok((id, ()))) if id == call.id() => return,
                Some(Err(error)) if error.id() == call.id() => return,
                Some(_) => {}
                None => return,
            }
        }
    }

    async fn answer(&self, frame: Outgoing) -> Result<(), Broken> {
        let sent = timeout(SILENCE, self.answers.send(Answer(frame, None))).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            _ => Err(Broken::Lost("it does not read its answers".into())),
        }
    }

    async fn call(&mut self, frame: Frame) -> Result<(), Broken> {
        let Frame { id, message, bulk, .. } = frame;
        let Asked { settled, message } = postcard::from_bytes(&message)
            .map_err(|_| Broken::Lost("it made a call that cannot be understood".into()))?;
        while self.tasks.try_join_next().is_some() {}
        if self.pending.len() >= CALLS {
            self.pending.retain(|_, call| !call.is_finished());
            if self.pending.len() >= CALLS {
                return Err(Broken::Lost(format!("it makes more than {CALLS} calls at a time")));
            }
        }
        // Nothing more is read while there is no room for what was read.
        let held = take(&self.room, bulk.len() as u64).await;
        let wanted = message.wants();
        let request = Request::new(id, settled, None);
        let services =
            Services { mds: &self.served.mds, oss: &*self.served.oss, session: &self.served.session };
        match answer(&services, &request, message, bulk) {
            Encoded::Ready(result) => {
                let message = answered(told(&*self.served.session, &request), &result);
                self.answer(Outgoing::new(Kind::Answer, id, message)).await
            }
            Encoded::Pending(future) => {
                let (answers, room, session) =
                    (self.answers.clone(), self.room.clone(), self.served.session.clone());
                let call = self.tasks.spawn(async move {
                    let wanted = take(&room, wanted).await;
                    let (result, bulk) = future.await;
                    drop(held);
                    let message = answered(told(&*session, &request), &result);
                    let frame = Outgoing { kind: Kind::Answer, id, message, bulk: vec![bulk] };
                    // Whoever does not read is found out by who sends next.
                    let _ = answers.send(Answer(frame, wanted)).await;
                });
                self.pending.insert(id, call);
                Ok(())
            }
        }
    }
}

/// What goes with a request's answer.
fn told(session: &dyn Session, request: &Request) -> Told {
    Told { trace: request.trace(), durable: session.durable() }
}

/// Room for that many bytes, once there is; none for nothing.
async fn take(room: &Arc<Semaphore>, bytes: u64) -> Option<OwnedSemaphorePermit> {
    if bytes == 0 {
        return None;
    }
    let pages = (bytes.div_ceil(PAGE as u64)).min(ROOM as u64) as u32;
    room.clone().acquire_many_owned(pages).await.ok()
}

/// Sends answers, and now and then what there is to say anyway.
async fn write<W: AsyncWrite + Unpin>(
    mut writer: Writer<W>,
    mut outgoing: mpsc::Receiver<Answer>,
    pong: impl Fn() -> Pong,
) {
    let mut pongs = interval(PING_EVERY);
    loop {
        let answer = tokio::select! {
            answer = outgoing.recv() => answer,
            _ = pongs.tick() => {
                let pong = postcard::to_stdvec(&pong()).unwrap_or_default();
                Some(Answer(Outgoing::new(Kind::Pong, 0, pong), None))
            }
        };
        let Some(Answer(frame, _room)) = answer else { return };
        let mut sent = writer.send(&frame).await;
        while sent.is_ok()
            && let Ok(Answer(frame, _room)) = outgoing.try_recv()
        {
            sent = writer.send(&frame).await;
        }
        if sent.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}
