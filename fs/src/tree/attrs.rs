//! Attributes and extended attributes.

use std::fs::File;

use rustix::fs::{Timespec, Timestamps, UTIME_OMIT, futimens};
use tinyllm::catalog::{Durability, Inode};
use tinyllm::io::OpenMode;
use tinyllm::time::now_ns;

use super::open::OpenContent;
use super::{Result, Tree, inspect};
use crate::attr::Attr;
use crate::errno::Errno;

/// The prefix of the store's own facts, which can be read and not set.
const FACT_PREFIX: &[u8] = b"user.tinyllm.";
const USER_PREFIX: &[u8] = b"user.";
const MAX_XATTR_BYTES: usize = 64 << 10;
const MAX_XATTR_NAME_BYTES: usize = 255;

/// A new access or modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeChange {
    Now,
    At(i64),
}

impl TimeChange {
    fn ns(self) -> i64 {
        match self {
            Self::Now => now_ns(),
            Self::At(ns) => ns,
        }
    }
}

/// What chmod, chown, truncate and utimensat change. None leaves a thing as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size_bytes: Option<u64>,
    pub atime: Option<TimeChange>,
    pub mtime: Option<TimeChange>,
}

impl SetAttr {
    /// Says whether all it would do is to set the modification time that the file has already.
    fn repeats_mtime(&self, inode: &Inode) -> bool {
        let Self { mode: None, uid: None, gid: None, size_bytes: None, atime: None, mtime: Some(mtime) } =
            self
        else {
            return false;
        };
        matches!(mtime, TimeChange::At(ns) if *ns == inode.mtime_ns)
    }
}

impl Tree {
    pub fn getattr(&self, ino: u64) -> Result<Attr> {
        if let Some(attr) = inspect::attr(self, ino) {
            return Ok(attr);
        }
        if Self::is_ghost_ino(ino) {
            return Err(Errno::NOENT);
        }
        self.attr_of(&self.inode(ino)?)
    }

    pub fn setattr(&self, ino: u64, change: SetAttr) -> Result<Attr> {
        self.writable()?;
        if inspect::is_virtual(ino) || Self::is_ghost_ino(ino) {
            return Err(Errno::PERM);
        }
        let mut state = self.state.lock();
        self.wait_thawed(&mut state, ino)?;
        let mut inode = self.inode(ino)?;
        if inode.seal.immutable() {
            drop(state);
            // A kernel that caches writes brings its times late: those of a rename before the seal come after it.
            return if change.repeats_mtime(&inode) { self.attr_of(&inode) } else { Err(Errno::PERM) };
        }
        let mut raw = None;
        if let Some(size_bytes) = change.size_bytes {
            if !inode.is_file() {
                return Err(if inode.is_dir() { Errno::ISDIR } else { Errno::INVAL });
            }
            if !inode.raw {
                self.make_raw(&inode, size_bytes == 0)?;
                inode = self.inode(ino)?;
                if let Some(open) = state.open.get(&ino) {
                    *open.shared.content.write() = OpenContent::Raw(self.open_raw(ino, OpenMode::Read)?);
                }
            }
            let file = self.open_raw(ino, OpenMode::ReadWrite)?;
            self.store.forget_hash(ino);
            file.set_len(size_bytes)?;
            raw = Some(file);
        }
        if inode.raw && (change.atime.is_some() || change.mtime.is_some()) {
            let file = match raw {
                Some(file) => file,
                None => self.open_raw(ino, OpenMode::ReadWrite)?,
            };
            set_times(&file, &change)?;
        }
        let inode = self.store.write(Durability::Ordered, |txn| {
            let inode = changed(txn.inode(ino)?, &change);
            txn.put_inode(&inode)?;
            Ok(inode)
        })?;
        drop(state);
        self.attr_of(&inode)
    }

