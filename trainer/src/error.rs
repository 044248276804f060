//! The trainer's errors.

use std::io;
use std::path::{Path, PathBuf};

use tinyllm::manifest::ManifestError;
use tinyllm::publish::PublishError;
use tinyllm::schema::Violation;

/// Reports why a run can't start, continue or save.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error("{action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is not JSON of the expected form")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{path} breaks the {schema} schema: {}", join(violations))]
    Schema { path: PathBuf, schema: &'static str, violations: Vec<Violation> },
    #[error("the model config can't be trained: {0}")]
    Config(String),
    #[error("tokenizer {path}: {reason}")]
    Tokenizer { path: PathBuf, reason: String },
    #[error("the data has {tokens} tokens; one window of seq_len {seq_len} needs {}", seq_len + 1)]
    TooLittleData { tokens: usize, seq_len: usize },
    #[error("token {token} of {path} is not below the model's vocab_size {vocab_size}")]
    TokenOutOfRange { path: PathBuf, token: u32, vocab_size: usize },
    #[error("{doing}")]
    Tensor { doing: &'static str, source: candle_core::Error },
    #[error("parameter {name} receives no gradient, so it would never be trained")]
    NoGradient { name: String },
    #[error("the loss of step {step} is {loss}: training stopped, the last checkpoint is intact")]
    LossNotFinite { step: u64, loss: f32 },
    #[error("{path}: {reason}")]
    State { path: PathBuf, reason: String },
    #[error("another trainer holds {path}")]
    Locked { path: PathBuf },
    #[error("{ckpt_dir} holds checkpoints already: continue with --resume, or choose another run_id")]
    HasCheckpoints { ckpt_dir: PathBuf },
    #[error("nothing to resume: no checkpoint in {dir} verifies{}", advice(skipped))]
    NothingToResume { dir: PathBuf, skipped: Vec<String> },
    #[error("{dir} is a checkpoint of run {found}, the spec is of run {expected}")]
    OtherRun { dir: PathBuf, found: String, expected: String },
    #[error(
        "the spec differs from the one {dir} was trained with: resuming would not be bitwise; \
             --accept-changed-spec resumes all the same"
    )]
    SpecChanged { dir: PathBuf },
    #[error("{path} changed since {dir} was saved: the data cursor has lost its meaning")]
    SourceChanged { dir: PathBuf, path: String },
    #[error("saving the checkpoint")]
    Publish(#[from] PublishError),
    #[error("checking the checkpoint")]
    Manifest(#[from] ManifestError),
}

fn join(violations: &[Violation]) -> String {
    violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; ")
}

fn advice(skipped: &[String]) -> String {
    if skipped.is_empty() { String::new() } else { format!(" (skipped {})", skipped.join("; ")) }
}

/// Attaches an action and a path to an I/O error.
pub trait IoContext<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, TrainError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, TrainError> {
        self.map_err(|source| TrainError::Io { action, path: path.to_owned(), source: source.into() })
    }
}

/// Says what was being computed when a tensor operation failed.
pub trait TensorContext<T> {
    fn doing(self, doing: &'static str) -> Result<T, TrainError>;
}

impl<T> TensorContext<T> for candle_core::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, TrainError> {
        self.map_err(|source| TrainError::Tensor { doing, source })
    }
}
