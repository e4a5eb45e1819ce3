//! The same calls over a byte stream: what goes over the wire, and the two ends of it.
//!
//! # Frames
//! Everything is a [`frame::Frame`]: a header, a short message, and bulk bytes behind it that are in no message, so
//! that they are copied into none. A header says how long both are and whose turn it is (`id`), and carries a checksum
//! of itself and the message. Bulk bytes carry checksums of their own.
//!
//! # A connection
//! The client says hello, with the versions that it speaks; the server welcomes it with the one that both speak, or
//! refuses it in one line. Then the client makes calls, as many at a time as it likes. They are answered in the order
//! in which they are done. Both ends say something every [`PING_EVERY`], the server what it knows of the dataset now; an end
//! to which no byte comes for [`SILENCE`] takes the other for gone. A slow way is none that is lost.
//!
//! # Beyond a connection
//! A client keeps its dataset when a connection is lost, and when the server is: see [`Link`] for the client's side of
//! recovery, [`Session`] for the server's. Every call has a number, and a change is made once however often it is asked
//! for; its answer says what it did ([`tarn_base::Trace`]), which is all that it takes to do it again as it was.
//!
//! Nothing that comes in is trusted: a frame that is too long, of no known kind or not as its checksum says ends the
//! connection, and no more than that.

mod calls;
pub mod frame;
mod held;
mod kept;
mod link;
mod message;
#[doc(hidden)]
pub mod parsers;
mod remote;
mod server;
#[cfg(test)]
mod tests;

pub use link::Link;
pub use remote::{RemoteMds, RemoteOss};
pub use server::{Export, Refusal, Served, Session, serve};

use crate::DatasetInfo;
use frame::Reader;
use serde::{Deserialize, Serialize};
use std::pin::Pin;
use std::time::Duration;
use tarn_base::Txg;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_io_timeout::TimeoutReader;

/// What comes in on a connection, and what goes out.
pub type Incoming = Box<dyn AsyncRead + Send + Unpin>;
pub type Outward = Box<dyn AsyncWrite + Send + Unpin>;

/// A way to a server.
#[async_trait::async_trait]
pub trait Dial: Send + Sync + 'static {
    /// How people call the server.
    fn name(&self) -> String;
    /// A new connection.
    async fn dial(&self) -> std::io::Result<(Incoming, Outward)>;
}

/// The oldest and the newest version of the protocol that this code speaks.
pub const VERSIONS: (u16, u16) = (3, 3);

/// Each end says something so often.
pub const PING_EVERY: Duration = Duration::from_secs(2);
/// An end to which no byte came for so long takes the other for gone.
pub const SILENCE: Duration = Duration::from_secs(10);

/// How a client begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub oldest: u16,
    pub newest: u16,
    /// Drawn by the client when it starts; the same for each of its connections.
    pub client: u64,
    /// Name of the dataset.
    pub dataset: String,
    /// It had the dataset on an earlier connection, and counts on that.
    pub resumes: bool,
}

/// How a server begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    pub version: u16,
    /// Drawn by the server each time that it opens the dataset: what it knows only in memory is of this life.
    pub instance: u64,
    /// It had the dataset already: what it has not told the client of may have been done.
    pub known: bool,
    /// All that is in transaction groups up to this one is durable.
    pub durable: Txg,
    pub info: DatasetInfo,
    /// What the server says of the pool, in the pool's own words.
    pub pool: Vec<u8>,
}

/// What a server says now and then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    pub info: DatasetInfo,
    pub durable: Txg,
}

/// Why a connection ended, or could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The server's own words.
    #[error("{0}")]
    Refused(String),
    /// What a call says is more than goes into a frame: sent, it would only end the connection.
    #[error("a call of {0} bytes is too long")]
    TooLong(usize),
    /// The server has given the client up: there is no way back.
    #[error("{0}")]
    Gone(String),
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Broken {
        match error.kind() {
            std::io::ErrorKind::TimedOut => {
                Broken::Lost(format!("nothing was heard of it for {} s", SILENCE.as_secs()))
            }
            _ => Broken::Lost(error.to_string()),
        }
    }
}

/// Frames of a stream that does not fall silent.
fn listen<R: AsyncRead>(stream: R) -> Reader<Pin<Box<TimeoutReader<R>>>> {
    let mut stream = TimeoutReader::new(stream);
    stream.set_timeout(Some(SILENCE));
    Reader::new(Box::pin(stream))
}
