//! Checkpoints to be saved: tensors of random bytes, which nothing can deduplicate or compress.

use std::collections::BTreeMap;

use anyhow::Context as _;
use safetensors::tensor::{Dtype, TensorView, serialize};

/// What a layer's matrix of a small model takes.
const TENSOR_BYTES: usize = 8 << 20;

/// The two large files of a checkpoint.
#[derive(Debug)]
pub struct Model {
    tensors: Vec<Vec<u8>>,
    random: Random,
}

impl Model {
    /// Makes a model that takes about `mib` MiB.
    pub fn new(mib: u64, seed: u64) -> Self {
        let count = usize::try_from((mib << 20) / TENSOR_BYTES as u64).unwrap_or(usize::MAX).max(3);
        let mut random = Random(seed | 1);
        let tensors = (0..count).map(|_| random.bytes(TENSOR_BYTES)).collect();
        Self { tensors, random }
    }

    /// Replaces every tensor.
    pub fn renew(&mut self) {
        self.change(1);
    }

    /// Replaces one tensor in `every`.
    pub fn change(&mut self, every: usize) {
        for tensor in self.tensors.iter_mut().step_by(every) {
            self.random.fill(tensor);
        }
    }

    /// Lays the files out as a trainer would: a third of the bytes are parameters, the rest moments.
    pub fn files(&self) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
        let (parameters, moments) = self.tensors.split_at(self.tensors.len() / 3);
        let config = br#"{"model_type": "llama", "hidden_size": 1024}"#.to_vec();
        Ok(vec![
            ("config.json", config),
            ("trainer_state.json", vec![b' '; 900]),
            ("model.safetensors", safetensors_file(parameters)?),
            ("optimizer.safetensors", safetensors_file(moments)?),
        ])
    }
}

fn safetensors_file(tensors: &[Vec<u8>]) -> anyhow::Result<Vec<u8>> {
    let mut views = BTreeMap::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let shape = vec![tensor.len() / 4];
        views.insert(format!("layers.{index:04}.weight"), TensorView::new(Dtype::F32, shape, tensor)?);
    }
    serialize(views, None).context("laying out a safetensors file")
}

/// xorshift64* (Vigna, 2016).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&self.next().to_le_bytes()));
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}
