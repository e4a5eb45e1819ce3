//! Frames: how messages and bulk bytes are told apart in a stream of bytes.
//!
//! A header is [`HEADER`] bytes, little-endian: magic (2), kind (1), zero (1), length of the message (4), length of the
//! bulk bytes (4), zero (4), id (8), and the XXH3 checksum of all that and of the message (8).

use bytes::{BufMut, Bytes, BytesMut};
use std::hash::Hasher;
use std::io::{Error, ErrorKind, Result};
use tarn_base::block::SEGMENT_OBJECT_MAX;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use twox_hash::XxHash3_64;

/// Length of a header, in bytes.
pub const HEADER: usize = 32;
const MAGIC: u16 = 0x7a54;
/// Longest message, in bytes: a listing or a commit of many records.
pub const MESSAGE_MAX: usize = 8 << 20;
/// Most bulk bytes of a frame: a segment, whole.
pub const BULK_MAX: usize = SEGMENT_OBJECT_MAX as usize;
const BUFFER: usize = 64 << 10;
/// What is taken at once: enough for a segment as they usually are.
const FIRST: usize = 8 << 20;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Welcome = 2,
    /// The message is why, for people to read.
    Refused = 3,
    Call = 4,
    Answer = 5,
    /// Nobody waits for the answer to the call of this id.
    Cancel = 6,
    Ping = 7,
    Pong = 8,
    /// As `Refused`, for good: the client had the dataset, and was given up.
    Gone = 9,
}

impl Kind {
    fn from_u8(n: u8) -> Option<Kind> {
        use Kind::*;
        [Hello, Welcome, Refused, Call, Answer, Cancel, Ping, Pong, Gone]
            .into_iter()
            .find(|kind| *kind as u8 == n)
    }
}

/// One frame that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub id: u64,
    pub message: Bytes,
    pub bulk: Bytes,
}

/// One frame to send.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub kind: Kind,
    pub id: u64,
    pub message: Vec<u8>,
    /// Sent one after the other.
    pub bulk: Vec<Bytes>,
}

impl Outgoing {
    pub fn new(kind: Kind, id: u64, message: Vec<u8>) -> Outgoing {
        Outgoing { kind, id, message, bulk: Vec::new() }
    }

    fn header(&self) -> Result<[u8; HEADER]> {
        let bulk: usize = self.bulk.iter().map(Bytes::len).sum();
        if self.message.len() > MESSAGE_MAX || bulk > BULK_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "the message is too long"));
        }
        let mut header = [0; HEADER];
        let mut out = &mut header[..];
        out.put_u16_le(MAGIC);
        out.put_u8(self.kind as u8);
        out.put_u8(0);
        out.put_u32_le(self.message.len() as u32);
        out.put_u32_le(bulk as u32);
        out.put_u32_le(0);
        out.put_u64_le(self.id);
        let check = checksum(&header[..HEADER - 8], &self.message);
        header[HEADER - 8..].copy_from_slice(&check.to_le_bytes());
        Ok(header)
    }
}

fn checksum(header: &[u8], message: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(header);
    hasher.write(message);
    hasher.finish()
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("what came in is not of this protocol: {what}"))
}

/// A header that is as it should be, but for its checksum.
struct Header {
    kind: Kind,
    id: u64,
    message: usize,
    bulk: usize,
    check: u64,
}

impl Header {
    fn parse(bytes: &[u8; HEADER]) -> Result<Header> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u16::from_le_bytes([bytes[0], bytes[1]]) != MAGIC || bytes[3] != 0 || u32_at(12) != 0 {
            return Err(malformed("no frame begins here"));
        }
        let kind = Kind::from_u8(bytes[2]).ok_or_else(|| malformed("a frame of a kind that is not known"))?;
        let (message, bulk) = (u32_at(4) as usize, u32_at(8) as usize);
        if message > MESSAGE_MAX || bulk > BULK_MAX {
            return Err(malformed("a frame that is too long"));
        }
        Ok(Header { kind, id: u64_at(16), message, bulk, check: u64_at(24) })
    }
}

/// Frames of a stream that comes in.
pub struct Reader<R> {
    inner: BufReader<R>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(inner: R) -> Reader<R> {
        Reader { inner: BufReader::with_capacity(BUFFER, inner) }
    }

    /// The next frame; `None` at the end of the stream, between two frames. To be dropped only with the reader: what was
    /// read of a frame would be lost.
    pub async fn next(&mut self) -> Result<Option<Frame>> {
        let mut bytes = [0; HEADER];
        if self.inner.read(&mut bytes[..1]).await? == 0 {
            return Ok(None);
        }
        self.inner.read_exact(&mut bytes[1..]).await?;
        let Header { kind, id, message, bulk, check } = Header::parse(&bytes)?;
        let message = self.exactly(message).await?;
        if checksum(&bytes[..HEADER - 8], &message) != check {
            return Err(malformed("a checksum is wrong"));
        }
        let bulk = self.exactly(bulk).await?;
        Ok(Some(Frame { kind, id, message, bulk }))
    }

    /// Memory is taken as bytes come in, not as they are promised.
    async fn exactly(&mut self, len: usize) -> Result<Bytes> {
        let mut body = BytesMut::with_capacity(len.min(FIRST));
        while body.len() < len {
            let left = len - body.len();
            if self.inner.read_buf(&mut (&mut body).limit(left)).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(body.freeze())
    }
}

/// Frames into a stream that goes out.
pub struct Writer<W> {
    inner: BufWriter<W>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub fn new(inner: W) -> Writer<W> {
        Writer { inner: BufWriter::with_capacity(BUFFER, inner) }
    }

    /// Sent with the next [`Writer::flush`], or before.
    pub async fn send(&mut self, frame: &Outgoing) -> Result<()> {
        self.inner.write_all(&frame.header()?).await?;
        self.inner.write_all(&frame.message).await?;
        for part in &frame.bulk {
            self.inner.write_all(part).await?;
        }
        Ok(())
    }

    pub async fn flush(&mut self) -> Result<()> {
        self.inner.flush().await
    }

    /// The stream, with all that was sent in it.
    #[cfg(test)]
    pub async fn into_inner(mut self) -> W {
        self.inner.flush().await.expect("a stream in memory");
        self.inner.into_inner()
    }
}
