//! tinyllm: looks at a store and changes it, with or without a mount.

mod arguments;
mod failure;
mod inspect;
mod output;
mod reach;
mod table;
mod work;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Verb};
use failure::Failure;
use output::Output;
use reach::Reach;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // Without standard error there is nobody to tell but by the exit code.
            let _ = writeln!(std::io::stderr(), "tinyllm: {failure}");
            failure.exit_code()
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let reach = Reach::find(arguments.store)?;
    let mut out = Output::new(arguments.json);
    match arguments.verb {
        Verb::Init => work::init(&reach, &mut out),
        Verb::Status => inspect::status(&reach, &mut out),
        Verb::Ls { run } => inspect::ls(&reach, run.as_deref(), &mut out),
        Verb::Show { checkpoint } => inspect::show(&reach, &checkpoint, &mut out),
        Verb::Verify { checkpoint, all: _ } => work::verify(&reach, checkpoint.as_deref(), &mut out),
        Verb::Gc => work::gc(&reach, &mut out),
        Verb::Rebuild { force } => work::rebuild(&reach, force, &mut out),
        Verb::Import { directory, name, base_model } => {
            work::import(&reach, &directory, name, base_model, &mut out)
        }
        Verb::Export { checkpoint, directory } => work::export(&reach, &checkpoint, &directory, &mut out),
    }
}
