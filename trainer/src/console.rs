//! What people see: a bar on a terminal, lines elsewhere. The only place that prints.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};
use tinyllm_trainer::progress::{EndReason, Event};

/// Shows a run on standard error.
pub struct Console {
    quiet: bool,
    /// Hidden where standard error is no terminal.
    bar: ProgressBar,
    /// Without a bar, steps are lines.
    step_lines: bool,
}

impl Console {
    pub fn new(quiet: bool) -> Self {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::no_length() };
        let template = "{bar:30} {pos}/{len} {msg}, {eta} left";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is constant"));
        Self { quiet, bar, step_lines: !std::io::stderr().is_terminal() }
    }

    /// Shows one event.
    pub fn show(&mut self, event: &Event) {
        if let Event::Start { step, steps, .. } = event {
            self.bar.set_length(*steps);
            self.bar.set_position(*step);
            self.bar.reset_eta();
        }
        if let Event::Step { step, loss, .. } = event {
            self.bar.set_position(*step);
            self.bar.set_message(format!("loss {loss:.4}"));
            if !self.step_lines {
                return;
            }
        }
        if let Event::End { .. } = event {
            self.bar.finish_and_clear();
        }
        if !self.quiet {
            let line = describe(event);
            self.bar.suspend(|| print_line(&line));
        }
    }
}

fn describe(event: &Event) -> String {
    match event {
        Event::Start { run_id, step, steps, parameters, tokens, windows, threads } => format!(
            "run {run_id}: steps {step} to {steps}, {parameters} parameters, {tokens} tokens in {windows} \
             windows, {threads} threads"
        ),
        Event::Resume { path, .. } => format!("resuming from {path}"),
        Event::Skip { path, reason } => format!("skipped {path}: {reason}"),
        Event::Step { step, loss, learning_rate, grad_norm, step_ms, .. } => format!(
            "step {step}: loss {loss:.4}, gradient norm {grad_norm:.3}, learning rate {learning_rate:.2e}, {step_ms} ms"
        ),
        Event::Ckpt { path, bytes, write_ms, .. } => {
            format!("saved {path}: {:.1} MiB in {write_ms} ms", *bytes as f64 / f64::from(1 << 20))
        }
        Event::Prune { steps } => format!("removed old checkpoints: {steps:?}"),
        Event::End { step, reason, loss } => {
            let why = match reason {
                EndReason::Done => "done",
                EndReason::Signal => "stopped by a signal",
            };
            let loss = loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
            format!("{why} at step {step}{loss}")
        }
    }
}

#[allow(clippy::print_stderr)]
fn print_line(line: &str) {
    eprintln!("{line}");
}

/// Prints an error with its causes, on one line.
pub fn error(error: &anyhow::Error) {
    print_line(&format!("tinyllm-train: {error:#}"));
}

/// Prints a JSON result on standard output.
pub fn json(value: &serde_json::Value) -> anyhow::Result<()> {
    serde_json::to_writer(std::io::stdout().lock(), value)?;
    Ok(())
}
