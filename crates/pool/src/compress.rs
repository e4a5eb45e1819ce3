//! Compression of records. The compressed form is kept only where it is at least an eighth shorter: less than that
//! does not pay for the time of every later read.

use bytes::Bytes;
use std::cell::RefCell;
use tarn_base::Compression;
use tarn_bucket::buffer::Buffer;

/// Compressors are kept for the life of a thread: setting one up costs more than compressing a small record.
struct Scratch {
    out: Vec<u8>,
    zstd: Option<(i8, zstd::bulk::Compressor<'static>)>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { out: Vec::new(), zstd: None }) };
}

/// The longest compressed form of `logical` bytes that is worth keeping.
fn worthwhile(logical: usize) -> usize {
    logical - logical / 8
}

/// Compresses `logical`; `None` when it is not to be compressed, or does not get an eighth shorter.
pub(crate) fn compress(logical: &[u8], how: Compression) -> Option<Bytes> {
    let limit = worthwhile(logical.len());
    if how == Compression::Off || logical.len() < 64 {
        return None;
    }
    SCRATCH.with_borrow_mut(|scratch| {
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
    })
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
        for how in [Compression::Lz4, Compression::Zstd(1), Compression::Zstd(9), Compression::Lz4] {
            let short = compress(&text, how).expect("text compresses");
            assert!(short.len() < text.len() * 7 / 8);
            assert_eq!(decompress(&short, how, text.len()).as_deref(), Some(&text[..]));
            assert_eq!(decompress(&short, how, text.len() - 1), None);
            assert_eq!(decompress(&short[..short.len() / 2], how, text.len()), None);
            assert_eq!(compress(&noise, how), None);
        }
        assert_eq!(compress(&text, Compression::Off), None);
    }
}
