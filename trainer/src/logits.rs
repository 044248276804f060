//! Computes a checkpoint's logits for given tokens, so that other implementations can be compared with it.

use std::path::Path;

use candle_core::{Device, Tensor};

use crate::checkpoint::{load_parameters, read_config};
use crate::config::LlamaConfig;
use crate::error::{TensorContext as _, TrainError};
use crate::model::Llama;

/// Gives the logits of every position, [tokens, vocab_size].
pub fn logits(dir: &Path, tokens: &[u32]) -> Result<Vec<Vec<f32>>, TrainError> {
    let config = LlamaConfig::from_map(&read_config(dir)?)?;
    let longest = config.max_position_embeddings;
    if tokens.is_empty() || tokens.len() > longest {
        return Err(TrainError::Config(format!("the model reads 1 to {longest} tokens")));
    }
    let vocab_size = config.vocab_size;
    if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocab_size) {
        return Err(TrainError::TokenOutOfRange { path: dir.to_owned(), token, vocab_size });
    }
    let parameters = load_parameters(dir, &config)?;
    let compute = || {
        let model = Llama::new(&config, &parameters)?;
        let input = Tensor::from_slice(tokens, (1, tokens.len()), &Device::Cpu)?;
        model.forward(&input)?.squeeze(0)?.to_vec2()
    };
    compute().doing("computing logits")
}