    pub fn getxattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        if inspect::is_virtual(ino) {
            return Err(Errno::NODATA);
        }
        if let Some(fact) = name.strip_prefix(FACT_PREFIX) {
            return self.fact(ino, fact)?.ok_or(Errno::NODATA);
        }
        if !name.starts_with(USER_PREFIX) {
            return Err(if name.starts_with(b"system.") { Errno::NOTSUP } else { Errno::NODATA });
        }
        self.store.read(|txn| txn.xattr(ino, name))?.ok_or(Errno::NODATA)
    }

    /// Gives what the store knows of an inode: `sha256` of a file, `sealed`, and the last `problem`.
    fn fact(&self, ino: u64, fact: &[u8]) -> Result<Option<Vec<u8>>> {
        match fact {
            b"problem" => Ok(self.problems.of(ino).map(String::into_bytes)),
            b"sealed" => Ok(Self::is_sealed(&self.inode(ino)?).then(|| b"1".to_vec())),
            b"sha256" => {
                let inode = self.inode(ino)?;
                if !inode.is_file() {
                    return Ok(None);
                }
                let quiet = self.wait_for_writers(ino);
                let inode = if quiet { self.inode(ino)? } else { inode };
                Ok(Some(self.store.sha256(&inode, quiet)?.to_string().into_bytes()))
            }
            _ => Ok(None),
        }
    }

    pub fn listxattr(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        if inspect::is_virtual(ino) {
            return Ok(vec![]);
        }
        Ok(self.store.read(|txn| txn.xattr_names(ino))?)
    }

    /// Sets a user attribute; `create` and `replace` are setxattr's flags.
    pub fn setxattr(&self, ino: u64, name: &[u8], value: &[u8], create: bool, replace: bool) -> Result<()> {
        self.xattr_may_change(ino, name)?;
        if value.len() > MAX_XATTR_BYTES {
            return Err(Errno(libc::E2BIG));
        }
        if name.len() > MAX_XATTR_NAME_BYTES {
            return Err(Errno::RANGE);
        }
        let refused = self.store.write(Durability::Ordered, |txn| {
            let present = txn.xattr(ino, name)?.is_some();
            if create && present {
                return Ok(Some(Errno::EXIST));
            }
            if replace && !present {
                return Ok(Some(Errno::NODATA));
            }
            txn.set_xattr(ino, name, value)?;
            txn.put_inode(&Inode { ctime_ns: now_ns(), ..txn.inode(ino)? })?;
            Ok(None)
        })?;
        refused.map_or(Ok(()), Err)
    }

    pub fn removexattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        self.xattr_may_change(ino, name)?;
        let removed = self.store.write(Durability::Ordered, |txn| {
            let removed = txn.remove_xattr(ino, name)?;
            if removed {
                txn.put_inode(&Inode { ctime_ns: now_ns(), ..txn.inode(ino)? })?;
            }
            Ok(removed)
        })?;
        if removed { Ok(()) } else { Err(Errno::NODATA) }
    }

    fn xattr_may_change(&self, ino: u64, name: &[u8]) -> Result<()> {
        self.writable()?;
        if !name.starts_with(USER_PREFIX) {
            return Err(Errno::NOTSUP);
        }
        if name.starts_with(FACT_PREFIX) || inspect::is_virtual(ino) || self.inode(ino)?.seal.immutable() {
            return Err(Errno::PERM);
        }
        let mut state = self.state.lock();
        self.wait_thawed(&mut state, ino)
    }
}

fn changed(mut inode: Inode, change: &SetAttr) -> Inode {
    if let Some(mode) = change.mode {
        inode.mode = mode & 0o7777;
    }
    inode.uid = change.uid.unwrap_or(inode.uid);
    inode.gid = change.gid.unwrap_or(inode.gid);
    if let Some(atime) = change.atime {
        inode.atime_ns = atime.ns();
    }
    if let Some(mtime) = change.mtime {
        inode.mtime_ns = mtime.ns();
    }
    inode.ctime_ns = now_ns();
    inode
}

/// While a file is raw, its modification time is the raw file's.
fn set_times(file: &File, change: &SetAttr) -> Result<()> {
    let spec = |change: Option<TimeChange>| match change {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(change) => {
            let ns = change.ns();
            Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) }
        }
    };
    let times = Timestamps { last_access: spec(change.atime), last_modification: spec(change.mtime) };
    Ok(futimens(file, &times)?)
}
