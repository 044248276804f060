//! Checkpoints with known content: small, yet with every way a seal can place bytes.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use tinyllm::digest::Sha256Digest;
use tinyllm::manifest::{Manifest, rfc3339_utc};
use tinyllm::names::Step;
use tinyllm::publish::{CheckpointWriter, Lineage, PublishError, Published};

/// One file: its name and its bytes.
pub type Named = (String, Vec<u8>);

/// Gives bytes that do not repeat, the same for the same seed (xorshift64*; Vigna 2016).
pub fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// Makes a safetensors file of F32 tensors: name and content each.
pub fn safetensors(tensors: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, bytes) in tensors {
        let end = data.len() + bytes.len();
        let about = json!({"dtype": "F32", "shape": [bytes.len() / 4], "data_offsets": [data.len(), end]});
        header.insert((*name).to_owned(), about);
        data.extend_from_slice(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// Gives the files of a step, about 300 KiB. From step to step most of the model changes (it is adopted, with a
/// hole where the frozen tensor was), little of the optimizer (its new tensor is copied out), all of the
/// sampler's state (adopted whole), and nothing of the config.
pub fn files_of(step: u64) -> Vec<Named> {
    let tensor = |seed: u64, kib: usize| noise(seed, kib << 10);
    let model = safetensors(&[
        ("frozen", tensor(1, 24)),
        ("a", tensor(step * 16 + 2, 48)),
        ("b", tensor(step * 16 + 3, 24)),
    ]);
    let optimizer = safetensors(&[
        ("a.exp_avg", tensor(4, 32)),
        ("a.exp_avg_sq", tensor(5, 32)),
        ("b.exp_avg", tensor(step * 16 + 6, 8)),
    ]);
    let config = json!({"model_type": "llama", "hidden_size": 64}).to_string();
    let state = json!({"step": step}).to_string();
    vec![
        ("config.json".to_owned(), config.into_bytes()),
        ("model.safetensors".to_owned(), model),
        ("optimizer.safetensors".to_owned(), optimizer),
        ("rng_state.bin".to_owned(), noise(step * 16 + 7, 70 << 10)),
        ("trainer_state.json".to_owned(), state.into_bytes()),
    ]
}

/// Writes a step's files into its `.tmp` directory, as a trainer does, up to the manifest.
pub fn prepare(ckpt_dir: &Path, step: u64, files: &[Named]) -> Result<CheckpointWriter, PublishError> {
    let mut writer = CheckpointWriter::create(ckpt_dir, Step(step))?;
    for (name, bytes) in files {
        writer.write_file(name, |out| out.write_all(bytes))?;
    }
    Ok(writer)
}

pub fn lineage(run: &str) -> Lineage {
    Lineage { run_id: run.parse().unwrap(), base_model: None, parent: None }
}

/// Saves a step with the six-step protocol.
pub fn save(ckpt_dir: &Path, run: &str, step: u64) -> Published {
    save_files(ckpt_dir, run, step, &files_of(step))
}

pub fn save_files(ckpt_dir: &Path, run: &str, step: u64, files: &[Named]) -> Published {
    prepare(ckpt_dir, step, files).and_then(|writer| writer.finish(lineage(run))).unwrap()
}

/// Gives the manifest of a step as JSON, for tests that bend it.
pub fn manifest_of(run: &str, step: u64, files: &[Named]) -> Value {
    json!({
        "schema_version": 1,
        "kind": "checkpoint",
        "run_id": run,
        "step": step,
        "parent": null,
        "created_at": rfc3339_utc(std::time::UNIX_EPOCH),
        "files": file_entries(files),
    })
}

/// Lists files as manifests do.
pub fn file_entries(files: &[Named]) -> Value {
    let entry = |(name, bytes): &Named| json!({"path": name, "size": bytes.len(), "sha256": Sha256Digest::of(bytes).to_string()});
    files.iter().map(entry).collect()
}

/// Writes files into a new directory with ordinary calls, each synced.
pub fn write_dir(dir: &Path, files: &[Named]) {
    fs::create_dir_all(dir).unwrap();
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::create_new(&path).unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
    }
}

/// Fails unless the directory is a complete checkpoint of this step.
#[track_caller]
pub fn assert_complete(dir: &Path, step: u64) {
    let manifest = Manifest::read(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    manifest.check_dir(dir).unwrap_or_else(|error| panic!("{error}"));
    let name = manifest.full_name().unwrap();
    assert!(name.ends_with(&format!(":step-{step}")), "{}: {name}", dir.display());
}
