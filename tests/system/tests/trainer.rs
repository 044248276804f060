//! The trainer through the mount: killed, resumed, and read by transformers.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tinyllm_system_tests::checkpoint::assert_complete;
use tinyllm_system_tests::{binary, both_modes, run};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A script of tests/python, run by the Python that scripts/python-env.sh makes, without the network.
fn python(script: &str) -> Command {
    let python = project().join(".venv/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/python-env.sh", python.display());
    let mut command = Command::new(python);
    command.arg(project().join("tests/python").join(script));
    for variable in
        ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "PYTHONDONTWRITEBYTECODE"]
    {
        command.env(variable, "1");
    }
    command
}

const STEPS: u64 = 40;

/// A tiny run: a text, a spec, and where its artifacts go.
struct Training {
    dir: TempDir,
}

impl Training {
    fn new() -> Self {
        let dir = TempDir::with_prefix("tinyllm-test-").unwrap();
        let text: String =
            (0..60).map(|i| format!("verse {i} of {}: and there was light\n", i % 7)).collect();
        fs::write(dir.path().join("text.txt"), text).unwrap();
        let spec = json!({
            "run_id": "tiny",
            "model": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2},
            "data": {"files": ["text.txt"], "seq_len": 32},
            "optimizer": {"lr": 0.01},
            "batch_size": 4, "steps": STEPS, "save_every": 5, "keep_ckpts": 2, "threads": 2,
        });
        fs::write(dir.path().join("spec.json"), spec.to_string()).unwrap();
        Self { dir }
    }

    fn command(&self, artifacts: &Path) -> Command {
        let mut command = Command::new(binary("tinyllm-train"));
        command.arg(self.dir.path().join("spec.json")).arg("--artifacts").arg(artifacts);
        command
    }

    /// Trains without interruption on the disk; gives the last step's directory and how long it took.
    fn whole(&self) -> (PathBuf, Duration) {
        let started = Instant::now();
        let artifacts = self.dir.path().join("whole");
        run(&mut self.command(&artifacts));
        (last_step(&artifacts), started.elapsed())
    }
}

fn ckpt_dir(artifacts: &Path) -> PathBuf {
    artifacts.join("runs/tiny/ckpt")
}

fn last_step(artifacts: &Path) -> PathBuf {
    ckpt_dir(artifacts).join(format!("step-{STEPS:06}"))
}

#[test]
fn transformers_computes_the_trainers_logits() {
    both_modes(|mount| {
        run(&mut Training::new().command(&mount.path()));
        let trainer = binary("tinyllm-train");
        for dir in [last_step(&mount.path()), mount.join("checkpoints/tiny/latest")] {
            run(python("check_logits.py").arg(&trainer).arg(dir));
        }
    });
}

/// Gives moments from 0 to `most`, always the same ones (a linear congruential generator; Knuth's MMIX).
fn moments(most: Duration) -> impl Iterator<Item = Duration> {
    let mut state = 1_u64;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(most.mul_f64((state >> 32) as f64 / f64::from(u32::MAX)))
    })
}

/// Kills the trainer some times, each at a moment of its own, and lets the last one end.
fn train_with_kills(training: &Training, artifacts: &Path, most: Duration, kills: usize) {
    for moment in moments(most).take(kills) {
        let mut trainer = resuming(training, artifacts).stderr(Stdio::null()).spawn().unwrap();
        sleep(moment);
        // It may have ended already.
        let _ = trainer.kill();
        trainer.wait().unwrap();
        for (step, dir) in complete_steps(artifacts) {
            assert_complete(&dir, step);
        }
    }
    run(&mut resuming(training, artifacts));
}

fn resuming(training: &Training, artifacts: &Path) -> Command {
    let mut command = training.command(artifacts);
    if !complete_steps(artifacts).is_empty() {
        command.arg("--resume");
    }
    command
}

fn complete_steps(artifacts: &Path) -> Vec<(u64, PathBuf)> {
    let dir = ckpt_dir(artifacts);
    let steps = if dir.exists() { tinyllm::publish::list_steps(&dir).unwrap() } else { vec![] };
    steps.into_iter().map(|step| (step.0, dir.join(step.dir_name()))).collect()
}

#[track_caller]
fn assert_same_end(one: &Path, other: &Path) {
    for file in ["model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"] {
        let (a, b) = (fs::read(one.join(file)).unwrap(), fs::read(other.join(file)).unwrap());
        assert!(a == b, "{file} differs between {} and {}", one.display(), other.display());
    }
}

#[test]
fn a_killed_trainer_ends_bitwise_as_an_uninterrupted_one() {
    let training = Training::new();
    let (whole, took) = training.whole();
    let on_disk = training.dir.path().join("killed");
    train_with_kills(&training, &on_disk, took / 2, 5);
    assert_same_end(&last_step(&on_disk), &whole);
    both_modes(|mount| {
        train_with_kills(&training, &mount.path(), took / 2, 5);
        assert_same_end(&last_step(&mount.path()), &whole);
        mount.remount();
        assert_same_end(&last_step(&mount.path()), &whole);
    });
}

#[test]
fn a_trainer_outlives_the_mount_that_it_trained_on() {
    let training = Training::new();
    let (whole, took) = training.whole();
    both_modes(|mount| {
        for moment in moments(took / 2).take(3) {
            let mut trainer = resuming(&training, &mount.path()).stderr(Stdio::null()).spawn().unwrap();
            sleep(moment);
            mount.kill();
            // Without its mount it can't save; whether it notices before its end is its own affair.
            trainer.kill().unwrap();
            trainer.wait().unwrap();
            mount.mount();
            for (step, dir) in complete_steps(&mount.path()) {
                assert_complete(&dir, step);
            }
        }
        run(&mut resuming(&training, &mount.path()));
        assert_same_end(&last_step(&mount.path()), &whole);
    });
}
