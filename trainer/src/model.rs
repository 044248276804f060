//! The Llama forward pass, made of operations that all have a backward pass. candle's fused rms_norm, rope and
//! softmax_last_dim have none and drop the gradient without an error, so they are not used here.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::ops::softmax;

use crate::config::LlamaConfig;
use crate::parameters::Parameters;

/// A decoder whose weights are the variables of a [`Parameters`].
#[derive(Debug)]
pub struct Llama {
    embedding: Var,
    layers: Vec<Layer>,
    norm: Var,
    /// None: tied to the embedding.
    head: Option<Var>,
    rope: Rope,
    rms_norm_eps: f64,
}

#[derive(Debug)]
struct Layer {
    input_norm: Var,
    attention: Attention,
    post_attention_norm: Var,
    gate: Var,
    up: Var,
    down: Var,
}

#[derive(Debug)]
struct Attention {
    query: Var,
    key: Var,
    value: Var,
    output: Var,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
}

/// Rotation tables, [max_position_embeddings, head_size], in Hugging Face's convention: element i turns with
/// element i + head_size / 2.
#[derive(Debug)]
struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Llama {
    /// Builds a model over `parameters`, which follow `parameters::shapes` of the same config.
    pub fn new(config: &LlamaConfig, parameters: &Parameters) -> Result<Self> {
        let get = |name: &str| parameters.get(name).cloned();
        let embedding = get("model.embed_tokens.weight")?;
        let layers = (0..config.num_hidden_layers)
            .map(|layer| {
                let get = |name: &str| get(&format!("model.layers.{layer}.{name}.weight"));
                Ok(Layer {
                    input_norm: get("input_layernorm")?,
                    attention: Attention {
                        query: get("self_attn.q_proj")?,
                        key: get("self_attn.k_proj")?,
                        value: get("self_attn.v_proj")?,
                        output: get("self_attn.o_proj")?,
                        heads: config.num_attention_heads,
                        kv_heads: config.num_key_value_heads,
                        head_size: config.head_size(),
                    },
                    post_attention_norm: get("post_attention_layernorm")?,
                    gate: get("mlp.gate_proj")?,
                    up: get("mlp.up_proj")?,
                    down: get("mlp.down_proj")?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            rope: Rope::new(config, embedding.dtype(), embedding.device())?,
            embedding,
            layers,
            norm: get("model.norm.weight")?,
            head: if config.tie_word_embeddings { None } else { Some(get("lm_head.weight")?) },
            rms_norm_eps: config.rms_norm_eps,
        })
    }

    /// Computes logits, [batch, length, vocab_size], from token ids, u32 [batch, length]. Position i of the
    /// result predicts token i + 1.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let (_, length) = tokens.dims2()?;
        let mask = causal_mask(length, self.embedding.dtype(), tokens.device())?;
        let mut hidden = embed(&self.embedding, tokens)?;
        for layer in &self.layers {
            let normed = rms_norm(&hidden, &layer.input_norm, self.rms_norm_eps)?;
            hidden = (hidden + layer.attention.forward(&normed, &self.rope, &mask)?)?;
            let normed = rms_norm(&hidden, &layer.post_attention_norm, self.rms_norm_eps)?;
            let gated = (linear(&normed, &layer.gate)?.silu()? * linear(&normed, &layer.up)?)?;
            hidden = (hidden + linear(&gated, &layer.down)?)?;
        }
        let normed = rms_norm(&hidden, &self.norm, self.rms_norm_eps)?;
        linear(&normed, self.head.as_ref().unwrap_or(&self.embedding))
    }

    /// Computes the mean cross entropy, in nats a token, of `targets`, u32 [batch, length].
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = self.forward(tokens)?.flatten_to(1)?;
        candle_nn::loss::cross_entropy(&logits, &targets.flatten_all()?)
    }
}

