use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use tinyllm::error::{ErrorKind, StoreError};
use tinyllm::import::{ImportOptions, SourceLayout};
use tinyllm::manifest::CheckpointManifest;
use tinyllm::progress::{Progress, unwatched};

use crate::support::{Bench, Model, read_tree};

fn export(bench: &Bench, checkpoint: &str, name: &str) -> std::path::PathBuf {
    let dir = bench.path(name);
    let checkpoint = bench.store.select(checkpoint).unwrap();
    bench.store.export(&checkpoint, &dir, &unwatched).unwrap();
    dir
}

/// Gives mode and mtime of everything below a directory, by name.
fn attributes(dir: &Path) -> Vec<(std::path::PathBuf, u32, i64, i64)> {
    let mut found = vec![];
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let stat = fs::metadata(&path).unwrap();
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(dir).unwrap().to_owned();
        found.push((name, stat.mode() & 0o7777, stat.mtime(), stat.mtime_nsec()));
    }
    found.sort();
    found
}

#[test]
fn what_goes_in_comes_out_byte_for_byte() {
    let bench = Bench::new();
    let source = Model::small(1).save(&bench.path("src"), "a", 500);
    fs::set_permissions(source.join("config.json"), PermissionsExt::from_mode(0o640)).unwrap();
    let old = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    fs::File::options()
        .write(true)
        .open(source.join("model.safetensors"))
        .unwrap()
        .set_modified(old)
        .unwrap();

    let imported = bench.import(&source, "a/step-500");
    assert_eq!(imported.path, "runs/a/ckpt/step-000500");
    assert_eq!(imported.layout, SourceLayout::TinyLlm);
    let exported = export(&bench, "a/step-500", "out");
    assert_eq!(read_tree(&exported), read_tree(&source));
    assert_eq!(attributes(&exported), attributes(&source));
    assert!(!bench.path("out.tmp").exists());
}

#[test]
fn the_portable_face_holds_the_model_and_its_own_manifest() {
    let bench = Bench::new();
    let model = Model::small(1);
    bench.add("a", 500, &model);
    let files = read_tree(&export(&bench, "checkpoints/a/step-000500", "out"));
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["config.json", "manifest.json", "model.safetensors"]);
    assert_eq!(files["model.safetensors"], model.weights());
    let manifest = CheckpointManifest::parse(&files["manifest.json"]).unwrap();
    assert_eq!(manifest.name, "base:a:step-500");

    // It is a checkpoint of its own, which any store takes as it is.
    let other = Bench::new();
    let imported = other.import(&bench.path("out"), "a/step-500");
    assert_eq!(imported.path, "checkpoints/a/step-000500");
    assert_eq!(read_tree(&export(&other, "a/latest", "out")), files);
}

#[test]
fn an_export_replaces_nothing() {
    let bench = Bench::new();
    bench.add("a", 1, &Model::small(1));
    let checkpoint = bench.store.select("a/latest").unwrap();
    for taken in ["out", "out.tmp"] {
        fs::create_dir(bench.path(taken)).unwrap();
        let refused = bench.store.export(&checkpoint, &bench.path("out"), &unwatched).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
        fs::remove_dir(bench.path(taken)).unwrap();
    }
}

#[test]
fn a_stopped_or_damaged_export_leaves_nothing() {
    let bench = Bench::new();
    bench.add("a", 1, &Model::small(1));
    let checkpoint = bench.store.select("a/latest").unwrap();
    let stop = |at: Progress| if at.done_bytes > 1 << 20 { Err(StoreError::Interrupted) } else { Ok(()) };
    let stopped = bench.store.export(&checkpoint, &bench.path("out"), &stop);
    assert!(matches!(stopped, Err(StoreError::Interrupted)));
    let pack = crate::support::packs(&bench.store).pop().unwrap();
    crate::support::flip(&pack, 1 << 20);
    let damaged = bench.store.export(&checkpoint, &bench.path("out"), &unwatched).unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Corrupt, "{damaged}");
    assert!(!bench.path("out").exists() && !bench.path("out.tmp").exists());
}

