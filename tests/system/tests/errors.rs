//! What goes wrong around a mount gives one clear line and an exit code of its own, as `mount-tinyllm --help` lists
//! them.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tinyllm_system_tests::checkpoint::{assert_complete, noise, save};
use tinyllm_system_tests::{
    Mount, assert_errno, binary, both_modes, eventually, output_of, run, verify_store,
};

/// An ordinary user: Debian's nobody.
const NOBODY: u32 = 65534;

/// Fails unless the command ended with this code and one line that holds every one of `parts`.
#[track_caller]
fn assert_one_line(output: &Output, code: i32, parts: &[&str]) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} expected in {said:?}");
    }
}

fn mount_command(store: &Path, mountpoint: &Path) -> Command {
    let mut command = Command::new(binary("mount-tinyllm"));
    command.arg(store).arg(mountpoint);
    command
}

fn is_mounted(mountpoint: &Path) -> bool {
    let mountpoint = mountpoint.to_str().unwrap();
    fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(mountpoint))
}

#[test]
fn unusable_mount_points_are_named() {
    let mount = Mount::unmounted("");
    let (store, outside) = (mount.store(), mount.outside());
    let missing = outside.join("missing");
    let output = mount_command(&store, &missing).output().unwrap();
    assert_one_line(&output, 3, &["mount-tinyllm: ", missing.to_str().unwrap(), "create it first"]);
    let file = outside.join("file");
    fs::write(&file, "x").unwrap();
    assert_one_line(&mount_command(&store, &file).output().unwrap(), 4, &["not a directory"]);
    assert_one_line(&mount_command(&store, &outside).output().unwrap(), 4, &["not empty", "nonempty"]);
    assert!(!store.exists(), "a refused mount made a store");
    let output = mount_command(&store, &mount.path()).args(["-o", "surprise"]).output().unwrap();
    assert_one_line(&output, 2, &["unknown mount option", "surprise"]);
    let foreground = mount_command(&store, &missing).arg("-f").output().unwrap();
    assert_one_line(&foreground, 3, &["create it first"]);
}

#[test]
fn a_store_has_one_daemon() {
    let mut mount = Mount::new("");
    let second = mount.outside();
    let output = mount_command(&mount.store(), &second).output().unwrap();
    assert_one_line(&output, 6, &["mounted", mount.path().to_str().unwrap()]);
    assert!(!is_mounted(&second));
    // The first goes on.
    save(&mount.run_dir("r"), "r", 1);
    mount.unmount();
    run(&mut mount_command(&mount.store(), &second));
    assert_complete(&second.join("runs/r/ckpt/step-000001"), 1);
    unmount(&second, UnmountFlags::empty()).unwrap();
    mount.mount();
    mount.unmount();
}

#[test]
fn a_store_of_a_newer_format_is_refused() {
    let mut mount = Mount::new("");
    mount.unmount();
    let path = mount.store().join("FORMAT");
    let text = fs::read_to_string(&path).unwrap();
    let newer = text.replace("\"version\": 1", "\"version\": 2");
    assert_ne!(newer, text);
    fs::write(&path, newer).unwrap();
    let before = output_of(&mount.store(), "cd $M; find . -type f | sort | xargs sha256sum");
    assert_one_line(&mount.command().output().unwrap(), 7, &["version 2", path.to_str().unwrap()]);
    let needs = text.replace("\"incompatible\": []", "\"incompatible\": [\"delta-chunks\"]");
    assert_ne!(needs, text);
    fs::write(&path, &needs).unwrap();
    assert_one_line(&mount.command().output().unwrap(), 7, &["delta-chunks"]);
    fs::write(&path, "not JSON").unwrap();
    assert_one_line(&mount.command().output().unwrap(), 5, &["corrupt", path.to_str().unwrap()]);
    fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    assert_eq!(output_of(&mount.store(), "cd $M; find . -type f | sort | xargs sha256sum"), before);
    fs::write(&path, text).unwrap();
    mount.mount();
    mount.unmount();
}

