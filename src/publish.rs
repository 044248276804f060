//! Writes checkpoints so that a crash at any instant leaves the previous checkpoint or the new one, never a mix.
//!
//! The protocol has six steps and needs nothing but ordinary file calls, so it is the same on any filesystem.
//! What a crash after each step leaves:
//!
//! | step | done | a crash leaves |
//! | --- | --- | --- |
//! | 1 | every file written into `step-N.tmp/` and fsynced | a stale `step-N.tmp`, no manifest in it |
//! | 2 | MANIFEST.json written and fsynced, the directory fsynced | a stale `step-N.tmp`, complete but unnamed |
//! | 3 | `step-N.tmp` renamed to `step-N` | a complete `step-N`; LATEST still names its predecessor |
//! | 4 | LATEST replaced by rename, the ckpt directory fsynced | the new checkpoint, durable |
//! | 5 | the caller announces the checkpoint | the new checkpoint, not announced |
//! | 6 | [`prune`]: old steps and stale `*.tmp` removed | some of them still there, or moved to `step-N.tmp` |
//!
//! A stale `.tmp` is never read and is removed by the next [`prune`] or by the next writer of that step.

mod retention;
mod writer;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::manifest::ManifestError;
use crate::names::Step;

pub use retention::prune;
pub use writer::{CheckpointWriter, Lineage, Published};

/// The text file that names the newest complete step.
pub const LATEST_FILE: &str = "LATEST";
const LATEST_TMP_FILE: &str = "LATEST.tmp";
const TMP_SUFFIX: &str = ".tmp";

/// Reports a checkpoint that could not be written, named or pruned.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("{action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{name:?} can't be a checkpoint's file: the name must be relative, plain and new")]
    FileName { name: String },
    #[error("{path} holds {text:?}, which is no step directory's name")]
    BadLatest { path: PathBuf, text: String },
    #[error("keeping 0 checkpoints would remove the newest one")]
    KeepZero,
    #[error("the manifest and the files written differ: {0}")]
    ManifestDiffers(String),
    #[error("the checkpoint's manifest is not valid")]
    Manifest(#[from] ManifestError),
}

/// Attaches an action and a path to an I/O error.
trait IoContext<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, PublishError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, PublishError> {
        self.map_err(|source| PublishError::Io { action, path: path.to_owned(), source: source.into() })
    }
}

/// Reads LATEST; None when there is none. Only a step directory's exact name and one newline are believed.
pub fn read_latest(ckpt_dir: &Path) -> Result<Option<Step>, PublishError> {
    let path = ckpt_dir.join(LATEST_FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(source).context("reading", &path),
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.strip_suffix('\n').and_then(Step::from_dir_name) {
        Some(step) => Ok(Some(step)),
        None => Err(PublishError::BadLatest { path, text }),
    }
}

/// Lists the step directories in ascending numeric order, complete or not; a missing directory has none.
/// Only exact names count: `step-000100.backup` and `step-000100.tmp` are no steps.
pub fn list_steps(ckpt_dir: &Path) -> Result<Vec<Step>, PublishError> {
    let mut steps: Vec<Step> =
        directory_names(ckpt_dir)?.iter().filter_map(|name| Step::from_dir_name(name)).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Lists the names of the directories (not links to some) in `dir`; a missing `dir` has none.
fn directory_names(dir: &Path) -> Result<Vec<String>, PublishError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(source).context("listing", dir),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.context("listing", dir)?;
        if entry.file_type().context("listing", &entry.path())?.is_dir() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(names)
}

/// Gives the path a step is written under before it is complete.
fn tmp_path(ckpt_dir: &Path, step: Step) -> PathBuf {
    ckpt_dir.join(step.dir_name() + TMP_SUFFIX)
}

/// Removes a directory with everything in it; one that is already gone is fine.
fn remove_tree(dir: &Path) -> Result<(), PublishError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context("removing", dir),
        _ => Ok(()),
    }
}

fn sync_dir(dir: &Path) -> Result<(), PublishError> {
    File::open(dir).and_then(|opened| opened.sync_all()).context("syncing", dir)
}

#[cfg(test)]
mod tests;
