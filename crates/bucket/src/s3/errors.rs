//! What an S3 store's answer means, in one line that says what to do.
//!
//! `object_store` gives the status, the server's XML and the transport's error as text and as a chain of causes.
//! Only the code and the message of the XML are repeated: the rest may hold the string that was signed.

use crate::error::object;
use crate::{Error, Operation};
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as _;

/// Characters of a server's own words that are repeated.
const WORDS_MAX: usize = 200;

/// What can be read off an error of `object_store`.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub status: Option<u16>,
    /// The server's code: `NoSuchBucket`, `SlowDown`, ...
    pub code: String,
    message: String,
    transport: Option<HttpErrorKind>,
    /// The innermost cause.
    cause: String,
    /// Nobody had credentials: instance metadata was asked last.
    no_credentials: bool,
    redirected: bool,
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
        if self.message.is_empty() {
            self.message = in_a_line(&plain(&between("<Message>", "</Message>").unwrap_or_default()));
        }
        self.no_credentials |= text.contains("169.254.169.254") || text.contains("latest/api/token");
        self.redirected |= text.contains("redirect without LOCATION");
    }

    /// `why (Code)`, with the server's own words where they add something.
    fn because(&self, why: &str) -> String {
        match (self.code.as_str(), self.status) {
            ("", Some(status)) => format!("{why} (status {status})"),
            ("", None) => why.to_string(),
            (code, _) => format!("{why} ({code})"),
        }
    }

    fn in_its_words(&self) -> String {
        let words = if self.message.is_empty() { cause_in_a_line(&self.cause) } else { self.message.clone() };
        self.because(&words)
    }
}

/// The error that a request on `key` of the bucket `url` at `endpoint` becomes.
pub(super) fn explain(url: &str, endpoint: &str, operation: Operation, key: &str, answer: &Answer) -> Error {
    let place = if key.is_empty() { url.to_string() } else { object(url, key) };
    if answer.no_credentials {
        // Whatever instance metadata has answered: it is not the store's answer.
        return Error::Io(format!(
            "{url}: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or fill ~/.aws/credentials \
             (instance metadata has none)"
        ));
    }
    match answer.code.as_str() {
        "NoSuchBucket" => {
            return Error::Config(format!(
                "{url}: no such bucket at {endpoint}: create it, or correct the name"
            ));
        }
        "InvalidBucketName" => {
            let why = answer.in_its_words();
            return Error::Config(format!("{url}: {why}: correct the bucket's name"));
        }
        "NoSuchKey" | "NotFound" => return Error::NotFound(place),
        // The last is versitygw's, with status 404.
        "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "InvalidToken"
        | "InvalidClientTokenId"
        | "XAdminUserNotFound" => {
            let why = answer.because("the credentials are not accepted");
            return Error::Denied(format!(
                "{url}: {why}: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials"
            ));
        }
        "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" => {
            return Error::Denied(format!(
                "{url}: {}: renew them",
                answer.because("the credentials have expired")
            ));
        }
        "RequestTimeTooSkewed" => {
            return Error::Denied(format!("{url}: {}: set it", answer.because("this host's clock is wrong")));
        }
        "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException" => {
            return wrong_region(url, answer);
        }
        "QuotaExceeded" | "InsufficientStorage" | "XMinioStorageFull" | "InsufficientCapacity" => {
            return Error::NoSpace(place);
        }
        // 4xx by number, but only of the moment.
        "RequestTimeout"
        | "SlowDown"
        | "OperationAborted"
        | "ConditionalRequestConflict"
        | "NoSuchUpload" => {
            return Error::Io(format!("{place}: {}", answer.in_its_words()));
        }
        _ => {}
    }
    match answer.status {
        _ if answer.redirected => wrong_region(url, answer),
        Some(301 | 307 | 308) => wrong_region(url, answer),
        Some(404) if operation == Operation::List => {
            Error::Config(format!("{url}: no such bucket at {endpoint}: create it, or correct the name"))
        }
        // Another code says that something else is missing.
        Some(404) if answer.code.is_empty() => Error::NotFound(place),
        Some(412 | 409) if operation == Operation::Create => Error::Exists(place),
        Some(401 | 403) => Error::Denied(format!(
            "{place}: {}: these credentials may not {} here; check the bucket's policy",
            answer.because("access denied"),
            operation.name(),
        )),
        Some(507) => Error::NoSpace(place),
        Some(501 | 405) => {
            Error::Config(format!("{place}: {}", answer.because("the store cannot do this request")))
        }
        Some(408 | 429) => Error::Io(format!("{place}: {}", answer.in_its_words())),
        Some(400..=499) => Error::Config(format!("{place}: refused: {}", answer.in_its_words())),
        Some(_) => Error::Io(format!("{place}: {}", answer.in_its_words())),
        None => transport(url, endpoint, &place, answer),
    }
}

