//! Sealing a step, and what is refused with it afterwards, through the mount.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};
use rustix::io::Errno;
use tinyllm::manifest::{CheckpointManifest, Manifest};
use tinyllm_system_tests::checkpoint::{assert_complete, files_of, lineage, prepare, save, save_files};
use tinyllm_system_tests::{Mount, assert_errno, both_modes, eventually, listing, read_text, run, succeeds};

#[track_caller]
fn assert_latest(ckpt: &Path, name: &str) {
    assert_eq!(read_text(ckpt.join("LATEST")), format!("{name}\n"));
    assert_eq!(fs::read_link(ckpt.join("latest")).unwrap(), Path::new(name));
}

#[test]
fn a_saved_step_is_complete_and_stays_so() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        let published = save(&ckpt, "r", 1);
        assert_complete(&published.dir, 1);
        assert_latest(&ckpt, "step-000001");
        save(&ckpt, "r", 2);
        assert_latest(&ckpt, "step-000002");
        // Without passthrough the kernel shows times of its own until it has forgotten the files.
        mount.remount();
        let before = listing(&mount.join("runs"));
        mount.remount();
        assert_eq!(listing(&mount.join("runs")), before);
        assert_complete(&ckpt.join("step-000001"), 1);
        assert_latest(&ckpt, "step-000002");
    });
}

#[test]
fn the_portable_face_comes_with_the_seal() {
    both_modes(|mount| {
        let published = save(&mount.run_dir("r"), "r", 7);
        let portable = mount.join("checkpoints/r/step-000007");
        let names: Vec<String> = listing(&portable).into_keys().collect();
        assert_eq!(names, ["config.json", "manifest.json", "model.safetensors"]);
        let model = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
        assert_eq!(model(&portable), model(&published.dir));

        let bytes = fs::read(portable.join("manifest.json")).unwrap();
        let weights_sha256 = published.manifest.file("model.safetensors").unwrap().sha256;
        let derived = CheckpointManifest::from_manifest(&published.manifest, weights_sha256).unwrap();
        assert_eq!(bytes, derived.to_bytes());
        assert_eq!(fs::read_link(mount.join("checkpoints/r/latest")).unwrap(), Path::new("step-000007"));
        assert!(!mount.join("checkpoints/r/LATEST").exists());

        mount.remount();
        assert_eq!(fs::read(portable.join("manifest.json")).unwrap(), bytes);
        // Its life is its own: the resumable face may go.
        fs::remove_dir_all(&published.dir).unwrap();
        assert_eq!(fs::read(portable.join("manifest.json")).unwrap(), bytes);
    });
}

#[test]
fn nothing_changes_inside_a_sealed_step() {
    both_modes(|mount| {
        let dir = save(&mount.run_dir("r"), "r", 1).dir;
        let before = listing(&dir);
        let file = dir.join("model.safetensors");
        let plain = mount.join("plain");
        fs::write(&plain, "x").unwrap();
        let open = |options: &mut OpenOptions| options.open(&file);
        assert_errno("open to write", open(OpenOptions::new().write(true)), Errno::PERM);
        assert_errno("open to read and write", open(OpenOptions::new().read(true).write(true)), Errno::PERM);
        assert_errno("open to append", open(OpenOptions::new().append(true)), Errno::PERM);
        assert_errno("truncate on open", open(OpenOptions::new().write(true).truncate(true)), Errno::PERM);
        assert_errno("create inside", File::create_new(dir.join("more")), Errno::PERM);
        assert_errno("mkdir inside", fs::create_dir(dir.join("more")), Errno::PERM);
        assert_errno("symlink inside", symlink("x", dir.join("more")), Errno::PERM);
        assert_errno("link inside", fs::hard_link(&plain, dir.join("more")), Errno::PERM);
        assert_errno("link away", fs::hard_link(&file, mount.join("more")), Errno::PERM);
        assert_errno("rename inside", fs::rename(&plain, dir.join("more")), Errno::PERM);
        assert_errno("rename over", fs::rename(&plain, &file), Errno::PERM);
        assert_errno("rename out", fs::rename(&file, mount.join("out")), Errno::PERM);
        for path in [&file, &dir] {
            assert_errno("chmod", fs::set_permissions(path, Permissions::from_mode(0o777)), Errno::PERM);
            assert_errno("chown", std::os::unix::fs::chown(path, Some(1), None), Errno::PERM);
            let set = rustix::fs::setxattr(path, "user.note", b"x", XattrFlags::empty());
            assert_errno("setxattr", set, Errno::PERM);
        }
        let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        assert_errno("utimens", File::open(&file).unwrap().set_times(times), Errno::PERM);
        let truncated = Command::new("truncate").args(["-s", "1"]).arg(&file).output().unwrap();
        assert!(!truncated.status.success(), "truncate worked");
        assert_eq!(listing(&dir), before);
    });
}

