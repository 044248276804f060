//! Released models: sealed through the gate, and immutable for good.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};

use rustix::io::Errno;
use serde_json::json;
use tinyllm::manifest::Manifest;
use tinyllm_system_tests::checkpoint::{Named, file_entries, files_of, write_dir};
use tinyllm_system_tests::{Mount, assert_errno, both_modes, listing, text_xattr};

fn release_files() -> Vec<Named> {
    let mut files: Vec<Named> = files_of(1).into_iter().take(2).collect();
    let ledger = json!([{"source": "text", "allowed_uses": ["train"]}]).to_string();
    files.push(("MODEL_CARD.md".to_owned(), b"# A model\n".to_vec()));
    files.push(("evals/summary.json".to_owned(), b"{}".to_vec()));
    files.push(("ledger.json".to_owned(), ledger.into_bytes()));
    files
}

/// Writes a release with its manifest under a temporary name.
fn write_release(mount: &Mount, files: &[Named]) -> std::path::PathBuf {
    let tmp = mount.join("models/m/.v1");
    write_dir(&tmp, files);
    let manifest = json!({
        "schema_version": 1, "kind": "release", "model_id": "m", "version": "v1", "parent": null,
        "created_at": "2026-01-01T00:00:00Z", "files": file_entries(files),
    });
    fs::write(tmp.join("MANIFEST.json"), manifest.to_string()).unwrap();
    tmp
}

#[test]
fn a_release_is_immutable() {
    both_modes(|mount| {
        let released = mount.join("models/m/v1");
        fs::rename(write_release(mount, &release_files()), &released).unwrap();
        Manifest::read(&released).unwrap().check_dir(&released).unwrap();
        // Without passthrough the kernel shows times of its own until it has forgotten the files.
        mount.remount();
        let before = listing(&released);
        let file = released.join("model.safetensors");
        assert_errno("unlink", fs::remove_file(&file), Errno::PERM);
        assert_errno("write", OpenOptions::new().write(true).open(&file), Errno::PERM);
        assert_errno("create", File::create_new(released.join("x")), Errno::PERM);
        assert_errno("rename away", fs::rename(&released, mount.join("models/m/v2.tmp")), Errno::PERM);
        assert_errno("rename out", fs::rename(&released, mount.join("away")), Errno::PERM);
        assert_errno("remove", fs::remove_dir_all(&released), Errno::PERM);
        let again = write_release(mount, &release_files());
        assert!(fs::rename(&again, &released).is_err(), "a release was replaced");
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        let exchanged = rustix::fs::renameat_with(rustix::fs::CWD, &again, rustix::fs::CWD, &released, flags);
        assert_errno("exchange", exchanged, Errno::PERM);
        fs::remove_dir_all(&again).unwrap();
        mount.remount();
        assert_eq!(listing(&released), before);
    });
}

#[test]
fn the_gate_refuses_what_may_not_be_released() {
    both_modes(|mount| {
        let released = mount.join("models/m/v1");
        let revoked = json!([{"allowed_uses": ["train"], "revoked": true}]).to_string();
        let cases: [(&str, Option<&[u8]>, &str); 4] = [
            ("MODEL_CARD.md", None, "MODEL_CARD.md: missing"),
            ("MODEL_CARD.md", Some(b""), "MODEL_CARD.md: empty"),
            ("ledger.json", Some(revoked.as_bytes()), "revoked"),
            ("evals/summary.json", None, "evals/summary.json: missing"),
        ];
        for (name, content, reason) in cases {
            let mut files = release_files();
            files.retain(|(path, _)| path != name);
            files.extend(content.map(|bytes| (name.to_owned(), bytes.to_vec())));
            let tmp = write_release(mount, &files);
            assert_errno(reason, fs::rename(&tmp, &released), Errno::BADMSG);
            let said = text_xattr(&tmp, "user.tinyllm.problem").unwrap();
            assert!(said.contains(reason), "{reason:?} expected, not {said:?}");
            fs::remove_dir_all(&tmp).unwrap();
        }
        assert!(!released.exists());
    });
}
