//! Compression of records. The compressed form is kept only where it is at least an eighth shorter: less than that
//! does not pay for the time of every later read.
//!
//! What is packed together is mostly of one kind. Where records before a long one were tried in vain, pieces of it are
//! tried first, and the whole only if one of them gets shorter: media and archives cost a tenth of the time then.

use bytes::Bytes;
use parking_lot::Mutex;
use std::num::NonZero;
use tarn_base::Compression;
use tarn_bucket::buffer::Buffer;

/// What compressing takes beside the record. It is used again, since setting a compressor up costs more than compressing a
/// small record.
#[derive(Default)]
struct Scratch {
    out: Vec<u8>,
    zstd: Option<(i8, zstd::bulk::Compressor<'static>)>,
}

/// What waits for its next use: no more than cores can use at a time, and nothing large. What is large takes long to fill.
static IDLE: Mutex<Vec<Scratch>> = Mutex::new(Vec::new());
const LARGE: usize = 2 << 20;
/// From this level of zstd on, a compressor is large.
const THOROUGH: i8 = 7;

impl Scratch {
    fn take() -> Scratch {
        IDLE.lock().pop().unwrap_or_default()
    }

    fn give(mut self) {
        if self.out.len() > LARGE {
            self.out = Vec::new();
        }
        self.zstd = self.zstd.filter(|(level, _)| *level < THOROUGH);
        let most = std::thread::available_parallelism().map_or(2, NonZero::get);
        let mut idle = IDLE.lock();
        if idle.len() < most {
            idle.push(self);
        }
    }
}

/// So many records in a row must be tried in vain before pieces of the next are tried first.
const IN_VAIN: u32 = 2;
/// Bytes of a piece, how many there are, and how often a record must be as long as all of them for them to save much.
const PIECE: usize = 4 << 10;
const PIECES: usize = 3;
const LONG: usize = 4;

/// Compresses records that are packed together, one after the other.
#[derive(Default)]
pub(crate) struct Compressor {
    /// Records in a row that did not get shorter.
    in_vain: u32,
    scratch: Option<Scratch>,
}

impl Drop for Compressor {
    fn drop(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            scratch.give();
        }
    }
}

impl Compressor {
    /// Compresses `logical`; `None` when it is not to be compressed, or does not get an eighth shorter.
    pub fn compress(&mut self, logical: &[u8], how: Compression) -> Option<Bytes> {
        if how == Compression::Off {
            return None;
        }
        let scratch = self.scratch.get_or_insert_with(Scratch::take);
        if self.in_vain >= IN_VAIN && !is_hopeful(scratch, logical, how) {
            return None;
        }
        let short = compress(scratch, logical, how);
        self.in_vain = if short.is_some() { 0 } else { self.in_vain + 1 };
        short
    }
}

/// Whether pieces from all over it get shorter, or it is too short for trying them.
fn is_hopeful(scratch: &mut Scratch, logical: &[u8], how: Compression) -> bool {
    let gap = logical.len() / PIECES;
    gap < LONG * PIECE
        || (0..PIECES).any(|n| {
            let at = n * gap + (gap - PIECE) / 2;
            compress(scratch, &logical[at..at + PIECE], how).is_some()
        })
}

/// The longest compressed form of `logical` bytes that is worth keeping.
fn worthwhile(logical: usize) -> usize {
    logical - logical / 8
}

/// Compresses `logical`; `None` when it is not to be compressed, or does not get an eighth shorter.
fn compress(scratch: &mut Scratch, logical: &[u8], how: Compression) -> Option<Bytes> {
    let limit = worthwhile(logical.len());
    if how == Compression::Off || logical.len() < 64 {
        return None;
    }
    let out = &mut scratch.out;
    let len = match how {
        Compression::Off => None,
        Compression::Lz4 => {
            let room = lz4_flex::block::get_maximum_output_size(logical.len());
            if out.len() < room {
                out.resize(room, 0);
            }
            lz4_flex::block::compress_into(logical, out).ok()
        }
        Compression::Zstd(level) => {
            let level = level.clamp(1, 19);
            if !matches!(&scratch.zstd, Some((l, _)) if *l == level) {
                scratch.zstd = zstd::bulk::Compressor::new(i32::from(level)).ok().map(|c| (level, c));
            }
            if out.len() < limit {
                out.resize(limit, 0);
            }
            // What does not fit the limit is an error to zstd, and not worth keeping to us.
            let (_, compressor) = scratch.zstd.as_mut()?;
            compressor.compress_to_buffer(logical, &mut out[..limit]).ok()
        }
    }?;
    (len <= limit && len > 0).then(|| Bytes::copy_from_slice(&out[..len]))
}

/// The inverse of [`compress`]: exactly `logical` bytes, or `None` when `stored` does not yield them.
pub(crate) fn decompress(stored: &[u8], how: Compression, logical: usize) -> Option<Bytes> {
    match how {
        Compression::Off => (stored.len() == logical).then(|| Bytes::copy_from_slice(stored)),
        Compression::Lz4 => {
            let mut out = Buffer::new(logical);
            let len = lz4_flex::block::decompress_into(stored, out.as_mut()).ok()?;
            (len == logical).then(|| out.freeze())
        }
        Compression::Zstd(_) => {
            let mut out = Buffer::new(logical);
            let len = zstd::bulk::decompress_to_buffer(stored, out.as_mut()).ok()?;
            (len == logical).then(|| out.freeze())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    #[test]
    fn what_is_compressed_comes_back_and_noise_is_left_alone() {
        let text: Vec<u8> = (0..200_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        let mut noise = vec![0; 100_000];
        rand::rng().fill(&mut noise[..]);
        let mut scratch = Scratch::default();
        for how in [Compression::Lz4, Compression::Zstd(1), Compression::Zstd(9), Compression::Lz4] {
            let short = compress(&mut scratch, &text, how).expect("text compresses");
            assert!(short.len() < text.len() * 7 / 8);
            assert_eq!(decompress(&short, how, text.len()).as_deref(), Some(&text[..]));
            assert_eq!(decompress(&short, how, text.len() - 1), None);
            assert_eq!(decompress(&short[..short.len() / 2], how, text.len()), None);
            assert_eq!(compress(&mut scratch, &noise, how), None);
        }
        assert_eq!(compress(&mut scratch, &text, Compression::Off), None);
    }

    #[test]
    fn after_noise_what_gets_shorter_is_still_found() {
        let mut noise = vec![0; 128 << 10];
        rand::rng().fill(&mut noise[..]);
        let text: Vec<u8> =
            b"The same words, over and over. ".iter().copied().cycle().take(128 << 10).collect();
        // A third of it: the whole is long enough for that to count.
        let partly: Vec<u8> = noise[..80 << 10].iter().chain(&text[..48 << 10]).copied().collect();
        for how in [Compression::Lz4, Compression::Zstd(3)] {
            let mut compressor = Compressor::default();
            for round in 0..10 {
                assert_eq!(compressor.compress(&noise, how), None);
                assert_eq!(compressor.in_vain, (round + 1).min(IN_VAIN));
            }
            // Nothing that is short is passed over.
            assert!(compressor.compress(&text[..8 << 10], how).is_some());
            assert_eq!(compressor.in_vain, 0);
            (0..3).for_each(|_| assert_eq!(compressor.compress(&noise, how), None));
            assert!(compressor.compress(&partly, how).is_some());
            assert!(compressor.compress(&text, how).is_some());
            assert_eq!(compressor.compress(&text, Compression::Off), None);
            assert_eq!(compressor.in_vain, 0);
        }
    }
}
