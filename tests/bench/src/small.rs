//! Many small files: what source trees and caches do to a filesystem.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::measure::Measurement;
use crate::sides::Sides;

const FILES: usize = 1000;
const FILE_BYTES: usize = 1024;

/// Measures creating, listing and removing small files.
pub fn run(sides: &Sides) -> anyhow::Result<()> {
    let (mut created, mut listed, mut removed) = (vec![], vec![], vec![]);
    for round in 0..=sides.rounds {
        let create_pair = sides.measure(round, create)?;
        let list_pair = sides.measure(round, list)?;
        let remove_pair = sides.measure(round, remove)?;
        sides.rest()?;
        if round > 0 {
            created.push(create_pair);
            listed.push(list_pair);
            removed.push(remove_pair);
        }
    }
    Measurement::time("create 1,000 small files", &created, None).print()?;
    Measurement::time("ls -lR of 1,000 small files", &listed, None).print()?;
    Measurement::time("remove 1,000 small files", &removed, None).print()
}

fn create(dir: &Path) -> anyhow::Result<Duration> {
    let started = Instant::now();
    for number in 0..FILES {
        let parent = dir.join(format!("small/{}", number / 100));
        if number % 100 == 0 {
            fs::create_dir_all(&parent)?;
        }
        fs::write(parent.join(format!("file-{number}")), [b'x'; FILE_BYTES])?;
    }
    Ok(started.elapsed())
}

fn list(dir: &Path) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let mut ls = Command::new("ls");
    let status =
        ls.arg("-lR").arg(dir.join("small")).stdout(Stdio::null()).status().context("starting ls")?;
    ensure!(status.success(), "ls failed: {status}");
    Ok(started.elapsed())
}

fn remove(dir: &Path) -> anyhow::Result<Duration> {
    let started = Instant::now();
    fs::remove_dir_all(dir.join("small"))?;
    Ok(started.elapsed())
}
