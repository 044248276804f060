//! The training text as windows of token ids.

use std::path::Path;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use tinyllm::digest::Sha256Digest;

use crate::config::LlamaConfig;
use crate::error::{IoContext as _, TensorContext as _, TrainError};
use crate::spec::{SpecFile, TokenizerSpec};
use crate::tokenizer::{TextTokenizer, text_of};

/// Records one training file, as trainer_state.json lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// As the spec spells it.
    pub path: String,
    #[serde(rename = "size")]
    pub size_bytes: u64,
    pub sha256: Sha256Digest,
}

/// The files' bytes, in the spec's order.
#[derive(Debug)]
pub struct Texts {
    files: Vec<(Source, Vec<u8>)>,
}

impl Texts {
    /// Reads and hashes every file.
    pub fn read(spec: &SpecFile) -> Result<Self, TrainError> {
        let read = |relative: &String| {
            let path = spec.resolve(relative);
            let bytes = std::fs::read(&path).context("reading the training file", &path)?;
            let (size_bytes, sha256) = (bytes.len() as u64, Sha256Digest::of(&bytes));
            Ok((Source { path: relative.clone(), size_bytes, sha256 }, bytes))
        };
        Ok(Self { files: spec.spec.data.files.iter().map(read).collect::<Result<_, TrainError>>()? })
    }

    pub fn sources(&self) -> Vec<Source> {
        self.files.iter().map(|(source, _)| source.clone()).collect()
    }

    /// Makes a fresh run's tokenizer, as the spec asks.
    pub fn tokenizer(&self, spec: &SpecFile) -> Result<TextTokenizer, TrainError> {
        match &spec.spec.tokenizer {
            None => Ok(TextTokenizer::Byte),
            Some(TokenizerSpec::Existing { path }) => {
                let path = spec.resolve(path);
                TextTokenizer::from_json(std::fs::read(&path).context("reading the tokenizer", &path)?, &path)
            }
            Some(TokenizerSpec::Train { vocab_size }) => {
                let texts = self.files.iter().map(|(source, bytes)| text_of(bytes, Path::new(&source.path)));
                let texts = texts.collect::<Result<Vec<_>, _>>()?;
                TextTokenizer::train(&texts, *vocab_size)
            }
        }
    }

    /// Encodes the files one after another, each followed by the end-of-sequence token where the model has one.
    pub fn encode(
        &self,
        tokenizer: &TextTokenizer,
        config: &LlamaConfig,
        seq_len: usize,
    ) -> Result<Windows, TrainError> {
        let mut tokens = Vec::new();
        for (source, bytes) in &self.files {
            let path = Path::new(&source.path);
            let ids = tokenizer.encode(bytes, path)?;
            let vocab_size = config.vocab_size;
            if let Some(&token) = ids.iter().find(|id| **id as usize >= vocab_size) {
                return Err(TrainError::TokenOutOfRange { path: path.to_owned(), token, vocab_size });
            }
            tokens.extend(ids);
            tokens.extend(config.eos_token_id);
        }
        Windows::new(tokens, seq_len)
    }
}

/// Token ids cut into windows: window i reads tokens [i * seq_len, (i + 1) * seq_len] and predicts all but its
/// first one.
#[derive(Debug)]
pub struct Windows {
    tokens: Vec<u32>,
    seq_len: usize,
    count: u32,
}

impl Windows {
    /// Cuts `tokens`; the rest that fills no window is not used.
    pub fn new(tokens: Vec<u32>, seq_len: usize) -> Result<Self, TrainError> {
        let count = u32::try_from(tokens.len().saturating_sub(1) / seq_len).unwrap_or(u32::MAX);
        if count == 0 {
            return Err(TrainError::TooLittleData { tokens: tokens.len(), seq_len });
        }
        Ok(Self { tokens, seq_len, count })
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Gathers windows into inputs and targets, both u32 [windows, seq_len].
    pub fn batch(&self, windows: &[u32]) -> Result<(Tensor, Tensor), TrainError> {
        let gather = |shift: usize| {
            let range = |window: &u32| {
                let start = *window as usize * self.seq_len + shift;
                self.tokens[start..start + self.seq_len].iter().copied()
            };
            let ids: Vec<u32> = windows.iter().flat_map(range).collect();
            Tensor::from_vec(ids, (windows.len(), self.seq_len), &Device::Cpu).doing("building a batch")
        };
        Ok((gather(0)?, gather(1)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_tile_the_tokens_and_targets_are_one_ahead() {
        let windows = Windows::new((0..11).collect(), 5).unwrap();
        assert_eq!(windows.count(), 2);
        let (inputs, targets) = windows.batch(&[1, 0]).unwrap();
        assert_eq!(inputs.to_vec2::<u32>().unwrap(), [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]);
        assert_eq!(targets.to_vec2::<u32>().unwrap(), [[6, 7, 8, 9, 10], [1, 2, 3, 4, 5]]);
        assert!(matches!(Windows::new(vec![1, 2], 2), Err(TrainError::TooLittleData { .. })));
    }
}
