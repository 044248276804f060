//! The training loop: start or resume, step, save.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tinyllm::names::Step;
use tinyllm::publish::{Lineage, list_steps, prune};

use crate::adamw::Gradients;
use crate::checkpoint::{self, Contents, StateFields, TrainerState};
use crate::error::{TensorContext as _, TrainError};
use crate::parameters::Parameters;
use crate::progress::{EndReason, Event, Journal, ProgressFile};
use crate::resume::{self, Skipped};
use crate::run_dir::RunDir;
use crate::spec::SpecFile;
use crate::start::Trainer;

/// Says where a run begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// From random weights; refused where the run has checkpoints.
    Fresh,
    Resume {
        /// None: the one LATEST names.
        dir: Option<PathBuf>,
        /// Resume although the spec's bytes differ from those the checkpoint was trained with.
        accept_changed_spec: bool,
    },
}

/// A run's surroundings.
pub struct Options<'a> {
    pub artifacts: PathBuf,
    pub begin: Begin,
    /// Set from outside (a signal): finish the step, save, end.
    pub stop: &'a AtomicBool,
    /// Hears of every event after it stands in the progress file.
    pub observer: &'a mut dyn FnMut(&Event),
}

/// Trains as `spec` says until its last step or until told to stop.
pub fn run(spec: &SpecFile, options: Options) -> Result<EndReason, TrainError> {
    let Options { artifacts, begin, stop, observer } = options;
    let run_dir = RunDir::lock(&artifacts, spec.spec.run_id())?;
    let file = match begin {
        Begin::Fresh => {
            let ckpt_dir = run_dir.ckpt_dir();
            if !list_steps(&ckpt_dir)?.is_empty() {
                return Err(TrainError::HasCheckpoints { ckpt_dir });
            }
            ProgressFile::create(&run_dir.progress_path())?
        }
        Begin::Resume { .. } => ProgressFile::open(&run_dir.progress_path())?,
    };
    let mut journal = Journal { file, observer };
    let mut trainer = match begin {
        Begin::Fresh => Trainer::fresh(spec, &run_dir)?,
        Begin::Resume { dir, accept_changed_spec } => {
            let mut skip = |Skipped { path, reason }: Skipped| {
                journal.tell(&Event::Skip { path: run_dir.spell(&path), reason })
            };
            let verified = resume::choose(&run_dir.ckpt_dir(), dir.as_deref(), run_dir.run_id(), &mut skip)?;
            let trainer = Trainer::resume(spec, &run_dir, &verified, accept_changed_spec)?;
            journal.tell(&Event::Resume { step: trainer.step, path: run_dir.spell(&verified.dir) })?;
            trainer
        }
    };
    run_dir.write_spec(&spec.bytes)?;
    trainer.announce(&mut journal)?;
    trainer.train(&mut journal, stop)
}

