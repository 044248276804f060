//! Compares every parameter's gradient with finite differences.
#![allow(clippy::unwrap_used)]

use candle_core::{DType, Device, Tensor, Var};
use serde_json::json;
use tinyllm_trainer::config::{LlamaConfig, complete};
use tinyllm_trainer::model::Llama;
use tinyllm_trainer::parameters::Parameters;
use tinyllm_trainer::pcg32::Pcg32;

/// In f64, central differences of this width err by about 1e-8 at worst here.
const WIDTH: f64 = 1e-5;

fn check(tied: bool) {
    let given = json!({"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "tie_word_embeddings": tied, "initializer_range": 0.5});
    let config = LlamaConfig::from_map(&complete(given.as_object().unwrap(), 11, 8)).unwrap();
    let parameters = Parameters::init(&config, &mut Pcg32::new(1, 1), DType::F64).unwrap();
    let model = Llama::new(&config, &parameters).unwrap();
    let ids = |ids: [u32; 10]| Tensor::from_slice(&ids, (2, 5), &Device::Cpu).unwrap();
    let (inputs, targets) = (ids([1, 4, 9, 0, 3, 7, 7, 2, 10, 5]), ids([4, 9, 0, 3, 8, 7, 2, 10, 5, 6]));
    let loss = || model.loss(&inputs, &targets).unwrap();
    let gradients = loss().backward().unwrap();
    for (name, var) in parameters.iter() {
        let gradient = gradients.get(var).unwrap_or_else(|| panic!("{name} has no gradient"));
        let gradient = gradient.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let measured = differences(var, || loss().to_scalar().unwrap());
        for (at, (given, measured)) in gradient.iter().zip(&measured).enumerate() {
            assert!((given - measured).abs() < 1e-6, "{name}[{at}]: {given}, by differences {measured}");
        }
    }
}

/// Moves one element at a time both ways and measures the slope of the loss.
fn differences(var: &Var, loss: impl Fn() -> f64) -> Vec<f64> {
    let values = var.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    let loss_at = |at: usize, shift: f64| {
        let mut moved = values.clone();
        moved[at] += shift;
        var.set(&Tensor::from_vec(moved, var.shape(), &Device::Cpu).unwrap()).unwrap();
        loss()
    };
    let slopes = (0..values.len()).map(|at| (loss_at(at, WIDTH) - loss_at(at, -WIDTH)) / (2.0 * WIDTH));
    let slopes = slopes.collect();
    var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap()).unwrap();
    slopes
}

#[test]
fn every_gradient_of_a_tied_model_agrees() {
    check(true);
}

#[test]
fn every_gradient_of_an_untied_model_agrees() {
    check(false);
}
