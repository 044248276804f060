//! Other processes: run to the end, or line by line.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::Duration;

/// How long a line may take; far more than any needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command that must succeed; a failure shows what it said.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs a shell command line that must succeed, with `$M` as the given directory.
#[track_caller]
pub fn succeeds(m: &std::path::Path, line: &str) {
    run(Command::new("bash").args(["-ec", line]).env("M", m));
}

/// The same; gives its output without the last newline.
#[track_caller]
pub fn output_of(m: &std::path::Path, line: &str) -> String {
    let output = run(Command::new("bash").args(["-ec", line]).env("M", m));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// What a process says, as it says it.
#[derive(Debug)]
pub struct Lines {
    lines: mpsc::Receiver<String>,
}

/// The next thing heard.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Said(String),
    End,
}

impl Lines {
    /// Reads a pipe to its end on a thread of its own, so that the other side never blocks.
    pub fn of(pipe: impl Read + Send + 'static) -> Self {
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                // Even when nobody listens any more, the pipe has to be read.
                let _ = send.send(line);
            }
        });
        Self { lines }
    }

    pub fn next_line(&self) -> Line {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Line::Said(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => Line::End,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("nothing was said for {PATIENCE:?}"),
        }
    }

    /// Waits for a line that holds `text`; false when the process ended without it.
    pub fn wait_for(&self, text: &str) -> bool {
        loop {
            match self.next_line() {
                Line::Said(line) if line.contains(text) => return true,
                Line::Said(_) => {}
                Line::End => return false,
            }
        }
    }
}
