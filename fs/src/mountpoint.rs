//! The directory to be mounted on: checked, cleaned of a dead mount, and tuned once it is mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Why a directory can't be mounted on.
#[derive(Debug, thiserror::Error)]
pub enum MountpointError {
    #[error("{}: no such directory; create it first", path.display())]
    Missing { path: PathBuf },
    #[error("{}: not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error("{}: not empty; mount on an empty directory, or give -o nonempty to hide what is there", path.display())]
    NotEmpty { path: PathBuf },
    #[error(
        "{}: a killed daemon's mount is still there and can't be removed ({source}); \
         try `umount -l {}` as root",
        path.display(),
        path.display()
    )]
    Dead { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Unusable { path: PathBuf, source: io::Error },
}

/// Checks the directory, after taking away the mount of a daemon that died. True when there was one.
pub fn prepare(path: &Path, nonempty: bool) -> Result<bool, MountpointError> {
    let cleaned = clean_dead(path)?;
    let stat = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => MountpointError::Missing { path: path.to_owned() },
        io::ErrorKind::NotADirectory => MountpointError::NotADirectory { path: path.to_owned() },
        _ => MountpointError::Unusable { path: path.to_owned(), source },
    })?;
    if !stat.is_dir() {
        return Err(MountpointError::NotADirectory { path: path.to_owned() });
    }
    let unusable = |source| MountpointError::Unusable { path: path.to_owned(), source };
    if !nonempty && fs::read_dir(path).map_err(unusable)?.next().is_some() {
        return Err(MountpointError::NotEmpty { path: path.to_owned() });
    }
    Ok(cleaned)
}

/// A daemon that was killed leaves a mount whose every use is ENOTCONN.
fn clean_dead(path: &Path) -> Result<bool, MountpointError> {
    let mut cleaned = false;
    // Not by stat: the kernel answers that from its cache for a moment longer.
    while rustix::fs::statvfs(path).is_err_and(|error| error == rustix::io::Errno::NOTCONN) {
        detach(path).map_err(|source| MountpointError::Dead { path: path.to_owned(), source })?;
        cleaned = true;
    }
    Ok(cleaned)
}

/// Takes a mount away at once, whoever still uses it.
pub fn detach(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        // Ordinary users unmount through the set-user-id helper.
        Err(rustix::io::Errno::PERM) => {
            let status = Command::new("fusermount3").args(["-u", "-z", "-q", "--"]).arg(path).status()?;
            if status.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
        }
        Err(error) => Err(error.into()),
    }
}

/// Raises how far the kernel reads ahead of a sequential reader. False when that is not permitted.
pub fn raise_read_ahead(mountpoint: &Path, kib: u32) -> io::Result<bool> {
    // A daemon must never wait for its own mount: killed while it does, it could not end. Without a sync, the
    // kernel answers from what it knows.
    let stat = statx(CWD, mountpoint, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    let (major, minor) = (stat.stx_dev_major, stat.stx_dev_minor);
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    match fs::write(&knob, format!("{kib}\n")) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => {
            Ok(false)
        }
        Err(error) if error.raw_os_error() == Some(libc::EROFS) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_directories_are_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!prepare(dir.path(), false).unwrap());
        let missing = dir.path().join("missing");
        assert!(matches!(prepare(&missing, false), Err(MountpointError::Missing { .. })));
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(prepare(&file, false), Err(MountpointError::NotADirectory { .. })));
        assert!(matches!(prepare(dir.path(), false), Err(MountpointError::NotEmpty { .. })));
        assert!(prepare(dir.path(), true).is_ok());
    }
}
