//! The catalog can be lost: packs and records bring every sealed tree back.
#![allow(clippy::unwrap_used)]

use std::fs;

use tinyllm_system_tests::checkpoint::{files_of, save, save_files};
use tinyllm_system_tests::{Mount, binary, both_modes, listing, run};

/// Removes the catalog of an unmounted store and rebuilds it with the command.
fn lose_and_rebuild(mount: &Mount) {
    for entry in fs::read_dir(mount.store()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("catalog.db") {
            fs::remove_file(path).unwrap();
        }
    }
    let mut command = std::process::Command::new(binary("tinyllm"));
    run(command.arg("--store").arg(mount.store()).arg("rebuild"));
}

#[test]
fn every_sealed_tree_comes_back_byte_for_byte() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        for step in 1..=4 {
            save(&ckpt, "r", step);
        }
        save_files(&ckpt, "r", 2, &files_of(22));
        save(&mount.run_dir("other"), "other", 7);
        fs::remove_dir_all(ckpt.join("step-000001")).unwrap();
        fs::rename(ckpt.join("step-000004"), mount.join("kept")).unwrap();
        fs::remove_dir_all(mount.join("checkpoints/other/step-000007")).unwrap();
        let trees = ["runs", "checkpoints", "models", "kept"];
        // Without passthrough the kernel shows times of its own until it has forgotten the files.
        mount.remount();
        let before = trees.map(|tree| listing(&mount.join(tree)));
        mount.unmount();
        lose_and_rebuild(mount);
        mount.mount();
        let after = trees.map(|tree| listing(&mount.join(tree)));
        for (tree, (before, after)) in trees.iter().zip(before.iter().zip(&after)) {
            let kept = |found: &std::collections::BTreeMap<String, String>| sealed_part(found);
            assert_eq!(kept(after), kept(before), "{tree}");
        }
        // And it goes on from there.
        save(&ckpt, "r", 9);
        assert_eq!(fs::read_to_string(ckpt.join("LATEST")).unwrap(), "step-000009\n");
    });
}

/// Leaves out what records do not describe: plain directories, and when LATEST was made.
fn sealed_part(found: &std::collections::BTreeMap<String, String>) -> Vec<(String, String)> {
    let parts = found.iter().filter(|(_, facts)| !facts.ends_with(" directory"));
    let parts = parts.map(|(path, facts)| {
        let derived = path.ends_with("LATEST") || path.ends_with("latest");
        let facts = if derived { facts.rsplit_once(' ').unwrap().1 } else { facts };
        (path.clone(), facts.to_owned())
    });
    parts.collect()
}
