//! What a store's answer means, in one line that says what to do.
//!
//! `object_store` gives the status, the server's words and the transport's error as text and as a chain of causes. Only
//! the code and the message of an answer are repeated: the rest may hold the string that was signed, or a token.
//!
//! Each service knows its own codes; what is left goes by the status, which they have in common.

use crate::error::object;
use crate::{Error, Operation};
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as _;

/// Characters of a server's own words that are repeated.
const WORDS_MAX: usize = 200;
/// Where instances ask for credentials: an error that names one of them comes from there, and not from the store.
const METADATA: [&str; 4] =
    ["169.254.169.254", "computeMetadata", "latest/api/token", "metadata/identity/oauth2"];

/// What can be read off an error.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub status: Option<u16>,
    /// The server's code: `NoSuchBucket`, `SlowDown`, ...
    pub code: String,
    pub message: String,
    transport: Option<HttpErrorKind>,
    /// The innermost cause.
    cause: String,
    /// Nobody had credentials: instance metadata was asked last.
    pub no_credentials: bool,
    /// Whoever gives tokens has answered, and not the store.
    pub of_token: bool,
    pub redirected: bool,
    /// The request's date is not the store's.
    pub skewed: bool,
}

/// What a request was about.
pub(crate) struct About<'a> {
    pub url: &'a str,
    pub endpoint: &'a str,
    pub operation: Operation,
    /// Empty where it was about the bucket itself.
    pub key: &'a str,
    /// What the service calls a bucket.
    pub bucket: &'static str,
    /// Where somebody who lacks a right should look.
    pub rights: &'static str,
}

impl Answer {
    pub fn of(error: &object_store::Error) -> Answer {
        let mut answer = Answer::default();
        let text = error.to_string();
        answer.read(&text);
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(http) = inner.downcast_ref::<HttpError>() {
                answer.transport = Some(http.kind());
            }
            answer.cause = inner.to_string();
            answer.read(&answer.cause.clone());
            cause = inner.source();
        }
        if answer.cause.is_empty() {
            answer.cause = text;
        }
        answer
    }

    /// Of a request that was made without `object_store`.
    pub fn of_response(status: u16, body: &str) -> Answer {
        let mut answer = Answer { status: Some(status), ..Answer::default() };
        answer.read(body);
        answer.cause = format!("status {status}");
        answer
    }

    /// Of such a request whose answer has been read.
    pub fn told(status: u16, code: &str, message: &str) -> Answer {
        let cause = format!("status {status}");
        let (code, message) = (code.to_string(), message.to_string());
        Answer { status: Some(status), code, message, cause, ..Answer::default() }
    }

    /// Of such a request that was not answered.
    pub fn of_transport(error: &HttpError) -> Answer {
        Answer { transport: Some(error.kind()), cause: super::innermost(error), ..Answer::default() }
    }

    fn read(&mut self, text: &str) {
        let between = |open: &str, close: &str| {
            let rest = &text[text.find(open)? + open.len()..];
            Some(rest[..rest.find(close)?].to_string())
        };
        if self.status.is_none() {
            let status = text.find("status code: ").and_then(|at| text.get(at + 13..at + 16));
            self.status = status.and_then(|digits| digits.parse().ok());
        }
        if self.code.is_empty() {
            let code = between("<Code>", "</Code>").or_else(|| between("(code: ", ")"));
            self.code = in_a_line(&code.unwrap_or_default());
        }
        // Of one key among many there is no more than a number.
        if self.status.is_none() && self.code.len() == 3 && self.code.parse::<u16>().is_ok() {
            self.status = std::mem::take(&mut self.code).parse().ok();
        }
        if self.message.is_empty() {
            self.message = in_a_line(&plain(&between("<Message>", "</Message>").unwrap_or_default()));
        }
        self.no_credentials |= METADATA.iter().any(|place| text.contains(place));
        self.of_token |= text.contains("token request");
        self.skewed |= text.contains("date header too old");
        self.redirected |= text.contains("redirect without LOCATION");
    }

    /// `why (Code)`, with the server's own words where they add something.
    pub fn because(&self, why: &str) -> String {
        match (self.code.as_str(), self.status) {
            ("", Some(status)) => format!("{why} (status {status})"),
            ("", None) => why.to_string(),
            (code, _) => format!("{why} ({code})"),
        }
    }

    pub fn in_its_words(&self) -> String {
        let words = if self.message.is_empty() { cause_in_a_line(&self.cause) } else { self.message.clone() };
        self.because(&words)
    }

    /// The error that it becomes by its status alone, or by what became of the connection.
    pub fn by_status(&self, about: &About<'_>) -> Error {
        let place = about.place();
        match self.status {
            Some(404) if about.operation == Operation::List => about.no_such_bucket(),
            // Another code says that something else is missing.
            Some(404) if self.code.is_empty() => Error::NotFound(place),
            Some(412 | 409) if about.operation == Operation::Create => Error::Exists(place),
            Some(403) if self.message.contains("kms:") => Error::Denied(format!(
                "{place}: {}: let these credentials use the key: kms:GenerateDataKey and kms:Decrypt",
                self.in_its_words()
            )),
            Some(401 | 403) => Error::Denied(format!(
                "{place}: {}: these credentials may not {} here; {}",
                self.because("access denied"),
                about.operation.name(),
                about.rights,
            )),
            Some(507) => Error::NoSpace(place),
            Some(501 | 405) => {
                Error::Config(format!("{place}: {}", self.because("the store cannot do this request")))
            }
            Some(429 | 503) => Error::Busy(format!("{place}: {}", self.in_its_words())),
            Some(408) => Error::Io(format!("{place}: {}", self.in_its_words())),
            Some(400..=499) => Error::Config(format!("{place}: refused: {}", self.in_its_words())),
            Some(_) => Error::Io(format!("{place}: {}", self.in_its_words())),
            None => self.by_transport(about),
        }
    }

    /// The error of whoever gives tokens; `check` says what to look at.
    pub fn by_token(&self, about: &About<'_>, check: &str) -> Error {
        let url = about.url;
        match self.status {
            Some(400..=499) => {
                let why = self.because("no token was given for the credentials");
                Error::Credentials(format!("{url}: {why}: {check}"))
            }
            _ => {
                let cause = cause_in_a_line(&self.cause);
                Error::Io(format!("{url}: no token could be fetched for the credentials: {cause}: {check}"))
            }
        }
    }

    fn by_transport(&self, about: &About<'_>) -> Error {
        let (place, cause) = (about.place(), cause_in_a_line(&self.cause));
        let About { url, endpoint, .. } = about;
        match self.transport {
            Some(_) if self.cause.contains("certificate") => Error::Config(format!(
                "{url}: {endpoint} is not trusted: {cause}: name its authority's certificates with ca_file=/path.pem"
            )),
            Some(HttpErrorKind::Connect) => Error::Io(format!(
                "{url}: cannot connect to {endpoint}: {cause}: check the endpoint, and that its server runs"
            )),
            Some(HttpErrorKind::Timeout) => Error::Io(format!("{place}: {endpoint} did not answer in time")),
            _ => Error::Io(format!("{place}: {cause}: if this stays so, check the endpoint {endpoint}")),
        }
    }
}

