//! Finds users of a file that the daemon does not know of.
//!
//! A mapping of a passed-through file belongs to the backing file alone: the kernel releases the FUSE file at
//! close, while the mapping goes on reading and writing. The backing file's inode still counts such users, and a
//! lease (fcntl(2), F_SETLEASE) is only granted when the count is zero: of writers for a read lease, of everybody
//! else for a write lease.
//!
//! Whoever opens a file while it is asked for makes the kernel send SIGIO, which the program must not die of (see
//! [`crate::session`]).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Says whether anyone, by an open file or a mapping, can write to the file at `path`.
///
/// The daemon itself must not have it open for writing.
pub fn has_writers(path: &Path) -> io::Result<bool> {
    is_refused(path, libc::F_RDLCK)
}

/// Says whether anyone, by an open file or a mapping, uses the file at `path`.
///
/// The daemon itself must not have it open.
pub fn has_users(path: &Path) -> io::Result<bool> {
    is_refused(path, libc::F_WRLCK)
}

fn is_refused(path: &Path, kind: i32) -> io::Result<bool> {
    let file = File::open(path)?;
    match set_lease(&file, kind) {
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

    #[test]
    fn an_open_reader_is_a_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        assert!(!has_users(&path).unwrap());
        let reader = File::open(&path).unwrap();
        assert!(has_users(&path).unwrap());
        drop(reader);
        assert!(!has_users(&path).unwrap());
    }
}
