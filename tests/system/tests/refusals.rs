//! Directories that may not be sealed: each refusal says why, and changes nothing.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use serde_json::{Value, json};
use tinyllm_system_tests::checkpoint::{
    Named, assert_complete, file_entries, files_of, manifest_of, save, write_dir,
};
use tinyllm_system_tests::{assert_errno, both_modes, listing, read_text, text_xattr};

/// A way to spoil a step: its name, what is done, and a part of the reason that must be given.
struct Spoil {
    name: &'static str,
    how: fn(&mut Vec<Named>, &mut Value),
    reason: &'static str,
}

const SPOILS: &[Spoil] = &[
    Spoil {
        name: "no such listed file",
        how: |files, _| drop(files.remove(0)),
        reason: "config.json: listed",
    },
    Spoil {
        name: "unlisted file",
        how: |files, _| files.push(("extra".to_owned(), b"x".to_vec())),
        reason: "extra: not listed",
    },
    Spoil {
        name: "lying size",
        how: |_, manifest| manifest["files"][1]["size"] = json!(1),
        reason: "model.safetensors: ",
    },
    Spoil {
        name: "lying hash",
        how: |_, manifest| manifest["files"][2]["sha256"] = json!("00".repeat(32)),
        reason: "optimizer.safetensors: SHA-256 is",
    },
    Spoil {
        name: "one flipped bit",
        how: |files, _| files[1].1[5000] ^= 1,
        reason: "model.safetensors: SHA-256 is",
    },
    Spoil { name: "another step", how: |_, manifest| manifest["step"] = json!(4), reason: "step is" },
    Spoil { name: "another run", how: |_, manifest| manifest["run_id"] = json!("q"), reason: "run_id is" },
    Spoil {
        name: "another kind",
        how: |_, manifest| {
            *manifest = json!({
                "schema_version": 1, "kind": "release", "model_id": "r", "version": "v", "parent": null,
                "created_at": "2026-01-01T00:00:00Z", "files": manifest["files"],
            });
        },
        reason: "kind is",
    },
    Spoil { name: "unknown key", how: |_, manifest| manifest["surprise"] = json!(1), reason: "surprise" },
    Spoil {
        name: "newer schema",
        how: |_, manifest| manifest["schema_version"] = json!(2),
        reason: "MANIFEST.json: ",
    },
    Spoil {
        name: "no files listed",
        how: |_, manifest| manifest["files"] = json!([]),
        reason: "MANIFEST.json: ",
    },
    Spoil {
        name: "a file listed twice",
        how: |files, manifest| manifest["files"][1] = file_entries(&files[..1])[0].clone(),
        reason: "MANIFEST.json: ",
    },
];

/// Writes step 3 of run r, spoiled, and gives its temporary path.
fn write_spoiled(ckpt: &Path, spoil: &Spoil) -> std::path::PathBuf {
    let mut files = files_of(3);
    let mut manifest = manifest_of("r", 3, &files);
    (spoil.how)(&mut files, &mut manifest);
    let tmp = ckpt.join("step-000003.tmp");
    write_dir(&tmp, &files);
    fs::write(tmp.join("MANIFEST.json"), manifest.to_string()).unwrap();
    tmp
}

/// Fails unless the rename is refused with this reason, everywhere it should be found, and nothing changed.
#[track_caller]
fn assert_refused(mount: &Path, from: &Path, to: &Path, what: &str, reason: &str) {
    let before = listing(mount);
    assert_errno(what, fs::rename(from, to), Errno::BADMSG);
    assert_eq!(listing(mount), before, "{what}: the refusal changed something");
    let said = text_xattr(from, "user.tinyllm.problem").unwrap_or_default();
    assert!(said.contains(reason), "{what}: {reason:?} expected, getfattr says {said:?}");
    let log = read_text(mount.join(".tinyllm/problems.log"));
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains(reason), "{what}: {reason:?} expected, the log says {last:?}");
}

