//! The byte-level tools of everything that lies in a bucket: a reader that never reads past its end, and the frame
//! of small objects (labels, epochs, history).
//!
//! Integers are little-endian. A frame is a header of [`FRAME_HEADER`] bytes and a JSON body:
//! magic (8), version (2), flags (2, zero), body length (4), crc32c of the body (4), zero (8), crc32c of the 28
//! bytes before it (4).

use crate::checksum::crc32c;
use bytes::Bytes;

/// Bytes of a frame before its body.
pub(crate) const FRAME_HEADER: usize = 32;

/// Reads fields off a byte slice; every read is `None` once the slice is too short.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    pub fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.array()?))
    }
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }
}

/// Bytes in the pieces of a body.
pub(crate) fn body_len(pieces: &[Bytes]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Why a frame cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// Written by a later version of Tarn: its format number.
    Newer(u16),
    /// Not such an object, or not whole.
    Damaged,
}

/// Wraps a body. `version` is the lowest that a reader must understand.
pub(crate) fn frame(magic: &[u8; 8], version: u16, body: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(FRAME_HEADER + body.len());
    out.extend_from_slice(magic);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c(body).to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(body);
    out.into()
}

/// The body of a frame. `known` is the highest version that this program reads; the version is believed even where
/// nothing else of a newer header can be.
pub(crate) fn unframe<'a>(magic: &[u8; 8], known: u16, bytes: &'a [u8]) -> Result<&'a [u8], FrameError> {
    let mut fields = Fields(bytes);
    let header = (|| {
        let found: [u8; 8] = fields.array()?;
        let version = fields.u16()?;
        let flags = fields.u16()?;
        let length = fields.u32()?;
        let crc = fields.u32()?;
        fields.bytes(8)?;
        Some((found, version, flags, length, crc, fields.u32()?))
    })();
    let (found, version, flags, length, crc, header_crc) = header.ok_or(FrameError::Damaged)?;
    if found != *magic || header_crc != crc32c(&bytes[..FRAME_HEADER - 4]) {
        return Err(FrameError::Damaged);
    }
    if version > known || flags != 0 {
        return Err(FrameError::Newer(version));
    }
    match fields.bytes(length as usize) {
        Some(body) if fields.0.is_empty() && crc32c(body) == crc => Ok(body),
        _ => Err(FrameError::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_no_flipped_bit_passes() {
        let bytes = frame(b"TESTTEST", 3, b"hello");
        assert_eq!(unframe(b"TESTTEST", 3, &bytes), Ok(&b"hello"[..]));
        assert_eq!(unframe(b"TESTTEST", 2, &bytes), Err(FrameError::Newer(3)));
        assert_eq!(unframe(b"OTHEROTH", 3, &bytes), Err(FrameError::Damaged));
        for cut in 0..bytes.len() {
            assert_eq!(unframe(b"TESTTEST", 3, &bytes[..cut]), Err(FrameError::Damaged));
        }
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.to_vec();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unframe(b"TESTTEST", 3, &wrong), Err(FrameError::Damaged), "bit {bit}");
        }
    }
}
