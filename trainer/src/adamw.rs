//! AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) with its state by name.

use std::collections::BTreeMap;

use candle_core::{DType, Result, Tensor};
use serde::Deserialize;

use crate::parameters::Parameters;
use crate::tensors::NamedTensors;

/// Gradients by parameter name.
pub type Gradients = BTreeMap<String, Tensor>;

/// The optimizer's settings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct AdamWSpec {
    /// The peak learning rate.
    pub lr: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    /// Decoupled; of matrices only.
    pub weight_decay: f64,
    /// Largest global L2 norm; 0 turns clipping off.
    pub grad_clip: f64,
}

impl Default for AdamWSpec {
    fn default() -> Self {
        Self { lr: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, grad_clip: 1.0 }
    }
}

/// The running averages of one parameter's gradient and of its square.
#[derive(Debug, Clone)]
struct Moments {
    average: Tensor,
    average_square: Tensor,
}

/// The optimizer of one run.
#[derive(Debug)]
pub struct AdamW {
    spec: AdamWSpec,
    moments: BTreeMap<String, Moments>,
}

const AVERAGE: &str = "exp_avg";
const AVERAGE_SQUARE: &str = "exp_avg_sq";

impl AdamW {
    /// Starts with zero moments.
    pub fn new(spec: AdamWSpec, parameters: &Parameters) -> Result<Self> {
        let zeros = |(name, var): (&String, &candle_core::Var)| {
            let zero = var.as_detached_tensor().zeros_like()?;
            Ok((name.clone(), Moments { average: zero.clone(), average_square: zero }))
        };
        Ok(Self { spec, moments: parameters.iter().map(zeros).collect::<Result<_>>()? })
    }

    /// Gives the state's tensors, `<name>.exp_avg` and `<name>.exp_avg_sq` for each parameter.
    pub fn state(&self) -> NamedTensors {
        let pair = |(name, moments): (&String, &Moments)| {
            let Moments { average, average_square } = moments.clone();
            [(format!("{name}.{AVERAGE}"), average), (format!("{name}.{AVERAGE_SQUARE}"), average_square)]
        };
        self.moments.iter().flat_map(pair).collect()
    }

    /// Gives the names and shapes that `state` has for parameters of these shapes.
    pub fn state_shapes(parameters: &[(String, Vec<usize>)]) -> BTreeMap<String, Vec<usize>> {
        let pair = |(name, shape): &(String, Vec<usize>)| {
            [AVERAGE, AVERAGE_SQUARE].map(|moment| (format!("{name}.{moment}"), shape.clone()))
        };
        parameters.iter().flat_map(pair).collect()
    }

    /// Continues from `state`, whose names and shapes the caller checked.
    pub fn from_state(spec: AdamWSpec, parameters: &Parameters, state: &NamedTensors) -> Result<Self> {
        let take = |name: &str, moment: &str| {
            let key = format!("{name}.{moment}");
            state.get(&key).cloned().ok_or_else(|| candle_core::Error::Msg(format!("no {key}")))
        };
        let moments = parameters
            .iter()
            .map(|(name, _)| {
                let (average, average_square) = (take(name, AVERAGE)?, take(name, AVERAGE_SQUARE)?);
                Ok((name.clone(), Moments { average, average_square }))
            })
            .collect::<Result<_>>()?;
        Ok(Self { spec, moments })
    }

    /// Does step `step` (the first is 1): clips `gradients` to the global norm, updates moments and parameters,
    /// and returns the norm before clipping. Every parameter has a gradient.
    pub fn update(
        &mut self,
        parameters: &Parameters,
        gradients: &Gradients,
        learning_rate: f64,
        step: u64,
    ) -> Result<f64> {
        let norm = global_norm(gradients)?;
        let clip = self.spec.grad_clip;
        let shrink = if clip > 0.0 && norm > clip { clip / norm } else { 1.0 };
        let [beta1, beta2] = self.spec.betas;
        let correction1 = 1.0 - beta1.powf(step as f64);
        let correction2 = 1.0 - beta2.powf(step as f64);
        for (name, moments) in &mut self.moments {
            let gradient = (&gradients[name] * shrink)?;
            moments.average = ((&moments.average * beta1)? + (&gradient * (1.0 - beta1))?)?;
            moments.average_square =
                ((&moments.average_square * beta2)? + (gradient.sqr()? * (1.0 - beta2))?)?;
            let var = parameters.get(name)?;
            let decay = if var.rank() >= 2 { learning_rate * self.spec.weight_decay } else { 0.0 };
            let denominator = ((moments.average_square.sqrt()? / correction2.sqrt())? + self.spec.eps)?;
            let change = ((&moments.average / &denominator)? * (learning_rate / correction1))?;
            var.set(&((var.as_detached_tensor() * (1.0 - decay))? - change)?)?;
        }
        Ok(norm)
    }
}

/// Computes the L2 norm over all gradients, summed in the order of names so that it is always the same bits.
fn global_norm(gradients: &Gradients) -> Result<f64> {
    let mut sum = 0.0;
    for gradient in gradients.values() {
        sum += gradient.sqr()?.sum_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    }
    Ok(sum.sqrt())
}
