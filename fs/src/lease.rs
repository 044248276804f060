//! Finds writers that the daemon does not know of.
//!
//! A writable mapping of a passed-through file belongs to the backing file alone: the kernel releases the FUSE
//! file at close, while the mapping goes on writing. The backing file's inode still counts such writers, and a
//! read lease (fcntl(2), F_SETLEASE) is only granted when that count is zero.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Says whether anyone, by an open file or a mapping, can write to the file at `path`.
///
/// The daemon itself must not have it open for writing. Whoever opens it meanwhile makes the kernel send
/// SIGIO, which the program must not die of (see [`crate::session`]).
pub fn has_writers(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    match set_lease(&file, libc::F_RDLCK) {
        Ok(()) => {
            // The lease has told what it can; an error here only means that it ends with the descriptor.
            let _ = set_lease(&file, libc::F_UNLCK);
            Ok(false)
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        // A disk without leases: what the daemon knows has to do.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOLCK)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[allow(unsafe_code, reason = "no safe wrapper of this fcntl command is known")]
fn set_lease(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open for the whole call, and F_SETLEASE takes a plain integer.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn an_open_writer_is_seen_and_a_reader_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let _reader = File::open(&path).unwrap();
        assert!(!has_writers(&path).unwrap());
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        assert!(has_writers(&path).unwrap());
        drop(writer);
        assert!(!has_writers(&path).unwrap());
    }
}
