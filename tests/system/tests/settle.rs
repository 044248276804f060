//! Plain files settle in the background without anybody noticing.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use tinyllm::store::Store;
use tinyllm_system_tests::checkpoint::{
    assert_complete, files_of, manifest_of, noise, safetensors, write_dir,
};
use tinyllm_system_tests::{Mount, both_modes, both_modes_with, eventually};

const MIB: usize = 1 << 20;

/// Waits until the file's bytes are a recipe.
fn wait_until_settled(mount: &Mount, path: &Path) {
    let ino = fs::metadata(path).unwrap().ino();
    let raw = mount.store().join("live").join(ino.to_string());
    eventually("the file settles", || !raw.exists());
}

#[test]
fn a_settled_file_is_the_same_file() {
    both_modes_with("settle_after=1", |mount| {
        let path = mount.join("file");
        let mut wanted = noise(1, 3 * MIB);
        fs::write(&path, &wanted).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let facts = |path: &Path| {
            let stat = fs::metadata(path).unwrap();
            (stat.ino(), stat.len(), stat.mtime(), stat.mtime_nsec(), stat.mode(), stat.nlink())
        };
        let before = facts(&path);
        wait_until_settled(mount, &path);
        assert_eq!(facts(&path), before);
        assert!(fs::read(&path).unwrap() == wanted);
        assert!(fs::metadata(&path).unwrap().blocks() > 0);
        // Writing gives it bytes of its own again.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"tail").unwrap();
        wanted.extend_from_slice(b"tail");
        assert!(fs::read(&path).unwrap() == wanted);
        mount.remount();
        assert!(fs::read(&path).unwrap() == wanted);
        wait_until_settled(mount, &path);
        assert!(fs::read(&path).unwrap() == wanted);
    });
}

#[test]
fn a_reader_sees_what_is_appended_after_the_file_settled() {
    both_modes_with("settle_after=1", |mount| {
        let path = mount.join("file");
        let content = noise(2, 200_000);
        fs::write(&path, &content).unwrap();
        wait_until_settled(mount, &path);
        let reader = File::open(&path).unwrap();
        let mut start = vec![0; 1000];
        reader.read_exact_at(&mut start, 0).unwrap();
        assert!(start == content[..1000]);
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all_at(b"appended", content.len() as u64).unwrap();
        writer.write_all_at(b"changed", 0).unwrap();
        let mut tail = [0; 8];
        reader.read_exact_at(&mut tail, content.len() as u64).unwrap();
        assert_eq!(&tail, b"appended");
        reader.read_exact_at(&mut start[..7], 0).unwrap();
        assert_eq!(&start[..7], b"changed");
        // Whoever opens it now sees the same.
        let second = fs::read(&path).unwrap();
        assert!(second.len() == content.len() + 8 && second[7..content.len()] == content[7..]);
    });
}

#[test]
fn truncating_a_settled_file_needs_no_open() {
    both_modes_with("settle_after=1", |mount| {
        let path = mount.join("file");
        fs::write(&path, noise(3, 200_000)).unwrap();
        wait_until_settled(mount, &path);
        tinyllm_system_tests::succeeds(&mount.path(), "truncate -s 1000 $M/file");
        assert!(fs::read(&path).unwrap() == noise(3, 200_000)[..1000]);
    });
}

#[test]
fn clones_and_copies_are_equal_and_independent() {
    both_modes_with("settle_after=1", |mount| {
        let path = mount.join("file");
        fs::write(&path, noise(4, 2 * MIB)).unwrap();
        let copy_and_check = |to: &str| {
            let to = mount.join(to);
            fs::copy(&path, &to).unwrap();
            assert!(fs::read(&to).unwrap() == noise(4, 2 * MIB));
            OpenOptions::new().append(true).open(&to).unwrap().write_all(b"x").unwrap();
            assert!(
                fs::read(&path).unwrap() == noise(4, 2 * MIB),
                "a change of the copy reached the original"
            );
        };
        copy_and_check("copy of the raw file");
        wait_until_settled(mount, &path);
        copy_and_check("copy of the settled file");
        // --reflink=always clones or says cleanly that it can't; auto always works.
        tinyllm_system_tests::succeeds(
            &mount.path(),
            "cp --reflink=auto $M/file $M/auto; cmp $M/file $M/auto
             if ! said=$(cp --reflink=always $M/file $M/always 2>&1); then
                 grep -Eq 'not supported|cross-device' <<<\"$said\"; fi",
        );
    });
}

