//! What the whole-system tests share: stores in temporary directories, and checkpoints to put into them.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;
use tinyllm::import::{ImportOptions, Imported};
use tinyllm::names::Step;
use tinyllm::progress::unwatched;
use tinyllm::publish::{CheckpointWriter, Lineage};
use tinyllm::store::Store;

/// A store and a scratch directory, both gone when it is dropped.
pub struct Bench {
    pub dir: TempDir,
    pub store: Store,
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(&dir.path().join("store"), 1000, 1000).unwrap();
        Self { dir, store }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a checkpoint outside the store and imports it.
    pub fn add(&self, run: &str, step: u64, model: &Model) -> Imported {
        let source = model.save(&self.path("sources").join(run), run, step);
        self.import(&source, &format!("{run}/step-{step}"))
    }

    pub fn import(&self, source: &Path, name: &str) -> Imported {
        self.try_import(source, name).unwrap()
    }

    pub fn try_import(&self, source: &Path, name: &str) -> tinyllm::error::Result<Imported> {
        let options = ImportOptions { base_model: None, uid: 1000, gid: 1000 };
        let (imported, aftermath) = self.store.import(source, name, &options, &unwatched)?;
        for ino in aftermath.orphans {
            self.store.reclaim(ino).unwrap();
        }
        self.store.wait_for_removals();
        Ok(imported)
    }
}

/// Bytes that no compression and no chance makes equal to others; the same seed gives the same.
pub fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// Weights and optimizer state to be saved: tensors of f32.
#[derive(Clone)]
pub struct Model {
    pub tensors: BTreeMap<String, Vec<u8>>,
    pub optimizer: BTreeMap<String, Vec<u8>>,
}

impl Model {
    /// Makes `count` tensors of `tensor_bytes` each, and an optimizer of half as many bytes.
    pub fn new(seed: u64, count: usize, tensor_bytes: usize) -> Self {
        let tensors = |prefix: &str, seed: u64, len_bytes: usize| {
            (0..count).map(|at| (format!("{prefix}.{at}"), noise(seed + at as u64, len_bytes))).collect()
        };
        Self {
            tensors: tensors("layer", seed * 1000, tensor_bytes),
            optimizer: tensors("moment", seed * 1000 + 500, tensor_bytes / 2),
        }
    }

    /// Ten tensors of 512 KiB, 7.5 MiB in all.
    pub fn small(seed: u64) -> Self {
        Self::new(seed, 10, 512 << 10)
    }

    pub fn change(&mut self, tensor: &str, seed: u64) {
        let old = self.tensors.get_mut(tensor).unwrap();
        *old = noise(seed, old.len());
    }

    pub fn weights(&self) -> Vec<u8> {
        to_safetensors(&self.tensors)
    }

    /// Saves it as a tinyllm checkpoint below `ckpt_dir`, by the six steps.
    pub fn save(&self, ckpt_dir: &Path, run: &str, step: u64) -> PathBuf {
        let mut writer = CheckpointWriter::create(ckpt_dir, Step(step)).unwrap();
        let files = [
            ("config.json", b"{\"model_type\": \"llama\"}\n".to_vec()),
            ("trainer_state.json", format!("{{\"step\": {step}}}\n").into_bytes()),
            ("model.safetensors", self.weights()),
            ("optimizer.safetensors", to_safetensors(&self.optimizer)),
        ];
        for (name, bytes) in files {
            writer.write_file(name, |out| out.write_all(&bytes)).unwrap();
        }
        let lineage = Lineage { run_id: run.parse().unwrap(), base_model: Some("base".into()), parent: None };
        writer.finish(lineage).unwrap().dir
    }
}

fn to_safetensors(tensors: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, bytes)| (name, TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// Reads a directory: every file's bytes by its relative path.
pub fn read_tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    collect(dir, "", &mut files);
    files
}

fn collect(dir: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read(entry.path()).unwrap());
        }
    }
}

/// Lists every pack file of a store.
pub fn packs(store: &Store) -> Vec<PathBuf> {
    let dirs = fs::read_dir(store.layout().packs()).unwrap();
    let mut packs: Vec<PathBuf> = dirs
        .flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pack"))
        .collect();
    packs.sort();
    packs
}

/// Turns one bit of a file.
pub fn flip(path: &Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0u8];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}
