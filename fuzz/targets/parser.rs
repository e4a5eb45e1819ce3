//! Feeds one parser of Tarn's, the one of this target's name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tarn_parsers::Parser;

static PARSER: LazyLock<Parser> =
    LazyLock::new(|| tarn_parsers::find(env!("CARGO_BIN_NAME")).expect("a target is named after a parser"));

fuzz_target!(|input: &[u8]| {
    (PARSER.run)(input);
});