/// A text of XML as it reads.
fn plain(text: &str) -> String {
    let named =
        [("&#34;", "'"), ("&quot;", "'"), ("&#39;", "'"), ("&apos;", "'"), ("&lt;", "<"), ("&gt;", ">")];
    named.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to)).replace("&amp;", "&")
}

/// A server's words as part of a line: it may send what it likes.
fn in_a_line(text: &str) -> String {
    let shown: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect();
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What an error says, without the XML that it may quote and the system's own number, as in ` (os error 111)`.
fn cause_in_a_line(text: &str) -> String {
    let text = text.split_once('<').map_or(text, |(words, _)| words);
    in_a_line(text.split_once(" (os error ").map_or(text, |(words, _)| words))
}

fn wrong_region(url: &str, answer: &Answer) -> Error {
    let words = if answer.message.is_empty() { String::new() } else { format!(" ({})", answer.message) };
    Error::Config(format!(
        "{url}: the bucket is in another region{words}: add ?region=NAME or set AWS_REGION"
    ))
}

fn transport(url: &str, endpoint: &str, place: &str, answer: &Answer) -> Error {
    let cause = cause_in_a_line(&answer.cause);
    match answer.transport {
        Some(HttpErrorKind::Connect) => Error::Io(format!(
            "{url}: cannot connect to {endpoint}: {cause}: check the endpoint, and that its server runs"
        )),
        Some(HttpErrorKind::Timeout) => Error::Io(format!("{place}: {endpoint} did not answer in time")),
        _ => Error::Io(format!("{place}: {cause}: if this stays so, check the endpoint {endpoint}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(operation: Operation, status: u16, body: &str) -> Error {
        let text = format!("Server returned non-2xx status code: {status} Some Words: {body}");
        let error = object_store::Error::Generic { store: "S3", source: text.into() };
        explain("s3://b", "http://h", operation, "k", &Answer::of(&error))
    }

    fn xml(code: &str) -> String {
        format!(
            "<Error><Code>{code}</Code><Message>in\n words</Message><StringToSign>hush</StringToSign></Error>"
        )
    }

    #[test]
    fn answers_become_errors_by_what_can_be_done() {
        use Operation::{Create, Get, List, Put};
        type Is = fn(&Error) -> bool;
        let (config, denied, io): (Is, Is, Is) = (
            |e| matches!(e, Error::Config(_)),
            |e| matches!(e, Error::Denied(_)),
            |e| matches!(e, Error::Io(_)),
        );
        let (not_found, exists, no_space): (Is, Is, Is) = (
            |e| matches!(e, Error::NotFound(_)),
            |e| matches!(e, Error::Exists(_)),
            |e| matches!(e, Error::NoSpace(_)),
        );
        let cases: [(Operation, u16, &str, Is); 23] = [
            (Get, 404, "NoSuchKey", not_found),
            (Get, 404, "", not_found),
            (Get, 404, "NoSuchBucket", config),
            (Get, 404, "NoSuchSomething", config),
            (Get, 404, "XAdminUserNotFound", denied),
            (Put, 404, "NoSuchUpload", io),
            (List, 404, "", config),
            (Put, 403, "AccessDenied", denied),
            (Put, 403, "SignatureDoesNotMatch", denied),
            (Put, 400, "ExpiredToken", denied),
            (Put, 403, "RequestTimeTooSkewed", denied),
            (Get, 301, "PermanentRedirect", config),
            (Get, 400, "AuthorizationHeaderMalformed", config),
            (Create, 412, "PreconditionFailed", exists),
            (Create, 409, "ConditionalRequestConflict", io),
            (Put, 507, "", no_space),
            (Put, 403, "QuotaExceeded", no_space),
            (Get, 503, "SlowDown", io),
            (Get, 500, "InternalError", io),
            (Get, 429, "", io),
            (Put, 400, "RequestTimeout", io),
            (Put, 400, "InvalidArgument", config),
            (Put, 501, "NotImplemented", config),
        ];
        for (operation, status, code, is) in cases {
            let body = if code.is_empty() { String::new() } else { xml(code) };
            let error = explained(operation, status, &body);
            let text = error.to_string();
            assert!(is(&error), "{status} {code}: {error:?}");
            assert!(!text.contains('\n') && !text.contains("hush") && text.starts_with("s3://b"), "{text}");
        }
    }
}
