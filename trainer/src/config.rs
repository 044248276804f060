//! The model config: Hugging Face's Llama fields, completed with defaults and checked.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::TrainError;

/// A config.json's key-value pairs.
pub type ConfigMap = Map<String, Value>;

/// Where token ids come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// A token is a byte; there is no tokenizer file.
    #[default]
    Byte,
    /// tokenizer.json lies beside config.json.
    File,
}

/// The fields the forward pass and the data need. Everything else in config.json is for other readers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LlamaConfig {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub tie_word_embeddings: bool,
    pub initializer_range: f64,
    pub eos_token_id: Option<u32>,
    #[serde(default)]
    pub tl_tokenizer: TokenizerKind,
}

impl LlamaConfig {
    /// Reads a completed config and checks what its fields demand of each other.
    pub fn from_map(map: &ConfigMap) -> Result<Self, TrainError> {
        let config: Self = serde_json::from_value(Value::Object(map.clone()))
            .map_err(|error| TrainError::Config(error.to_string()))?;
        let demand = |holds: bool, rule: &str| {
            if holds { Ok(()) } else { Err(TrainError::Config(rule.to_owned())) }
        };
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        demand(
            config.hidden_size.is_multiple_of(heads),
            "hidden_size is no multiple of num_attention_heads",
        )?;
        demand(heads.is_multiple_of(kv_heads), "num_attention_heads is no multiple of num_key_value_heads")?;
        let head_size = config.head_size();
        demand(head_size.is_multiple_of(2), "rotary embeddings need an even head size")?;
        demand(
            config.head_dim.is_none_or(|given| given == head_size),
            "head_dim differs from hidden_size / num_attention_heads",
        )?;
        let eos_fits = config.eos_token_id.is_none_or(|id| (id as usize) < config.vocab_size);
        demand(eos_fits, "eos_token_id is not below vocab_size")?;
        Ok(config)
    }

    /// Gives the size of one attention head.
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }
}

/// Adds every key that `model` leaves out, so that no reader falls back to defaults of its own.
pub fn complete(model: &ConfigMap, vocab_size: usize, seq_len: usize) -> ConfigMap {
    let number = |key: &str, default: u64| model.get(key).and_then(Value::as_u64).unwrap_or(default);
    let hidden_size = number("hidden_size", 128);
    let heads = number("num_attention_heads", 4);
    let Value::Object(mut config) = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": (hidden_size * 8).div_ceil(3).next_multiple_of(32),
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": seq_len.max(256),
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "tie_word_embeddings": true,
        "hidden_act": "silu",
        "attention_bias": false,
        "attention_dropout": 0.0,
        "mlp_bias": false,
        "initializer_range": 0.02,
        "use_cache": true,
        "torch_dtype": "float32",
        "bos_token_id": null,
        "eos_token_id": null,
        "pad_token_id": null,
        "tl_tokenizer": "byte",
    }) else {
        unreachable!("the literal is an object")
    };
    config.extend(model.clone());
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> ConfigMap {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn given_keys_stay_and_missing_ones_are_added() {
        let given = map(json!({"hidden_size": 64, "bos_token_id": 1, "num_attention_heads": 2}));
        let config = complete(&given, 256, 512);
        assert!(given.iter().all(|(key, value)| config[key] == *value));
        assert_eq!(config["intermediate_size"], 192);
        assert_eq!(config["num_key_value_heads"], 2);
        assert_eq!(config["max_position_embeddings"], 512);
        LlamaConfig::from_map(&config).unwrap();
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused() {
        for odd in [
            json!({"hidden_size": 65}),
            json!({"num_key_value_heads": 3}),
            json!({"hidden_size": 12, "num_attention_heads": 4}),
            json!({"head_dim": 64}),
            json!({"eos_token_id": 256}),
        ] {
            let config = complete(&map(odd.clone()), 256, 128);
            assert!(matches!(LlamaConfig::from_map(&config), Err(TrainError::Config(_))), "{odd}");
        }
    }
}
