//! What can go wrong with a pool.

/// Errors of a pool, by what the caller can do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A bucket failed; the text names vdev and object.
    #[error(transparent)]
    Bucket(#[from] tarn_bucket::Error),
    /// Stored bytes are not what was written, in every copy.
    #[error("{0}")]
    Damaged(String),
    /// An object that must be there is not.
    #[error("{0}")]
    Missing(String),
    #[error("no space left in the pool")]
    NoSpace,
    /// Another host or process holds the pool; the text names it and says what to do.
    #[error("{0}")]
    Held(String),
    #[error("the pool was taken over by another host")]
    Fenced,
    /// A wrong argument: the text names it and the remedy.
    #[error("{0}")]
    Usage(String),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Shorthand for [`Error::Usage`].
pub(crate) fn usage(text: impl Into<String>) -> Error {
    Error::Usage(text.into())
}
