//! MANIFEST.json: the list of every other file of a checkpoint or a released model.

mod check;
mod portable;
mod time;

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Sha256Digest;
use crate::names::{NameError, RunId, Step, full_name};
use crate::schema::{self, Schema, Violation};

pub(crate) use check::sha256_of;
pub use check::{FileFault, FileProblem};
pub use portable::{CheckpointManifest, OptimizerRecord, OptimizerState, Score, Scores};
pub use time::rfc3339_utc;

/// The name of the manifest inside a checkpoint or release directory.
pub const MANIFEST_FILE: &str = "MANIFEST.json";

/// Reports a manifest that can't be believed.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{path} is missing")]
    Missing { path: PathBuf },
    #[error("reading {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the manifest is not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("the manifest breaks {schema}: {}", schema::join(violations))]
    Schema { schema: &'static str, violations: Vec<Violation> },
    #[error("the manifest lists {path:?} twice")]
    Duplicate { path: String },
    #[error("the manifest's name is {found:?}, its own fields give {expected:?}")]
    NameMismatch { found: String, expected: String },
    #[error("the manifest is of a release, not of a checkpoint")]
    NotACheckpoint,
    #[error("the manifest names a run against the rules")]
    Name(#[from] NameError),
    #[error("{dir} differs from its manifest: {}", check::join(problems))]
    Differs { dir: PathBuf, problems: Vec<FileProblem> },
}

/// One file of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Relative, with forward slashes.
    pub path: String,
    #[serde(rename = "size")]
    pub size_bytes: u64,
    pub sha256: Sha256Digest,
}

/// What a manifest describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Checkpoint { run_id: RunId, step: Step },
    Release { model_id: String, version: String },
}

/// A MANIFEST.json that satisfies its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub subject: Subject,
    /// Root of the lineage; None when the run is its own root.
    pub base_model: Option<String>,
    /// Full name of the checkpoint this one continues.
    pub parent: Option<String>,
    /// RFC 3339, UTC.
    pub created_at: String,
    /// Each path once; `to_bytes` sorts them.
    pub files: Vec<FileEntry>,
}

/// The keys as they stand in the file, in the order they are written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    schema_version: u64,
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_model: Option<String>,
    parent: Option<String>,
    created_at: String,
    files: Vec<FileEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Checkpoint,
    Release,
}

/// Parses `bytes` and checks them against `schema`; the second, typed pass also refuses duplicate keys.
fn parse_checked<T: DeserializeOwned>(schema: Schema, bytes: &[u8]) -> Result<T, ManifestError> {
    let value: Value = serde_json::from_slice(bytes).map_err(ManifestError::NotJson)?;
    schema::validate(schema, &value)
        .map_err(|violations| ManifestError::Schema { schema: schema.name(), violations })?;
    serde_json::from_slice(bytes).map_err(ManifestError::NotJson)
}

/// Writes stable, pretty JSON that ends in a newline.
fn to_pretty_bytes(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("plain structs with text keys serialise");
    bytes.push(b'\n');
    bytes
}

impl Manifest {
    /// Parses and checks a manifest; a schema error lists every violation.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let wire: Wire = parse_checked(Schema::Manifest, bytes)?;
        let subject = match (wire.kind, wire.run_id, wire.step, wire.model_id, wire.version) {
            (Kind::Checkpoint, Some(run_id), Some(step), None, None) => {
                Subject::Checkpoint { run_id: run_id.parse()?, step: Step(step) }
            }
            (Kind::Release, None, None, Some(model_id), Some(version)) => {
                Subject::Release { model_id, version }
            }
            _ => unreachable!("the schema ties the identity's keys to the kind"),
        };
        let mut files = wire.files;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        if let Some(pair) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
            return Err(ManifestError::Duplicate { path: pair[0].path.clone() });
        }
        let Wire { base_model, parent, created_at, .. } = wire;
        Ok(Self { subject, base_model, parent, created_at, files })
    }

    /// Reads and parses `dir`'s MANIFEST.json; its absence is `ManifestError::Missing`.
    pub fn read(dir: &Path) -> Result<Self, ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        match std::fs::read(&path) {
            Ok(bytes) => Self::parse(&bytes),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Err(ManifestError::Missing { path }),
            Err(source) => Err(ManifestError::Read { path, source }),
        }
    }

    /// Writes the manifest: one manifest always gives the same bytes, files sorted by path.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut files = self.files.clone();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let mut wire = Wire {
            schema_version: 1,
            kind: Kind::Checkpoint,
            run_id: None,
            step: None,
            model_id: None,
            version: None,
            base_model: self.base_model.clone(),
            parent: self.parent.clone(),
            created_at: self.created_at.clone(),
            files,
        };
        match &self.subject {
            Subject::Checkpoint { run_id, step } => {
                (wire.run_id, wire.step) = (Some(run_id.as_str().to_owned()), Some(step.0));
            }
            Subject::Release { model_id, version } => {
                wire.kind = Kind::Release;
                (wire.model_id, wire.version) = (Some(model_id.clone()), Some(version.clone()));
            }
        }
        to_pretty_bytes(&wire)
    }

    /// Finds a file's entry by its path.
    pub fn file(&self, path: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Gives the full name of a checkpoint; None for a release. A run without a base model is its own root.
    pub fn full_name(&self) -> Option<String> {
        match &self.subject {
            Subject::Checkpoint { run_id, step } => {
                let base_model = self.base_model.as_deref().unwrap_or(run_id.as_str());
                Some(full_name(base_model, run_id.as_str(), *step))
            }
            Subject::Release { .. } => None,
        }
    }

    /// Checks that `dir` holds exactly the listed files, each with its size and SHA-256, and names every one
    /// that differs. Reads every byte.
    pub fn check_dir(&self, dir: &Path) -> Result<(), ManifestError> {
        check::check_dir(self, dir)
    }
}

#[cfg(test)]
mod tests;
