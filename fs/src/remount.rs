//! `mount -o remount`: the flags that the kernel keeps by itself, changed while the daemon goes on.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount_remount};
use tinyllm::mounts::{FS_TYPE, mounts};

use crate::options::{MountOptions, means_nothing};

const RELEASE_PATIENCE: Duration = Duration::from_secs(1);
const RELEASE_POLL: Duration = Duration::from_millis(10);

/// Why a mount could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum RemountError {
    #[error("{}: no tinyllm mount is there", path.display())]
    NotMounted { path: PathBuf },
    #[error("{0}")]
    Unknown(String),
    #[error("{}: its daemon was started with -o ro; unmount it and mount it again", path.display())]
    DaemonReadOnly { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// What a word does to the flags of a mount.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("dev", MountFlags::NODEV, false),
    ("nodev", MountFlags::NODEV, true),
    ("suid", MountFlags::NOSUID, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("atime", MountFlags::NOATIME, false),
    ("noatime", MountFlags::NOATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
];

/// Words that mount(8) adds from the table of mounts: how it was mounted, not what is to change.
const SHOWN: &[&str] =
    &["user_id", "group_id", "rootmode", "fd", "max_read", "allow_other", "default_permissions"];

/// Changes the flags that `words`, the options of `-o remount`, speak of, and keeps the others. Gives the words that
/// only the next mount can follow: mount(8) repeats those of fstab.
pub fn remount<'w>(target: &Path, words: &[&'w str]) -> Result<Vec<&'w str>, RemountError> {
    let failed = |source| RemountError::Io { path: target.to_owned(), source };
    let mounted = mounts().map_err(failed)?;
    let mount = mounted
        .into_iter()
        .rev()
        .find(|mount| mount.target == target && mount.fs_type == FS_TYPE)
        .ok_or_else(|| RemountError::NotMounted { path: target.to_owned() })?;
    let mut flags = MountFlags::empty();
    // Of the words in the kernel's own table, those that are unknown here name no flag.
    for word in mount.options.split(',') {
        apply(&mut flags, word);
    }
    let was_read_only = flags.contains(MountFlags::RDONLY);
    let mut for_later = Vec::new();
    for word in words.iter().filter(|word| !word.is_empty() && **word != "remount") {
        let name = word.split('=').next().unwrap_or(word);
        if apply(&mut flags, word) || SHOWN.contains(&name) {
            continue;
        }
        MountOptions::parse([*word]).map_err(RemountError::Unknown)?;
        if !means_nothing(word) {
            for_later.push(*word);
        }
    }
    if was_read_only && !flags.contains(MountFlags::RDONLY) && daemon_is_read_only(target).map_err(failed)? {
        return Err(RemountError::DaemonReadOnly { path: target.to_owned() });
    }
    remount_patiently(target, flags).map_err(|error| failed(error.into()))?;
    Ok(for_later)
}

/// A file that was closed and removed just now is a reason for EBUSY until the daemon has heard of its release.
fn remount_patiently(target: &Path, flags: MountFlags) -> rustix::io::Result<()> {
    let deadline = Instant::now() + RELEASE_PATIENCE;
    loop {
        match mount_remount(target, flags, c"") {
            Err(rustix::io::Errno::BUSY) if Instant::now() < deadline => thread::sleep(RELEASE_POLL),
            done => return done,
        }
    }
}

/// False for a word that names no flag.
fn apply(flags: &mut MountFlags, word: &str) -> bool {
    let found = FLAGS.iter().find(|(name, _, _)| *name == word);
    if let Some((_, flag, set)) = found {
        flags.set(*flag, *set);
    }
    found.is_some()
}

fn daemon_is_read_only(target: &Path) -> io::Result<bool> {
    let status = std::fs::read(target.join(".tinyllm/status.json"))?;
    let status: serde_json::Value = serde_json::from_slice(&status)?;
    Ok(status["read_only"] == true)
}
