//! The client's end: one link to a server, made anew each time its connection is lost, so that those who call notice
//! nothing but the time that it takes.
//!
//! # What a lost connection costs
//! Calls that are not answered stay here and are made again. If the server is the one that it was, that is all: it knows
//! which of them it has carried out. If it was started anew, it has lost what was not durable. That was kept here, call
//! by call with what each did, and is made again first, in the order in which it was done, where the server does not know
//! it: some of it may have become durable without our knowledge. Then it is told what is open and locked, and only then
//! the calls go on. Each call says which ones before it will never be asked for again, so that the server forgets them.

use super::calls::Call;
use super::frame::{BULK_MAX, Frame, Kind, MESSAGE_MAX, Outgoing, Reader, Writer};
use super::held::Held;
use super::kept::{Change, Kept, Place};
use super::message::{Message, Past, Told, decode, parse_answer};
use super::{Broken, Dial, Hello, Incoming, Outward, PING_EVERY, Pong, SILENCE, VERSIONS, Welcome, listen};
use crate::DatasetInfo;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tarn_base::{FsError, Ino, Trace, Txg};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{interval, sleep, timeout};
use tokio_io_timeout::TimeoutReader;

/// Between two attempts to reach a server, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A step of the way back to a server takes at most this.
const STEP: Duration = Duration::from_secs(60);
/// Bytes of calls that are made again in one message.
const REPLAY: usize = 1 << 20;
/// Most bytes of a call's frame before its message.
const SETTLED_MAX: usize = 10;

/// What the caller does with an answer before anything else happens on the link.
pub(super) type After = Option<Box<dyn FnOnce(&mut Held, &[u8]) + Send>>;

/// The calls, encoded, that put things as if a call had never been made, whether the server made it or not.
pub(super) type Undo = Box<dyn FnOnce(&mut Held) -> Vec<Bytes> + Send>;

/// When a call is over.
pub(super) enum Ends {
    /// When nobody waits for its answer any more. If it may be made all the same, it is undone.
    WithWhoWaits(Option<Undo>),
    /// Whoever waits: what it did must be known here, because more may be built on it.
    WithItsAnswer,
}

/// An answer: the encoded result, and bulk bytes.
pub(super) type Answered = (Bytes, Bytes);

/// A call that is not answered yet.
struct Waiting {
    /// A [`Message`], encoded.
    message: Bytes,
    bulk: Vec<Bytes>,
    after: After,
    tell: oneshot::Sender<Result<Answered, Broken>>,
}

struct State {
    /// To the connection; `None` while there is none.
    out: Option<mpsc::UnboundedSender<Outgoing>>,
    calls: BTreeMap<u64, Waiting>,
    kept: Kept,
    held: Held,
    /// Which of the server's lives it is that has all that is kept.
    instance: u64,
    /// Nothing goes on from here.
    dead: Option<Broken>,
}

/// A link to a server, for any number of calls at a time.
pub struct Link {
    dial: Box<dyn Dial>,
    client: u64,
    dataset: String,
    next: AtomicU64,
    state: Mutex<State>,
    info: Mutex<DatasetInfo>,
    /// Whether access times are kept and how eagerly, where the mount was told.
    atime: Mutex<Option<(bool, bool)>>,
    pool: Vec<u8>,
    /// Why there is no connection; `None` while there is one.
    lost: watch::Sender<Option<String>>,
    /// How often a connection was made.
    connections: AtomicU64,
    /// Changes that a server had lost and could not be made again.
    unmade: AtomicU64,
}

/// A call under way that may be given up: dropped before its answer is here, it is cancelled, and undone: the server
/// may have made it before it hears of that, and its answer may be on its way.
struct Pending<'a> {
    link: &'a Link,
    number: u64,
    answered: bool,
    undo: Option<Undo>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let mut state = self.link.state.lock();
        if state.calls.remove(&self.number).is_some()
            && let Some(out) = &state.out
        {
            let _ = out.send(Outgoing::new(Kind::Cancel, self.number, Vec::new()));
        }
        if state.dead.is_some() {
            return;
        }
        // Behind the cancelled call, and before whatever is called from now on.
        for message in self.undo.take().map_or(Vec::new(), |undo| undo(&mut state.held)) {
            self.link.begin(&mut state, message, Vec::new(), None);
        }
    }
}