impl Trainer<'_> {
    fn announce(&self, journal: &mut Journal) -> Result<(), TrainError> {
        journal.tell(&Event::Start {
            run_id: self.run_dir.run_id().to_string(),
            step: self.step,
            steps: self.spec.spec.steps,
            parameters: self.parameters.element_count() as u64,
            tokens: self.windows.token_count() as u64,
            windows: u64::from(self.windows.count()),
            threads: rayon::current_num_threads() as u64,
        })
    }

    fn train(&mut self, journal: &mut Journal, stop: &AtomicBool) -> Result<EndReason, TrainError> {
        let spec = &self.spec.spec;
        let mut last_loss = None;
        let mut reason = EndReason::Done;
        while self.step < spec.steps {
            let (event, loss) = self.train_step()?;
            last_loss = Some(loss);
            if self.step.is_multiple_of(spec.log_every) || self.step == spec.steps {
                journal.tell(&event)?;
            }
            let stopped = stop.load(Ordering::Relaxed);
            if stopped || spec.saves_after(self.step) {
                self.save(journal)?;
            }
            if stopped {
                reason = EndReason::Signal;
                break;
            }
        }
        journal.tell(&Event::End { step: self.step, reason, loss: last_loss })?;
        Ok(reason)
    }

    /// Does one optimizer step; gives its event and its loss.
    fn train_step(&mut self) -> Result<(Event, f32), TrainError> {
        let started = Instant::now();
        let spec = &self.spec.spec;
        let batch: Vec<u32> = (0..spec.batch_size).map(|_| self.order.next_window()).collect();
        let (inputs, targets) = self.windows.batch(&batch)?;
        let loss_tensor = self.model.loss(&inputs, &targets).doing("computing the loss")?;
        let loss: f32 = loss_tensor.to_scalar().doing("reading the loss")?;
        let step = self.step + 1;
        if !loss.is_finite() {
            return Err(TrainError::LossNotFinite { step, loss });
        }
        let gradients = gradients(&self.parameters, &loss_tensor)?;
        self.learning_rate = spec.schedule.learning_rate(spec.optimizer.lr, step, spec.steps);
        let grad_norm = self
            .optimizer
            .update(&self.parameters, &gradients, self.learning_rate, step)
            .doing("updating the parameters")?;
        self.step = step;
        self.tokens_seen += targets.elem_count() as u64;
        let (learning_rate, tokens_seen) = (self.learning_rate, self.tokens_seen);
        let step_ms = millis_since(started);
        Ok((Event::Step { step, loss, learning_rate, grad_norm, tokens_seen, step_ms }, loss))
    }

    /// Saves, tells of it once LATEST is in place, then removes what is beyond `keep_ckpts`.
    fn save(&mut self, journal: &mut Journal) -> Result<(), TrainError> {
        let started = Instant::now();
        let state = TrainerState::new(StateFields {
            step: self.step,
            tokens_seen: self.tokens_seen,
            order: &self.order,
            learning_rate: self.learning_rate,
            spec_sha256: self.spec.sha256,
            sources: &self.sources,
        });
        let contents = Contents {
            config: &self.config_map,
            generation_config: self.spec.spec.generation_config.as_ref(),
            tokenizer_json: self.tokenizer.json(),
            state: &state,
            parameters: &self.parameters,
            optimizer: &self.optimizer,
        };
        let lineage = Lineage {
            run_id: self.run_dir.run_id().clone(),
            base_model: self.spec.spec.base_model.clone(),
            parent: self.parent.clone(),
        };
        let ckpt_dir = self.run_dir.ckpt_dir();
        let published = checkpoint::save(&ckpt_dir, &contents, lineage)?;
        self.parent = published.manifest.full_name();
        journal.tell(&Event::Ckpt {
            step: self.step,
            path: self.run_dir.spell_step(Step(self.step)),
            bytes: published.size_bytes(),
            write_ms: millis_since(started),
        })?;
        self.saves += 1;
        // Abandoned steps above the one resumed from count as newer; they must not push it out before this
        // process has as many checkpoints of its own.
        let keep = self.spec.spec.keep_ckpts;
        let protected: Vec<Step> = self.resumed_from.filter(|_| self.saves < keep).into_iter().collect();
        let removed = prune(&ckpt_dir, keep, &protected)?;
        if !removed.is_empty() {
            journal.tell(&Event::Prune { steps: removed.iter().map(|step| step.0).collect() })?;
        }
        Ok(())
    }
}

/// Runs the backward pass. A parameter without a gradient stops the run before its first update: an operation
/// without a backward pass would otherwise leave it untrained in silence.
fn gradients(parameters: &Parameters, loss: &candle_core::Tensor) -> Result<Gradients, TrainError> {
    let mut found = loss.backward().doing("computing gradients")?;
    parameters
        .iter()
        .map(|(name, var)| match found.remove(var) {
            // Detached, so that it does not keep the step's graph alive.
            Some(gradient) => Ok((name.clone(), gradient.detach())),
            None => Err(TrainError::NoGradient { name: name.clone() }),
        })
        .collect()
}

fn millis_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}
