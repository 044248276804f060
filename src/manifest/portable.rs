//! checkpoint-manifest-v1: the manifest.json of a portable checkpoint, as other tools read and write it.

use serde::{Deserialize, Serialize};

use super::{Manifest, ManifestError, Subject, parse_checked, to_pretty_bytes};
use crate::digest::Sha256Digest;
use crate::names::{Step, full_name};
use crate::schema::Schema;

/// A checkpoint-manifest-v1 that satisfies its schema and whose name agrees with its own fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointManifest {
    /// Absent in what some tools write; always 1.
    #[serde(default = "schema_version")]
    schema_version: u64,
    #[serde(default)]
    kind: Kind,
    /// `<base_model>:<run_id>:step-<n>`.
    pub name: String,
    pub base_model: String,
    /// Any safe path segment, since other tools name their own runs.
    pub run_id: String,
    pub step: u64,
    pub created_at: String,
    /// Of model.safetensors.
    pub weights_sha256: Sha256Digest,
    /// Written even when there is none: null says that the chain is complete.
    pub parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged_adapter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal_source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Checkpoint,
}

fn schema_version() -> u64 {
    1
}

/// Records the optimizer that led to a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerRecord {
    pub name: String,
    pub state: OptimizerState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
}

/// Says whether the optimizer's state was carried over from the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerState {
    Restored,
    Fresh,
}

/// The scores of a checkpoint on what it was trained for and on what it should not forget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scores {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Score>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Score>,
}

/// One score and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    pub value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
}

impl CheckpointManifest {
    /// Parses and checks a portable manifest; unknown keys are refused, kind and schema_version may be absent.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = parse_checked(Schema::CheckpointManifestV1, bytes)?;
        let expected = full_name(&manifest.base_model, &manifest.run_id, Step(manifest.step));
        if manifest.name != expected {
            return Err(ManifestError::NameMismatch { found: manifest.name, expected });
        }
        Ok(manifest)
    }

    /// Writes the manifest: one manifest always gives the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_pretty_bytes(self)
    }

    /// Derives the portable manifest of a checkpoint from its MANIFEST.json. Nothing but the two arguments
    /// enters, so deriving again gives the same bytes.
    pub fn from_manifest(manifest: &Manifest, weights_sha256: Sha256Digest) -> Result<Self, ManifestError> {
        let Subject::Checkpoint { run_id, step } = &manifest.subject else {
            return Err(ManifestError::NotACheckpoint);
        };
        let base_model = manifest.base_model.as_deref().unwrap_or(run_id.as_str());
        Ok(Self {
            parent: manifest.parent.clone(),
            ..Self::new(base_model, run_id.as_str(), *step, manifest.created_at.clone(), weights_sha256)
        })
    }

    /// Makes the manifest of a checkpoint of which nothing else is known.
    pub fn new(
        base_model: &str,
        run_id: &str,
        step: Step,
        created_at: String,
        weights_sha256: Sha256Digest,
    ) -> Self {
        Self {
            schema_version: 1,
            kind: Kind::Checkpoint,
            name: full_name(base_model, run_id, step),
            base_model: base_model.to_owned(),
            run_id: run_id.to_owned(),
            step: step.0,
            created_at,
            weights_sha256,
            parent: None,
            merged_adapter: None,
            domain: None,
            signal_source: None,
            optimizer: None,
            scores: None,
        }
    }
}
