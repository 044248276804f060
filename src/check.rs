//! What a directory must satisfy before it may be sealed. Every problem is listed, each naming its file.

use std::collections::BTreeMap;

use crate::catalog::Face;
use crate::digest::Sha256Digest;
use crate::error::Result;
use crate::gate;
use crate::manifest::{CheckpointManifest, MANIFEST_FILE, Manifest, ManifestError, Subject};
use crate::policy::SealTarget;
use crate::schema::Violation;

/// The weights' file name.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The portable face's manifest.
pub const PORTABLE_MANIFEST_FILE: &str = "manifest.json";

/// The largest JSON file that a check reads.
pub const MAX_JSON_BYTES: u64 = 64 << 20;

/// A file's size and SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    pub size_bytes: u64,
    pub sha256: Sha256Digest,
}

/// A directory about to be sealed.
pub struct Candidate<'a> {
    pub files: &'a BTreeMap<String, FileFacts>,
    /// Reads one of the files whole.
    pub read: &'a dyn Fn(&str) -> Result<Vec<u8>>,
}

impl Candidate<'_> {
    /// Reads a JSON file; None, with the reason noted, when it is absent or far too large.
    pub(crate) fn json_bytes(&self, path: &str, problems: &mut Vec<String>) -> Result<Option<Vec<u8>>> {
        match self.files.get(path) {
            None => problems.push(format!("{path}: missing")),
            Some(facts) if facts.size_bytes > MAX_JSON_BYTES => {
                problems.push(format!("{path}: {} bytes are too many for a JSON file", facts.size_bytes));
            }
            Some(_) => return (self.read)(path).map(Some),
        }
        Ok(None)
    }
}

/// What a passed check found out.
#[derive(Debug, Clone)]
pub enum Checked {
    /// runs/ and models/.
    Full(Manifest),
    /// checkpoints/.
    Portable(Box<CheckpointManifest>),
}

/// Checks `candidate` for sealing as `target`. The inner error lists every problem.
pub fn check(target: &SealTarget, candidate: &Candidate<'_>) -> Result<Result<Checked, Vec<String>>> {
    let mut problems = Vec::new();
    let checked = match target.face {
        Face::Portable => check_portable(target, candidate, &mut problems)?
            .map(|manifest| Checked::Portable(Box::new(manifest))),
        Face::Resumable | Face::Release => check_full(target, candidate, &mut problems)?.map(Checked::Full),
        Face::Moved => None,
    };
    Ok(match checked {
        Some(checked) if problems.is_empty() => Ok(checked),
        _ => Err(problems),
    })
}

fn check_full(
    target: &SealTarget,
    candidate: &Candidate<'_>,
    problems: &mut Vec<String>,
) -> Result<Option<Manifest>> {
    let Some(bytes) = candidate.json_bytes(MANIFEST_FILE, problems)? else { return Ok(None) };
    let manifest = match Manifest::parse(&bytes) {
        Ok(manifest) => manifest,
        Err(error) => {
            problems.extend(spell(MANIFEST_FILE, &error));
            return Ok(None);
        }
    };
    check_subject(target, &manifest.subject, problems);
    check_files(&manifest, candidate.files, problems);
    if target.face == Face::Release {
        gate::check_release(candidate, problems)?;
    }
    Ok(Some(manifest))
}

fn check_subject(target: &SealTarget, subject: &Subject, problems: &mut Vec<String>) {
    let mut differ = |key: &str, found: &str, wanted: &str| {
        if found != wanted {
            problems.push(format!("{MANIFEST_FILE}: {key} is {found:?}, the path says {wanted:?}"));
        }
    };
    match (target.face, subject) {
        (Face::Release, Subject::Release { model_id, version }) => {
            differ("model_id", model_id, &target.run);
            differ("version", version, &target.version);
        }
        (Face::Release, Subject::Checkpoint { .. }) => differ("kind", "checkpoint", "release"),
        (_, Subject::Checkpoint { run_id, step }) => {
            differ("run_id", run_id.as_str(), &target.run);
            differ("step", &step.dir_name(), &target.step.dir_name());
        }
        (_, Subject::Release { .. }) => differ("kind", "release", "checkpoint"),
    }
}

/// The manifest lists every file but itself, with its true size and hash.
fn check_files(manifest: &Manifest, files: &BTreeMap<String, FileFacts>, problems: &mut Vec<String>) {
    for listed in &manifest.files {
        let path = &listed.path;
        match files.get(path) {
            None => problems.push(format!("{path}: listed in {MANIFEST_FILE} but missing")),
            Some(facts) if facts.size_bytes != listed.size_bytes => problems.push(format!(
                "{path}: {} bytes, {MANIFEST_FILE} says {}",
                facts.size_bytes, listed.size_bytes
            )),
            Some(facts) if facts.sha256 != listed.sha256 => {
                problems.push(format!(
                    "{path}: SHA-256 is {}, {MANIFEST_FILE} says {}",
                    facts.sha256, listed.sha256
                ));
            }
            Some(_) => {}
        }
    }
    for path in files.keys().filter(|path| *path != MANIFEST_FILE) {
        if manifest.file(path).is_none() {
            problems.push(format!("{path}: not listed in {MANIFEST_FILE}"));
        }
    }
}

fn check_portable(
    target: &SealTarget,
    candidate: &Candidate<'_>,
    problems: &mut Vec<String>,
) -> Result<Option<CheckpointManifest>> {
    let Some(bytes) = candidate.json_bytes(PORTABLE_MANIFEST_FILE, problems)? else { return Ok(None) };
    let manifest = match CheckpointManifest::parse(&bytes) {
        Ok(manifest) => manifest,
        Err(error) => {
            problems.extend(spell(PORTABLE_MANIFEST_FILE, &error));
            return Ok(None);
        }
    };
    if manifest.run_id != target.run {
        problems.push(format!(
            "{PORTABLE_MANIFEST_FILE}: run_id is {:?}, the path says {:?}",
            manifest.run_id, target.run
        ));
    }
    if manifest.step != target.step.0 {
        problems.push(format!(
            "{PORTABLE_MANIFEST_FILE}: step is {}, the path says {}",
            manifest.step, target.step.0
        ));
    }
    match candidate.files.get(WEIGHTS_FILE) {
        None => problems.push(format!("{WEIGHTS_FILE}: missing")),
        Some(facts) if facts.sha256 != manifest.weights_sha256 => problems.push(format!(
            "{WEIGHTS_FILE}: SHA-256 is {}, {PORTABLE_MANIFEST_FILE} says {}",
            facts.sha256, manifest.weights_sha256
        )),
        Some(_) => {}
    }
    Ok(Some(manifest))
}

fn spell(file: &str, error: &ManifestError) -> Vec<String> {
    match error {
        ManifestError::Schema { violations, .. } => violations
            .iter()
            .map(|Violation { json_path, message }| format!("{file}: {json_path}: {message}"))
            .collect(),
        ManifestError::NotJson(source) => vec![format!("{file}: not JSON: {source}")],
        other => vec![format!("{file}: {other}")],
    }
}