#[test]
fn equal_files_are_stored_once() {
    both_modes_with("settle_after=1", |mount| {
        let content = noise(5, 8 * MIB);
        let paths: Vec<PathBuf> = (0..4).map(|number| mount.join(format!("file {number}"))).collect();
        for path in &paths {
            fs::write(path, &content).unwrap();
        }
        paths.iter().for_each(|path| wait_until_settled(mount, path));
        let packs = || {
            let du = format!("du -s --block-size=1 {}", mount.store().join("packs").display());
            let said = tinyllm_system_tests::output_of(&mount.path(), &du);
            said.split_whitespace().next().unwrap().parse::<usize>().unwrap()
        };
        eventually("the copies' bytes go", || packs() < 9 * MIB);
        assert!(paths.iter().all(|path| fs::read(path).unwrap() == content));
    });
}

#[test]
fn a_mapping_outlives_its_descriptor_and_the_punching_of_holes() {
    both_modes(|mount| {
        // The model's frozen tensor is known already, so the seal gives its bytes back to the disk.
        let ckpt = mount.run_dir("r");
        write_step(&ckpt, 1);
        let tmp = write_files(&ckpt, 2);
        let path = tmp.join("model.safetensors");
        let wanted = fs::read(&path).unwrap();
        let file = File::open(&path).unwrap();
        // SAFETY: the file does not change while it is mapped; that is what this test shows.
        let mapping = unsafe { memmap2::Mmap::map(&file).unwrap() };
        drop(file);
        fs::rename(&tmp, ckpt.join("step-000002")).unwrap();
        let store = Store::open_read_only(&mount.store()).unwrap();
        let waiting = || store.read(|txn| txn.punches()).unwrap();
        let of_mapped = waiting();
        assert!(!of_mapped.is_empty() || mount.status()["passthrough"] == false);
        write_step(&ckpt, 3);
        eventually("the holes of the next step are punched", || waiting().len() <= of_mapped.len());
        assert!(mapping[..] == wanted[..], "the mapping changed");
        drop(mapping);
        eventually("no range waits to be punched", || {
            fs::write(mount.join("something"), "closed").unwrap();
            waiting().is_empty()
        });
        assert_complete(&ckpt.join("step-000002"), 2);
    });
}

#[test]
fn an_open_reader_reads_the_same_after_the_punching_of_holes() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        write_step(&ckpt, 1);
        let tmp = write_files(&ckpt, 2);
        let reader = File::open(tmp.join("model.safetensors")).unwrap();
        fs::rename(&tmp, ckpt.join("step-000002")).unwrap();
        // A later step's holes are punched after this one's would have been.
        let store = Store::open_read_only(&mount.store()).unwrap();
        let waiting = || store.read(|txn| txn.punches()).unwrap();
        let before = waiting();
        write_step(&ckpt, 3);
        eventually("the holes of the next step are punched", || waiting().len() <= before.len());
        // What the kernel cached of it must not hide the daemon's answer.
        rustix::fs::fadvise(&reader, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let wanted = &step_files(2)[1].1;
        let mut found = vec![0; wanted.len()];
        reader.read_exact_at(&mut found, 0).unwrap();
        assert!(found == *wanted, "the reader sees holes");
        drop(reader);
        eventually("no range waits to be punched", || {
            fs::write(mount.join("something"), "closed").unwrap();
            waiting().is_empty()
        });
    });
}

/// Half of the model is new at each step, and half never changes.
fn step_files(step: u64) -> Vec<(String, Vec<u8>)> {
    let mut files = files_of(step);
    let tensors = [("frozen", noise(1, MIB)), ("trained", noise(100 + step, MIB + 4096))];
    files[1].1 = safetensors(&tensors);
    files
}

fn write_files(ckpt: &Path, step: u64) -> PathBuf {
    let (tmp, files) = (ckpt.join(format!("step-{step:06}.tmp")), step_files(step));
    write_dir(&tmp, &files);
    fs::write(tmp.join("MANIFEST.json"), manifest_of("r", step, &files).to_string()).unwrap();
    tmp
}

fn write_step(ckpt: &Path, step: u64) {
    let tmp = write_files(ckpt, step);
    fs::rename(&tmp, tmp.with_extension("")).unwrap();
}
