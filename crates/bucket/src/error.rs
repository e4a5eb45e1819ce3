//! How a bucket fails.

use thiserror::Error;

/// What went wrong with a bucket, by what the caller can do about it. The text names the bucket and the key.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// No object of that key.
    #[error("{0}: no such object")]
    NotFound(String),
    /// Create-if-absent found an object there.
    #[error("{0}: object exists")]
    Exists(String),
    /// The store is full.
    #[error("{0}: no space left")]
    NoSpace(String),
    /// The store refused the action.
    #[error("{0}")]
    Denied(String),
    /// The store does not take the credentials, or not any more. They are looked for anew, and may be renewed at any
    /// moment.
    #[error("{0}")]
    Credentials(String),
    /// The store asks to be asked less.
    #[error("{0}")]
    Busy(String),
    /// The deadline passed; the last failure is in the text.
    #[error("{0}")]
    Timeout(String),
    /// What the administrator named cannot be used; the text says why and what to do.
    #[error("{0}")]
    Config(String),
    /// Anything else, retried until the deadline where that could help.
    #[error("{0}")]
    Io(String),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the same request may well succeed when it is made again, some time.
    pub fn is_transient(&self) -> bool {
        self.passes_soon() || matches!(self, Error::Timeout(_) | Error::Credentials(_))
    }

    /// Whether it may well succeed when it is made again at once: nobody has waited for it in vain yet.
    pub fn passes_soon(&self) -> bool {
        matches!(self, Error::Io(_) | Error::Busy(_))
    }

    /// What kind of error it is, in one word; one of [`Error::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Error::NotFound(_) => "not_found",
            Error::Exists(_) => "exists",
            Error::NoSpace(_) => "no_space",
            Error::Denied(_) => "denied",
            Error::Credentials(_) => "credentials",
            Error::Busy(_) => "busy",
            Error::Timeout(_) => "timeout",
            Error::Config(_) => "config",
            Error::Io(_) => "io",
        }
    }

    /// The kinds that count as failures.
    pub const KINDS: [&str; 7] = ["no_space", "denied", "credentials", "busy", "timeout", "config", "io"];

    /// Whether the store did answer, and only the answer is not what was hoped for.
    pub fn is_answer(&self) -> bool {
        matches!(self, Error::NotFound(_) | Error::Exists(_))
    }
}

/// `URL: key`, as error texts name an object.
pub(crate) fn object(url: &str, key: &str) -> String {
    format!("{url}: {key}")
}
