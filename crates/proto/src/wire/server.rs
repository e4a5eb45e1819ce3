//! The server's end of a connection.

use super::frame::{Frame, Kind, Outgoing, Reader, Writer};
use super::message::{Encoded, Message, answer};
use super::{Broken, Hello, SILENCE, VERSIONS, Welcome};
use crate::{Mds, Oss};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Calls of one client that are not answered yet. One more is refused: its client has gone wrong.
const CALLS: usize = 16 << 10;
/// Answers that wait to be sent. Nothing more is read from a client that does not read them.
const ANSWERS: usize = 256;

/// Bulk bytes of one client that are on their way, in pages.
const ROOM: usize = (128 << 20) / PAGE;
const PAGE: usize = 4 << 10;

/// What a client is given.
#[derive(Clone)]
pub struct Served {
    pub mds: Arc<dyn Mds>,
    pub oss: Arc<dyn Oss>,
    /// What it must know of the pool, in the pool's own words.
    pub pool: Vec<u8>,
}

/// What a server has to offer.
pub trait Export: Send + Sync + 'static {
    /// The dataset that a client asks for; otherwise why it does not get it, in one line.
    fn open(&self, hello: &Hello) -> Result<Served, String>;
}

/// Serves one client until it hangs up; the error is what it did wrong, or why it was lost.
pub async fn serve<R, W>(export: &dyn Export, reader: R, writer: W) -> Result<(), Broken>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (mut reader, mut writer) = (Reader::new(reader), Writer::new(writer));
    let Some(frame) = heard(&mut reader).await? else { return Ok(()) };
    let served = match greet(export, &frame) {
        Ok((served, welcome)) => {
            writer.send(&Outgoing::new(Kind::Welcome, 0, welcome)).await?;
            served
        }
        Err(why) => {
            writer.send(&Outgoing::new(Kind::Refused, 0, why.clone().into_bytes())).await?;
            writer.flush().await?;
            return Err(Broken::Refused(why));
        }
    };
    writer.flush().await?;
    let (answers, outgoing) = mpsc::channel(ANSWERS);
    let writing = tokio::spawn(write(writer, outgoing));
    let room = Arc::new(Semaphore::new(ROOM));
    let mut session = Session { served, answers, pending: HashMap::new(), room };
    let done = session.run(&mut reader).await;
    session.end();
    drop(session);
    writing.abort();
    done
}

fn greet(export: &dyn Export, frame: &Frame) -> Result<(Served, Vec<u8>), String> {
    let hello: Option<Hello> = postcard::from_bytes(&frame.message).ok().filter(|_| frame.kind == Kind::Hello);
    let hello = hello.ok_or("this is a server of Tarn, and was not greeted as one")?;
    let (oldest, newest) = VERSIONS;
    let version = newest.min(hello.newest);
    if version < oldest.max(hello.oldest) {
        return Err(format!(
            "the server speaks versions {oldest} to {newest} of the protocol, the client {} to {}: bring the older of \
             the two up to date",
            hello.oldest, hello.newest
        ));
    }
    let served = export.open(&hello)?;
    let welcome = Welcome { version, info: served.mds.info(), pool: served.pool.clone() };
    let welcome = postcard::to_stdvec(&welcome).map_err(|e| e.to_string())?;
    Ok((served, welcome))
}

async fn heard<R: AsyncRead + Unpin>(reader: &mut Reader<R>) -> Result<Option<Frame>, Broken> {
    let frame = timeout(SILENCE, reader.next()).await;
    Ok(frame.map_err(|_| Broken::Lost(format!("nothing was heard of it for {} s", SILENCE.as_secs())))??)
}

/// One client.
struct Session {
    served: Served,
    answers: mpsc::Sender<Answered>,
    /// Calls that wait for something.
    pending: HashMap<u64, AbortHandle>,
    room: Arc<Semaphore>,
}

/// An answer, and the room that its bulk bytes take until they are sent.
struct Answered(Outgoing, Option<OwnedSemaphorePermit>);

impl Session {
    async fn run<R: AsyncRead + Unpin>(&mut self, reader: &mut Reader<R>) -> Result<(), Broken> {
        while let Some(frame) = heard(reader).await? {
            match frame.kind {
                Kind::Call => self.call(frame).await?,
                Kind::Cancel => {
                    if let Some(call) = self.pending.remove(&frame.id) {
                        call.abort();
                    }
                }
                Kind::Ping => {
                    let info = postcard::to_stdvec(&self.served.mds.info()).unwrap_or_default();
                    self.answer(Outgoing::new(Kind::Pong, 0, info)).await?;
                }
                kind => return Err(Broken::Lost(format!("it sent a frame of kind {kind:?}"))),
            }
        }
        Ok(())
    }

    async fn answer(&self, frame: Outgoing) -> Result<(), Broken> {
        let sent = timeout(SILENCE, self.answers.send(Answered(frame, None))).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            _ => Err(Broken::Lost("it does not read its answers".into())),
        }
    }

    async fn call(&mut self, frame: Frame) -> Result<(), Broken> {
        let Frame { id, message, bulk, .. } = frame;
        let message: Message = postcard::from_bytes(&message)
            .map_err(|_| Broken::Lost("it made a call that cannot be understood".into()))?;
        if self.pending.len() >= CALLS {
            self.pending.retain(|_, call| !call.is_finished());
            if self.pending.len() >= CALLS {
                return Err(Broken::Lost(format!("it makes more than {CALLS} calls at a time")));
            }
        }
        // Nothing more is read while there is no room for what was read.
        let held = take(&self.room, bulk.len() as u64).await;
        let wanted = message.wants();
        match answer(&*self.served.mds, &*self.served.oss, message, bulk) {
            Encoded::Ready(message) => self.answer(Outgoing::new(Kind::Answer, id, message)).await,
            Encoded::Pending(future) => {
                let (answers, room) = (self.answers.clone(), self.room.clone());
                let call = tokio::spawn(async move {
                    let wanted = take(&room, wanted).await;
                    let (message, bulk) = future.await;
                    drop(held);
                    let frame = Outgoing { kind: Kind::Answer, id, message, bulk: vec![bulk] };
                    // Whoever does not read is found out by who sends next.
                    let _ = answers.send(Answered(frame, wanted)).await;
                });
                self.pending.insert(id, call.abort_handle());
                Ok(())
            }
        }
    }

    /// Nobody waits for anything any more.
    fn end(&mut self) {
        self.pending.drain().for_each(|(_, call)| call.abort());
    }
}

/// Room for that many bytes, once there is; none for nothing.
async fn take(room: &Arc<Semaphore>, bytes: u64) -> Option<OwnedSemaphorePermit> {
    if bytes == 0 {
        return None;
    }
    let pages = (bytes.div_ceil(PAGE as u64)).min(ROOM as u64) as u32;
    room.clone().acquire_many_owned(pages).await.ok()
}

async fn write<W: AsyncWrite + Unpin>(mut writer: Writer<W>, mut outgoing: mpsc::Receiver<Answered>) {
    while let Some(Answered(frame, _room)) = outgoing.recv().await {
        let mut sent = writer.send(&frame).await;
        while sent.is_ok()
            && let Ok(Answered(frame, _room)) = outgoing.try_recv()
        {
            sent = writer.send(&frame).await;
        }
        if sent.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}