/// Frames that come from the server.
type FromServer = Reader<Pin<Box<TimeoutReader<Incoming>>>>;

/// A connection on which the server has welcomed us.
struct Greeted {
    reader: FromServer,
    writer: Writer<Outward>,
    welcome: Welcome,
}

fn malformed<E>(_: E) -> Broken {
    Broken::Lost("an answer cannot be understood".into())
}

impl State {
    /// Requests below this number will not be asked for again.
    fn settled(&self, next: u64) -> u64 {
        let waiting = self.calls.first_key_value().map(|(number, _)| *number);
        waiting.into_iter().chain(self.kept.first()).fold(next, u64::min)
    }

    fn send(&self, number: u64, next: u64) {
        let (Some(out), Some(call)) = (&self.out, self.calls.get(&number)) else { return };
        // The writer ends with the connection, and the reader finds out.
        let _ = out.send(call_frame(number, self.settled(next), &call.message, call.bulk.clone()));
    }
}

/// A call's frame: what is settled is said anew each time that it is sent.
fn call_frame(number: u64, settled: u64, message: &[u8], bulk: Vec<Bytes>) -> Outgoing {
    let mut out =
        postcard::to_extend(&settled, Vec::with_capacity(message.len() + SETTLED_MAX)).unwrap_or_default();
    out.extend_from_slice(message);
    Outgoing { kind: Kind::Call, id: number, message: out, bulk }
}

impl Link {
    /// Greets a server. Fails if it is not there, or refuses; from then on the link waits for it.
    pub async fn open(dial: Box<dyn Dial>, client: u64, dataset: &str) -> Result<Arc<Link>, Broken> {
        let greeted = greet(&*dial, client, dataset, false).await?;
        let link = Arc::new(Link {
            dial,
            client,
            dataset: dataset.to_string(),
            next: AtomicU64::new(1),
            state: Mutex::new(State {
                out: None,
                calls: BTreeMap::new(),
                kept: Kept::default(),
                held: Held::default(),
                instance: greeted.welcome.instance,
                dead: None,
            }),
            info: Mutex::new(greeted.welcome.info),
            atime: Mutex::default(),
            pool: greeted.welcome.pool.clone(),
            lost: watch::Sender::new(None),
            connections: AtomicU64::new(1),
            unmade: AtomicU64::new(0),
        });
        let reader = link.connected(greeted.reader, greeted.writer);
        tokio::spawn(keep(Arc::downgrade(&link), reader));
        Ok(link)
    }

    /// What the server said of the pool.
    pub fn pool(&self) -> &[u8] {
        &self.pool
    }

    pub fn info(&self) -> DatasetInfo {
        let info = *self.info.lock();
        match *self.atime.lock() {
            Some((atime, relatime)) => DatasetInfo { atime, relatime, ..info },
            None => info,
        }
    }

    /// Says how access times are kept here, whatever the dataset's properties say.
    pub fn keep_atime(&self, atime: bool, relatime: bool) {
        *self.atime.lock() = Some((atime, relatime));
    }

    /// Why the server cannot be reached; `None` while it can.
    pub fn lost(&self) -> Option<String> {
        self.lost.borrow().clone()
    }

    /// How often a connection was made.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// Changes that a server had lost and that could not be made again.
    pub fn unmade(&self) -> u64 {
        self.unmade.load(Relaxed)
    }

    /// Every call fails from now on.
    pub fn give_up(&self) {
        self.die(Broken::Lost("the link was given up".into()));
    }