#[test]
fn a_bad_manifest_refuses_the_step_and_changes_nothing() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 2);
        let fin = ckpt.join("step-000003");
        for spoil in SPOILS {
            let tmp = write_spoiled(&ckpt, spoil);
            assert_refused(&mount.path(), &tmp, &fin, spoil.name, spoil.reason);
            fs::remove_dir_all(&tmp).unwrap();
        }
        assert_eq!(read_text(ckpt.join("LATEST")), "step-000002\n");
    });
}

#[test]
fn a_missing_or_malformed_manifest_refuses_the_step() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        let (tmp, fin) = (ckpt.join("step-000003.tmp"), ckpt.join("step-000003"));
        let files = files_of(3);
        write_dir(&tmp, &files);
        assert_refused(&mount.path(), &tmp, &fin, "no manifest", "MANIFEST.json: missing");
        for malformed in ["", "{", "[]", "null", "\u{feff}{}"] {
            fs::write(tmp.join("MANIFEST.json"), malformed).unwrap();
            assert_refused(&mount.path(), &tmp, &fin, malformed, "MANIFEST.json: ");
        }
        fs::write(tmp.join("MANIFEST.json"), [0xff, 0xfe, 0x00]).unwrap();
        assert_refused(&mount.path(), &tmp, &fin, "no text", "MANIFEST.json: ");
        // Once it is right it is sealed, and the problem is forgotten.
        fs::write(tmp.join("MANIFEST.json"), manifest_of("r", 3, &files).to_string()).unwrap();
        fs::rename(&tmp, &fin).unwrap();
        assert_complete(&fin, 3);
        assert_eq!(text_xattr(&fin, "user.tinyllm.problem"), None);
    });
}

#[test]
fn only_plain_files_under_one_name_can_be_sealed() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        let (tmp, fin) = (ckpt.join("step-000003.tmp"), ckpt.join("step-000003"));
        let files = files_of(3);
        write_dir(&tmp, &files);
        fs::write(tmp.join("MANIFEST.json"), manifest_of("r", 3, &files).to_string()).unwrap();
        std::os::unix::fs::symlink("config.json", tmp.join("link")).unwrap();
        assert_refused(&mount.path(), &tmp, &fin, "symbolic link", "link: not a regular file");
        fs::remove_file(tmp.join("link")).unwrap();
        fs::hard_link(tmp.join("config.json"), mount.join("elsewhere")).unwrap();
        assert_refused(&mount.path(), &tmp, &fin, "hard link", "config.json: has another hard link");
        fs::remove_file(mount.join("elsewhere")).unwrap();
        fs::rename(&tmp, &fin).unwrap();
        assert_complete(&fin, 3);
    });
}

#[test]
fn a_portable_checkpoint_is_checked_by_its_own_manifest() {
    both_modes(|mount| {
        let dir = mount.join("checkpoints/other tool");
        let (tmp, fin) = (dir.join("step-000003.tmp"), dir.join("step-000003"));
        let files = files_of(3);
        write_dir(&tmp, &files[..2]);
        let mut manifest = json!({
            "name": "base:other tool:step-3", "base_model": "base", "run_id": "other tool", "step": 3,
            "created_at": "2026-01-01T00:00:00Z", "parent": null,
            "weights_sha256": file_entries(&files)[1]["sha256"],
        });
        assert_refused(&mount.path(), &tmp, &fin, "no manifest", "manifest.json: missing");
        let good = manifest.clone();
        for (key, lie, reason) in [
            ("weights_sha256", json!("00".repeat(32)), "model.safetensors: SHA-256 is"),
            ("step", json!(4), "manifest.json: "),
            ("name", json!("base:other tool:step-4"), "manifest.json: "),
            ("surprise", json!(1), "surprise"),
        ] {
            manifest[key] = lie;
            fs::write(tmp.join("manifest.json"), manifest.to_string()).unwrap();
            assert_refused(&mount.path(), &tmp, &fin, key, reason);
            manifest = good.clone();
        }
        fs::write(tmp.join("manifest.json"), good.to_string()).unwrap();
        fs::rename(&tmp, &fin).unwrap();
        assert_eq!(fs::read_link(dir.join("latest")).unwrap(), Path::new("step-000003"));
        assert_eq!(read_text(fin.join("manifest.json")), good.to_string(), "kept byte for byte");
    });
}
