//! Random sequences of operations, against a plain model: see `tinyllm_system_tests::model`.
//!
//! PROPTEST_CASES sets how many sequences there are of each kind, TINYLLM_SEED which.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tinyllm::catalog::RenameMode;
use tinyllm_system_tests::model::{
    Access, HostDir, KernelFree, MountedDir, Op, RUN_PREFIX, Subject, run_sequence, sequence,
};
use tinyllm_system_tests::verify_store;

const CASES: u32 = 500;

/// Draws sequences and runs each on all subjects. Gives how many sequences and how many seals there were.
fn run_all(seals: bool, subjects: &mut [&mut dyn Subject]) -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let cases = number("PROPTEST_CASES").map_or(CASES, |cases| u32::try_from(cases).unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        // Every step of it runs on real mounts.
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number("TINYLLM_SEED").unwrap_or(1).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let (subjects, count, sealed) = (RefCell::new(subjects), Cell::new(0u64), Cell::new(0u64));
    let result = runner.run(&sequence(seals), |ops| {
        count.set(count.get() + 1);
        let run = format!("{RUN_PREFIX}-{}", count.get());
        sealed.set(sealed.get() + run_sequence(&run, &mut subjects.borrow_mut(), &ops)?);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    (count.get(), sealed.get())
}

#[test]
fn plain_files_do_what_the_model_says() {
    let (mut tree, mut host) = (KernelFree::new(), HostDir::new());
    let (mut passed_through, mut served) = (MountedDir::new(true), MountedDir::new(false));
    run_all(false, &mut [&mut host, &mut tree, &mut passed_through, &mut served]);
    tree.finish();
    for mount in [passed_through, served] {
        verify_store(&mount.finish().store());
    }
}

#[test]
fn sealed_trees_do_what_the_model_says() {
    let mut tree = KernelFree::new();
    let (mut passed_through, mut served) = (MountedDir::new(true), MountedDir::new(false));
    let (sequences, seals) = run_all(true, &mut [&mut tree, &mut passed_through, &mut served]);
    assert!(seals * 4 > sequences, "{seals} seals in {sequences} sequences say little");
    tree.finish();
    for mount in [passed_through, served] {
        verify_store(&mount.finish().store());
    }
}

/// Runs one sequence that once went wrong.
fn run_once(ops: &[Op]) {
    let mut tree = KernelFree::new();
    let (mut passed_through, mut served) = (MountedDir::new(true), MountedDir::new(false));
    let ran = run_sequence("run", &mut [&mut tree, &mut passed_through, &mut served], ops);
    ran.unwrap_or_else(|error| panic!("{error}"));
}

fn save(dir: &'static str, step: usize) -> Op {
    let files = vec![("a", 100, 1)];
    Op::Save { dir: vec![dir], step, mode: RenameMode::Replace, files }
}

#[test]
fn an_exchange_brings_no_file_to_the_name_of_a_step() {
    let access = Access { read: true, write: true, create: true, exclusive: false, truncate: false };
    run_once(&[
        save("a", 1),
        Op::Open { slot: 0, path: vec!["c"], access },
        Op::Rename { from: vec!["step-000002"], to: vec!["c"], mode: RenameMode::Exchange },
        Op::Reopen,
    ]);
}

#[test]
fn a_removal_that_fails_breaks_no_seal() {
    run_once(&[
        Op::Mkdir { path: vec!["a"] },
        Op::Mkdir { path: vec!["a", "b"] },
        Op::Put { path: vec!["a", "b", "c"], bytes: b"kept".to_vec() },
        save("a", 0),
        Op::Rmdir { path: vec!["step-000001", "b"] },
        Op::Unlink { path: vec!["step-000001", "b"] },
        Op::Unlink { path: vec!["step-000001", "c"] },
        Op::List { path: vec!["step-000001"] },
        Op::Reopen,
        Op::Unlink { path: vec!["step-000001", "b", "c"] },
        Op::List { path: vec!["step-000001"] },
    ]);
}
