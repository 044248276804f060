//! The library's error type: every variant names the path, name or digest it concerns.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::ChunkDigest;

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Reports why a store operation failed. Missing, truncated and corrupt data are different variants.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },
    #[error("{}: catalog: {source}", path.display())]
    Catalog { path: PathBuf, source: rusqlite::Error },
    #[error("catalog: {source}")]
    Query { source: rusqlite::Error },

    #[error("{}: not a tinyllm store (no FORMAT file); create one with `tinyllm init`", path.display())]
    NotAStore { path: PathBuf },
    #[error("{}: the directory holds other files, so no store is created in it", path.display())]
    NotEmptyDirectory { path: PathBuf },
    #[error("{}: {detail}", path.display())]
    UnsupportedFormat { path: PathBuf, detail: String },
    #[error(
        "{}: another process is using this store for writing; unmount it (or wait for the other command)",
        path.display()
    )]
    Locked { path: PathBuf },
    #[error(
        "{}: the catalog is older than the store's records ({detail}); run `tinyllm rebuild`",
        path.display()
    )]
    StaleCatalog { path: PathBuf, detail: String },
    #[error("{}: the catalog is missing; run `tinyllm rebuild`", path.display())]
    CatalogMissing { path: PathBuf },
    #[error("{}: this store is open for reading only", path.display())]
    ReadOnly { path: PathBuf },

    #[error("{}: corrupt: {detail}", path.display())]
    Corrupt { path: PathBuf, detail: String },
    #[error("{}: truncated: {detail}", path.display())]
    Truncated { path: PathBuf, detail: String },
    #[error("chunk {digest} is not in the store")]
    ChunkMissing { digest: ChunkDigest },
    #[error("chunk {digest} in {} at byte {offset}: its bytes no longer match its name", path.display())]
    ChunkCorrupt { digest: ChunkDigest, path: PathBuf, offset: u64 },
    #[error("chunk {digest}: encoding {encoding} is not known to this version")]
    UnknownEncoding { digest: ChunkDigest, encoding: u8 },

    #[error("{what}: not found")]
    NotFound { what: String },
    #[error("{what}: no such checkpoint; {near}")]
    NoCheckpoint { what: String, near: String },
    #[error("{what}: could mean {}", candidates.join(" or "))]
    Ambiguous { what: String, candidates: Vec<String> },
    #[error("{text:?}: {why}")]
    BadName { text: String, why: &'static str },
    #[error("{what}: exists already")]
    Exists { what: String },
    #[error("{what}: not a directory")]
    NotADirectory { what: String },
    #[error("{what}: is a directory")]
    IsADirectory { what: String },
    #[error("{what}: directory not empty")]
    NotEmpty { what: String },
    #[error("{what}: {why}")]
    Forbidden { what: String, why: &'static str },
    #[error("{what}: still being written or sealed; close it and try again")]
    Busy { what: String },
    #[error("{what}: {why}")]
    Invalid { what: String, why: String },
    #[error("{what}: name longer than 255 bytes")]
    NameTooLong { what: String },
    #[error("{what}: too many links")]
    TooManyLinks { what: String },
    #[error("no such extended attribute")]
    NoAttribute,
    #[error("{what}: refused: {}", reasons.join("; "))]
    SealRefused { what: String, reasons: Vec<String> },
    #[error("stopped")]
    Interrupted,
    #[error("{message}")]
    Daemon { kind: ErrorKind, message: String },
}

/// Sorts errors by what whoever asked can do about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Ask with another name.
    Usage,
    NotFound,
    /// The store's rules say no; nothing changed.
    Refused,
    /// Bytes are not what they should be.
    Corrupt,
    /// Try again later.
    Busy,
    /// Use another version of the program.
    Unsupported,
    Other,
}

impl StoreError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Ambiguous { .. } | Self::BadName { .. } => ErrorKind::Usage,
            Self::NotAStore { .. } | Self::NotFound { .. } | Self::NoCheckpoint { .. } => ErrorKind::NotFound,
            Self::NotEmptyDirectory { .. }
            | Self::Exists { .. }
            | Self::NotEmpty { .. }
            | Self::Forbidden { .. }
            | Self::SealRefused { .. } => ErrorKind::Refused,
            Self::StaleCatalog { .. }
            | Self::CatalogMissing { .. }
            | Self::Corrupt { .. }
            | Self::Truncated { .. }
            | Self::ChunkMissing { .. }
            | Self::ChunkCorrupt { .. } => ErrorKind::Corrupt,
            Self::Locked { .. } | Self::Busy { .. } => ErrorKind::Busy,
            Self::UnsupportedFormat { .. } | Self::UnknownEncoding { .. } => ErrorKind::Unsupported,
            Self::Daemon { kind, .. } => *kind,
            Self::Catalog { source, .. } | Self::Query { source } if is_corrupt(source) => ErrorKind::Corrupt,
            Self::Io { .. }
            | Self::Catalog { .. }
            | Self::Query { .. }
            | Self::ReadOnly { .. }
            | Self::NotADirectory { .. }
            | Self::IsADirectory { .. }
            | Self::Invalid { .. }
            | Self::NameTooLong { .. }
            | Self::TooManyLinks { .. }
            | Self::NoAttribute
            | Self::Interrupted => ErrorKind::Other,
        }
    }
}

fn is_corrupt(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

impl From<rusqlite::Error> for StoreError {
    /// SQLite's own errors carry no path of ours; the catalog's is attached where the catalog is opened.
    fn from(source: rusqlite::Error) -> Self {
        Self::Query { source }
    }
}

/// Attaches the path and the action to an I/O error, so that no call site can lose them.
pub trait IoContext<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| StoreError::Io { path: path.to_owned(), action, source })
    }
}

impl<T> IoContext<T> for std::result::Result<T, rustix::io::Errno> {
    fn at(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(io::Error::from).at(action, path)
    }
}
