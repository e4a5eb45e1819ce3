//! How a verb fails: one line on standard error, status 1, or 2 when the command itself was wrong.

use std::fmt;

/// The command was wrong: status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The process that has the pool open is letting go of it: ask again when it has.
#[derive(Debug)]
pub struct Closing;

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pool is being closed: try again")
    }
}

impl std::error::Error for Closing {}

/// An error that says what is wrong with the command and what is allowed.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(text.into()))
}

/// The exit status that belongs to an error.
pub fn status(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() { 2 } else { 1 }
}

/// The whole chain in one line.
pub fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").split('\n').map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
}