    /// Tells the server that the dataset is not wanted any more; then every call fails. After an error it may be told
    /// again.
    pub async fn leave(&self) -> Result<(), FsError> {
        if self.closed() {
            return Ok(());
        }
        let message = postcard::to_stdvec(&Message::Leave).map_err(|e| FsError::Io(e.to_string()))?;
        let answered = self.call(message.into(), Vec::new(), Ends::WithItsAnswer, None).await;
        let (result, _) = answered.map_err(|broken| FsError::Io(broken.to_string()))?;
        let left: Option<Result<(), FsError>> = decode(&result);
        left.unwrap_or_else(|| Err(FsError::Io("the server's answer cannot be understood".into())))?;
        self.die(Broken::Lost("the link was closed".into()));
        Ok(())
    }

    /// Sends a message; its answer, once it is here.
    pub(super) async fn call(
        &self,
        message: Bytes,
        bulk: Vec<Bytes>,
        ends: Ends,
        after: After,
    ) -> Result<Answered, Broken> {
        let bytes: usize = bulk.iter().map(Bytes::len).sum();
        if message.len() + SETTLED_MAX > MESSAGE_MAX || bytes > BULK_MAX {
            return Err(Broken::TooLong(message.len() + bytes));
        }
        let (number, told) = {
            let mut state = self.state.lock();
            if let Some(why) = &state.dead {
                return Err(why.clone());
            }
            self.begin(&mut state, message, bulk, after)
        };
        let mut pending = match ends {
            Ends::WithWhoWaits(undo) => Some(Pending { link: self, number, answered: false, undo }),
            Ends::WithItsAnswer => None,
        };
        let answer = told.await.map_err(|_| Broken::Lost("nobody reads answers any more".into()));
        if let Some(pending) = &mut pending {
            pending.answered = true;
        }
        answer?
    }

    /// A call is under way from now on; its number, and what will be told of it.
    fn begin(
        &self,
        state: &mut State,
        message: Bytes,
        bulk: Vec<Bytes>,
        after: After,
    ) -> (u64, oneshot::Receiver<Result<Answered, Broken>>) {
        let (tell, told) = oneshot::channel();
        let number = self.next.fetch_add(1, Relaxed);
        state.calls.insert(number, Waiting { message, bulk, after, tell });
        state.send(number, number + 1);
        (number, told)
    }

    /// An inode is closed, which has no answer to wait for: if it is lost, the server hears what is open.
    pub(super) fn tell_closed(&self, ino: Ino) {
        let Ok(message) = postcard::to_stdvec(&Message::Mds(Call::Close { ino })) else { return };
        let mut state = self.state.lock();
        state.held.close(ino);
        let number = self.next.fetch_add(1, Relaxed);
        if let Some(out) = &state.out {
            let _ = out.send(call_frame(number, state.settled(number + 1), &message, Vec::new()));
        }
    }

    fn die(&self, why: Broken) {
        let calls = {
            let mut state = self.state.lock();
            state.dead.get_or_insert_with(|| why.clone());
            state.out = None;
            state.kept.clear();
            std::mem::take(&mut state.calls)
        };
        for (_, call) in calls {
            let _ = call.tell.send(Err(why.clone()));
        }
    }

    /// Nothing goes on from here: it was closed or given up, or the server has given this client up.
    pub fn closed(&self) -> bool {
        self.state.lock().dead.is_some()
    }

    /// Calls go out on this connection from now on, those first that are not answered.
    fn connected(&self, reader: FromServer, writer: Writer<Outward>) -> FromServer {
        let (out, outgoing) = mpsc::unbounded_channel();
        tokio::spawn(write(writer, outgoing));
        let mut state = self.state.lock();
        state.out = Some(out).filter(|_| state.dead.is_none());
        let next = self.next.load(Relaxed);
        for number in state.calls.keys() {
            state.send(*number, next);
        }
        drop(state);
        self.lost.send_replace(None);
        reader
    }