#[test]
fn a_directory_of_other_files_becomes_no_store() {
    let mount = Mount::unmounted("");
    fs::create_dir(mount.store()).unwrap();
    fs::write(mount.store().join("mine"), "x").unwrap();
    let output = mount.command().output().unwrap();
    assert_one_line(&output, 1, &["holds other files"]);
    fs::remove_dir_all(mount.store()).unwrap();
    let lost = Mount::new("");
    let mut lost = lost;
    lost.unmount();
    for entry in fs::read_dir(lost.store()).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.file_name().unwrap().to_string_lossy().starts_with("catalog") {
            fs::remove_file(entry).unwrap();
        }
    }
    assert_one_line(&lost.command().output().unwrap(), 5, &["tinyllm rebuild"]);
}

#[test]
fn a_dead_mount_is_taken_away_by_the_next_one() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        fs::write(mount.join("synced"), "x").unwrap();
        let writer = File::create(mount.join("open")).unwrap();
        mount.kill();
        assert_errno("a use of the dead mount", fs::read_dir(mount.path()), Errno::NOTCONN);
        let said = mount.mount().stderr;
        assert!(String::from_utf8(said).unwrap().contains("killed"), "the dead mount is mentioned");
        assert_errno("a write by an old handle", writer.sync_all(), Errno::NOTCONN);
        assert_complete(&ckpt.join("step-000001"), 1);
        assert_eq!(fs::read(mount.join("synced")).unwrap(), b"x");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert_eq!(mounts.matches(mount.path().to_str().unwrap()).count(), 1, "one mount is left");
    });
}

#[test]
fn signals_unmount_cleanly() {
    both_modes(|mount| {
        for (step, signal) in (1..).zip([Signal::TERM, Signal::INT]) {
            save(&mount.run_dir("r"), "r", step);
            mount.daemon().signal(signal);
            mount.forget_daemon();
            assert!(!is_mounted(&mount.path()));
            verify_store(&mount.store());
            mount.mount();
            assert_complete(&mount.run_dir("r").join(format!("step-{step:06}")), step);
        }
    });
}

#[test]
fn mounting_again_right_after_unmounting_works() {
    both_modes(|mount| {
        for round in 0..20 {
            fs::write(mount.join("file"), round.to_string()).unwrap();
            // As users do it: without waiting for the daemon's end.
            mount.detach();
            run(&mut mount.command());
            mount.forget_daemon();
            mount.find_daemon();
            assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), round.to_string());
        }
    });
}

#[test]
fn a_busy_mount_stays() {
    both_modes(|mount| {
        let file = File::create(mount.join("file")).unwrap();
        assert_errno("unmount", unmount(mount.path(), UnmountFlags::empty()), Errno::BUSY);
        fs::write(mount.join("other"), "still works").unwrap();
        drop(file);
    });
}

#[test]
fn a_read_only_mount_refuses_changes() {
    both_modes(|mount| {
        let ckpt = mount.run_dir("r");
        save(&ckpt, "r", 1);
        fs::write(mount.join("file"), "x").unwrap();
        mount.unmount();
        run(mount.command().args(["-o", "ro"]));
        mount.find_daemon();
        assert_complete(&ckpt.join("step-000001"), 1);
        assert_errno("write", fs::write(mount.join("file"), "y"), Errno::ROFS);
        assert_errno("create", File::create(mount.join("new")), Errno::ROFS);
        assert_errno("remove", fs::remove_dir_all(ckpt.join("step-000001")), Errno::ROFS);
        assert_errno("mkdir", fs::create_dir(mount.join("dir")), Errno::ROFS);
        mount.remount();
    });
}

/// Gives a command that runs another as nobody.
fn as_nobody(command: &Command) -> Command {
    let mut unprivileged = Command::new("setpriv");
    unprivileged.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
    unprivileged.arg(command.get_program()).args(command.get_args());
    unprivileged
}

/// Opens /dev/fuse to everybody, as distributions do, and sets it back at the end.
struct DevFuse {
    before: Permissions,
}

