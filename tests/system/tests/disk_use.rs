//! What a store takes on the disk, and the commands that work beside a running mount.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use tinyllm_system_tests::checkpoint::{
    Named, assert_complete, files_of, noise, safetensors, save, save_files,
};
use tinyllm_system_tests::{Mount, binary, both_modes, eventually, listing, run};

const MIB: usize = 1 << 20;

fn tinyllm(mount: &Mount) -> Command {
    let mut command = Command::new(binary("tinyllm"));
    command.arg("--store").arg(mount.store());
    command
}

fn tinyllm_json(mount: &Mount, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_slice(&run(tinyllm(mount).arg("--json").args(arguments)).stdout).unwrap()
}

/// Gives what a directory takes on its disk, as du says it.
fn disk_bytes(dir: &Path) -> u64 {
    // What is removed while du looks is no error here.
    let output = Command::new("du").args(["-s", "--block-size=1"]).arg(dir).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Gives what the store takes with its daemon at rest, when SQLite's log is folded into the catalog.
fn store_bytes(mount: &mut Mount) -> u64 {
    mount.unmount();
    rustix::fs::syncfs(File::open(mount.store()).unwrap()).unwrap();
    let bytes = disk_bytes(&mount.store());
    mount.mount();
    bytes
}

#[track_caller]
fn assert_within(what: &str, found: u64, wanted: u64, percent: u64) {
    let off = found.abs_diff(wanted);
    assert!(off * 100 <= wanted * percent, "{what}: {found}, not {wanted} to {percent}%");
}

const TENSORS: u64 = 10;

/// A model of ten tensors of 1 MiB each; `seeds` are their contents.
fn model(seeds: &[u64]) -> Vec<Named> {
    let names: Vec<String> = (0..seeds.len()).map(|i| format!("layer.{i}.weight")).collect();
    let tensors: Vec<(&str, Vec<u8>)> =
        names.iter().zip(seeds).map(|(name, &seed)| (name.as_str(), noise(seed, MIB))).collect();
    let mut files = files_of(1);
    files.truncate(1);
    files.push(("model.safetensors".to_owned(), safetensors(&tensors)));
    files
}

fn first_model() -> Vec<u64> {
    (100..100 + TENSORS).collect()
}

#[test]
fn equal_tensors_are_stored_once() {
    both_modes(|mount| {
        let mut seeds = first_model();
        save_files(&mount.run_dir("one"), "one", 1, &model(&seeds));
        let once = store_bytes(mount);
        let size = TENSORS * MIB as u64;
        assert!(once > size, "{once} bytes for {size}");
        save_files(&mount.run_dir("one"), "one", 2, &model(&seeds));
        save_files(&mount.run_dir("other"), "other", 1, &model(&seeds));
        let thrice = store_bytes(mount);
        assert!(thrice - once < size / 100, "saving it again took {} bytes", thrice - once);

        seeds[4] = 7;
        save_files(&mount.run_dir("one"), "one", 3, &model(&seeds));
        let (more, tensor) = (store_bytes(mount) - thrice, MIB as u64);
        assert!(more >= tensor, "{more} bytes for a new tensor of {tensor}");
        assert!(more <= tensor + size / 100, "one new tensor of {tensor} bytes took {more}");
        mount.remount();
        assert_complete(&mount.run_dir("one").join("step-000003"), 3);
    });
}

#[test]
fn disk_use_is_told_truly() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        for step in 1..=6 {
            let mut seeds = first_model();
            for (i, seed) in seeds.iter_mut().enumerate().take(usize::try_from(step).unwrap()) {
                *seed = step * 1000 + i as u64;
            }
            save_files(&ckpt, "r", step, &model(&seeds));
        }
        fs::write(mount.join("plain"), noise(3, 5 * MIB)).unwrap();
        fs::remove_dir_all(ckpt.join("step-000003")).unwrap();
        run(tinyllm(mount).arg("gc"));
        let disk = store_bytes(mount);
        let status = tinyllm_json(mount, &["status"]);
        assert_within("tinyllm status", status["disk"]["total_bytes"].as_u64().unwrap(), disk, 5);
        assert_within("du of the mount", disk_bytes(&mount.path()), disk, 5);
        mount.remount();
        assert_within("du after mounting again", disk_bytes(&mount.path()), store_bytes(mount), 5);
    });
}