#[test]
fn a_file_still_open_for_writing_keeps_a_step_from_being_sealed() {
    both_modes(|mount| {
        let (tmp, fin) = prepared(mount, "r", 1);
        let writer = OpenOptions::new().write(true).open(tmp.join("model.safetensors")).unwrap();
        assert_errno("rename with a writer", fs::rename(&tmp, &fin), Errno::BUSY);
        assert!(tmp.exists() && !fin.exists());
        drop(writer);
        fs::rename(&tmp, &fin).unwrap();
        assert_complete(&fin, 1);
    });
}

#[test]
fn a_writable_mapping_keeps_a_step_from_being_sealed() {
    both_modes(|mount| {
        let (tmp, fin) = prepared(mount, "r", 1);
        let file = OpenOptions::new().read(true).write(true).open(tmp.join("model.safetensors")).unwrap();
        // SAFETY: nobody else changes this file of a directory of the test's own.
        let mapping = unsafe { memmap2::MmapMut::map_mut(&file).unwrap() };
        drop(file);
        assert_errno("rename with a mapping", fs::rename(&tmp, &fin), Errno::BUSY);
        drop(mapping);
        fs::rename(&tmp, &fin).unwrap();
        assert_complete(&fin, 1);
    });
}

/// Writes a step up to its manifest and gives its temporary and its final path.
fn prepared(mount: &Mount, run: &str, step: u64) -> (std::path::PathBuf, std::path::PathBuf) {
    use tinyllm_system_tests::checkpoint::{manifest_of, write_dir};
    let (ckpt, files) = (mount.run_dir(run), files_of(step));
    let tmp = ckpt.join(format!("step-{step:06}.tmp"));
    write_dir(&tmp, &files);
    fs::write(tmp.join("MANIFEST.json"), manifest_of(run, step, &files).to_string()).unwrap();
    (tmp, ckpt.join(format!("step-{step:06}")))
}

#[test]
fn a_reader_is_no_obstacle_and_keeps_what_it_reads() {
    both_modes(|mount| {
        let (tmp, fin) = prepared(mount, "r", 1);
        let path = tmp.join("model.safetensors");
        let wanted = fs::read(&path).unwrap();
        let file = File::open(&path).unwrap();
        // SAFETY: the file does not change while it is mapped; that is what this test shows.
        let mapping = unsafe { memmap2::Mmap::map(&file).unwrap() };
        fs::rename(&tmp, &fin).unwrap();
        assert!(mapping[..] == wanted[..], "the mapping changed");
        drop((mapping, file));
        assert!(fs::read(fin.join("model.safetensors")).unwrap() == wanted);
    });
}

#[test]
fn saving_a_step_again_exchanges_it() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        save(&ckpt, "r", 2);
        let again = save_files(&ckpt, "r", 1, &files_of(77));
        assert_complete(&again.dir, 1);
        assert!(fs::read(again.dir.join("model.safetensors")).unwrap() == files_of(77)[1].1);
        // Newest is by the order of commits.
        assert_latest(&ckpt, "step-000001");
        assert!(!ckpt.join("step-000001.tmp").exists());
        let portable = mount.join("checkpoints/r/step-000001/model.safetensors");
        assert!(fs::read(portable).unwrap() == files_of(77)[1].1);
    });
}

#[test]
fn an_exchange_in_one_call_leaves_the_old_step_under_the_other_name() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        let (tmp, fin) = prepared(mount, "r", 1);
        assert_errno("rename onto a step", fs::rename(&tmp, &fin), Errno::NOTEMPTY);
        let kept = renameat_with(CWD, &tmp, CWD, &fin, RenameFlags::NOREPLACE);
        assert_errno("rename without replacing", kept, Errno::EXIST);
        renameat_with(CWD, &tmp, CWD, &fin, RenameFlags::EXCHANGE).unwrap();
        assert_complete(&fin, 1);
        assert_complete(&tmp, 1);
        fs::remove_dir_all(&tmp).unwrap();
        assert_complete(&fin, 1);
    });
}

#[test]
fn removing_steps_moves_latest() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        for step in 1..=5 {
            save(&ckpt, "r", step);
        }
        succeeds(&ckpt, "rm -r $M/step-000005");
        assert_latest(&ckpt, "step-000004");
        run(Command::new("/usr/bin/python3")
            .args(["-c", "import shutil, sys; shutil.rmtree(sys.argv[1])"])
            .arg(ckpt.join("step-000004")));
        assert_latest(&ckpt, "step-000003");
        fs::remove_dir_all(ckpt.join("step-000001")).unwrap();
        assert_latest(&ckpt, "step-000003");
        // As retention does it: away from the final name first.
        fs::rename(ckpt.join("step-000003"), ckpt.join("step-000003.tmp")).unwrap();
        assert_latest(&ckpt, "step-000002");
        fs::remove_dir_all(ckpt.join("step-000003.tmp")).unwrap();
        assert_complete(&ckpt.join("step-000002"), 2);
        let names: Vec<String> = listing(&ckpt).into_keys().filter(|name| !name.contains('/')).collect();
        assert_eq!(names, ["LATEST", "latest", "step-000002"]);
        mount.remount();
        assert_latest(&ckpt, "step-000002");
        succeeds(mount.path().as_path(), "rm -r $M/runs/r");
        assert!(!mount.join("runs/r").exists());
    });
}

