//! A process that saves checkpoints step by step, as it is told on its input, and says what it has done.
//!
//! Usage: `saver CKPT_DIR RUN KEEP`; commands, a line each: `prepare STEP CONTENT` writes the files (equal numbers give
//! equal content), `finish` completes the checkpoint, `prune` removes what KEEP does not keep. What is not possible
//! is said as `failed: ...`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's own process")]

use std::error::Error;
use std::io::BufRead;
use std::path::{Path, PathBuf};

use tinyllm::publish::{CheckpointWriter, prune};
use tinyllm_system_tests::checkpoint::{files_of, lineage, prepare};

fn main() {
    let [ckpt_dir, run, keep]: [String; 3] = std::env::args().skip(1).collect::<Vec<_>>().try_into().unwrap();
    let mut saver =
        Saver { ckpt_dir: PathBuf::from(ckpt_dir), run, keep: keep.parse().unwrap(), writing: None };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match saver.obey(&line) {
            Ok(done) => println!("{done}"),
            Err(error) => println!("failed: {error}: {:?}", error.source()),
        }
    }
}

struct Saver {
    ckpt_dir: PathBuf,
    run: String,
    keep: usize,
    writing: Option<CheckpointWriter>,
}

impl Saver {
    fn obey(&mut self, line: &str) -> Result<String, Box<dyn Error>> {
        let ckpt_dir: &Path = &self.ckpt_dir;
        match line.split_once(' ').unwrap_or((line, "")) {
            ("prepare", what) => {
                let (step, content) = what.split_once(' ').ok_or("prepare wants a step and a content")?;
                self.writing = Some(prepare(ckpt_dir, step.parse()?, &files_of(content.parse()?))?);
                Ok(format!("prepared {step}"))
            }
            ("finish", _) => {
                let writer = self.writing.take().ok_or("nothing is prepared")?;
                let published = writer.finish(lineage(&self.run))?;
                Ok(format!("saved {}", published.dir.file_name().unwrap().display()))
            }
            ("prune", _) => Ok(format!("pruned {}", prune(ckpt_dir, self.keep, &[])?.len())),
            _ => Err("unknown command".into()),
        }
    }
}
