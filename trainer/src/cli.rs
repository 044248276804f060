//! The command line.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::flag;
use tinyllm_trainer::logits::logits;
use tinyllm_trainer::spec::SpecFile;
use tinyllm_trainer::train::{self, Begin, Options};

use crate::console::{self, Console};

/// Trains a small language model and saves checkpoints that resume to the bit.
#[derive(Parser)]
#[command(
    name = "tinyllm-train",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The train spec.
    #[arg(value_name = "SPEC.json", required = true)]
    spec: Option<PathBuf>,
    /// Continue from STEP_DIR, or from the checkpoint that LATEST names.
    #[arg(long, value_name = "STEP_DIR", num_args = 0..=1)]
    resume: Option<Option<PathBuf>>,
    /// Resume although the spec file changed since the checkpoint was saved.
    #[arg(long, requires = "resume")]
    accept_changed_spec: bool,
    /// Where runs/<run_id>/ lies.
    #[arg(long, value_name = "DIR", env = "TINYLLM_ARTIFACTS", default_value = "/artifacts")]
    artifacts: PathBuf,
    /// Print errors only.
    #[arg(long)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Print a checkpoint's logits for given tokens, as JSON.
    Logits {
        step_dir: PathBuf,
        /// Token ids, separated by commas.
        #[arg(long, value_delimiter = ',', required = true)]
        tokens: Vec<u32>,
    },
}

/// Runs what the command line asks for.
pub fn run() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match (arguments.command, arguments.spec) {
        (Some(Command::Logits { step_dir, tokens }), _) => {
            let rows = logits(&step_dir, &tokens)?;
            console::json(&serde_json::json!({"tokens": tokens, "logits": rows}))
        }
        (None, Some(spec)) => {
            let begin = match arguments.resume {
                None => Begin::Fresh,
                Some(dir) => Begin::Resume { dir, accept_changed_spec: arguments.accept_changed_spec },
            };
            let spec = SpecFile::read(&spec)?;
            train(&spec, begin, arguments.artifacts, arguments.quiet)
        }
        (None, None) => unreachable!("clap demands a spec where there is no command"),
    }
}

fn train(spec: &SpecFile, begin: Begin, artifacts: PathBuf, quiet: bool) -> anyhow::Result<()> {
    if let Some(threads) = spec.spec.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build_global().context("starting the compute threads")?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in TERM_SIGNALS {
        // The first signal ends the run after its step; a second one ends the process at once.
        flag::register_conditional_shutdown(*signal, 1, Arc::clone(&stop)).context("handling signals")?;
        flag::register(*signal, Arc::clone(&stop)).context("handling signals")?;
    }
    let mut console = Console::new(quiet);
    let mut observer = |event: &_| console.show(event);
    train::run(spec, Options { artifacts, begin, stop: &stop, observer: &mut observer })?;
    Ok(())
}