    /// Gives answers to those who wait for them, until the stream ends.
    fn take(&self, frame: Frame) -> Result<(), Broken> {
        match frame.kind {
            Kind::Answer => {
                let (Told { trace, durable }, result) = parse_answer(&frame.message).map_err(malformed)?;
                let mut state = self.state.lock();
                let state = &mut *state;
                state.kept.durable(durable);
                let Some(call) = state.calls.remove(&frame.id) else { return Ok(()) };
                if let Some(after) = call.after {
                    after(&mut state.held, &result);
                }
                if let Some(trace) = trace {
                    state.kept.add(Change { number: frame.id, message: call.message, trace });
                }
                let _ = call.tell.send(Ok((result, frame.bulk)));
            }
            Kind::Pong => {
                let pong: Pong = postcard::from_bytes(&frame.message).map_err(malformed)?;
                *self.info.lock() = pong.info;
                self.state.lock().kept.durable(pong.durable);
            }
            _ => return Err(malformed(())),
        }
        Ok(())
    }

    /// One attempt to go on where the last connection ended.
    async fn resume(&self) -> Result<FromServer, Broken> {
        let mut greeted = greet(&*self.dial, self.client, &self.dataset, true).await?;
        let Welcome { info, durable, instance, known, .. } = &greeted.welcome;
        if !known {
            return Err(Broken::Gone("the server does not know this client any more".into()));
        }
        *self.info.lock() = *info;
        let (instance, durable) = (*instance, *durable);
        if self.state.lock().instance != instance {
            let made = self.replay(&mut greeted).await?;
            let mut state = self.state.lock();
            state.kept.made_again(made);
            state.instance = instance;
        }
        self.state.lock().kept.durable(durable);
        let holds = self.state.lock().held.all();
        let message = postcard::to_stdvec(&Message::Resume(holds)).map_err(malformed)?;
        let result: Result<(), FsError> = greeted.ask(&message).await?;
        match result {
            Ok(()) => {}
            // Its buckets fail: it can do nothing for us.
            Err(error @ FsError::Io(_)) => return Err(Broken::Lost(error.to_string())),
            Err(error) => tracing::warn!(%error, "not all that was open or locked could be taken up again"),
        }
        self.connections.fetch_add(1, Relaxed);
        Ok(self.connected(greeted.reader, greeted.writer))
    }

