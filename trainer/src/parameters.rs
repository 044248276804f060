//! The trained parameters by their Hugging Face names.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor, Var};

use crate::config::LlamaConfig;
use crate::pcg32::Pcg32;
use crate::tensors::NamedTensors;

/// Lists every parameter with its shape, in the order of the forward pass. Matrices are [outputs, inputs];
/// a tied output projection is the embedding and has no entry.
pub fn shapes(config: &LlamaConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let kv = config.num_key_value_heads * config.head_size();
    let embedding = vec![config.vocab_size, hidden];
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), embedding.clone())];
    for layer in 0..config.num_hidden_layers {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        };
        add("input_layernorm", &[hidden]);
        add("self_attn.q_proj", &[hidden, hidden]);
        add("self_attn.k_proj", &[kv, hidden]);
        add("self_attn.v_proj", &[kv, hidden]);
        add("self_attn.o_proj", &[hidden, hidden]);
        add("post_attention_layernorm", &[hidden]);
        add("mlp.gate_proj", &[inner, hidden]);
        add("mlp.up_proj", &[inner, hidden]);
        add("mlp.down_proj", &[hidden, inner]);
    }
    shapes.push(("model.norm.weight".to_owned(), vec![hidden]));
    if !config.tie_word_embeddings {
        shapes.push(("lm_head.weight".to_owned(), embedding));
    }
    shapes
}

/// The parameters, by name. The variables share their storage with the model that was built from them.
#[derive(Debug, Clone)]
pub struct Parameters {
    vars: BTreeMap<String, Var>,
}

impl Parameters {
    /// Draws initial values: matrices from normal(0, initializer_range), norm weights 1.
    pub fn init(config: &LlamaConfig, generator: &mut Pcg32, dtype: DType) -> Result<Self> {
        let mut vars = BTreeMap::new();
        for (name, shape) in shapes(config) {
            let tensor = if shape.len() == 1 {
                Tensor::ones(shape, dtype, &Device::Cpu)?
            } else {
                let count = shape.iter().product();
                let mut draw = || (generator.normal() * config.initializer_range) as f32;
                let values: Vec<f32> = (0..count).map(|_| draw()).collect();
                Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?
            };
            vars.insert(name, Var::from_tensor(&tensor)?);
        }
        Ok(Self { vars })
    }

    /// Takes values that were loaded; the caller checked names and shapes.
    pub fn from_tensors(tensors: &NamedTensors) -> Result<Self> {
        let var = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), Var::from_tensor(tensor)?));
        Ok(Self { vars: tensors.iter().map(var).collect::<Result<_>>()? })
    }

    /// Gives the variable of a name that `shapes` lists.
    pub fn get(&self, name: &str) -> Result<&Var> {
        self.vars.get(name).ok_or_else(|| candle_core::Error::Msg(format!("no parameter {name}")))
    }

    /// Walks the parameters in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Var)> {
        self.vars.iter()
    }

    /// Counts trained numbers.
    pub fn element_count(&self) -> usize {
        self.vars.values().map(|var| var.elem_count()).sum()
    }

    /// Gives the current values, sharing storage with the variables.
    pub fn tensors(&self) -> NamedTensors {
        self.vars.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect()
    }
}
