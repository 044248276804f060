//! A store of its own for each test, mounted on a temporary directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{Daemon, binary, eventually, needs_root_and_fuse, verify_store};

/// A mounted store. Dropping it takes the mount and the daemon away, whatever state they are in.
#[derive(Debug)]
pub struct Mount {
    dir: TempDir,
    options: String,
    daemon: Option<Daemon>,
}

/// Runs a test on a mount with kernel passthrough and on one without. At the end each must unmount cleanly
/// and leave a store whose every sealed byte is right.
pub fn both_modes(test: impl Fn(&mut Mount)) {
    both_modes_with("settle_after=60", test);
}

/// The same with more mount options.
pub fn both_modes_with(options: &str, test: impl Fn(&mut Mount)) {
    for passthrough in ["yes", "no"] {
        eprintln!("on a mount with passthrough={passthrough}");
        let mut mount = Mount::new(&format!("passthrough={passthrough},{options}"));
        test(&mut mount);
        mount.unmount();
        verify_store(&mount.store());
    }
}

impl Mount {
    /// Makes a store and mounts it with these `-o` options.
    pub fn new(options: &str) -> Self {
        let mut mount = Self::unmounted(options);
        mount.mount();
        mount
    }

    /// The same without mounting yet.
    pub fn unmounted(options: &str) -> Self {
        needs_root_and_fuse();
        let dir = TempDir::with_prefix("tinyllm-test-").unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Self { dir, options: options.to_owned(), daemon: None }
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path().join(path)
    }

    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A directory of the host's own filesystem, for what a test compares with.
    pub fn outside(&self) -> PathBuf {
        let path = self.dir.path().join("outside");
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn run_dir(&self, run: &str) -> PathBuf {
        self.join("runs").join(run).join("ckpt")
    }

    /// The command that mounts, for tests that run it their own way.
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary("mount-tinyllm"));
        command.arg(self.store()).arg(self.path()).arg("-o").arg(&self.options);
        command
    }

    /// Mounts, in the background as users do, and takes hold of the daemon. Gives what the command said.
    pub fn mount(&mut self) -> Output {
        let output = self.command().output().unwrap();
        assert!(output.status.success(), "mounting failed: {output:?}");
        self.find_daemon();
        output
    }

    /// Takes hold of the daemon of a mount that somebody else made.
    pub fn find_daemon(&mut self) {
        let status = self.status();
        let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
        self.daemon = Some(Daemon::attach(pid).expect("the daemon runs"));
    }

    /// Reads what the mount says of itself.
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.join(".tinyllm/status.json")).unwrap()).unwrap()
    }

    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("mounted")
    }

    /// Unmounts and waits for the daemon's end.
    pub fn unmount(&mut self) {
        self.detach();
        self.daemon.take().expect("mounted").wait();
    }

    /// Unmounts without waiting for the daemon.
    pub fn detach(&self) {
        // A process that another test is just starting holds every descriptor of this one for a moment.
        eventually("the mount is not busy", || match unmount(self.path(), UnmountFlags::empty()) {
            Err(Errno::BUSY) => false,
            done => done.map(|()| true).unwrap(),
        });
    }

    pub fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    /// Kills the daemon as a crash would; the dead mount stays.
    pub fn kill(&mut self) {
        let daemon = self.daemon.take().expect("mounted");
        daemon.signal(Signal::KILL);
        daemon.wait();
    }

    /// Forgets a daemon that ended by itself or was killed by somebody else.
    pub fn forget_daemon(&mut self) {
        self.daemon.take().expect("mounted").wait();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // EINVAL: nothing is mounted, as it should be after a test that succeeded.
        while unmount(self.path(), UnmountFlags::DETACH).is_ok() {}
        if let Some(daemon) = self.daemon.take() {
            daemon.signal(Signal::KILL);
            daemon.wait_for(std::time::Duration::from_secs(10));
        }
    }
}
