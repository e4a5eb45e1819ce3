//! Lines on the socket: bounded in length and in time, and never trusted.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

/// Longest request line, in bytes.
pub const REQUEST_MAX: usize = 1 << 20;
/// Longest answer line, in bytes.
pub const ANSWER_MAX: usize = 64 << 20;
/// A line must go out within this time.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// The next line as a `T`; `None` at the end of the stream.
///
/// Fails when the line is longer than `max` bytes, takes longer than `time`, or is no `T`.
pub async fn read<T: DeserializeOwned>(
    from: &mut (impl AsyncBufRead + Unpin),
    max: usize,
    time: Duration,
) -> Result<Option<T>> {
    let line = tokio::time::timeout(time, read_line(from, max));
    let line = line.await.with_context(|| format!("no line within {} s", time.as_secs()))??;
    match line {
        Some(line) => Ok(Some(serde_json::from_slice(&line).context("not understood")?)),
        None => Ok(None),
    }
}

async fn read_line(from: &mut (impl AsyncBufRead + Unpin), max: usize) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let chunk = from.fill_buf().await?;
        if chunk.is_empty() {
            return match line.is_empty() {
                true => Ok(None),
                false => bail!("the line was cut off"),
            };
        }
        let end = chunk.iter().position(|b| *b == b'\n');
        let take = end.unwrap_or(chunk.len());
        if line.len() + take > max {
            bail!("a line is longer than {max} bytes");
        }
        line.extend_from_slice(&chunk[..take]);
        from.consume(end.map_or(take, |at| at + 1));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

/// Writes `value` as one line.
pub async fn write(to: &mut (impl AsyncWrite + Unpin), value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let write = async {
        to.write_all(&line).await?;
        to.flush().await
    };
    tokio::time::timeout(WRITE_TIME, write).await.context("the other end does not read")??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Call, Message, Request, VERSION};
    use super::*;
    use proptest::prelude::*;

    const TIME: Duration = Duration::from_secs(5);

    fn read_call(bytes: &[u8]) -> Result<Option<Call>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { read(&mut &bytes[..], 4096, TIME).await })
    }

    #[test]
    fn what_is_written_is_read() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut buffer = Vec::new();
        let call = Call::new("tarn pool status", Request::Datasets { usage: true });
        runtime.block_on(write(&mut buffer, &call)).unwrap();
        let back = read_call(&buffer).unwrap().unwrap();
        assert_eq!((back.version, back.request), (VERSION, call.request));
        assert!(read_call(b"").unwrap().is_none());
    }

    #[test]
    fn long_and_cut_lines_are_refused() {
        assert!(read_call(&[b'x'; 5000]).unwrap_err().to_string().contains("longer"));
        assert!(read_call(b"{\"version\":1").unwrap_err().to_string().contains("cut off"));
        assert!(read_call(b"{\"version\":1,\"command\":\"\",\"request\":\"nonsense\"}\n").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_given_up() {
        let (_keep, theirs) = tokio::io::duplex(64);
        let mut reader = tokio::io::BufReader::new(theirs);
        let error = read::<Message>(&mut reader, 4096, TIME).await.unwrap_err();
        assert!(error.to_string().contains("within 5 s"));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_call(&bytes);
        }
    }
}
