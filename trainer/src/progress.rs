//! progress.jsonl: what happened, one JSON object a line.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use tinyllm::manifest::rfc3339_utc;

use crate::error::{IoContext as _, TrainError};

/// One thing that happened; schemas/progress-event.schema.json describes the fields.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Event {
    Start { run_id: String, step: u64, steps: u64, parameters: u64, tokens: u64, windows: u64, threads: u64 },
    Resume { step: u64, path: String },
    Skip { path: String, reason: String },
    Step { step: u64, loss: f32, learning_rate: f64, grad_norm: f64, tokens_seen: u64, step_ms: u64 },
    Ckpt { step: u64, path: String, bytes: u64, write_ms: u64 },
    Prune { steps: Vec<u64> },
    End { step: u64, reason: EndReason, loss: Option<f32> },
}

/// Says why a run ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndReason {
    Done,
    Signal,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    event: &'a Event,
}

/// The open progress file of a run.
#[derive(Debug)]
pub struct ProgressFile {
    path: PathBuf,
    file: File,
}

impl ProgressFile {
    /// Starts an empty file.
    pub fn create(path: &Path) -> Result<Self, TrainError> {
        let file = File::create(path).context("creating", path)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Opens a file to append to. A last line that a crash cut short is dropped, so every line stays JSON.
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .context("opening", path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).context("reading", path)?;
        let whole_bytes = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
        file.set_len(whole_bytes).context("truncating", path)?;
        file.seek(SeekFrom::End(0)).context("seeking in", path)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends one event in one write, so that readers see whole lines.
    pub fn append(&mut self, event: &Event) -> Result<(), TrainError> {
        let line = Line { time: rfc3339_utc(SystemTime::now()), event };
        let mut bytes = serde_json::to_vec(&line)
            .map_err(|source| TrainError::Json { path: self.path.clone(), source })?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).context("appending to", &self.path)
    }
}

/// Writes events down, then tells the observer.
pub struct Journal<'a> {
    pub file: ProgressFile,
    pub observer: &'a mut dyn FnMut(&Event),
}

impl Journal<'_> {
    /// Appends `event`, then lets the observer hear of it.
    pub fn tell(&mut self, event: &Event) -> Result<(), TrainError> {
        self.file.append(event)?;
        (self.observer)(event);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tinyllm::schema::{Schema, validate};

    use super::*;

    fn every_kind() -> Vec<Event> {
        let (run_id, path) = ("r".to_owned(), "runs/r/ckpt/step-000001".to_owned());
        vec![
            Event::Start { run_id, step: 0, steps: 2, parameters: 3, tokens: 4, windows: 5, threads: 1 },
            Event::Resume { step: 1, path: path.clone() },
            Event::Skip { path: path.clone(), reason: "x".to_owned() },
            Event::Step {
                step: 1,
                loss: 2.5,
                learning_rate: 1e-3,
                grad_norm: 1.0,
                tokens_seen: 8,
                step_ms: 3,
            },
            Event::Ckpt { step: 1, path, bytes: 10, write_ms: 1 },
            Event::Prune { steps: vec![1] },
            Event::End { step: 2, reason: EndReason::Signal, loss: None },
        ]
    }

    #[test]
    fn every_event_satisfies_the_schema_and_a_torn_line_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress.jsonl");
        let mut file = ProgressFile::create(&path).unwrap();
        every_kind().iter().for_each(|event| file.append(event).unwrap());
        file.file.write_all(b"{\"kind\":").unwrap();
        ProgressFile::open(&path).unwrap().append(&Event::Prune { steps: vec![2] }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), every_kind().len() + 1);
        for line in text.lines() {
            let value = serde_json::from_str(line).unwrap();
            assert_eq!(validate(Schema::ProgressEvent, &value), Ok(()), "{line}");
        }
    }
}
