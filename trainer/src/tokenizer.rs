//! Turns text into token ids: bytes as they are, or a tokenizer.json.

use std::path::Path;

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer,
    TokenizerBuilder, models::TrainerWrapper,
};

use crate::error::TrainError;

/// The name of the tokenizer inside a checkpoint.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
const BYTE_VALUES: usize = 256;

/// Gives the ids of a text.
#[derive(Debug)]
pub enum TextTokenizer {
    /// A token is a byte.
    Byte,
    File {
        /// Written into every checkpoint as they are.
        json: Vec<u8>,
        tokenizer: Box<Tokenizer>,
    },
}

impl TextTokenizer {
    /// Reads a tokenizer.json; `path` names its origin in errors.
    pub fn from_json(json: Vec<u8>, path: &Path) -> Result<Self, TrainError> {
        let tokenizer = Tokenizer::from_bytes(&json).map_err(|error| failed(path, &error))?;
        Ok(Self::File { json, tokenizer: Box::new(tokenizer) })
    }

    /// Trains a byte-level BPE vocabulary of at most `vocab_size` on `texts`. It needs no unknown token: every
    /// byte is in its alphabet.
    pub fn train(texts: &[&str], vocab_size: usize) -> Result<Self, TrainError> {
        let origin = Path::new(TOKENIZER_FILE);
        let plain = ByteLevel::new(false, false, true);
        let mut tokenizer = TokenizerBuilder::<
            ModelWrapper,
            NormalizerWrapper,
            PreTokenizerWrapper,
            PostProcessorWrapper,
            DecoderWrapper,
        >::new()
        .with_model(BPE::default().into())
        .with_normalizer(None)
        .with_pre_tokenizer(Some(plain.into()))
        .with_post_processor(None)
        .with_decoder(Some(plain.into()))
        .build()
        .map_err(|error| failed(origin, &error))?;
        let bpe = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        // Lines, because words are counted for each sequence and one huge sequence would be counted alone.
        let lines = texts.iter().flat_map(|text| text.split_inclusive('\n'));
        let mut trainer = TrainerWrapper::BpeTrainer(bpe);
        tokenizer.train(&mut trainer, lines).map_err(|error| failed(origin, &error))?;
        let tokenizer = Tokenizer::from(tokenizer);
        let json = tokenizer.to_string(true).map_err(|error| failed(origin, &error))?.into_bytes();
        // Read back, so that the first run uses exactly what a resumed one will.
        Self::from_json(json, origin)
    }

    /// Counts the ids a model needs.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Byte => BYTE_VALUES,
            Self::File { tokenizer, .. } => tokenizer.get_vocab_size(true),
        }
    }

    /// Gives tokenizer.json's bytes, where there is one.
    pub fn json(&self) -> Option<&[u8]> {
        match self {
            Self::Byte => None,
            Self::File { json, .. } => Some(json),
        }
    }

    /// Encodes a file's bytes; `path` names them in errors. A tokenizer file demands UTF-8 and works line by
    /// line, so that a token never spans a line end.
    pub fn encode(&self, bytes: &[u8], path: &Path) -> Result<Vec<u32>, TrainError> {
        let Self::File { tokenizer, .. } = self else {
            return Ok(bytes.iter().map(|byte| u32::from(*byte)).collect());
        };
        let lines: Vec<&str> = text_of(bytes, path)?.split_inclusive('\n').collect();
        let encodings = tokenizer.encode_batch_fast(lines, false).map_err(|error| failed(path, &error))?;
        Ok(encodings.iter().flat_map(|encoding| encoding.get_ids().iter().copied()).collect())
    }
}

/// Gives a training file's text; bytes that are not UTF-8 are an error.
pub fn text_of<'a>(bytes: &'a [u8], path: &Path) -> Result<&'a str, TrainError> {
    std::str::from_utf8(bytes)
        .map_err(|error| TrainError::Tokenizer { path: path.to_owned(), reason: error.to_string() })
}

fn failed(path: &Path, error: &tokenizers::Error) -> TrainError {
    TrainError::Tokenizer { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "the cat sat on the mat\nthe dog sat on the log\n";

    #[test]
    fn a_trained_vocabulary_encodes_and_decodes_any_text() {
        let trained = TextTokenizer::train(&[TEXT], 280).unwrap();
        assert!(trained.vocab_size() > BYTE_VALUES && trained.vocab_size() <= 280);
        let TextTokenizer::File { tokenizer, .. } = &trained else { panic!() };
        for text in [TEXT, "héllo \u{1F600}\n\n  x"] {
            let ids = trained.encode(text.as_bytes(), Path::new("x")).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
        assert!(trained.encode(b"\xff", Path::new("x")).is_err());
    }

    #[test]
    fn training_twice_gives_the_same_file() {
        let json = || TextTokenizer::train(&[TEXT, "more text\n"], 300).unwrap().json().unwrap().to_vec();
        assert_eq!(json(), json());
    }
}
