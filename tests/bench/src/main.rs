//! tinyllm-bench: measures a mount against the same work on a plain directory, in turns. scripts/bench.sh runs it.

mod measure;
mod memory;
mod model;
mod reads;
mod report;
mod saves;
mod sides;
mod small;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::sides::Sides;

/// Measures a mount against a plain directory. Results are JSON lines on standard output.
#[derive(Debug, Parser)]
#[command(name = "tinyllm-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Save checkpoints: all-new, unchanged, a tenth changed; and remove them.
    Saves {
        #[command(flatten)]
        setup: Setup,
    },
    /// Read a sealed checkpoint that shares nothing: cold and warm, by read and by memory map.
    Reads {
        #[command(flatten)]
        setup: Setup,
        /// Say in the names how the mount serves reads, and set no goals.
        #[arg(long, value_name = "HOW")]
        only_for_information: Option<String>,
    },
    /// Create, list and remove a thousand small files.
    Small {
        #[command(flatten)]
        setup: Setup,
    },
    /// Touch memory once, so that a virtual machine has it before anything is measured.
    WarmMemory {
        #[arg(long, value_name = "MIB")]
        mib: u64,
    },
    /// Make a table for people of the JSON lines on standard input.
    Table,
}

#[derive(Debug, Args)]
struct Setup {
    /// A directory of the mount.
    ours: PathBuf,
    /// A directory of the store's own disk.
    theirs: PathBuf,
    /// Size of a checkpoint.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    size_mib: u64,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Run this after each round, before the next is measured.
    #[arg(long, value_name = "COMMAND")]
    between: Option<String>,
}

impl Setup {
    fn sides(self) -> Sides {
        Sides { ours: self.ours, theirs: self.theirs, between: self.between, rounds: self.rounds }
    }
}

#[allow(clippy::print_stderr, reason = "this is where the program speaks to its user")]
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tinyllm-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Saves { setup } => saves::run(setup.size_mib, &setup.sides()),
        Command::Reads { setup, only_for_information } => {
            reads::run(setup.size_mib, &setup.sides(), only_for_information.as_deref())
        }
        Command::Small { setup } => small::run(&setup.sides()),
        Command::WarmMemory { mib } => memory::warm(mib),
        Command::Table => report::table(),
    }
}