#[test]
fn collecting_gives_the_bytes_back() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save_files(&ckpt, "r", 1, &model(&first_model()));
        run(tinyllm(mount).arg("gc"));
        let before = store_bytes(mount);
        for step in 2..=4 {
            let mut seeds: Vec<u64> = (step * 1000..step * 1000 + TENSORS).collect();
            seeds[0] = 100;
            save_files(&ckpt, "r", step, &model(&seeds));
        }
        let full = store_bytes(mount);
        assert!(full - before >= 27 * MIB as u64);
        for step in 2..=4 {
            fs::remove_dir_all(ckpt.join(format!("step-{step:06}"))).unwrap();
            fs::remove_dir_all(mount.join(format!("checkpoints/r/step-{step:06}"))).unwrap();
        }
        let freed = tinyllm_json(mount, &["gc"])["freed_bytes"].as_u64().unwrap();
        let after = store_bytes(mount);
        assert!(freed >= 27 * MIB as u64, "{freed} bytes freed");
        assert!(after.abs_diff(before) <= MIB as u64, "{after} bytes after, {before} before");
        assert_complete(&ckpt.join("step-000001"), 1);
        // Nothing to do is no error.
        assert_eq!(tinyllm_json(mount, &["gc"])["freed_bytes"], 0);
    });
}

#[test]
fn a_checkpoint_goes_out_and_comes_back_through_the_daemon() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        let dir = save(&ckpt, "r", 2).dir;
        let out = mount.outside().join("out");
        let contents = |dir: &Path| -> Vec<(String, Vec<u8>)> {
            let names = listing(dir).into_keys();
            names.map(|name| (name.clone(), fs::read(dir.join(name)).unwrap())).collect()
        };
        let before = contents(&dir);
        run(tinyllm(mount).args(["export", "r/step-2"]).arg(&out));
        assert!(contents(&out) == before, "the export differs");

        fs::remove_dir_all(&dir).unwrap();
        fs::remove_dir_all(mount.join("checkpoints/r/step-000002")).unwrap();
        assert_eq!(fs::read_to_string(ckpt.join("LATEST")).unwrap(), "step-000001\n");
        run(tinyllm(mount).arg("gc"));
        run(tinyllm(mount).arg("import").arg(&out).arg("r/step-2"));
        eventually("the import shows", || {
            fs::read_to_string(ckpt.join("LATEST")).unwrap() == "step-000002\n"
        });
        assert_complete(&dir, 2);
        assert!(contents(&dir) == before, "the import differs");
        assert!(mount.join("checkpoints/r/step-000002/manifest.json").exists());

        let again = tinyllm(mount).arg("import").arg(&out).arg("r/step-2").output().unwrap();
        assert_eq!(again.status.code(), Some(4), "{again:?}");
        let missing =
            tinyllm(mount).args(["export", "r/step-9"]).arg(mount.outside().join("no")).output().unwrap();
        assert_eq!(missing.status.code(), Some(3), "{missing:?}");
        fs::write(out.join("model.safetensors"), "spoiled").unwrap();
        let spoiled = tinyllm(mount).arg("import").arg(&out).arg("r/step-2").output().unwrap();
        assert_eq!(spoiled.status.code(), Some(4), "{spoiled:?}");

        let verified = tinyllm_json(mount, &["verify", "--all"]);
        assert_eq!(verified["checkpoints"].as_array().unwrap().len(), 4, "{verified}");
        let listed = tinyllm_json(mount, &["ls", "r"]);
        assert!(listed.as_array().unwrap().iter().all(|step| !step["verified_at"].is_null()), "{listed}");
    });
}

#[test]
fn a_plain_model_directory_is_imported_through_the_daemon() {
    both_modes(|mount| {
        let source = mount.outside().join("model");
        fs::create_dir(&source).unwrap();
        for (name, bytes) in model(&first_model()) {
            fs::write(source.join(name), bytes).unwrap();
        }
        run(tinyllm(mount).arg("import").arg(&source).arg("base/step-0"));
        let dir = mount.join("checkpoints/base/step-000000");
        eventually("the import shows", || dir.join("manifest.json").exists());
        assert!(
            fs::read(dir.join("model.safetensors")).unwrap()
                == fs::read(source.join("model.safetensors")).unwrap()
        );
        run(tinyllm(mount).args(["verify", "base/step-0"]));
    });
}
