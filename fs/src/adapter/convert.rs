//! What the tree's words are in FUSE's, and the other way round.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, FopenFlags, INodeNo, OpenAccMode, RenameFlags, Request, TimeOrNow};
use tinyllm::catalog::{FileKind, RenameMode};

use crate::attr::{Attr, Validity};
use crate::errno::Errno;
use crate::tree::{Caller, OpenFlags, Opened, TimeChange};

const NEVER: Duration = Duration::ZERO;
/// Sizes and times of plain files may change under the kernel's eyes only; a writable mapping is the exception.
const SHORT: Duration = Duration::from_secs(1);
/// Plain names hardly ever change without the kernel; when they do (a command removes an empty run, say), this
/// is how much later it notices.
const NAME: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(24 * 3600);

pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.0)
}

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

pub(super) fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

pub(super) fn to_ns(time: SystemTime) -> i64 {
    let clamp = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => clamp(after),
        Err(before) => -clamp(before.duration()),
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size_bytes,
        blocks: attr.blocks,
        atime: system_time(attr.atime_ns),
        mtime: system_time(attr.mtime_ns),
        ctime: system_time(attr.ctime_ns),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: u16::try_from(attr.mode & 0o7777).expect("12 bits"),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 4096,
        flags: 0,
    }
}

pub(super) fn attr_ttl(attr: &Attr) -> Duration {
    match attr.validity {
        Validity::Never => NEVER,
        Validity::Short => SHORT,
        Validity::Long => LONG,
    }
}

pub(super) fn name_ttl(attr: &Attr) -> Duration {
    match attr.validity {
        _ if !attr.name_lasts => NEVER,
        Validity::Never => NEVER,
        Validity::Short => NAME,
        Validity::Long => LONG,
    }
}

/// Gives a lifetime that is good for both the attributes and the name.
pub(super) fn common_ttl(attr: &Attr) -> Duration {
    attr_ttl(attr).min(name_ttl(attr))
}

pub(super) fn open_flags(flags: i32) -> OpenFlags {
    let mode = fuser::OpenFlags(flags).acc_mode();
    OpenFlags {
        write: mode != OpenAccMode::O_RDONLY,
        read: mode != OpenAccMode::O_WRONLY,
        truncate: flags & libc::O_TRUNC != 0,
    }
}

/// How the kernel caches what it reads by way of the daemon: nobody changes it behind the kernel's back.
pub(super) fn cache_flags(opened: &Opened) -> FopenFlags {
    if opened.direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE }
}

pub(super) fn time_change(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::Now => TimeChange::Now,
        TimeOrNow::SpecificTime(time) => TimeChange::At(to_ns(time)),
    }
}

/// Gives the kind of file that mknod(2) asks for by its `mode`; None for what it can't make.
pub(super) fn node_kind(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Some(FileKind::File),
        libc::S_IFIFO => Some(FileKind::Fifo),
        libc::S_IFSOCK => Some(FileKind::Socket),
        libc::S_IFCHR => Some(FileKind::CharDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Gives None for flags that no rename here knows.
pub(super) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    match flags {
        flags if flags.is_empty() => Some(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Some(RenameMode::Exchange),
        _ => None,
    }
}
