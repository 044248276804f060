//! A tiny run in a temporary directory, driven through the real binary.
#![allow(dead_code, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

pub struct TinyRun {
    pub dir: tempfile::TempDir,
    spec: Value,
}

impl TinyRun {
    /// Writes a text and a spec for it; `changes` are merged into the spec's top level.
    pub fn new(changes: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("text.txt"), text()).unwrap();
        let mut spec = json!({
            "run_id": "tiny",
            "model": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2},
            "data": {"files": ["text.txt"], "seq_len": 16},
            "optimizer": {"lr": 0.01},
            "batch_size": 4, "steps": 40, "save_every": 5, "keep_ckpts": 2, "threads": 2,
        });
        spec.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let run = Self { dir, spec };
        run.write_spec();
        run
    }

    /// Changes one top-level field of the spec.
    pub fn set(&mut self, key: &str, value: Value) {
        self.spec[key] = value;
        self.write_spec();
    }

    fn write_spec(&self) {
        fs::write(self.dir.path().join("spec.json"), self.spec.to_string()).unwrap();
    }

    pub fn artifacts(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn ckpt_dir(&self, artifacts: &str) -> PathBuf {
        self.artifacts(artifacts).join("runs/tiny/ckpt")
    }

    pub fn step_dir(&self, artifacts: &str, step: u64) -> PathBuf {
        self.ckpt_dir(artifacts).join(format!("step-{step:06}"))
    }

    pub fn command(&self, artifacts: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinyllm-train"));
        command.arg(self.dir.path().join("spec.json"));
        command.arg("--artifacts").arg(self.artifacts(artifacts)).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn spawn(&self, artifacts: &str, arguments: &[&str]) -> Child {
        self.command(artifacts, arguments).spawn().unwrap()
    }

    pub fn train(&self, artifacts: &str, arguments: &[&str]) -> Output {
        self.command(artifacts, arguments).output().unwrap()
    }

    /// Trains to the end and gives what was said.
    pub fn succeed(&self, artifacts: &str, arguments: &[&str]) -> String {
        let output = self.train(artifacts, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    }

    /// Expects a failure and gives what was said.
    pub fn fail(&self, artifacts: &str, arguments: &[&str]) -> String {
        let output = self.train(artifacts, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{said}");
        said
    }

    /// Gives the events of a kind, in order; a last line that was cut short does not count.
    pub fn events(&self, artifacts: &str, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.artifacts(artifacts).join("runs/tiny/progress.jsonl"))
            .unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|event| event["kind"] == kind).collect()
    }
}

/// Some two thousand bytes with structure to learn: few enough that 40 steps go through more than one epoch.
fn text() -> String {
    (0..40).map(|i| format!("verse {} of {}: in the beginning was the word\n", i, i % 7)).collect()
}

/// Asserts that two step directories hold the same weights and optimizer state, byte for byte.
pub fn assert_same_state(one: &Path, other: &Path) {
    for file in ["model.safetensors", "optimizer.safetensors", "config.json", "trainer_state.json"] {
        let (a, b) = (fs::read(one.join(file)).unwrap(), fs::read(other.join(file)).unwrap());
        assert!(a == b, "{file} differs between {} and {}", one.display(), other.display());
    }
}

/// Names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
