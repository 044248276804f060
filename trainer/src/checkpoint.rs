//! What a checkpoint holds: writing it from a trainer's state, and loading it strictly.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::DType;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tinyllm::digest::Sha256Digest;
use tinyllm::names::Step;
use tinyllm::publish::{CheckpointWriter, Lineage, Published};
use tinyllm::schema::Schema;

use crate::adamw::{AdamW, AdamWSpec};
use crate::config::{ConfigMap, LlamaConfig};
use crate::data::Source;
use crate::error::{TensorContext as _, TrainError};
use crate::parameters::{Parameters, shapes};
use crate::pcg32::Pcg32;
use crate::shuffle::{Cursor, WindowOrder};
use crate::spec::check_schema;
use crate::tensors::{self, metadata, read_json};
use crate::tokenizer::TOKENIZER_FILE;

pub const CONFIG_FILE: &str = "config.json";
pub const MODEL_FILE: &str = "model.safetensors";
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
pub const STATE_FILE: &str = "trainer_state.json";
pub const GENERATION_FILE: &str = "generation_config.json";

/// trainer_state.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    schema_version: u64,
    pub step: u64,
    pub tokens_seen: u64,
    data_cursor: CursorRecord,
    generator: GeneratorRecord,
    pub learning_rate: f64,
    pub spec_sha256: Sha256Digest,
    git_sha: Option<String>,
    pub sources: Vec<Source>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CursorRecord {
    epoch: u64,
    window_index: u64,
}

/// The words are decimal strings: as JSON numbers, many readers would round them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct GeneratorRecord {
    algorithm: String,
    state: String,
    increment: String,
}

/// What a state is made from.
#[derive(Debug)]
pub struct StateFields<'a> {
    pub step: u64,
    pub tokens_seen: u64,
    pub order: &'a WindowOrder,
    pub learning_rate: f64,
    pub spec_sha256: Sha256Digest,
    pub sources: &'a [Source],
}

impl TrainerState {
    pub fn new(fields: StateFields) -> Self {
        let Cursor { epoch, window_index } = fields.order.cursor();
        let (state, increment) = fields.order.generator_before_shuffle().words();
        Self {
            schema_version: 1,
            step: fields.step,
            tokens_seen: fields.tokens_seen,
            data_cursor: CursorRecord { epoch, window_index },
            generator: GeneratorRecord {
                algorithm: "pcg32".to_owned(),
                state: state.to_string(),
                increment: increment.to_string(),
            },
            learning_rate: fields.learning_rate,
            spec_sha256: fields.spec_sha256,
            git_sha: option_env!("TINYLLM_GIT_SHA").map(str::to_owned),
            sources: fields.sources.to_vec(),
        }
    }

    /// Reads and checks a checkpoint's trainer_state.json.
    pub fn read(dir: &Path) -> Result<Self, TrainError> {
        let path = dir.join(STATE_FILE);
        let value = read_json(&path)?;
        check_schema(Schema::TrainerState, &value, &path)?;
        serde_json::from_value(value).map_err(|source| TrainError::Json { path, source })
    }

    /// Continues the walk over `windows` windows where the state stopped.
    pub fn window_order(&self, windows: u32, dir: &Path) -> Result<WindowOrder, TrainError> {
        let word = |text: &str| text.parse::<u64>().ok();
        let generator = word(&self.generator.state)
            .zip(word(&self.generator.increment))
            .and_then(|(state, increment)| Pcg32::from_words(state, increment));
        let CursorRecord { epoch, window_index } = self.data_cursor;
        generator
            .and_then(|generator| WindowOrder::resume(windows, generator, Cursor { epoch, window_index }))
            .ok_or_else(|| TrainError::State {
                path: dir.join(STATE_FILE),
                reason: format!("its cursor and generator fit no walk over {windows} windows"),
            })
    }
}

/// Everything a checkpoint is written from.
#[derive(Debug)]
pub struct Contents<'a> {
    pub config: &'a ConfigMap,
    pub generation_config: Option<&'a ConfigMap>,
    pub tokenizer_json: Option<&'a [u8]>,
    pub state: &'a TrainerState,
    pub parameters: &'a Parameters,
    pub optimizer: &'a AdamW,
}

/// Writes a checkpoint and moves LATEST to it. Small files go first: where the filesystem hashes, that spares
/// the large ones a second hash.
pub fn save(ckpt_dir: &Path, contents: &Contents, lineage: Lineage) -> Result<Published, TrainError> {
    let mut writer = CheckpointWriter::create(ckpt_dir, Step(contents.state.step))?;
    write_json(&mut writer, CONFIG_FILE, contents.config)?;
    if let Some(generation_config) = contents.generation_config {
        write_json(&mut writer, GENERATION_FILE, generation_config)?;
    }
    if let Some(json) = contents.tokenizer_json {
        writer.write_file(TOKENIZER_FILE, |output| output.write_all(json))?;
    }
    write_json(&mut writer, STATE_FILE, contents.state)?;
    let parameters = contents.parameters.tensors();
    writer.write_file(MODEL_FILE, |output| tensors::write(&parameters, &model_metadata(), output))?;
    let moments = contents.optimizer.state();
    let meta = optimizer_metadata(contents.state.step);
    writer.write_file(OPTIMIZER_FILE, |output| tensors::write(&moments, &meta, output))?;
    Ok(writer.finish(lineage)?)
}

fn write_json(writer: &mut CheckpointWriter, name: &str, value: &impl Serialize) -> Result<(), TrainError> {
    writer.write_file(name, |output| {
        serde_json::to_writer_pretty(&mut *output, value)?;
        output.write_all(b"\n")
    })?;
    Ok(())
}

/// transformers loads only files whose metadata names a framework's format.
fn model_metadata() -> BTreeMap<String, String> {
    metadata([("format", "pt")])
}

fn optimizer_metadata(step: u64) -> BTreeMap<String, String> {
    metadata([("format", "tinyllm"), ("optimizer", "adamw"), ("step", &step.to_string())])
}

/// Reads a checkpoint's config.json.
pub fn read_config(dir: &Path) -> Result<ConfigMap, TrainError> {
    let path = dir.join(CONFIG_FILE);
    match read_json(&path)? {
        Value::Object(map) => Ok(map),
        _ => Err(TrainError::State { path, reason: "it is no JSON object".to_owned() }),
    }
}

/// Loads the parameters; any missing, extra, retyped or reshaped one is an error.
pub fn load_parameters(dir: &Path, config: &LlamaConfig) -> Result<Parameters, TrainError> {
    let shapes = shapes(config).into_iter().collect();
    let tensors = tensors::read(&dir.join(MODEL_FILE), &shapes, &model_metadata())?;
    debug_assert!(tensors.values().all(|tensor| tensor.dtype() == DType::F32));
    Parameters::from_tensors(&tensors).doing("loading parameters")
}

/// Loads the optimizer of step `step`, as strictly.
pub fn load_optimizer(
    dir: &Path,
    config: &LlamaConfig,
    spec: AdamWSpec,
    parameters: &Parameters,
    step: u64,
) -> Result<AdamW, TrainError> {
    let shapes = AdamW::state_shapes(&shapes(config));
    let state = tensors::read(&dir.join(OPTIMIZER_FILE), &shapes, &optimizer_metadata(step))?;
    AdamW::from_state(spec, parameters, &state).doing("loading the optimizer")
}
