//! Reading a sealed checkpoint that shares nothing.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use memmap2::Mmap;
use safetensors::SafeTensors;

use crate::measure::{Goal, Measurement};
use crate::memory::drop_caches;
use crate::model::Model;
use crate::saves::{keep_newest, save};
use crate::sides::{Pair, Sides};

const BUFFER_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Reads a checkpoint directory; gives how many bytes that were.
type Work = fn(&Path) -> anyhow::Result<u64>;

const GOAL: Goal = Goal::AtLeast(0.95);

/// Measures reads of about `mib` MiB. With `how`, the results are for information.
pub fn run(mib: u64, sides: &Sides, how: Option<&str>) -> anyhow::Result<()> {
    let step = 1_000_000;
    let files = Model::new(mib, 11).files()?;
    sides.measure(0, |dir| save(dir, step, &files))?;
    sides.measure(0, keep_newest)?;
    drop(files);
    sides.rest()?;
    let step_dir = |artifacts: &Path| artifacts.join("runs/bench/ckpt").join(format!("step-{step}"));
    let name = |what: &str| how.map_or(what.to_owned(), |how| format!("{what} ({how})"));
    let goal = how.is_none().then_some(GOAL);
    let kinds: [(&str, Work); 2] = [("sequential read", read_all), ("mmap load", load_mapped)];
    for (kind, work) in kinds {
        let (mut cold, mut warm): (Vec<Pair>, Vec<Pair>) = Default::default();
        let mut bytes = 0;
        for round in 0..=sides.rounds {
            // How the kernel happens to cut its cache into pieces in the cold read decides how fast the warm one
            // is, so each warm read has a cold one of its own.
            let pair = sides.measure(round, |dir| {
                let dir = step_dir(dir);
                sides.settle_disk()?;
                drop_caches()?;
                let mut timed = || {
                    let started = Instant::now();
                    bytes = work(&dir)?;
                    anyhow::Ok(started.elapsed())
                };
                Ok((timed()?, timed()?))
            })?;
            // The first round does not count.
            if round > 0 {
                cold.push(pair.map(|(cold, _)| cold));
                warm.push(pair.map(|(_, warm)| warm));
            }
        }
        for (state, pairs) in [("cold", cold), ("warm", warm)] {
            Measurement::throughput(&name(&format!("{kind}, {state}")), bytes, &pairs, goal).print()?;
        }
    }
    Ok(())
}

fn large_files(dir: &Path) -> [PathBuf; 2] {
    ["model.safetensors", "optimizer.safetensors"].map(|name| dir.join(name))
}

/// Reads both large files from start to end; gives their size.
fn read_all(dir: &Path) -> anyhow::Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes = 0;
    for path in large_files(dir) {
        let mut file = File::open(&path).with_context(|| path.display().to_string())?;
        loop {
            let count = file.read(&mut buffer).with_context(|| path.display().to_string())?;
            if count == 0 {
                break;
            }
            bytes += count as u64;
        }
    }
    Ok(bytes)
}

/// Maps both large files, as a safetensors loader does, and touches every page of every tensor.
fn load_mapped(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for path in large_files(dir) {
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        // SAFETY: the checkpoint is complete; nothing writes to it while it is measured.
        let map = unsafe { Mmap::map(&file) }.with_context(|| path.display().to_string())?;
        let tensors = SafeTensors::deserialize(&map)?;
        let mut sum = 0_u64;
        for (_, view) in tensors.iter() {
            sum = view.data().iter().step_by(PAGE_BYTES).fold(sum, |sum, byte| sum + u64::from(*byte));
        }
        std::hint::black_box(sum);
        bytes += fs::metadata(&path)?.len();
    }
    Ok(bytes)
}
