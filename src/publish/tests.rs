use std::path::Path;

use super::*;
use crate::digest::Sha256Digest;
use crate::manifest::{MANIFEST_FILE, Manifest};

fn lineage() -> Lineage {
    Lineage { run_id: "run".parse().unwrap(), base_model: None, parent: None }
}

fn save(ckpt_dir: &Path, step: u64, content: &str) -> Published {
    let mut writer = CheckpointWriter::create(ckpt_dir, Step(step)).unwrap();
    writer.write_file("model.safetensors", |out| out.write_all(content.as_bytes())).unwrap();
    writer.write_file("heads/a.json", |out| out.write_all(b"{}")).unwrap();
    writer.finish(lineage()).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_published_step_verifies_and_latest_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let ckpt = dir.path().join("ckpt");
    assert_eq!(read_latest(&ckpt).unwrap(), None);
    fs::create_dir_all(ckpt.join("step-000500.tmp/stale")).unwrap();
    let published = save(&ckpt, 500, "weights");
    assert_eq!(fs::read_to_string(ckpt.join("LATEST")).unwrap(), "step-000500\n");
    assert_eq!(names(&ckpt), ["LATEST", "step-000500"]);
    let manifest = Manifest::read(&published.dir).unwrap();
    manifest.check_dir(&published.dir).unwrap();
    assert_eq!(manifest.file("model.safetensors").unwrap().sha256, Sha256Digest::of(b"weights"));
    assert_eq!(published.size_bytes(), 9);
}

#[test]
fn saving_a_step_again_exchanges_it() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 100, "old");
    save(dir.path(), 200, "abandoned");
    save(dir.path(), 100, "new");
    assert_eq!(names(dir.path()), ["LATEST", "step-000100", "step-000200"]);
    assert_eq!(fs::read(dir.path().join("step-000100/model.safetensors")).unwrap(), b"new");
    assert_eq!(read_latest(dir.path()).unwrap(), Some(Step(100)), "LATEST follows the commits");
}

#[test]
fn a_verbatim_copy_keeps_the_manifest_and_refuses_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let original = save(&dir.path().join("a"), 7, "weights");
    let manifest = fs::read(original.dir.join(MANIFEST_FILE)).unwrap();
    let copy = |step: u64, content: &'static [u8]| {
        let mut writer = CheckpointWriter::create(&dir.path().join("b"), Step(step)).unwrap();
        writer.write_file("heads/a.json", |out| out.write_all(b"{}")).unwrap();
        writer.write_file("model.safetensors", |out| out.write_all(content)).unwrap();
        writer.finish_verbatim(&manifest)
    };
    let copied = copy(7, b"weights").unwrap();
    assert_eq!(fs::read(copied.dir.join(MANIFEST_FILE)).unwrap(), manifest);
    assert!(matches!(copy(7, b"Weights"), Err(PublishError::ManifestDiffers(_))));
    assert!(matches!(copy(8, b"weights"), Err(PublishError::ManifestDiffers(_))));
}

#[test]
fn names_that_leave_the_directory_or_repeat_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::create(dir.path(), Step(1)).unwrap();
    writer.write_file("a", |_| Ok(())).unwrap();
    for name in ["", "/a", "../a", "b/../a", "MANIFEST.json", "a"] {
        let refused = writer.write_file(name, |_| Ok(()));
        assert!(matches!(refused, Err(PublishError::FileName { .. })), "{name:?}");
    }
}

#[test]
fn prune_keeps_the_newest_by_number_and_whatever_is_protected() {
    let dir = tempfile::tempdir().unwrap();
    for step in [1, 2, 999_999, 1_000_000, 3] {
        save(dir.path(), step, "x");
    }
    fs::create_dir(dir.path().join("step-000001.backup")).unwrap();
    fs::create_dir(dir.path().join("step-000777.tmp")).unwrap();
    fs::create_dir(dir.path().join("mine.tmp")).unwrap();
    fs::write(dir.path().join("LATEST.tmp"), "").unwrap();
    assert!(matches!(prune(dir.path(), 0, &[]), Err(PublishError::KeepZero)));
    assert_eq!(prune(dir.path(), 1, &[Step(2)]).unwrap(), [Step(1), Step(999_999)]);
    assert_eq!(
        names(dir.path()),
        ["LATEST", "mine.tmp", "step-000001.backup", "step-000002", "step-000003", "step-1000000"]
    );
    assert_eq!(prune(dir.path(), 1, &[]).unwrap(), [Step(2)], "LATEST names step 3");
}

#[test]
fn a_latest_that_is_no_exact_step_name_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for text in ["", "step-000001", "step-1\n", "../step-000001\n", "step-000001\n\n"] {
        fs::write(dir.path().join("LATEST"), text).unwrap();
        assert!(matches!(read_latest(dir.path()), Err(PublishError::BadLatest { .. })), "{text:?}");
    }
}

#[test]
fn a_sha256_given_by_the_filesystem_is_believed() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::create(dir.path(), Step(1)).unwrap();
    let given = Sha256Digest::of(b"as the filesystem says");
    let path = dir.path().join("step-000001.tmp/a");
    let set = |path: &Path| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, "user.tinyllm.sha256", given.to_string().as_bytes(), flags)
    };
    let mut supported = true;
    writer
        .write_file("a", |out| {
            supported = set(&path).is_ok();
            out.write_all(b"1")
        })
        .unwrap();
    if !supported {
        return; // No user xattrs on this filesystem: nothing to ask.
    }
    writer.write_file("b", |out| out.write_all(b"2")).unwrap();
    let published = writer.finish(lineage()).unwrap();
    assert_eq!(published.manifest.file("a").unwrap().sha256, given);
    assert_eq!(published.manifest.file("b").unwrap().sha256, Sha256Digest::of(b"2"), "read back");
}
