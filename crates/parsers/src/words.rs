//! Parsers of what is typed to the binary.

use crate::size;
use crate::value::{Kind, canonical};

pub(crate) const PARSERS: &[tarn_bucket::parsers::Parser] =
    &[("tarn-size", size), ("tarn-property", property)];

fn size(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Some(number) = size::parse(text) else { return false };
    assert_eq!(size::parse(&number.to_string()), Some(number));
    for shown in [size::count(number), size::bytes(number), size::nanoseconds(number)] {
        assert!(!shown.is_empty() && shown.len() <= 24, "{shown}");
    }
    true
}

/// A value in its canonical form must be canonical.
fn property(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let kinds = [
        Kind::Report,
        Kind::Choice(&["on", "off", "noauto"]),
        Kind::PowerOfTwo { min: 4 << 10, max: 16 << 20 },
        Kind::SizeOrNone,
        Kind::Compression,
        Kind::Checksum,
        Kind::Mountpoint,
        Kind::Text,
    ];
    let mut accepted = 0;
    for kind in &kinds {
        if let Ok(value) = canonical(kind, text) {
            assert_eq!(canonical(kind, &value).as_ref(), Ok(&value), "{kind:?}");
            accepted += 1;
        }
    }
    accepted > 1
}
