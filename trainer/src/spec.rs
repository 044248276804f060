//! The train spec: what a run is, read from one JSON file.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tinyllm::digest::Sha256Digest;
use tinyllm::names::RunId;
use tinyllm::schema::{self, Schema};

use crate::adamw::AdamWSpec;
use crate::config::{ConfigMap, TokenizerKind};
use crate::error::{IoContext as _, TrainError};
use crate::schedule::ScheduleSpec;

/// A spec file as it was read.
#[derive(Debug)]
pub struct SpecFile {
    pub path: PathBuf,
    /// The file's own bytes, copied verbatim into the run directory.
    pub bytes: Vec<u8>,
    pub sha256: Sha256Digest,
    pub spec: TrainSpec,
}

/// The fields of a spec, defaults filled in. The schema refuses unknown keys before this type is read.
#[derive(Debug, Clone, Deserialize)]
pub struct TrainSpec {
    run_id: String,
    pub base_model: Option<String>,
    #[serde(default)]
    pub model: ConfigMap,
    pub data: DataSpec,
    pub tokenizer: Option<TokenizerSpec>,
    pub generation_config: Option<ConfigMap>,
    #[serde(default)]
    pub optimizer: AdamWSpec,
    #[serde(default)]
    pub schedule: ScheduleSpec,
    #[serde(default = "batch_size")]
    pub batch_size: usize,
    pub steps: u64,
    save_every: Option<u64>,
    #[serde(default = "keep_ckpts")]
    pub keep_ckpts: usize,
    #[serde(default = "log_every")]
    pub log_every: u64,
    #[serde(default = "seed")]
    pub seed: u64,
    pub threads: Option<usize>,
}

/// The training text.
#[derive(Debug, Clone, Deserialize)]
pub struct DataSpec {
    /// Relative to the spec file's directory.
    pub files: Vec<String>,
    #[serde(default = "seq_len")]
    pub seq_len: usize,
}

/// Where the tokenizer of a `"tl_tokenizer": "file"` model comes from.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum TokenizerSpec {
    Existing { path: String },
    Train { vocab_size: usize },
}

fn batch_size() -> usize {
    8
}

fn keep_ckpts() -> usize {
    3
}

fn log_every() -> u64 {
    1
}

fn seed() -> u64 {
    42
}

fn seq_len() -> usize {
    128
}

impl SpecFile {
    /// Reads and checks a spec; a schema error lists every violation.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        let bytes = std::fs::read(path).context("reading the spec", path)?;
        let json = |source| TrainError::Json { path: path.to_owned(), source };
        let value: Value = serde_json::from_slice(&bytes).map_err(json)?;
        check_schema(Schema::TrainSpec, &value, path)?;
        if let Some(generation) = value.get("generation_config") {
            check_schema(Schema::GenerationConfig, generation, path)?;
        }
        let spec: TrainSpec = serde_json::from_slice(&bytes).map_err(json)?;
        if (spec.tokenizer_kind() == TokenizerKind::File) != spec.tokenizer.is_some() {
            let rule = "\"tl_tokenizer\": \"file\" and the spec's tokenizer need each other";
            return Err(TrainError::Config(rule.to_owned()));
        }
        Ok(Self { path: path.to_owned(), sha256: Sha256Digest::of(&bytes), bytes, spec })
    }

    /// Resolves a path the spec names.
    pub fn resolve(&self, relative: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(relative)
    }
}

/// Checks `value`, which came from `path`, and lists every violation.
pub fn check_schema(schema: Schema, value: &Value, path: &Path) -> Result<(), TrainError> {
    schema::validate(schema, value).map_err(|violations| TrainError::Schema {
        path: path.to_owned(),
        schema: schema.name(),
        violations,
    })
}

impl TrainSpec {
    pub fn run_id(&self) -> RunId {
        self.run_id.parse().expect("the schema has the same pattern")
    }

    pub fn tokenizer_kind(&self) -> TokenizerKind {
        match self.model.get("tl_tokenizer").and_then(Value::as_str) {
            Some("file") => TokenizerKind::File,
            _ => TokenizerKind::Byte,
        }
    }

    /// Says whether a checkpoint follows `step`: every so many steps, and always after the last one.
    pub fn saves_after(&self, step: u64) -> bool {
        let every = self.save_every.unwrap_or_else(|| (self.steps / 10).max(1));
        step.is_multiple_of(every) || step == self.steps
    }
}