impl DevFuse {
    fn with_mode(mode: u32) -> Self {
        let before = fs::metadata("/dev/fuse").unwrap().permissions();
        fs::set_permissions("/dev/fuse", Permissions::from_mode(mode)).unwrap();
        Self { before }
    }
}

impl Drop for DevFuse {
    fn drop(&mut self) {
        fs::set_permissions("/dev/fuse", self.before.clone()).unwrap();
    }
}

/// Makes everything that nobody needs to mount, with a copy of the program where nobody can run it.
fn for_nobody(mount: &Mount) -> Command {
    let outside = mount.outside();
    let home = outside.parent().unwrap();
    fs::set_permissions(home, Permissions::from_mode(0o755)).unwrap();
    for path in [outside.as_path(), &mount.path()] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let program = outside.join("mount-tinyllm");
    fs::copy(binary("mount-tinyllm"), &program).unwrap();
    let mut command = Command::new(program);
    command.arg(outside.join("store")).arg(mount.path());
    as_nobody(&command)
}

#[test]
fn ordinary_users_mount_through_the_helper_where_they_may() {
    let mut mount = Mount::unmounted("");
    let mut command = for_nobody(&mount);
    {
        let _closed = DevFuse::with_mode(0o600);
        assert_one_line(&command.output().unwrap(), 8, &["not permitted", mount.path().to_str().unwrap()]);
        assert!(!is_mounted(&mount.path()));
    }
    let _open = DevFuse::with_mode(0o666);
    run(&mut command);
    // Only its owner may look inside.
    let shell = |line: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-ec", &line.replace("$M", mount.path().to_str().unwrap())]);
        run(&mut as_nobody(&shell))
    };
    let status: serde_json::Value =
        serde_json::from_slice(&shell("cat $M/.tinyllm/status.json").stdout).unwrap();
    assert_eq!(status["passthrough"], false, "only root's mounts can pass through");
    let source = mount.outside().join("source");
    fs::write(&source, noise(1, 3 << 20)).unwrap();
    shell(&format!(
        "cd $M; cp {0} a; cmp {0} a; cp a b; echo more >>b; head -c 3145728 b | cmp - a; mv b c; ln c d
         truncate -s 10 d; test $(stat -c %s c) = 10; mkdir -p deep/er; rm -r deep; ln -s a l; cmp l {0}
         touch -d @1000000000.25 a; test $(stat -c %.2Y a) = 1000000000.25; chmod 600 a
         dd if={0} of=e bs=8k conv=fsync status=none; cmp e {0}; truncate -s 1M s; tail -c 1 s | cmp - <(printf '\\0')
         (flock -n 9) 9>lock; tar cf t.tar a c l; tar df t.tar",
        source.display()
    ));
    let saver = as_nobody(&{
        let program = mount.outside().join("saver");
        fs::copy(env!("CARGO_BIN_EXE_saver"), &program).unwrap();
        let mut saver = Command::new(program);
        saver.arg(mount.run_dir("r")).args(["r", "2"]);
        saver
    });
    let said = save_three_steps(saver);
    assert_eq!(said.matches("saved").count(), 3, "{said}");
    shell("test \"$(cat $M/runs/r/ckpt/LATEST)\" = step-000003; test ! -e $M/runs/r/ckpt/step-000001");
    shell("fusermount3 -u $M");
    eventually("the mount is gone", || !is_mounted(&mount.path()));
    run(&mut command);
    shell("cmp $M/a $M/e; fusermount3 -u $M");
    eventually("the store is free", || tinyllm::store::Store::open(&mount.outside().join("store")).is_ok());
    verify_store(&mount.outside().join("store"));
    mount.mount();
    mount.unmount();
}

fn save_three_steps(mut saver: Command) -> String {
    use std::io::Write;
    let mut saver =
        saver.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut input = saver.stdin.take().unwrap();
    for step in 1..=3 {
        write!(input, "prepare {step} {step}\nfinish\nprune\n").unwrap();
    }
    drop(input);
    String::from_utf8(saver.wait_with_output().unwrap().stdout).unwrap()
}
