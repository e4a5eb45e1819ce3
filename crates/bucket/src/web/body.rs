//! Bodies as they come from a store, and as they go to it.

use crate::buffer::Buffer;
use crate::{Error, Result};
use bytes::Bytes;
use futures::{Stream, StreamExt};

/// A piece of a body of so many bytes is not a part of a library's memory: it came from [`super::direct`], and stays as
/// it is.
const WHOLE: usize = 512 << 10;

/// Gathers the first `len` bytes of a body. What comes after them is dropped, but read too, so that the connection can
/// be used again; if they must be all, it is an error. `place` names the object.
pub(crate) async fn collect(
    place: &str,
    mut pieces: impl Stream<Item = Result<Bytes>> + Unpin,
    len: usize,
    all: bool,
) -> Result<Bytes> {
    let wrong = |got: usize| Error::Io(format!("{place}: the body ended at {got} of {len} bytes"));
    let mut body = None;
    let mut filled = 0;
    while let Some(piece) = pieces.next().await {
        let mut piece = piece?;
        if filled == 0 && len >= WHOLE && piece.len() >= len {
            piece.truncate(len);
            return Ok(piece);
        }
        if !all {
            piece.truncate(len - filled);
        }
        let place = body
            .get_or_insert_with(|| Buffer::new(len))
            .as_mut()
            .get_mut(filled..filled + piece.len())
            .ok_or_else(|| wrong(filled + piece.len()))?;
        place.copy_from_slice(&piece);
        filled += piece.len();
    }
    if filled != len {
        return Err(wrong(filled));
    }
    Ok(body.map_or_else(Bytes::new, Buffer::freeze))
}

/// Cuts a body into parts of `len` bytes, the last of which may be shorter, without copying it.
pub(crate) fn split(body: Vec<Bytes>, len: usize) -> Vec<Vec<Bytes>> {
    let mut parts = Vec::new();
    let (mut part, mut room) = (Vec::new(), len);
    for mut piece in body {
        while !piece.is_empty() {
            let taken = piece.split_to(room.min(piece.len()));
            room -= taken.len();
            part.push(taken);
            if room == 0 {
                parts.push(std::mem::take(&mut part));
                room = len;
            }
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_full_but_the_last_and_hold_the_body() {
        let pieces = |sizes: &[usize]| {
            sizes.iter().map(|&size| Bytes::from((0..size).map(|n| n as u8).collect::<Vec<_>>())).collect()
        };
        for sizes in [&[0usize][..], &[10, 0, 5], &[8], &[3, 30, 1], &[16, 16]] {
            let body: Vec<Bytes> = pieces(sizes);
            let parts = split(body.clone(), 8);
            assert_eq!(parts.concat().concat(), body.concat());
            let lens: Vec<usize> = parts.iter().map(|part| part.iter().map(Bytes::len).sum()).collect();
            assert_eq!(lens.len(), body.concat().len().div_ceil(8));
            assert!(lens.iter().rev().skip(1).all(|len| *len == 8), "{lens:?}");
        }
    }
}
