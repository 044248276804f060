//! Why a command failed, and what it tells the shell.

use std::io;
use std::process::ExitCode;

use tinyllm::error::{ErrorKind, StoreError};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("no store is named, and neither TINYLLM_STORE nor HOME says where it could be; give --store DIR")]
    NoStore,
    #[error("cannot print: {0}")]
    Print(#[source] io::Error),
}

impl Failure {
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Gives the code that the help text documents.
    pub fn exit_code(&self) -> ExitCode {
        let kind = match self {
            Self::Store(error) => error.kind(),
            Self::NoStore => ErrorKind::Usage,
            Self::Print(_) => ErrorKind::Other,
        };
        exit_code(kind)
    }
}

pub fn exit_code(kind: ErrorKind) -> ExitCode {
    ExitCode::from(match kind {
        ErrorKind::Other => 1,
        ErrorKind::Usage => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::Refused => 4,
        ErrorKind::Corrupt => 5,
        ErrorKind::Busy => 6,
        ErrorKind::Unsupported => 7,
    })
}