#[test]
fn a_download_cache_imports_with_a_stable_manifest() {
    let bench = Bench::new();
    let model = Model::small(3);
    let (blobs, snapshot) = (bench.path("blobs"), bench.path("snapshot"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&snapshot).unwrap();
    for (name, bytes) in [("model.safetensors", model.weights()), ("config.json", b"{}\n".to_vec())] {
        fs::write(blobs.join(name), bytes).unwrap();
        symlink(blobs.join(name), snapshot.join(name)).unwrap();
    }
    fs::write(snapshot.join("optimizer.pt"), b"moments").unwrap();

    let imported = bench.import(&snapshot, "hub/step-0");
    assert_eq!(imported.layout, SourceLayout::HuggingFace);
    assert_eq!(imported.left_out, ["optimizer.pt"]);
    let files = read_tree(&export(&bench, "hub:hub:step-0", "out"));
    assert_eq!(files.keys().collect::<Vec<_>>(), ["config.json", "manifest.json", "model.safetensors"]);
    let other = Bench::new();
    other.import(&snapshot, "hub/step-0");
    assert_eq!(read_tree(&export(&other, "hub/latest", "out")), files);

    let options = ImportOptions { base_model: Some("org/m".into()), uid: 0, gid: 0 };
    bench.store.import(&snapshot, "hub/step-1", &options, &unwatched).unwrap();
    assert_eq!(bench.store.select("org/m:hub:latest").unwrap().step.0, 1);
}

/// Everything that a refused import could have changed.
fn state(bench: &Bench) -> String {
    let names = |dir| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let layout = bench.store.layout();
    let counts = bench.store.read(|txn| {
        let runs = txn.resolve([b"runs".as_slice()])?.unwrap();
        let recipes = {
            let mut count = 0;
            txn.for_each_recipe(|_, _| {
                count += 1;
                Ok(())
            })?;
            count
        };
        Ok((txn.inode_count()?, txn.list_dir(runs.ino)?, txn.packs()?, txn.pending_packs()?, recipes))
    });
    format!("{:?} {:?} {:?}", counts.unwrap(), names(layout.live_dir()), names(layout.records()))
}

#[test]
fn a_lying_manifest_is_refused_with_every_reason_and_changes_nothing() {
    let bench = Bench::new();
    bench.add("a", 1, &Model::small(1));
    let before = state(&bench);
    let source = Model::small(2).save(&bench.path("src"), "b", 7);
    fs::write(source.join("config.json"), b"{\"model_type\": \"LLAMA\"}\n").unwrap();
    fs::remove_file(source.join("trainer_state.json")).unwrap();
    fs::write(source.join("extra"), b"x").unwrap();

    let refused = bench.try_import(&source, "other/step-8").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    let text = refused.to_string();
    for part in ["run_id", "step", "config.json: SHA-256", "trainer_state.json: listed", "extra: not listed"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(state(&bench), before);
}

#[test]
fn bad_sources_and_names_are_refused_before_anything_is_copied() {
    let bench = Bench::new();
    let source = Model::small(1).save(&bench.path("src"), "a", 1);
    let before = state(&bench);
    let kind = |source: &Path, name: &str| bench.try_import(source, name).unwrap_err().kind();
    assert_eq!(kind(&bench.path("missing"), "a/step-1"), ErrorKind::NotFound);
    for name in ["a", "a/b", "-a/step-1", "runs/a/step-1", "a/latest", ""] {
        assert_eq!(kind(&source, name), ErrorKind::Usage, "{name}");
    }
    assert_eq!(kind(&bench.dir.path().join("store"), "a/step-1"), ErrorKind::Other);
    symlink("/", source.join("link")).unwrap();
    assert_eq!(kind(&source, "a/step-1"), ErrorKind::Other);
    assert_eq!(state(&bench), before);

    fs::remove_file(source.join("link")).unwrap();
    bench.import(&source, "a/step-1");
    assert_eq!(kind(&source, "a/step-1"), ErrorKind::Refused);
    assert_eq!(kind(&source, "runs/a/ckpt/step-000001"), ErrorKind::Refused);
}

#[test]
fn a_model_without_a_release_manifest_does_not_pass_the_gate() {
    let bench = Bench::new();
    let source = Model::small(1).save(&bench.path("src"), "a", 1);
    let refused = bench.try_import(&source, "models/m/v1").unwrap_err();
    assert!(refused.to_string().contains("MODEL_CARD.md: missing"), "{refused}");
    assert_eq!(refused.kind(), ErrorKind::Refused);
}

#[test]
fn what_a_killed_import_left_is_removed_at_the_next_start() {
    use tinyllm::catalog::{Durability, Inode, NewInode};
    let bench = Bench::new();
    bench.add("a", 1, &Model::small(1));
    let name = format!(".tinyllm-import-{}.tmp", "0".repeat(32));
    let store = &bench.store;
    let ino = store
        .write(Durability::Ordered, |txn| {
            let ckpt = txn.resolve(["runs", "a", "ckpt"].map(str::as_bytes))?.unwrap();
            let dir = txn.create(ckpt.ino, name.as_bytes(), &NewInode::directory(0o755, 0, 0, 0))?;
            let file = txn.create(dir.ino, b"model.safetensors", &NewInode::file(0o644, 0, 0, 0))?;
            txn.put_inode(&Inode { raw: true, ..file.clone() })?;
            Ok(file.ino)
        })
        .unwrap();
    let live = store.layout().live(ino);
    fs::write(&live, b"half").unwrap();
    let Bench { dir, store } = bench;
    drop(store);
    let store = tinyllm::store::Store::open(&dir.path().join("store")).unwrap();
    let names = store.read(|txn| {
        let ckpt = txn.resolve(["runs", "a", "ckpt"].map(str::as_bytes))?.unwrap();
        txn.list_dir(ckpt.ino)
    });
    let names: Vec<Vec<u8>> = names.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [b"LATEST".to_vec(), b"latest".to_vec(), b"step-000001".to_vec()]);
    assert!(!live.exists());
}