    /// Makes again what a server had lost, and says in which transaction groups it is now. If the way to the server is lost
    /// meanwhile, that is nothing: the server knows by then what it has made.
    async fn replay(&self, greeted: &mut Greeted) -> Result<BTreeMap<Place, Txg>, Broken> {
        let kept = self.state.lock().kept.all();
        let mut made = BTreeMap::new();
        let mut rest = &kept[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|(_, change)| {
                bytes += change.message.len();
                bytes <= REPLAY
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            let past = now.iter().map(|(_, change)| Past {
                number: change.number,
                trace: change.trace,
                message: &change.message,
            });
            let message = postcard::to_stdvec(&Message::Replay(past.collect())).map_err(malformed)?;
            let traces: Result<Vec<Option<Trace>>, FsError> = greeted.ask(&message).await?;
            let traces = traces.map_err(|e| Broken::Lost(e.to_string()))?;
            for ((place, change), trace) in now.iter().zip(traces) {
                if let Some(trace) = trace {
                    made.insert(*place, trace.txg);
                } else {
                    let number = change.number;
                    tracing::error!(number, "a change that the server had lost could not be made again");
                }
            }
            rest = later;
        }
        self.unmade.fetch_add((kept.len() - made.len()) as u64, Relaxed);
        if !kept.is_empty() {
            tracing::info!(changes = kept.len(), "made again what the server had lost");
        }
        Ok(made)
    }
}

impl Greeted {
    /// Asks one thing before any call. The server may take its time, and hears meanwhile that we are there.
    async fn ask<T: serde::de::DeserializeOwned>(&mut self, message: &[u8]) -> Result<T, Broken> {
        self.writer.send(&call_frame(0, 0, message, Vec::new())).await?;
        self.writer.flush().await?;
        let (reader, writer) = (&mut self.reader, &mut self.writer);
        let answer = async {
            loop {
                let frame = reader.next().await?;
                let frame = frame.ok_or_else(|| Broken::Lost("the server hung up".into()))?;
                if frame.kind == Kind::Answer {
                    return Ok::<_, Broken>(frame);
                }
            }
        };
        let pings = async {
            let mut pings = interval(PING_EVERY);
            loop {
                pings.tick().await;
                writer.send(&Outgoing::new(Kind::Ping, 0, Vec::new())).await?;
                writer.flush().await?;
            }
        };
        let answer = timeout(STEP, async {
            tokio::select! { frame = answer => frame, error = pings => error }
        });
        let frame = answer.await.map_err(|_| Broken::Lost("the server does not answer".into()))??;
        let (_, result) = parse_answer(&frame.message).map_err(malformed)?;
        postcard::from_bytes(&result).map_err(malformed)
    }
}

/// Dials, and says who we are.
async fn greet(dial: &dyn Dial, client: u64, dataset: &str, resumes: bool) -> Result<Greeted, Broken> {
    let dialled = timeout(SILENCE, dial.dial()).await;
    let (reader, writer) = dialled.map_err(|_| Broken::Lost("the server does not answer".into()))??;
    let (mut reader, mut writer) = (listen(reader), Writer::new(writer));
    let (oldest, newest) = VERSIONS;
    let hello = Hello { oldest, newest, client, dataset: dataset.into(), resumes };
    let hello = postcard::to_stdvec(&hello).map_err(malformed)?;
    writer.send(&Outgoing::new(Kind::Hello, 0, hello)).await?;
    writer.flush().await?;
    let heard = timeout(STEP, reader.next()).await;
    let frame = heard.map_err(|_| Broken::Lost("the server does not answer".into()))??;
    let frame = frame.ok_or_else(|| Broken::Lost("the server hung up".into()))?;
    match frame.kind {
        Kind::Welcome => {
            let welcome = postcard::from_bytes(&frame.message).map_err(malformed)?;
            Ok(Greeted { reader, writer, welcome })
        }
        Kind::Refused => Err(Broken::Refused(String::from_utf8_lossy(&frame.message).into_owned())),
        Kind::Gone => Err(Broken::Gone(String::from_utf8_lossy(&frame.message).into_owned())),
        _ => Err(malformed(())),
    }
}

/// Keeps a link connected for as long as somebody uses it.
async fn keep(link: Weak<Link>, mut reader: FromServer) {
    loop {
        let why = match read(&link, reader).await {
            Ok(()) => "the server hung up".to_string(),
            Err(error) => error.to_string(),
        };
        let Some(lost) = link.upgrade().filter(|link| !link.closed()) else { return };
        lost.state.lock().out = None;
        tracing::warn!("{}: {why}; connecting anew", lost.dial.name());
        lost.lost.send_replace(Some(why));
        drop(lost);
        let mut pause = PAUSE.0;
        reader = loop {
            let Some(lost) = link.upgrade().filter(|link| !link.closed()) else { return };
            match lost.resume().await {
                Ok(reader) => {
                    tracing::info!("{}: connected again", lost.dial.name());
                    break reader;
                }
                Err(why @ Broken::Gone(_)) => {
                    tracing::error!("{}: {why}", lost.dial.name());
                    return lost.die(why);
                }
                Err(why) => drop(lost.lost.send_replace(Some(why.to_string()))),
            }
            drop(lost);
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(PAUSE.1);
        };
    }
}

/// Gives away frames until the stream ends, or there is nobody to take them.
async fn read(link: &Weak<Link>, mut reader: FromServer) -> Result<(), Broken> {
    loop {
        let Some(frame) = reader.next().await? else { return Ok(()) };
        match link.upgrade() {
            Some(link) => link.take(frame)?,
            None => return Ok(()),
        }
    }
}

/// Sends frames, and pings between them, until nobody is there to give any.
async fn write(mut writer: Writer<Outward>, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) {
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
