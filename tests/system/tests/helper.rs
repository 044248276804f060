//! The mount helper: what mount(8), fstab and `mount -o remount` do with it.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use tinyllm_system_tests::{Mount, binary, run, verify_store};

const MODES: [&str; 2] = ["passthrough=yes", "passthrough=no"];

/// A directory with the helper under both of its names.
fn helpers() -> TempDir {
    let dir = TempDir::with_prefix("tinyllm-test-").unwrap();
    for name in ["mount.tinyllm", "mount.fuse.tinyllm"] {
        symlink(binary("mount-tinyllm"), dir.path().join(name)).unwrap();
    }
    dir
}

/// Runs shell lines that must succeed, in a mount namespace whose /sbin has the helpers, as after scripts/install.sh.
/// They end with nothing mounted: `end` unmounts and waits for the daemon.
#[track_caller]
fn where_installed(mount: &Mount, options: &str, lines: &str) {
    let helpers = helpers();
    let script = format!(
        r#"
        sbin=$(realpath /sbin)
        mount -t overlay -o "lowerdir=$HELPERS:$sbin" overlay "$sbin"
        end() {{
            pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$M/.tinyllm/status.json")
            umount "$M"
            while [ -d "/proc/$pid" ]; do sleep 0.02; done
        }}
        refused() {{ # refused CODE TEXT COMMAND...
            local code=0 said
            said=$("${{@:3}}" 2>&1) || code=$?
            [ "$code" = "$1" ] || {{ echo "$*: ended with $code: $said"; exit 1; }}
            case $said in *"$2"*) ;; *) echo "$*: said $said"; exit 1 ;; esac
        }}
        {lines}
        "#
    );
    run(Command::new("unshare")
        .args(["--mount", "--propagation", "private", "bash", "-euc", &script])
        .env("HELPERS", helpers.path())
        .env("S", mount.store())
        .env("M", mount.path())
        .env("O", options));
}

/// What the helper ends with when it is called by itself.
fn helper(arguments: &[&str], mount: &Mount) -> (i32, String) {
    let helpers = helpers();
    let paths = [mount.store(), mount.path()];
    let output: Output =
        Command::new(helpers.path().join("mount.tinyllm")).args(paths).args(arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn mount_mounts_and_remounts() {
    for options in MODES {
        let mount = Mount::unmounted("");
        where_installed(
            &mount,
            options,
            r#"
            mount -t tinyllm "$S" "$M" -o "noatime,$O"
            echo kept > "$M/file"
            mount -o remount,ro "$M"
            refused 1 'Read-only file system' touch "$M/late"
            refused 1 'Read-only file system' rm "$M/file"
            [ "$(cat "$M/file")" = kept ]
            mount -o remount,rw,nosuid "$M"
            touch "$M/late"
            findmnt -n -o OPTIONS "$M" | grep -q '\bnosuid\b'
            refused 32 nonsense mount -o remount,nonsense "$M"
            end
            "#,
        );
        verify_store(&mount.store());
    }
}

#[test]
fn fstab_mounts() {
    for options in MODES {
        let mount = Mount::unmounted("");
        where_installed(
            &mount,
            options,
            r#"
            echo "$S $M tinyllm noatime,nofail,x-systemd.automount,settle_after=5,$O 0 0" > "$HELPERS/fstab"
            mount --fstab "$HELPERS/fstab" "$M"
            echo kept > "$M/file"
            findmnt -n -o FSTYPE,SOURCE "$M" | grep -q "^fuse.tinyllm  *$S"
            # Of what the line says, some is for the next mount only.
            mount --fstab "$HELPERS/fstab" -o remount,settle_after=7 "$M" 2>&1 |
                grep -q 'settle_after=7: takes effect at the next mount'
            end
            echo "$S $M tinyllm ro,$O 0 0" > "$HELPERS/fstab"
            mount --fstab "$HELPERS/fstab" "$M"
            refused 1 'Read-only file system' touch "$M/late"
            refused 32 'started with -o ro' mount -o remount,rw "$M"
            [ "$(cat "$M/file")" = kept ]
            end
            "#,
        );
    }
}

#[test]
fn the_exit_codes_are_those_of_mount() {
    let mount = Mount::unmounted("");
    let (code, said) = helper(&["-o", "rw,sealed"], &mount);
    assert!(code == 1 && said.contains("\"sealed\""), "{code}: {said}");
    assert_eq!(helper(&["-q"], &mount).0, 1, "unknown flag");
    assert_eq!(helper(&["-f", "-n", "-v", "-t", "tinyllm", "-o", "ro"], &mount), (0, String::new()));
    let (code, said) = helper(&["-o", "remount,ro"], &mount);
    assert!(code == 32 && said.contains("no tinyllm mount is there"), "{code}: {said}");
    assert!(!mount.store().exists(), "only told to check");
    fs::remove_dir(mount.path()).unwrap();
    let (code, said) = helper(&["-o", "rw"], &mount);
    assert!(code == 32 && said.contains(mount.path().to_str().unwrap()), "{code}: {said}");
}

#[test]
fn unknown_options_are_passed_over_when_asked_to() {
    let mut mount = Mount::unmounted("");
    assert_eq!(helper(&["-s", "-o", "sealed,noatime"], &mount), (0, String::new()));
    mount.find_daemon();
    fs::write(mount.join("file"), "x").unwrap();
    mount.unmount();
    assert!(Path::new(&mount.store()).exists());
}
