//! Saving checkpoints with the six steps, on both sides by the trainer's own writer.

use std::path::Path;
use std::time::{Duration, Instant};

use tinyllm::names::Step;
use tinyllm::publish::{CheckpointWriter, Lineage, prune};

use crate::measure::{Goal, Measurement};
use crate::memory::warm;
use crate::model::Model;
use crate::sides::{Pair, Sides};

const RUN: &str = "bench";

/// A checkpoint's files in the order they are written.
pub type Files = [(&'static str, Vec<u8>)];

/// Saves one checkpoint and gives how long that took.
pub fn save(artifacts: &Path, step: u64, files: &Files) -> anyhow::Result<Duration> {
    let ckpt_dir = artifacts.join("runs").join(RUN).join("ckpt");
    let lineage = Lineage { run_id: RUN.parse()?, base_model: None, parent: None };
    let started = Instant::now();
    let mut writer = CheckpointWriter::create(&ckpt_dir, Step(step))?;
    for (name, bytes) in files {
        writer.write_file(name, |output| output.write_all(bytes))?;
    }
    writer.finish(lineage)?;
    Ok(started.elapsed())
}

/// Removes all checkpoints but the newest and gives how long that took.
pub fn keep_newest(artifacts: &Path) -> anyhow::Result<Duration> {
    let started = Instant::now();
    prune(&artifacts.join("runs").join(RUN).join("ckpt"), 1, &[])?;
    Ok(started.elapsed())
}

#[derive(Default)]
struct Rounds {
    new: Vec<Pair>,
    unchanged: Vec<Pair>,
    tenth: Vec<Pair>,
    removed: Vec<Pair>,
}

/// Measures saves of about `mib` MiB.
pub fn run(mib: u64, sides: &Sides) -> anyhow::Result<()> {
    let mut model = Model::new(mib, 7);
    let mut rounds = Rounds::default();
    // The first round makes directories and warms code up; it does not count.
    for round in 0..=sides.rounds {
        let mut step = round as u64 * 10;
        let mut save_all = |model: &Model| {
            step += 1;
            let files = model.files()?;
            let pair = sides.measure(round, |dir| {
                // The pages that the save takes come from the host already, on both sides.
                warm(mib * 4)?;
                save(dir, step, &files)
            });
            sides.settle_disk()?;
            pair
        };
        model.renew();
        let new = save_all(&model)?;
        let unchanged = save_all(&model)?;
        model.change(10);
        let tenth = save_all(&model)?;
        let removed = sides.measure(round, keep_newest)?;
        sides.rest()?;
        if round > 0 {
            rounds.new.push(new);
            rounds.unchanged.push(unchanged);
            rounds.tenth.push(tenth);
            rounds.removed.push(removed);
        }
    }
    Measurement::time("save, all new", &rounds.new, Some(Goal::AtMost(1.15))).print()?;
    Measurement::time("save, unchanged", &rounds.unchanged, Some(Goal::AtMost(0.5))).print()?;
    Measurement::time("save, a tenth changed", &rounds.tenth, None).print()?;
    Measurement::time("remove two of three checkpoints", &rounds.removed, None).print()
}
