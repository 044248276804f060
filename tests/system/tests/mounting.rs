//! Mounting where something is in the way, and what outlives a daemon.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tinyllm_system_tests::checkpoint::{assert_complete, files_of, manifest_of, save, write_dir};
use tinyllm_system_tests::{Mount, assert_errno, binary, both_modes, eventually, run, verify_store};

const MODES: [&str; 2] = ["passthrough=yes", "passthrough=no"];

/// Fails unless the command ends with this code, prints nothing, and says exactly one line that holds all of `texts`.
#[track_caller]
fn assert_refused(command: &mut Command, code: i32, texts: &[&str]) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{command:?}: {said}");
    assert_eq!(stdout, b"", "{command:?}");
    assert_eq!(said.lines().count(), 1, "one line expected: {said:?}");
    for text in texts {
        assert!(said.contains(text), "{text:?} expected: {said:?}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_mounted(target: &Path) -> bool {
    let mounts = tinyllm::mounts::mounts().unwrap();
    mounts.iter().any(|mount| mount.target == target)
}

/// A mount command with another mount point.
fn command_at(mount: &Mount, target: &Path, options: &str) -> Command {
    let mut command = Command::new(binary("mount-tinyllm"));
    command.arg(mount.store()).arg(target).args(["-o", options]);
    command
}

#[test]
fn a_store_that_a_command_holds_is_in_use() {
    for options in MODES {
        let mut mount = Mount::new(options);
        mount.unmount();
        let lock = File::open(mount.store().join("lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert_refused(&mut mount.command(), 6, &[text(&mount.store())]);
        drop(lock);
        mount.mount();
        mount.unmount();
    }
}

#[test]
fn a_damaged_store_is_refused() {
    for options in MODES {
        let mut mount = Mount::new(options);
        save(&mount.run_dir("r"), "r", 1);
        mount.unmount();
        let catalog = mount.store().join("catalog.db");
        let bytes = fs::read(&catalog).unwrap();
        fs::write(&catalog, &bytes[..bytes.len() / 2]).unwrap();
        assert_refused(&mut mount.command(), 5, &[text(&mount.store())]);
        fs::write(&catalog, "no catalog\n".repeat(1000)).unwrap();
        assert_refused(&mut mount.command(), 5, &[text(&mount.store())]);
        fs::remove_file(&catalog).unwrap();
        assert_refused(&mut mount.command(), 5, &[text(&mount.store()), "tinyllm rebuild"]);
        assert!(!catalog.exists(), "a refused mount made a catalog");
        fs::write(&catalog, bytes).unwrap();
        mount.mount();
        assert_complete(&mount.run_dir("r").join("step-000001"), 1);
        mount.unmount();
    }
}

#[test]
fn nonempty_mounts_over_what_is_there() {
    for options in MODES {
        let mut mount = Mount::unmounted(&format!("{options},nonempty"));
        let precious = mount.join("precious");
        fs::write(&precious, "x").unwrap();
        mount.mount();
        assert!(!precious.exists());
        mount.unmount();
        assert!(precious.exists());
    }
}

#[test]
fn an_unknown_option_is_refused_by_name() {
    let mount = Mount::unmounted("");
    for option in ["sealed", "passthrough=maybe", "threads=0", "settle_after=soon"] {
        for options in [option.to_owned(), format!("ro,{option}")] {
            assert_refused(&mut command_at(&mount, &mount.path(), &options), 2, &[option]);
        }
    }
    assert!(!mount.store().exists());
}

/// Passed-through files of a killed daemon go on taking writes, whoever serves the store next.
#[test]
fn a_writer_that_outlived_its_daemon_cannot_change_a_sealed_step() {
    for (first, then) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        eprintln!("{} and then {}", MODES[first], MODES[then]);
        let mut mount = Mount::new(MODES[first]);
        let (ckpt, files) = (mount.run_dir("r"), files_of(1));
        let (tmp, fin) = (ckpt.join("step-000001.tmp"), ckpt.join("step-000001"));
        write_dir(&tmp, &files);
        fs::write(tmp.join("MANIFEST.json"), manifest_of("r", 1, &files).to_string()).unwrap();
        let orphan = OpenOptions::new().write(true).open(tmp.join("model.safetensors")).unwrap();
        mount.kill();
        run(mount.command().args(["-o", MODES[then]]));
        mount.find_daemon();
        let renamed = fs::rename(&tmp, &fin);
        let sealed = renamed.is_ok();
        if !sealed {
            assert_errno("seal with a writer", renamed, Errno::BUSY);
        }
        assert_eq!(
            sealed,
            MODES[first] == "passthrough=no",
            "only a passed-through file can still be written"
        );
        let written = orphan.write_all_at(b"late", 1000);
        drop(orphan);
        if sealed {
            // The write failed, or went into the cache of the dead mount and nowhere else.
            assert_complete(&fin, 1);
        } else {
            written.unwrap();
            assert_errno("seal what was written late", fs::rename(&tmp, &fin), Errno::BADMSG);
        }
        mount.unmount();
        verify_store(&mount.store());
    }
}

#[test]
fn several_dead_mounts_and_their_users_are_no_obstacle() {
    both_modes(|mount| {
        fs::create_dir(mount.join("d")).unwrap();
        let mut users = Vec::new();
        for _ in 0..3 {
            let inside = Command::new("sleep").arg("600").current_dir(mount.join("d")).spawn().unwrap();
            users.push(inside);
            mount.kill();
            mount.mount();
        }
        assert!(mount.join("d").is_dir());
        for user in &mut users {
            user.kill().unwrap();
            user.wait().unwrap();
        }
    });
}

#[test]
fn a_daemon_in_the_foreground_ends_with_its_mount() {
    let unmounted_by_hand = |mount: &Mount| unmount(mount.path(), UnmountFlags::empty()).unwrap();
    let by = |signal| move |mount: &Mount| mount.daemon().signal(signal);
    let ends: [&dyn Fn(&Mount); 3] = [&unmounted_by_hand, &by(Signal::TERM), &by(Signal::INT)];
    for options in MODES {
        for end in ends {
            let mut mount = Mount::unmounted(options);
            let mut front = mount.command().arg("-f").stderr(Stdio::null()).spawn().unwrap();
            eventually("the mount comes", || is_mounted(&mount.path()));
            mount.find_daemon();
            assert_eq!(mount.daemon().pid.unsigned_abs(), front.id());
            fs::write(mount.join("file"), "x").unwrap();
            end(&mount);
            assert_eq!(front.wait().unwrap().code(), Some(0));
            mount.forget_daemon();
            assert!(!is_mounted(&mount.path()));
        }
    }
}

#[test]
fn a_signal_takes_a_busy_mount_away_and_loses_nothing() {
    both_modes(|mount| {
        let path = mount.join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"written").unwrap();
        mount.daemon().signal(Signal::TERM);
        mount.forget_daemon();
        assert!(!is_mounted(&mount.path()));
        drop(file);
        mount.mount();
        assert_eq!(fs::read(&path).unwrap(), b"written");
    });
}
