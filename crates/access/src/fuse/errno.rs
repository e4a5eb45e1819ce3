//! Errors as Linux numbers them.

use fuser::Errno;
use tarn_base::FsError;

/// The number that a system call fails with.
pub(super) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NotPermitted => Errno::EPERM,
        FsError::AccessDenied => Errno::EACCES,
        FsError::Invalid(_) => Errno::EINVAL,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::FileTooLarge => Errno::EFBIG,
        FsError::NoSpace => Errno::ENOSPC,
        FsError::QuotaExceeded => Errno::EDQUOT,
        FsError::ReadOnly => Errno::EROFS,
        FsError::NoAttribute => Errno::ENODATA,
        FsError::Range => Errno::ERANGE,
        FsError::TooBig => Errno::E2BIG,
        FsError::CrossDevice => Errno::EXDEV,
        FsError::Loop => Errno::ELOOP,
        FsError::NoData => Errno::ENXIO,
        FsError::WouldBlock => Errno::EAGAIN,
        FsError::Deadlock => Errno::EDEADLK,
        FsError::Interrupted => Errno::EINTR,
        FsError::Stale => Errno::ESTALE,
        // Never ENOSYS: it would turn the operation off for the whole mount.
        FsError::NotSupported => Errno::EOPNOTSUPP,
        FsError::TooManyOpen => Errno::ENFILE,
        FsError::Fenced | FsError::Io(_) => Errno::EIO,
    }
}
