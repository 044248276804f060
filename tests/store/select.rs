use tinyllm::catalog::{Durability, Face, NewInode, ROOT_INO, RenameMode};
use tinyllm::error::{ErrorKind, StoreError};

use crate::support::{Bench, Model};

fn bench() -> Bench {
    let bench = Bench::new();
    for (run, step) in [("a", 100), ("a", 200), ("a", 50), ("b.2", 1)] {
        bench.add(run, step, &Model::new(step, 1, 1000));
    }
    bench
}

#[test]
fn every_spelling_finds_its_checkpoint() {
    let bench = bench();
    for (text, face, step) in [
        ("base:a:step-100", Face::Resumable, 100),
        ("base:a:latest", Face::Resumable, 50),
        ("a/step-100", Face::Resumable, 100),
        ("a/step-000100", Face::Resumable, 100),
        ("a/100", Face::Resumable, 100),
        ("a/latest", Face::Resumable, 50),
        ("b.2/latest", Face::Resumable, 1),
        ("runs/a/ckpt/step-000200", Face::Resumable, 200),
        ("/runs/a/ckpt/step-200/", Face::Resumable, 200),
        ("runs/a/ckpt/LATEST", Face::Resumable, 50),
        ("runs/a/ckpt/latest", Face::Resumable, 50),
        ("checkpoints/a/step-000200", Face::Portable, 200),
        ("checkpoints/a/latest", Face::Portable, 50),
    ] {
        let found = bench.store.select(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((found.face, found.step.0), (face, step), "{text}");
    }
}

#[test]
fn without_the_resumable_face_a_name_means_the_portable_one() {
    let bench = bench();
    let resumable = bench.store.select("a/200").unwrap();
    assert_eq!(bench.store.faces_of(&resumable).unwrap().len(), 2);
    bench.store.remove_sealed(&resumable).unwrap();
    let portable = bench.store.select("a/200").unwrap();
    assert_eq!(portable.face, Face::Portable);
    assert_eq!(bench.store.full_name(&portable).unwrap().unwrap(), "base:a:step-200");
    assert_eq!(bench.store.select("base:a:step-200").unwrap().root, portable.root);
}

#[test]
fn absence_names_the_nearest_that_exist() {
    let bench = bench();
    for (text, near) in [
        ("a/step-101", "run a has step-000050, step-000100, step-000200"),
        ("runs/a/ckpt/step-000101", "run a has step-000050, step-000100, step-000200"),
        ("checkpoints/a/step-7", "run a has step-000050, step-000100, step-000200"),
        ("other:a:step-100", "the store has base:a:step-100"),
        ("b/latest", "the store has b.2, a"),
        ("nonsense", "the store has a, b.2"),
    ] {
        let error = bench.store.select(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.to_string(), format!("{text}: no such checkpoint; {near}"));
    }
    let empty = Bench::new().store.select("a/1").unwrap_err();
    assert_eq!(empty.to_string(), "a/1: no such checkpoint; the store holds no checkpoints yet");
}

#[test]
fn of_many_steps_the_nearest_are_listed() {
    let bench = Bench::new();
    for step in 1..=9 {
        bench.add("a", step * 100, &Model::new(1, 1, 1000));
    }
    let error = bench.store.select("a/410").unwrap_err().to_string();
    let near = "step-000200, step-000300, step-000400, step-000500, step-000600 (the nearest of 9)";
    assert!(error.ends_with(near), "{error}");
}

#[test]
fn a_tree_moved_away_is_found_by_its_path_and_never_guessed() {
    let bench = bench();
    let ckpt = ["runs", "a", "ckpt"].map(str::as_bytes);
    let ckpt = bench.store.read(|txn| txn.resolve(ckpt)).unwrap().unwrap();
    let dir = bench
        .store
        .write(Durability::Ordered, |txn| txn.create(ROOT_INO, b"a", &NewInode::directory(0o755, 0, 0, 0)))
        .unwrap();
    let (from, to) = ((ckpt.ino, b"step-000100".as_slice()), (dir.ino, b"step-000200".as_slice()));
    bench.store.move_sealed(from, to, RenameMode::NoReplace).unwrap();
    let error = bench.store.select("a/step-200").unwrap_err();
    assert!(matches!(&error, StoreError::Ambiguous { candidates, .. } if candidates.len() == 2), "{error}");
    let placed = bench.store.select("/a/step-000200").unwrap();
    assert_eq!((placed.face, placed.step.0), (Face::Moved, 100), "from the root it can only be a path");
}
