//! Names of runs, steps and checkpoints, and their spellings on disk and on the command line.

use std::fmt;
use std::str::FromStr;

/// Reports a name that breaks its grammar, with the rule it breaks.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("{text:?} is not a valid {what}: {rule}")]
pub struct NameError {
    pub text: String,
    pub what: &'static str,
    pub rule: &'static str,
}

/// Names a training run: `^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(String);

impl RunId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let bytes = text.as_bytes();
        let ok = (1..=128).contains(&bytes.len())
            && bytes[0].is_ascii_alphanumeric()
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b));
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError {
                text: text.to_owned(),
                what: "run name",
                rule: "a letter or digit, then up to 127 letters, digits, '.', '_' or '-'",
            })
        }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Counts optimizer steps. Its directory name is padded to six digits (`step-000500`), its full name is not
/// (`step-500`); both compare as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Step(pub u64);

impl Step {
    /// Gives the directory name, `step-000500`.
    pub fn dir_name(self) -> String {
        format!("step-{:06}", self.0)
    }

    /// Reads exactly a directory name: six digits, or more without a leading zero. Anything else is None.
    pub fn from_dir_name(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("step-")?;
        let canonical = digits.len() == 6 || (digits.len() > 6 && !digits.starts_with('0'));
        (canonical && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok().map(Step))?
    }

    /// Reads `step-500`, `step-000500` or `500`, as people type them.
    pub fn from_spelling(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("step-").unwrap_or(text);
        (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
            .then(|| digits.parse().ok().map(Step))?
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "step-{}", self.0)
    }
}

/// Gives the full name of a checkpoint, `<base_model>:<run_id>:step-<n>`.
pub fn full_name(base_model: &str, run: &str, step: Step) -> String {
    format!("{base_model}:{run}:{step}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_directory_names_are_canonical() {
        assert_eq!(Step(500).dir_name(), "step-000500");
        assert_eq!(Step(1_000_000).dir_name(), "step-1000000");
        for step in [0, 999_999, 1_000_000] {
            assert_eq!(Step::from_dir_name(&Step(step).dir_name()), Some(Step(step)));
        }
        for odd in ["step-500", "step-0000500", "step-000500.tmp", "step-", "step-+00500", "Step-000500"] {
            assert_eq!(Step::from_dir_name(odd), None, "{odd}");
        }
    }

    #[test]
    fn run_names_follow_the_pattern() {
        assert!("notary-1".parse::<RunId>().is_ok());
        assert!("a".repeat(128).parse::<RunId>().is_ok());
        for odd in ["", ".x", "-x", "a/b", "a b", "é", &"a".repeat(129)] {
            assert!(odd.parse::<RunId>().is_err(), "{odd}");
        }
    }
}
