//! One table of every parser of bytes that come from a bucket, a peer or a user, for two ways of feeding them what
//! nobody would write: `tests/corpus.rs`, which needs nothing but Cargo, and `fuzz/`, which needs `cargo fuzz`.
//!
//! A parser that is given damaged bytes may refuse them or accept them, and nothing else: it does not panic, it takes
//! no memory that the length of its input does not justify, and what it accepts comes back the same from its own
//! bytes. The parsers themselves hold to the last; see `parsers.rs` in each crate.

pub mod mutate;
mod words;

// The binary is no library. These two files of it stand alone.
#[path = "../../tarn/src/size.rs"]
pub mod size;
#[path = "../../tarn/src/properties/value.rs"]
pub mod value;

/// A parser: parses bytes, and says whether they were accepted. It panics when something is wrong with the parser.
#[derive(Clone, Copy)]
pub struct Parser {
    /// Also the name of its corpus, a folder in `fuzz/corpus`.
    pub name: &'static str,
    pub run: fn(&[u8]) -> bool,
}

/// Every parser there is.
pub fn all() -> Vec<Parser> {
    let tables = [tarn_bucket::parsers::PARSERS, tarn_pool::parsers::PARSERS, tarn_mdt::parsers::PARSERS];
    let tables = tables.into_iter().chain([tarn_proto::wire::parsers::PARSERS, words::PARSERS]);
    tables.flatten().map(|&(name, run)| Parser { name, run }).collect()
}

/// The parser of this name.
pub fn find(name: &str) -> Option<Parser> {
    all().into_iter().find(|parser| parser.name == name)
}
