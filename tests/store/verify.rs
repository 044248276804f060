use std::collections::BTreeSet;
use std::fs;

use tinyllm::progress::{Progress, unwatched};
use tinyllm::store::Store;

use crate::support::{Bench, Model, flip, packs};

fn damaged(store: &Store, checkpoint: &str) -> BTreeSet<String> {
    // A new process: nothing is remembered as right.
    let store = Store::open_read_only(store.layout().root()).unwrap();
    let checkpoint = store.select(checkpoint).unwrap();
    let verified = store.verify_checkpoint(&checkpoint, &unwatched).unwrap();
    verified.problems.into_iter().map(|problem| problem.path).collect()
}

#[test]
fn a_sound_checkpoint_notes_when_it_was_verified() {
    let bench = Bench::new();
    let imported = bench.add("a", 1, &Model::small(1));
    let checkpoint = bench.store.select("a/1").unwrap();
    assert_eq!(checkpoint.verified_at_ns, None);
    let total = std::sync::Mutex::new((0, 0));
    let watch = |at: Progress| {
        let mut seen = total.lock().unwrap();
        *seen = (seen.0.max(at.done_bytes), at.total_bytes);
        Ok(())
    };
    let verified = bench.store.verify_checkpoint(&checkpoint, &watch).unwrap();
    assert_eq!((verified.files, verified.bytes), (5, imported.logical_bytes));
    assert_eq!(verified.problems, []);
    assert_eq!(*total.lock().unwrap(), (imported.logical_bytes, imported.logical_bytes));
    assert!(bench.store.select("a/1").unwrap().verified_at_ns.is_some());
}

#[test]
fn every_flipped_bit_of_a_pack_is_found_and_its_file_named() {
    let bench = Bench::new();
    let model = Model::new(1, 3, 200_000);
    bench.add("a", 1, &model);
    let packs = packs(&bench.store);
    assert_eq!(packs.len(), 2, "one for each file with tensors");
    for pack in &packs {
        let len = fs::metadata(pack).unwrap().len();
        let weights = len == model.weights().len() as u64;
        let file = if weights { "model.safetensors" } else { "optimizer.safetensors" };
        // The first bytes are the file's header, which stands in the recipe too but is served from here.
        for offset in (0..16).chain((16..len).step_by(9_973)).chain([len - 1]) {
            flip(pack, offset);
            assert_eq!(damaged(&bench.store, "a/1"), BTreeSet::from([file.to_owned()]), "byte {offset}");
            flip(pack, offset);
        }
    }
    assert_eq!(damaged(&bench.store, "a/1"), BTreeSet::new());
    packs.iter().for_each(|pack| flip(pack, 100_000));
    let both = BTreeSet::from(["model.safetensors", "optimizer.safetensors"].map(str::to_owned));
    assert_eq!(damaged(&bench.store, "a/1"), both, "a damaged file does not hide the next");
}

#[test]
fn cut_and_lost_packs_are_found() {
    let bench = Bench::new();
    bench.add("a", 1, &Model::small(1));
    let pack = packs(&bench.store).pop().unwrap();
    let len = fs::metadata(&pack).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&pack).unwrap();
    for wrong in [len - 1, len + 1, 0] {
        file.set_len(wrong).unwrap();
        assert_eq!(damaged(&bench.store, "a/1").len(), 1, "{wrong} bytes");
    }
    fs::remove_file(&pack).unwrap();
    assert_eq!(damaged(&bench.store, "a/1").len(), 1);
}

#[test]
fn a_whole_store_is_verified_with_its_indexes_and_records() {
    let bench = Bench::new();
    let model = Model::small(1);
    bench.add("a", 1, &model);
    bench.add("b", 1, &model);
    let found = bench.store.verify_all(&unwatched).unwrap();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(found.checkpoints.len(), 4);
    assert!(found.plain.is_some_and(|plain| plain.files > 0), "LATEST");

    let index = packs(&bench.store)[0].with_extension("idx");
    flip(&index, 40);
    flip(&bench.store.layout().record(1), 200);
    let stray = bench.store.layout().packs().join("00").join(format!("{:032x}.pack", 1));
    fs::create_dir_all(stray.parent().unwrap()).unwrap();
    fs::write(&stray, b"x").unwrap();
    flip(&packs(&bench.store).pop().unwrap(), 4000);
    let found = bench.store.verify_all(&unwatched).unwrap();
    let paths: Vec<&str> = found.structure.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(paths.len(), 3, "{paths:?}");
    assert!(
        paths[0].ends_with(".idx") && paths[1].ends_with(".pack") && paths[2] == "records/000000000001.json"
    );
    let hurt = found.checkpoints.iter().filter(|verified| !verified.problems.is_empty()).count();
    assert!(hurt >= 2, "both runs share the damaged bytes");
}

#[test]
fn shared_content_is_read_once() {
    let bench = Bench::new();
    let model = Model::small(1);
    let imported = bench.add("a", 1, &model);
    for step in 2..5 {
        bench.add("a", step, &model);
    }
    let total = std::sync::atomic::AtomicU64::new(0);
    let watch = |at: Progress| {
        total.store(at.total_bytes, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    };
    bench.store.verify_all(&watch).unwrap();
    assert!(total.into_inner() < imported.logical_bytes + 20_000);
}