#[test]
fn a_half_removed_step_has_no_manifest() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        let dir = save(&ckpt, "r", 2).dir;
        fs::remove_file(dir.join("config.json")).unwrap();
        // At once nobody can read it; the kernel forgets its name a moment later.
        assert_errno("read the manifest", fs::read(dir.join("MANIFEST.json")), Errno::NOENT);
        eventually("the manifest's name goes", || !dir.join("MANIFEST.json").exists());
        assert_latest(&ckpt, "step-000001");
        // Whoever removes the rest finds every name it saw before removable.
        fs::remove_file(dir.join("MANIFEST.json")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert!(!dir.exists());
    });
}

#[test]
fn a_step_that_was_renamed_away_may_come_back() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        let dir = save(&ckpt, "r", 2).dir;
        fs::rename(&dir, mount.join("aside")).unwrap();
        assert_complete(&mount.join("aside"), 2);
        assert_latest(&ckpt, "step-000001");
        let wrong = ckpt.join("step-000009");
        assert_errno("rename to another step", fs::rename(mount.join("aside"), wrong), Errno::BADMSG);
        fs::rename(mount.join("aside"), &dir).unwrap();
        assert_complete(&dir, 2);
        assert_latest(&ckpt, "step-000002");
    });
}

#[test]
fn latest_may_be_written_by_whoever_tells_the_truth() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        save(&ckpt, "r", 2);
        let (tmp, latest) = (ckpt.join("LATEST.tmp"), ckpt.join("LATEST"));
        for lie in ["step-000001\n", "step-000003\n", "step-2\n", "", "step-000002.tmp\n"] {
            fs::write(&tmp, lie).unwrap();
            assert_errno(lie, fs::rename(&tmp, &latest), Errno::INVAL);
            assert_latest(&ckpt, "step-000002");
        }
        fs::write(&tmp, "step-000002\n").unwrap();
        fs::rename(&tmp, &latest).unwrap();
        assert!(!tmp.exists());
        assert_latest(&ckpt, "step-000002");
        let link = ckpt.join("latest.tmp");
        symlink("step-000001", &link).unwrap();
        assert_errno("a lying link", fs::rename(&link, ckpt.join("latest")), Errno::INVAL);
        fs::remove_file(&link).unwrap();
        symlink("step-000002", &link).unwrap();
        fs::rename(&link, ckpt.join("latest")).unwrap();
        assert_latest(&ckpt, "step-000002");
        assert_errno("write LATEST", OpenOptions::new().write(true).open(&latest), Errno::PERM);
        save(&ckpt, "r", 3);
        assert_latest(&ckpt, "step-000003");
    });
}

#[test]
fn final_names_come_by_sealing_only() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        fs::create_dir_all(&ckpt).unwrap();
        let fin = ckpt.join("step-000001");
        assert_errno("mkdir", fs::create_dir(&fin), Errno::PERM);
        assert_errno("create", File::create_new(&fin), Errno::PERM);
        assert_errno("symlink", symlink("x", &fin), Errno::PERM);
        fs::write(mount.join("file"), "x").unwrap();
        assert_errno("link", fs::hard_link(mount.join("file"), &fin), Errno::PERM);
        assert_errno("rename a file", fs::rename(mount.join("file"), &fin), Errno::BADMSG);
        assert_errno(
            "mkdir portable",
            fs::create_dir_all(mount.join("checkpoints/r/step-000001")),
            Errno::PERM,
        );
        assert_errno("mkdir release", fs::create_dir_all(mount.join("models/m/v1")), Errno::PERM);
        // Names that only look like steps are plain.
        for plain in ["step-1", "step-0000001", "step-000001.backup", "step-00000x"] {
            fs::create_dir(ckpt.join(plain)).unwrap();
        }
    });
}

#[test]
fn steps_are_numbers_and_temporary_names_are_free() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 999_999);
        let last = save(&ckpt, "r", 1_000_000);
        assert_eq!(last.dir, ckpt.join("step-1000000"));
        assert_latest(&ckpt, "step-1000000");
        let (tmp, fin) = prepared(mount, "r", 1_000_001);
        let hidden = ckpt.join(".step-1000001.partial");
        fs::rename(&tmp, &hidden).unwrap();
        fs::rename(&hidden, &fin).unwrap();
        assert_complete(&fin, 1_000_001);
        assert_latest(&ckpt, "step-1000001");
        assert_eq!(tinyllm::publish::list_steps(&ckpt).unwrap().len(), 3);
    });
}

#[test]
fn a_trainer_that_dropped_its_writer_leaves_only_a_stale_directory() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        drop(prepare(&ckpt, 2, &files_of(2)).unwrap());
        assert!(ckpt.join("step-000002.tmp").exists());
        assert_latest(&ckpt, "step-000001");
        prepare(&ckpt, 2, &files_of(2)).unwrap().finish(lineage("r")).unwrap();
        assert!(Manifest::read(&ckpt.join("step-000002")).is_ok());
        assert!(!ckpt.join("step-000002.tmp").exists());
    });
}
