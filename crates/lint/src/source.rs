//! Rules on what stands in the sources, read as tokens.
//!
//! | rule | what it holds |
//! | --- | --- |
//! | `imports` | a crate is not even named where it must not be imported (conditional code is read too) |
//! | `errno` | errno appears only in `access`, the door to the kernel |
//! | `clock` | the machine's time is read in `base` only, so that a test can replay a run; tokio's clock is free, since tests can steer it |
//! | `size` | a file stays below [`MAX_LINES`] |
//! | `unfinished` | no `todo!`, `unimplemented!`, `dbg!`, and no comment that promises the rest for later |
//!
//! Tests (files named `tests.rs` or below `tests/`, modules under `#[cfg(test)]`) and examples may use errno and the
//! clock.

use crate::{Finding, imports};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::Path;

/// Lines from which on a file is too long.
pub const MAX_LINES: usize = 800;

const UNFINISHED_MACROS: &[&str] = &["todo", "unimplemented", "dbg"];
const UNFINISHED_WORDS: &[&str] = &["TODO", "FIXME", "XXX"];

/// Checks one source file of the crate `name`; `path` is only for messages and for telling tests apart.
pub fn check(name: &str, path: &Path, text: &str) -> Vec<Finding> {
    let place = path.display().to_string();
    let steered_clock =
        text.contains("use tokio::time::Instant") || text.contains("use tokio::time::{Instant");
    let mut file = File { name, place, in_test: is_test(path), steered_clock, found: Vec::new() };
    let lines = text.lines().count();
    if lines > MAX_LINES {
        file.report("size", 0, format!("{lines} lines; {MAX_LINES} are enough: split it by what it is for"));
    }
    file.comments(text);
    match text.parse::<TokenStream>() {
        Ok(tokens) => file.tokens(tokens),
        Err(e) => file.report("unreadable", 0, format!("cannot be read as Rust: {e}")),
    }
    file.found
}

fn is_test(path: &Path) -> bool {
    path.components()
        .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs" | "benches" | "examples")))
}

struct File<'a> {
    name: &'a str,
    place: String,
    /// True while reading what only tests compile.
    in_test: bool,
    /// `Instant` is tokio's here.
    steered_clock: bool,
    found: Vec<Finding>,
}

impl File<'_> {
    fn report(&mut self, rule: &'static str, line: usize, text: String) {
        self.found.push(Finding { rule, place: self.place.clone(), line, text });
    }

    /// Comments are no tokens, so promises are looked for in the text; a string that holds one after `//` is
    /// rare enough.
    fn comments(&mut self, text: &str) {
        for (number, line) in text.lines().enumerate() {
            let Some(start) = line.find("//") else { continue };
            let words = line[start..].split(|c: char| !c.is_ascii_alphanumeric());
            if let Some(word) = words.into_iter().find(|word| UNFINISHED_WORDS.contains(word)) {
                let text = format!("{word}: build it, or leave it out and say so in the documentation");
                self.report("unfinished", number + 1, text);
            }
        }
    }

    fn tokens(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        // The attribute `#[cfg(test)]` covers the next braces or semicolon.
        let mut test_item = false;
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Bracket && is_cfg_test(&tokens, at) {
                        test_item = true;
                        continue;
                    }
                    let outer = self.in_test;
                    self.in_test |= test_item;
                    self.tokens(group.stream());
                    self.in_test = outer;
                    if group.delimiter() == Delimiter::Brace {
                        test_item = false;
                    }
                }
                TokenTree::Punct(mark) if mark.as_char() == ';' => test_item = false,
                TokenTree::Ident(_) => self.ident(&tokens, at),
                _ => {}
            }
        }
    }

    fn ident(&mut self, tokens: &[TokenTree], at: usize) {
        let word = tokens[at].to_string();
        let line = tokens[at].span().start().line;
        let package = word.replace('_', "-");
        if word.starts_with("tarn_") && package != self.name && is_path(tokens, at) {
            let known = imports::may_import(self.name, &package);
            // A test crate's own files are its business.
            if !known && self.name != "tarn-lint" {
                self.report("imports", line, format!("{} must not name {word}", self.name));
            }
        }
        if UNFINISHED_MACROS.contains(&word.as_str()) && is_punct(tokens, at + 1, '!') {
            self.report("unfinished", line, format!("{word}! is not for committed code"));
        }
        if self.in_test {
            return;
        }
        if self.name != "tarn-access" && names_errno(tokens, at, &word) {
            self.report(
                "errno",
                line,
                "errno belongs to access; use the crate's own error kinds".to_string(),
            );
        }
        let reads_clock = matches!(word.as_str(), "SystemTime" | "Instant")
            && path_next(tokens, at).is_some_and(|next| next == "now");
        let steered = word == "Instant" && (self.steered_clock || is_tokios(tokens, at));
        if reads_clock && !steered && self.name != "tarn-base" {
            self.report("clock", line, format!("{word}::now: take the time from tarn_base::Clock"));
        }
    }
}

