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
//! in which they are done. A call that nobody waits for any more is cancelled. A ping is answered with what the server
//! says of the dataset now; an end that hears nothing for [`SILENCE`] takes the other for gone.
//!
//! Nothing that comes in is trusted: a frame that is too long, of no known kind or not as its checksum says ends the
//! connection, and no more than that.

mod calls;
mod client;
pub mod frame;
mod message;
mod server;
#[cfg(test)]
mod tests;

pub use client::{Connection, RemoteMds, RemoteOss};
pub use server::{Export, Served, serve};

use crate::DatasetInfo;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The oldest and the newest version of the protocol that this code speaks.
pub const VERSIONS: (u16, u16) = (1, 1);

/// The client pings so often.
pub const PING_EVERY: Duration = Duration::from_secs(2);
/// An end that has heard nothing for so long takes the other for gone.
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
}

/// How a server begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    pub version: u16,
    pub info: DatasetInfo,
    /// What the server says of the pool, in the pool's own words.
    pub pool: Vec<u8>,
}

/// Why a connection ended, or could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The server's own words.
    #[error("{0}")]
    Refused(String),
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Broken {
        Broken::Lost(error.to_string())
    }
}
