//! The I/O seam: every file access of the store goes through [`Io`], so that tests can count calls, inject
//! faults and record what would survive a power cut.
//!
//! What the store assumes of the disk: a completed `sync` makes a file's bytes and size durable; a completed
//! `sync_dir` makes the names in that directory durable; `rename` and `link` are atomic; nothing else is.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use crate::error::{IoContext, Result};

/// Says how a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    Read,
    ReadWrite,
    /// Creates the file, which must not exist, with mode 0600 for reading and writing.
    CreateNew,
}

/// The file operations the store needs, and no others.
pub trait Io: Send + Sync + fmt::Debug {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<File>;
    /// Reads up to `buf.len()` bytes; 0 means the end of the file.
    fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the file's bytes and size durable. After an error the bytes count as lost: it is never retried.
    fn sync(&self, file: &File) -> io::Result<()>;
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    fn set_len(&self, file: &File, len_bytes: u64) -> io::Result<()>;
    /// Gives a range's blocks back to the disk; the range then reads as zeros.
    fn punch(&self, file: &File, offset: u64, len_bytes: u64) -> io::Result<()>;
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn unlink(&self, path: &Path) -> io::Result<()>;
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;
    /// Lists the names in a directory, in no order.
    fn list(&self, path: &Path) -> io::Result<Vec<std::ffi::OsString>>;
}

/// The real disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemIo;

impl Io for SystemIo {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).mode(0o600);
        match mode {
            OpenMode::Read => &mut options,
            OpenMode::ReadWrite => options.write(true),
            OpenMode::CreateNew => options.write(true).create_new(true),
        }
        .open(path)
    }

    fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match file.read_at(buf, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_all_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn set_len(&self, file: &File, len_bytes: u64) -> io::Result<()> {
        file.set_len(len_bytes)
    }

    fn punch(&self, file: &File, offset: u64, len_bytes: u64) -> io::Result<()> {
        Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len_bytes)?)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        fs::metadata(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<std::ffi::OsString>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }
}

/// Fills `buf` from `offset`; the end of the file before that is an error that names the file.
pub fn read_exact_at(io: &dyn Io, file: &File, buf: &mut [u8], offset: u64, path: &Path) -> Result<()> {
    let mut filled = 0;
    while filled < buf.len() {
        let got = io.read_at(file, &mut buf[filled..], offset + filled as u64).at("read", path)?;
        if got == 0 {
            return Err(crate::error::StoreError::Truncated {
                path: path.to_owned(),
                detail: format!("ends before byte {}", offset + buf.len() as u64),
            });
        }
        filled += got;
    }
    Ok(())
}

/// Reads a whole small file.
pub fn read_file(io: &dyn Io, path: &Path) -> Result<Vec<u8>> {
    let file = io.open(path, OpenMode::Read).at("open", path)?;
    let len = file.metadata().at("stat", path)?.len();
    let mut bytes = vec![0; usize::try_from(len).expect("small files fit in memory")];
    read_exact_at(io, &file, &mut bytes, 0, path)?;
    Ok(bytes)
}

/// Writes `bytes` to `path` so that after it returns they survive a power cut.
///
/// A crash leaves: before the rename, the old file (or none) and perhaps `<path>.tmp`, which the next write
/// replaces; after the rename, the new file whole, since its bytes were synced first. The directory sync at
/// the end is what makes the name durable.
pub fn write_durably(io: &dyn Io, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().expect("a file path has a name").to_owned();
    name.push(".tmp");
    let tmp = path.with_file_name(name);
    match io.unlink(&tmp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).at("remove", &tmp),
        _ => {}
    }
    let file = io.open(&tmp, OpenMode::CreateNew).at("create", &tmp)?;
    let written = io
        .write_all_at(&file, bytes, 0)
        .at("write", &tmp)
        .and_then(|()| io.sync(&file).at("sync", &tmp))
        .and_then(|()| io.rename(&tmp, path).at("rename into place", path));
    if let Err(error) = written {
        // The name is ours alone; failing to remove it only leaves garbage for the next write.
        let _ = io.unlink(&tmp);
        return Err(error);
    }
    let dir = path.parent().expect("a file path has a parent");
    io.sync_dir(dir).at("sync directory", dir)
}

/// Removes a file; one that is gone already is fine.
pub fn unlink_if_present(io: &dyn Io, path: &Path) -> Result<()> {
    match io.unlink(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.at("remove", path),
    }
}
