//! What goes to standard output, for people or for programs, and the progress bar on standard error.

use std::fmt;
use std::io::{self, Stdout, Write};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;
use tinyllm::error::Result as StoreResult;
use tinyllm::progress::Progress;

use crate::failure::Failure;

/// Standard output. Printing fails when nobody reads any more, which ends the command.
#[derive(Debug)]
pub struct Output {
    out: Stdout,
    json: bool,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Self { out: io::stdout(), json }
    }

    /// Prints `value` as JSON if that was asked for, and otherwise what `text` gives.
    pub fn show(&mut self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        let printed = if self.json {
            serde_json::to_string_pretty(value).map_err(io::Error::other).map(|json| json + "\n")
        } else {
            Ok(text())
        };
        printed
            .and_then(|printed| self.out.write_all(printed.as_bytes()))
            .and_then(|()| self.out.flush())
            .map_err(Failure::Print)
    }
}

/// Spells a size for people.
pub fn human(bytes: u64) -> impl fmt::Display {
    HumanBytes(bytes)
}

/// Runs something long with a progress bar, which only a terminal shows.
pub fn with_progress<T>(
    what: &'static str,
    run: impl FnOnce(&(dyn Fn(Progress) -> StoreResult<()> + Sync)) -> T,
) -> T {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    let bar = ProgressBar::no_length()
        .with_style(style.expect("the template names only fields that exist"))
        .with_message(what);
    let done = run(&|progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        Ok(())
    });
    bar.finish_and_clear();
    done
}
