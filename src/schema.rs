//! The JSON Schemas of every document the project writes or reads, embedded and compiled once.

use std::fmt;
use std::sync::OnceLock;

use jsonschema::Validator;
use jsonschema::paths::{Location, LocationSegment};
use serde_json::Value;

/// Bounds one message: a violation quotes the offending value, which may be a whole document.
const MESSAGE_LIMIT_CHARS: usize = 300;

/// Names one document format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schema {
    Manifest,
    TrainerState,
    TrainSpec,
    CheckpointManifestV1,
    ProgressEvent,
    GenerationConfig,
}

/// Says where a document breaks its schema, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where, as `$.files[0].path`.
    pub json_path: String,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.json_path, self.message)
    }
}

/// Joins violations into one line for an error message.
pub(crate) fn join(violations: &[Violation]) -> String {
    violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; ")
}

impl Schema {
    pub const ALL: [Self; 6] = [
        Self::Manifest,
        Self::TrainerState,
        Self::TrainSpec,
        Self::CheckpointManifestV1,
        Self::ProgressEvent,
        Self::GenerationConfig,
    ];

    /// Gives the stem of the schema's file, which is also the name of its folder of examples.
    pub fn name(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::TrainerState => "trainer-state",
            Self::TrainSpec => "train-spec",
            Self::CheckpointManifestV1 => "checkpoint-manifest-v1",
            Self::ProgressEvent => "progress-event",
            Self::GenerationConfig => "generation-config",
        }
    }

    /// Gives the schema's own text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Manifest => include_str!("../schemas/manifest.schema.json"),
            Self::TrainerState => include_str!("../schemas/trainer-state.schema.json"),
            Self::TrainSpec => include_str!("../schemas/train-spec.schema.json"),
            Self::CheckpointManifestV1 => include_str!("../schemas/checkpoint-manifest-v1.schema.json"),
            Self::ProgressEvent => include_str!("../schemas/progress-event.schema.json"),
            Self::GenerationConfig => include_str!("../schemas/generation-config.schema.json"),
        }
    }

    fn validator(self) -> &'static Validator {
        static COMPILED: [OnceLock<Validator>; Schema::ALL.len()] =
            [const { OnceLock::new() }; Schema::ALL.len()];
        COMPILED[self as usize].get_or_init(|| {
            let schema: Value = serde_json::from_str(self.text()).expect("embedded schemas are JSON");
            jsonschema::draft202012::new(&schema).expect("embedded schemas are valid draft 2020-12")
        })
    }
}

/// Checks `value` and lists every violation, not only the first.
pub fn validate(schema: Schema, value: &Value) -> Result<(), Vec<Violation>> {
    let violations: Vec<Violation> = schema
        .validator()
        .iter_errors(value)
        .map(|error| Violation {
            json_path: json_path(error.instance_path()),
            message: shorten(error.to_string()),
        })
        .collect();
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

fn json_path(location: &Location) -> String {
    location.segments().fold("$".to_owned(), |path, segment| match segment {
        LocationSegment::Index(index) => format!("{path}[{index}]"),
        LocationSegment::Property(name) => format!("{path}.{name}"),
    })
}

fn shorten(message: String) -> String {
    match message.char_indices().nth(MESSAGE_LIMIT_CHARS) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_violation_is_listed_by_json_path() {
        let bad = serde_json::json!({
            "schema_version": 1, "kind": "checkpoint", "run_id": "r", "step": 1,
            "created_at": "2025-03-01T12:00:00Z",
            "files": [{"path": "../x", "size": -1, "sha256": "0".repeat(64)}],
        });
        let violations = validate(Schema::Manifest, &bad).unwrap_err();
        let mut paths: Vec<_> = violations.iter().map(|v| v.json_path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["$.files[0].path", "$.files[0].size"]);
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let cut = shorten("é".repeat(MESSAGE_LIMIT_CHARS + 1));
        assert_eq!(cut.chars().count(), MESSAGE_LIMIT_CHARS + 3);
    }
}
