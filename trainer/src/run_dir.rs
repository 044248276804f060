//! The directory of one run, and the lock that keeps a second trainer out of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tinyllm::names::{RunId, Step};

use crate::error::{IoContext as _, TrainError};

/// `<artifacts>/runs/<run_id>/`, held by this process.
#[derive(Debug)]
pub struct RunDir {
    artifacts: PathBuf,
    path: PathBuf,
    run_id: RunId,
    /// Dies with the process, however it ends.
    _lock: File,
}

impl RunDir {
    /// Creates the directory when missing and takes its lock; a living holder is `TrainError::Locked`.
    pub fn lock(artifacts: &Path, run_id: RunId) -> Result<Self, TrainError> {
        let path = artifacts.join("runs").join(run_id.as_str());
        fs::create_dir_all(&path).context("creating", &path)?;
        let lock_path = path.join("train.lock");
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.context("opening", &lock_path)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(TrainError::Locked { path: lock_path }),
            locked => locked.context("locking", &lock_path)?,
        }
        Ok(Self { artifacts: artifacts.to_owned(), path, run_id, _lock: lock })
    }

    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    pub fn ckpt_dir(&self) -> PathBuf {
        self.path.join("ckpt")
    }

    pub fn progress_path(&self) -> PathBuf {
        self.path.join("progress.jsonl")
    }

    /// Spells a path relative to the artifacts directory where it lies below it, as progress events do.
    pub fn spell(&self, path: &Path) -> String {
        path.strip_prefix(&self.artifacts).unwrap_or(path).display().to_string()
    }

    /// Spells a step's directory.
    pub fn spell_step(&self, step: Step) -> String {
        self.spell(&self.ckpt_dir().join(step.dir_name()))
    }

    /// Puts a copy of the spec beside the checkpoints; a reader sees the old copy or the new one.
    pub fn write_spec(&self, bytes: &[u8]) -> Result<(), TrainError> {
        let (path, tmp) = (self.path.join("spec.json"), self.path.join("spec.json.tmp"));
        fs::write(&tmp, bytes).context("writing", &tmp)?;
        fs::rename(&tmp, &path).context("replacing", &path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let run_id: RunId = "r".parse().unwrap();
        let first = RunDir::lock(dir.path(), run_id.clone()).unwrap();
        assert!(matches!(RunDir::lock(dir.path(), run_id.clone()), Err(TrainError::Locked { .. })));
        drop(first);
        RunDir::lock(dir.path(), run_id).unwrap();
    }
}
