//! Every parser of what comes over a wire, in one shape, for tests that feed them what nobody would write.

use super::frame::Reader;
use super::message::{Asked, decode, parse_answer};
use super::{Hello, Pong, Welcome};
use bytes::Bytes;
use futures::FutureExt;
use serde::Serialize;
use serde::de::Deserialize;
use tarn_base::FsError;
use tarn_base::posix::{Attr, DirEntry};

/// A name, and what parses bytes and says whether they were accepted.
pub type Parser = (&'static str, fn(&[u8]) -> bool);

/// As those of `tarn_bucket`.
pub const PARSERS: &[Parser] = &[
    ("wire-frames", frames),
    ("wire-hello", |bytes| whole::<Hello>(bytes)),
    ("wire-welcome", |bytes| whole::<Welcome>(bytes)),
    ("wire-pong", |bytes| whole::<Pong>(bytes)),
    ("wire-call", |bytes| whole::<Asked>(bytes)),
    ("wire-answer", answer),
];

/// Frames one after the other, to the end or to the first that is none.
fn frames(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    let mut found = 0;
    // What lies in memory is always there to be read.
    while let Some(Ok(Some(frame))) = reader.next().now_or_never() {
        assert!(frame.message.len() + frame.bulk.len() <= bytes.len());
        found += 1;
    }
    found > 0
}

fn whole<'a, T: Serialize + Deserialize<'a>>(bytes: &'a [u8]) -> bool {
    let Ok(value) = postcard::from_bytes::<T>(bytes) else { return false };
    let encoded = postcard::to_stdvec(&value).expect("what was read can be written");
    assert!(encoded.len() <= bytes.len(), "it grows");
    true
}

fn answer(bytes: &[u8]) -> bool {
    let Ok((_, result)) = parse_answer(&Bytes::copy_from_slice(bytes)) else { return false };
    decode::<Attr, FsError>(&result).is_some()
        | decode::<Vec<DirEntry>, FsError>(&result).is_some()
        | decode::<(), FsError>(&result).is_some()
}
