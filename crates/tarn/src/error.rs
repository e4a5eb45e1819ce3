//! How a verb fails: one line on standard error, status 1, or 2 when the command itself was wrong.

use clap::error::{ContextKind, ContextValue, ErrorKind};
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

/// What the command line's parser says of a wrong line, in one line and with the way to the rest.
pub fn wrong_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::MissingSubcommand
        && let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand)
    {
        // The parser would list them all, hidden ones too.
        return format!("'{verb}' is followed by a verb: see '{verb} --help'");
    }
    let text = error.render().to_string();
    let mut said = Vec::new();
    let mut usage = None;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("Usage: ") {
            Some(line) => usage = Some(line.to_string()),
            None if line.starts_with("For more information") => {}
            None => said.push(line.trim_start_matches("error: ").trim_start_matches("tip: ")),
        }
    }
    let verb = usage
        .as_deref()
        .unwrap_or("tarn")
        .split_whitespace()
        .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()));
    let verb = verb.collect::<Vec<_>>().join(" ");
    let mut line = said.join("; ").replace(":; ", ": ");
    if let Some(usage) = usage.filter(|usage| usage.contains(' ')) {
        line += &format!("; usage: {usage}");
    }
    format!("{line}; see '{verb} --help'")
}

/// The whole chain in one line.
pub fn one_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let lines = text.split('\n').map(str::trim).filter(|line| !line.is_empty());
    lines.map(without_numbers).collect::<Vec<_>>().join("; ")
}

/// Without the system's own numbers for what is said in words: ` (os error 13)`.
fn without_numbers(line: &str) -> String {
    let mut parts = line.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_without_numbers() {
        let error = anyhow::Error::new(std::io::Error::from_raw_os_error(13)).context("/a\n b");
        assert_eq!(one_line(&error), "/a; b: Permission denied");
        assert_eq!(without_numbers("a (os error 2): b (os error 3)"), "a: b");
    }
}