impl Attention {
    /// Computes causal grouped-query attention of `hidden`, [batch, length, hidden_size].
    fn forward(&self, hidden: &Tensor, rope: &Rope, mask: &Tensor) -> Result<Tensor> {
        let (batch, length, hidden_size) = hidden.dims3()?;
        let project = |weight: &Var, heads: usize| {
            let split = (batch, length, heads, self.head_size);
            linear(hidden, weight)?.reshape(split)?.transpose(1, 2)?.contiguous()
        };
        let query = rope.rotate(&project(&self.query, self.heads)?)?;
        let key = self.repeat_kv(rope.rotate(&project(&self.key, self.kv_heads)?)?)?;
        let value = self.repeat_kv(project(&self.value, self.kv_heads)?)?;
        let scale = 1.0 / (self.head_size as f64).sqrt();
        let scores = (query.matmul(&key.t()?.contiguous()?)? * scale)?;
        let weights = softmax(&scores.broadcast_add(mask)?, D::Minus1)?;
        let mixed = weights.matmul(&value)?.transpose(1, 2)?.contiguous()?;
        linear(&mixed.reshape((batch, length, hidden_size))?, &self.output)
    }

    /// Gives every query head a key or value head: kv head j serves the query heads of group j.
    fn repeat_kv(&self, heads: Tensor) -> Result<Tensor> {
        let group = self.heads / self.kv_heads;
        if group == 1 {
            return Ok(heads);
        }
        let (batch, kv_heads, length, head_size) = heads.dims4()?;
        heads
            .unsqueeze(2)?
            .expand((batch, kv_heads, group, length, head_size))?
            .contiguous()?
            .reshape((batch, self.heads, length, head_size))
    }
}

impl Rope {
    fn new(config: &LlamaConfig, dtype: DType, device: &Device) -> Result<Self> {
        let (positions, half) = (config.max_position_embeddings, config.head_size() / 2);
        // Angles in f32, as transformers computes them, so that both models turn by the same amount.
        let frequencies: Vec<f32> = (0..half)
            .map(|i| 1.0 / (config.rope_theta as f32).powf((2 * i) as f32 / config.head_size() as f32))
            .collect();
        let angles: Vec<f32> = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |frequency| position as f32 * frequency))
            .collect();
        let angles = Tensor::from_vec(angles, (positions, half), device)?;
        let angles = Tensor::cat(&[&angles, &angles], 1)?;
        Ok(Self { cos: angles.cos()?.to_dtype(dtype)?, sin: angles.sin()?.to_dtype(dtype)? })
    }

    /// Rotates `heads`, [batch, heads, length, head_size], by their positions.
    fn rotate(&self, heads: &Tensor) -> Result<Tensor> {
        let (_, _, length, head_size) = heads.dims4()?;
        let (cos, sin) = (self.cos.narrow(0, 0, length)?, self.sin.narrow(0, 0, length)?);
        let half = head_size / 2;
        let (first, second) = (heads.narrow(3, 0, half)?, heads.narrow(3, half, half)?);
        let turned = Tensor::cat(&[&second.neg()?, &first], 3)?;
        heads.broadcast_mul(&cos)? + turned.broadcast_mul(&sin)?
    }
}

fn embed(embedding: &Var, tokens: &Tensor) -> Result<Tensor> {
    let (batch, length) = tokens.dims2()?;
    let rows = embedding.embedding(&tokens.flatten_all()?)?;
    rows.reshape((batch, length, embedding.dim(1)?))
}

/// Multiplies [..., inputs] by a weight of [outputs, inputs].
fn linear(input: &Tensor, weight: &Var) -> Result<Tensor> {
    let (batch, length, inputs) = input.dims3()?;
    let flat = input.reshape((batch * length, inputs))?;
    flat.matmul(&weight.t()?)?.reshape((batch, length, weight.dim(0)?))
}

fn rms_norm(input: &Tensor, weight: &Var, eps: f64) -> Result<Tensor> {
    let mean_square = input.sqr()?.mean_keepdim(D::Minus1)?;
    input.broadcast_div(&(mean_square + eps)?.sqrt()?)?.broadcast_mul(weight)
}

/// Builds [length, length]: 0 where a position may look, minus infinity at later ones.
fn causal_mask(length: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let mask: Vec<f32> = (0..length)
        .flat_map(|row| (0..length).map(move |column| if column > row { f32::NEG_INFINITY } else { 0.0 }))
        .collect();
    Tensor::from_vec(mask, (length, length), device)?.to_dtype(dtype)
}
