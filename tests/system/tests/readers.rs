//! The Python libraries that people load checkpoints with. `scripts/python-env.sh` makes the environment.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use tinyllm_system_tests::{both_modes, run};

#[test]
fn python_libraries_save_and_load_through_the_mount() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = package.join("../../.venv/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/python-env.sh first", python.display());
    both_modes(|mount| {
        let mut command = Command::new(&python);
        command.arg(package.join("python/readers.py")).arg(mount.path()).env("HF_HUB_OFFLINE", "1");
        command.env("TRANSFORMERS_OFFLINE", "1").env("HF_HOME", mount.join("huggingface"));
        let output = run(&mut command);
        let passed = String::from_utf8(output.stdout).unwrap();
        let wanted = ["safetensors_files", "mappings", "torch_files", "allocation_and_syncs", "pretrained"];
        assert_eq!(passed.lines().collect::<Vec<_>>(), wanted);
    });
}
