//! Chooses the checkpoint to resume from: the one asked for, or the newest older one that verifies.

use std::error::Error;
use std::path::{Path, PathBuf};

use tinyllm::manifest::{Manifest, ManifestError, Subject};
use tinyllm::names::{RunId, Step};
use tinyllm::publish::{list_steps, read_latest};

use crate::error::{IoContext as _, TrainError};

/// A checkpoint directory whose every file agrees with its manifest.
#[derive(Debug)]
pub struct Verified {
    pub dir: PathBuf,
    pub step: Step,
    pub manifest: Manifest,
}

/// A directory that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    pub reason: String,
}

/// Finds the checkpoint to resume from: `asked`, else the one LATEST names, else the newest; where that one's
/// manifest is missing or does not verify, the next older step that does. Tells `skip` of each one passed over.
pub fn choose(
    ckpt_dir: &Path,
    asked: Option<&Path>,
    run_id: &RunId,
    skip: &mut dyn FnMut(Skipped) -> Result<(), TrainError>,
) -> Result<Verified, TrainError> {
    let mut skipped = Vec::new();
    let mut pass_over = |path: PathBuf, reason: String| {
        skipped.push(format!("{}: {reason}", path.display()));
        skip(Skipped { path, reason })
    };
    let (dir, first) = match asked {
        Some(path) => asked_step(path)?,
        None => (ckpt_dir.to_owned(), latest_step(ckpt_dir, &mut pass_over)?),
    };
    let mut steps = list_steps(&dir)?;
    if let Some(first) = first {
        steps.retain(|step| *step <= first);
        if steps.last() != Some(&first) {
            pass_over(dir.join(first.dir_name()), "it does not exist".to_owned())?;
        }
    }
    for step in steps.into_iter().rev() {
        let step_dir = dir.join(step.dir_name());
        match verify(&step_dir, step, run_id) {
            Ok(manifest) => return Ok(Verified { dir: step_dir, step, manifest }),
            Err(TrainError::Manifest(error)) => pass_over(step_dir, reason(&error))?,
            Err(other) => return Err(other),
        }
    }
    Err(TrainError::NothingToResume { dir, skipped })
}

/// Splits a step directory's path into the directory of its siblings and its step; links such as `latest` are
/// followed first.
fn asked_step(path: &Path) -> Result<(PathBuf, Option<Step>), TrainError> {
    // A directory that is gone still has older siblings.
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let step = real.file_name().and_then(|name| Step::from_dir_name(name.to_str()?));
    match (real.parent(), step) {
        (Some(parent), Some(step)) => Ok((parent.to_owned(), Some(step))),
        _ => Err(TrainError::State {
            path: path.to_owned(),
            reason: "no step directory: its name is not like step-000500".to_owned(),
        }),
    }
}

/// Reads LATEST. One that is missing or names no step leaves the search to start at the newest directory.
fn latest_step(
    ckpt_dir: &Path,
    pass_over: &mut dyn FnMut(PathBuf, String) -> Result<(), TrainError>,
) -> Result<Option<Step>, TrainError> {
    match read_latest(ckpt_dir) {
        Ok(step) => Ok(step),
        Err(error) => {
            pass_over(ckpt_dir.join(tinyllm::publish::LATEST_FILE), reason(&error))?;
            Ok(None)
        }
    }
}

/// Checks that `dir` is a complete checkpoint of this run and step, byte for byte.
fn verify(dir: &Path, step: Step, run_id: &RunId) -> Result<Manifest, TrainError> {
    let manifest = Manifest::read(dir)?;
    match &manifest.subject {
        Subject::Checkpoint { run_id: found, .. } if found != run_id => Err(TrainError::OtherRun {
            dir: dir.to_owned(),
            found: found.to_string(),
            expected: run_id.to_string(),
        }),
        Subject::Checkpoint { step: found, .. } if *found == step => {
            manifest.check_dir(dir)?;
            Ok(manifest)
        }
        Subject::Checkpoint { step: found, .. } => {
            let (found, expected) = (found.dir_name(), step.dir_name());
            Err(ManifestError::NameMismatch { found, expected }.into())
        }
        Subject::Release { .. } => Err(ManifestError::NotACheckpoint.into()),
    }
}

/// Spells an error with all its causes.
fn reason(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", reason(cause)),
        None => error.to_string(),
    }
}

/// Reads one file of a checkpoint.
pub fn read_file(dir: &Path, name: &str) -> Result<Vec<u8>, TrainError> {
    let path = dir.join(name);
    std::fs::read(&path).context("reading", &path)
}
