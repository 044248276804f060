//! What stat shows.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use tinyllm::catalog::{FileKind, Inode};

/// A file's attributes. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    pub ino: u64,
    pub kind: FileKind,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size_bytes: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub validity: Validity,
    /// Whether the kernel may keep the name under which this was found.
    pub name_lasts: bool,
}

/// How long the kernel may believe what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Ask every time: what LATEST, latest and the inspection files say changes by itself.
    Never,
    /// The raw file behind it changes without the daemon seeing it.
    Short,
    /// Sealed: nothing about it ever changes.
    Long,
}

fn ns(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

impl Attr {
    /// Gives the attributes of an inode; `raw` is its raw file's, where it has one.
    pub fn of(inode: &Inode, raw: Option<&Metadata>) -> Self {
        let validity = match inode.seal {
            tinyllm::catalog::SealState::Open | tinyllm::catalog::SealState::Dissolving => Validity::Short,
            tinyllm::catalog::SealState::Derived => Validity::Never,
            tinyllm::catalog::SealState::Sealed | tinyllm::catalog::SealState::Released => Validity::Long,
        };
        let mut attr = Self {
            ino: inode.ino,
            kind: inode.kind,
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size_bytes: inode.size_bytes,
            blocks: 0,
            atime_ns: inode.atime_ns,
            mtime_ns: inode.mtime_ns,
            ctime_ns: inode.ctime_ns,
            validity,
            name_lasts: true,
        };
        match (inode.kind, raw) {
            (FileKind::File, Some(raw)) => {
                attr.size_bytes = raw.len();
                attr.blocks = raw.blocks();
                attr.mtime_ns = ns(raw.mtime(), raw.mtime_nsec());
                attr.ctime_ns = inode.ctime_ns.max(ns(raw.ctime(), raw.ctime_nsec()));
            }
            // A file with data must not show 0 blocks: tools take it for one big hole.
            (FileKind::File, None) if inode.size_bytes > 0 => {
                attr.blocks = inode.charged_bytes.div_ceil(512).max(1)
            }
            (FileKind::Directory, _) => attr.size_bytes = 4096,
            _ => {}
        }
        attr
    }
}