/// The identifier at `at` is written out as `tokio::time::...`.
fn is_tokios(tokens: &[TokenTree], at: usize) -> bool {
    let word = |back: usize| at.checked_sub(back).map(|at| tokens[at].to_string());
    word(3).as_deref() == Some("time") && word(6).as_deref() == Some("tokio")
}

/// The identifier after `::` that follows position `at`.
fn path_next(tokens: &[TokenTree], at: usize) -> Option<String> {
    if !is_path(tokens, at) {
        return None;
    }
    match tokens.get(at + 3) {
        Some(TokenTree::Ident(word)) => Some(word.to_string()),
        _ => None,
    }
}

fn is_path(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens, at + 1, ':') && is_punct(tokens, at + 2, ':')
}

fn is_punct(tokens: &[TokenTree], at: usize, mark: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

fn is_cfg_test(tokens: &[TokenTree], at: usize) -> bool {
    let TokenTree::Group(group) = &tokens[at] else { return false };
    let text = group.stream().to_string().replace(' ', "");
    at > 0 && is_punct(tokens, at - 1, '#') && (text == "cfg(test)" || text.starts_with("cfg(all(test,"))
}

/// `libc::ENOENT`, or anything named `Errno`.
fn names_errno(tokens: &[TokenTree], at: usize, word: &str) -> bool {
    let constant = |name: &str| {
        name.len() > 2
            && name.starts_with('E')
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
    };
    // EPOLLIN and its like are flags, and EOF is a constant of stdio.
    let flag = |name: &str| name.starts_with("EPOLL") || name.starts_with("EFD") || name == "EOF";
    match word {
        "Errno" => true,
        "libc" => path_next(tokens, at).is_some_and(|name| constant(&name) && !flag(&name)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(name: &str, path: &str, text: &str) -> Vec<&'static str> {
        check(name, Path::new(path), text).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn each_rule_can_fail() {
        let cases = [
            ("tarn-client", "use tarn_server::Mds;", "imports"),
            ("tarn-pool", "fn f() { tarn_mdt::open(); }", "imports"),
            ("tarn-pool", "fn f() -> i32 { libc::ENOENT }", "errno"),
            ("tarn-mdt", "use nix::errno::Errno;", "errno"),
            ("tarn-pool", "fn f() { let t = std::time::Instant::now(); }", "clock"),
            ("tarn-pool", "fn f() { vec![SystemTime::now()]; }", "clock"),
            ("tarn-pool", "fn f() { todo!() }", "unfinished"),
            ("tarn-pool", "fn f() { g(unimplemented!()) }", "unfinished"),
            ("tarn-pool", "fn f() { dbg!(1); }", "unfinished"),
            ("tarn-pool", concat!("// FIX", "ME later\nfn f() {}"), "unfinished"),
        ];
        for (name, text, rule) in cases {
            assert_eq!(rules(name, "src/x.rs", text), vec![rule], "{text}");
        }
        assert_eq!(rules("tarn-pool", "src/x.rs", &"\n".repeat(MAX_LINES + 1)), vec!["size"]);
    }

    #[test]
    fn words_in_comments_and_strings_are_no_code() {
        let text = r#"
            //! Not libc::ENOENT, never Instant::now.
            fn f() -> &'static str { "tarn_server::x libc::ENOENT todo!()" }
        "#;
        assert_eq!(rules("tarn-client", "src/x.rs", text), Vec::<&str>::new());
    }

    #[test]
    fn tests_may_read_the_clock_and_what_follows_them_may_not() {
        let text = "#[cfg(test)] mod tests { fn f() { Instant::now(); } } fn g() { Instant::now(); }";
        assert_eq!(rules("tarn-pool", "src/x.rs", text), vec!["clock"]);
        assert_eq!(rules("tarn-pool", "src/x/tests.rs", "fn f() { Instant::now(); }"), Vec::<&str>::new());
        let external = "#[cfg(test)] mod tests; fn g() { Instant::now(); }";
        assert_eq!(rules("tarn-pool", "src/x.rs", external), vec!["clock"]);
    }

    #[test]
    fn the_places_they_belong_to_are_free() {
        assert_eq!(rules("tarn-access", "src/x.rs", "fn f() { libc::ENOENT; }"), Vec::<&str>::new());
        assert_eq!(rules("tarn-base", "src/x.rs", "fn f() { Instant::now(); }"), Vec::<&str>::new());
        let tokio = "use tokio::time::Instant; fn f() { Instant::now(); }";
        assert_eq!(rules("tarn-pool", "src/x.rs", tokio), Vec::<&str>::new());
        let written_out = "fn f() { tokio::time::Instant::now(); }";
        assert_eq!(rules("tarn-pool", "src/x.rs", written_out), Vec::<&str>::new());
        assert_eq!(
            rules("tarn-pool", "src/x.rs", "use tarn_bucket::Bucket; use libc::EPOLLIN;"),
            Vec::<&str>::new()
        );
    }
}
