//! What is mounted where, as the kernel tells this process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The filesystem type of a mounted store.
pub const FS_TYPE: &str = "fuse.tinyllm";

/// One line of /proc/self/mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountLine {
    pub source: PathBuf,
    pub target: PathBuf,
    pub fs_type: String,
    /// Comma-separated.
    pub options: String,
}

/// Lists the mounts of this process's namespace.
pub fn mounts() -> io::Result<Vec<MountLine>> {
    let text = fs::read_to_string("/proc/self/mounts")?;
    let line = |line: &str| {
        let mut fields = line.split(' ');
        Some(MountLine {
            source: unescape(fields.next()?).into(),
            target: unescape(fields.next()?).into(),
            fs_type: fields.next()?.to_owned(),
            options: fields.next()?.to_owned(),
        })
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Undoes the octal escapes of /proc/mounts.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| first == b'\\');
        match code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Lists where a store is mounted; a path that leads to the same directory counts as the store's.
pub fn mounted_at(store: &Path) -> io::Result<Vec<PathBuf>> {
    let same = |source: &Path| {
        source == store
            || fs::canonicalize(source).is_ok_and(|real| fs::canonicalize(store).is_ok_and(|s| s == real))
    };
    let lines = mounts()?;
    Ok(lines.into_iter().filter(|l| l.fs_type == FS_TYPE && same(&l.source)).map(|l| l.target).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape(r"/plain\"), r"/plain\");
    }
}
