//! The one table from the library's errors to what a system call returns.

use tinyllm::error::StoreError;

/// An errno value, as the kernel wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const ACCES: Self = Self(libc::EACCES);
    pub const BUSY: Self = Self(libc::EBUSY);
    pub const EXIST: Self = Self(libc::EEXIST);
    pub const INVAL: Self = Self(libc::EINVAL);
    pub const IO: Self = Self(libc::EIO);
    pub const ISDIR: Self = Self(libc::EISDIR);
    pub const NODATA: Self = Self(libc::ENODATA);
    pub const NOENT: Self = Self(libc::ENOENT);
    pub const NOTSUP: Self = Self(libc::EOPNOTSUPP);
    pub const NXIO: Self = Self(libc::ENXIO);
    pub const PERM: Self = Self(libc::EPERM);
    pub const RANGE: Self = Self(libc::ERANGE);
    pub const ROFS: Self = Self(libc::EROFS);
    pub const BADF: Self = Self(libc::EBADF);
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl From<StoreError> for Errno {
    /// Translates an error, and logs those that are no answer to what was asked but a fault of the store.
    fn from(error: StoreError) -> Self {
        let errno = errno_of(&error);
        if matches!(errno, libc::EIO | libc::ENOSPC | libc::EDQUOT) {
            tracing::error!("{error}");
        }
        Self(errno)
    }
}

fn errno_of(error: &StoreError) -> i32 {
    match error {
        StoreError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        StoreError::Catalog { source, .. } | StoreError::Query { source } => match source.sqlite_error_code()
        {
            Some(rusqlite::ErrorCode::DiskFull) => libc::ENOSPC,
            Some(rusqlite::ErrorCode::ReadOnly) => libc::EROFS,
            Some(rusqlite::ErrorCode::OutOfMemory) => libc::ENOMEM,
            _ => libc::EIO,
        },
        StoreError::Corrupt { .. }
        | StoreError::Truncated { .. }
        | StoreError::ChunkMissing { .. }
        | StoreError::ChunkCorrupt { .. }
        | StoreError::UnknownEncoding { .. }
        | StoreError::NotAStore { .. }
        | StoreError::NotEmptyDirectory { .. }
        | StoreError::UnsupportedFormat { .. }
        | StoreError::StaleCatalog { .. }
        | StoreError::CatalogMissing { .. }
        | StoreError::Daemon { .. } => libc::EIO,
        StoreError::Locked { .. } | StoreError::Busy { .. } => libc::EBUSY,
        StoreError::ReadOnly { .. } => libc::EROFS,
        StoreError::NotFound { .. } | StoreError::NoCheckpoint { .. } => libc::ENOENT,
        StoreError::Exists { .. } => libc::EEXIST,
        StoreError::NotADirectory { .. } => libc::ENOTDIR,
        StoreError::IsADirectory { .. } => libc::EISDIR,
        StoreError::NotEmpty { .. } => libc::ENOTEMPTY,
        StoreError::Forbidden { .. } => libc::EPERM,
        StoreError::Invalid { .. } | StoreError::Ambiguous { .. } | StoreError::BadName { .. } => {
            libc::EINVAL
        }
        StoreError::NameTooLong { .. } => libc::ENAMETOOLONG,
        StoreError::TooManyLinks { .. } => libc::EMLINK,
        StoreError::NoAttribute => libc::ENODATA,
        // "Bad message": the files do not say what their manifest says.
        StoreError::SealRefused { .. } => libc::EBADMSG,
        StoreError::Interrupted => libc::EINTR,
    }
}