impl About<'_> {
    /// The object, or the bucket.
    pub fn place(&self) -> String {
        if self.key.is_empty() { self.url.to_string() } else { object(self.url, self.key) }
    }

    /// The store does not take the credentials.
    pub fn not_accepted(&self, answer: &Answer, check: &str) -> Error {
        let why = answer.because("the credentials are not accepted");
        Error::Credentials(format!("{}: {why}: {check}", self.url))
    }

    /// The store finds the credentials good and the time wrong.
    pub fn wrong_clock(&self, answer: &Answer) -> Error {
        let why = answer.because("this host's clock is wrong");
        Error::Credentials(format!("{}: {why}: set it", self.url))
    }

    pub fn no_such_bucket(&self) -> Error {
        let About { url, endpoint, bucket, .. } = self;
        Error::Config(format!("{url}: no such {bucket} at {endpoint}: create it, or correct the name"))
    }
}

/// A text of XML as it reads.
fn plain(text: &str) -> String {
    let named =
        [("&#34;", "'"), ("&quot;", "'"), ("&#39;", "'"), ("&apos;", "'"), ("&lt;", "<"), ("&gt;", ">")];
    named.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to)).replace("&amp;", "&")
}

/// A server's words as part of a line: it may send what it likes.
pub(crate) fn in_a_line(text: &str) -> String {
    let shown: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect();
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What an error says, without the XML that it may quote and the system's own number, as in ` (os error 111)`.
fn cause_in_a_line(text: &str) -> String {
    let text = text.split_once('<').map_or(text, |(words, _)| words);
    in_a_line(text.split_once(" (os error ").map_or(text, |(words, _)| words))
}
