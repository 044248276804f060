//! The state a run is in between two steps, built from random weights or from a checkpoint.

use std::path::Path;

use candle_core::DType;
use tinyllm::names::Step;

use crate::adamw::AdamW;
use crate::checkpoint::{self, TrainerState};
use crate::config::{self, ConfigMap, LlamaConfig};
use crate::data::{Source, Texts, Windows};
use crate::error::{TensorContext as _, TrainError};
use crate::model::Llama;
use crate::parameters::Parameters;
use crate::pcg32::Pcg32;
use crate::resume::{self, Verified};
use crate::run_dir::RunDir;
use crate::shuffle::WindowOrder;
use crate::spec::SpecFile;
use crate::tokenizer::{TOKENIZER_FILE, TextTokenizer};

/// Streams of the run's generator: one draws the initial weights, one shuffles.
const INIT_STREAM: u64 = 1;
const SHUFFLE_STREAM: u64 = 2;

/// The whole state of a run between two steps.
pub struct Trainer<'a> {
    pub spec: &'a SpecFile,
    pub run_dir: &'a RunDir,
    pub config_map: ConfigMap,
    pub tokenizer: TextTokenizer,
    pub sources: Vec<Source>,
    pub windows: Windows,
    pub order: WindowOrder,
    pub parameters: Parameters,
    pub model: Llama,
    pub optimizer: AdamW,
    /// Steps done.
    pub step: u64,
    pub tokens_seen: u64,
    pub learning_rate: f64,
    /// Full name of this run's last checkpoint.
    pub parent: Option<String>,
    pub resumed_from: Option<Step>,
    /// Checkpoints this process saved.
    pub saves: usize,
}

/// The spec's model config, completed.
fn model_config(spec: &SpecFile, tokenizer: &TextTokenizer) -> Result<(ConfigMap, LlamaConfig), TrainError> {
    let seq_len = spec.spec.data.seq_len;
    let map = config::complete(&spec.spec.model, tokenizer.vocab_size(), seq_len);
    let config = LlamaConfig::from_map(&map)?;
    if seq_len > config.max_position_embeddings {
        return Err(TrainError::Config("data.seq_len exceeds max_position_embeddings".to_owned()));
    }
    if tokenizer.vocab_size() > config.vocab_size {
        return Err(TrainError::Config(format!(
            "vocab_size {} is less than the tokenizer's {}",
            config.vocab_size,
            tokenizer.vocab_size()
        )));
    }
    Ok((map, config))
}

impl<'a> Trainer<'a> {
    /// Begins at step 0 with random weights.
    pub fn fresh(spec: &'a SpecFile, run_dir: &'a RunDir) -> Result<Self, TrainError> {
        let texts = Texts::read(spec)?;
        let tokenizer = texts.tokenizer(spec)?;
        let (config_map, config) = model_config(spec, &tokenizer)?;
        let windows = texts.encode(&tokenizer, &config, spec.spec.data.seq_len)?;
        let mut generator = Pcg32::new(spec.spec.seed, INIT_STREAM);
        let parameters =
            Parameters::init(&config, &mut generator, DType::F32).doing("drawing initial weights")?;
        Ok(Self {
            order: WindowOrder::start(windows.count(), Pcg32::new(spec.spec.seed, SHUFFLE_STREAM)),
            model: Llama::new(&config, &parameters).doing("building the model")?,
            optimizer: AdamW::new(spec.spec.optimizer.clone(), &parameters).doing("making the optimizer")?,
            spec,
            run_dir,
            config_map,
            tokenizer,
            sources: texts.sources(),
            windows,
            parameters,
            step: 0,
            tokens_seen: 0,
            learning_rate: 0.0,
            parent: None,
            resumed_from: None,
            saves: 0,
        })
    }

    /// Continues from a verified checkpoint; its state is loaded strictly.
    pub fn resume(
        spec: &'a SpecFile,
        run_dir: &'a RunDir,
        from: &Verified,
        accept_changed_spec: bool,
    ) -> Result<Self, TrainError> {
        let dir = &from.dir;
        let state = TrainerState::read(dir)?;
        check_state(&state, from, spec, accept_changed_spec)?;
        let texts = Texts::read(spec)?;
        check_sources(&state, &texts, dir)?;
        // The checkpoint's own tokenizer: one trained anew on the same text need not be the same.
        let tokenizer = match spec.spec.tokenizer {
            None => TextTokenizer::Byte,
            Some(_) => {
                let json = resume::read_file(dir, TOKENIZER_FILE)?;
                TextTokenizer::from_json(json, &dir.join(TOKENIZER_FILE))?
            }
        };
        let (config_map, config) = model_config(spec, &tokenizer)?;
        if checkpoint::read_config(dir)? != config_map {
            let reason = "it differs from the spec's model".to_owned();
            return Err(TrainError::State { path: dir.join(checkpoint::CONFIG_FILE), reason });
        }
        let windows = texts.encode(&tokenizer, &config, spec.spec.data.seq_len)?;
        let parameters = checkpoint::load_parameters(dir, &config)?;
        let adamw = spec.spec.optimizer.clone();
        Ok(Self {
            order: state.window_order(windows.count(), dir)?,
            model: Llama::new(&config, &parameters).doing("building the model")?,
            optimizer: checkpoint::load_optimizer(dir, &config, adamw, &parameters, state.step)?,
            spec,
            run_dir,
            config_map,
            tokenizer,
            sources: texts.sources(),
            windows,
            parameters,
            step: state.step,
            tokens_seen: state.tokens_seen,
            learning_rate: state.learning_rate,
            parent: from.manifest.full_name(),
            resumed_from: Some(from.step),
            saves: 0,
        })
    }
}

fn check_state(
    state: &TrainerState,
    from: &Verified,
    spec: &SpecFile,
    accept_changed_spec: bool,
) -> Result<(), TrainError> {
    if state.step != from.step.0 {
        let reason = format!("it is of step {}, not {}", state.step, from.step.0);
        return Err(TrainError::State { path: from.dir.join(checkpoint::STATE_FILE), reason });
    }
    if state.spec_sha256 != spec.sha256 && !accept_changed_spec {
        return Err(TrainError::SpecChanged { dir: from.dir.clone() });
    }
    Ok(())
}

fn check_sources(state: &TrainerState, texts: &Texts, dir: &Path) -> Result<(), TrainError> {
    let sources = texts.sources();
    let changed = |path: &str| TrainError::SourceChanged { dir: dir.to_owned(), path: path.to_owned() };
    match sources.iter().zip(&state.sources).find(|(now, then)| now != then) {
        Some((now, _)) => Err(changed(&now.path)),
        None if sources.len() != state.sources.len() => Err(changed("data.files")),
        None => Ok(()),
    }
}
