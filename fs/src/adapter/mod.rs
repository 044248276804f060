//! Connects the tree to FUSE: unpacks each request, calls, replies. No meaning lives here.

mod convert;
mod reply;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};

use self::convert::{
    cache_flags, caller, common_ttl, errno, file_attr, file_type, node_kind, open_flags, rename_mode,
    time_change,
};
use self::reply::{reply_empty, reply_xattr, with_backing_id};
use crate::errno::Errno;
use crate::tree::{Backing, SetAttr, Tree};

/// How many requests the kernel may have waiting here, read-ahead included.
const MAX_BACKGROUND: u16 = 64;

/// The FUSE filesystem.
pub struct Adapter {
    tree: Arc<Tree>,
    /// The kernel caches writes; only without passthrough.
    write_back: bool,
}

impl Adapter {
    /// Makes the adapter. `write_back` asks for the kernel's write-back cache, which excludes passthrough.
    pub fn new(tree: Arc<Tree>, write_back: bool) -> Self {
        Self { tree, write_back }
    }
}

/// Runs what may take long away from the threads that serve requests: a seal, for one, waits for releases
/// that those have to process.
fn aside(work: impl FnOnce() + Send + 'static) {
    let spawned = thread::Builder::new().name("slow-request".into()).spawn(work);
    if let Err(error) = spawned {
        // The request's reply was dropped with the closure, which answers EIO.
        tracing::error!(%error, "no thread could be started for a request");
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
        ];
        for capability in wanted {
            // Each only makes things faster; an old kernel does without.
            let _ = config.add_capabilities(capability);
        }
        if self.write_back {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        } else if self.tree.passthrough() {
            let possible = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
            // Files of the store are no FUSE files themselves, so one level below is enough.
            if !possible || config.set_max_stack_depth(1).is_err() {
                self.tree.disable_passthrough();
            }
        }
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry(reply, self.tree.lookup(parent.0, name.as_bytes()));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.tree.forget(ino.0, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        Self::reply_attr(reply, self.tree.getattr(ino.0));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = SetAttr {
            mode,
            uid,
            gid,
            size_bytes: size,
            atime: atime.map(time_change),
            mtime: mtime.map(time_change),
        };
        Self::reply_attr(reply, self.tree.setattr(ino.0, change));
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.tree.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = node_kind(mode) else { return reply.error(errno(Errno::INVAL)) };
        self.reply_entry(
            reply,
            self.tree.mknod(parent.0, name.as_bytes(), kind, mode, rdev, caller(request)),
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.reply_entry(reply, self.tree.mkdir(parent.0, name.as_bytes(), mode, caller(request)));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.tree.unlink(parent.0, name.as_bytes()));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.tree.rmdir(parent.0, name.as_bytes()));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        self.reply_entry(reply, self.tree.symlink(parent.0, name.as_bytes(), target, caller(request)));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = rename_mode(flags) else { return reply.error(errno(Errno::INVAL)) };
        let (tree, name, newname) = (self.tree.clone(), name.to_owned(), newname.to_owned());
        aside(move || {
            let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
            reply_empty(reply, tree.rename(from, to, mode));
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.reply_entry(reply, self.tree.link(ino.0, newparent.0, newname.as_bytes()));
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: fuser::OpenFlags, reply: ReplyOpen) {
        let flags = open_flags(flags.0);
        let opened = self.tree.open(ino.0, flags).and_then(|opened| {
            self.with_kernel(opened, ino.0, flags, |backing| reply.open_backing(&backing.file))
        });
        match opened {
            Ok(opened) => match &opened.backing {
                Some(backing) => with_backing_id(backing, |id| {
                    reply.opened_passthrough(FileHandle(opened.handle), FopenFlags::empty(), id);
                }),
                None => reply.opened(FileHandle(opened.handle), cache_flags(&opened)),
            },
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buf = vec![0; size as usize];
        match self.tree.read(fh.0, &mut buf, offset) {
            Ok(got) => reply.data(&buf[..got]),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.tree.write(fh.0, data, offset) {
            Ok(written) => reply.written(u32::try_from(written).expect("as long as the request")),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is to be done at close: the kernel, told so once, spares every later close the round trip.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.tree.release(fh.0);
        reply.ok();
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let tree = self.tree.clone();
        aside(move || reply_empty(reply, tree.fsync(ino.0, fh.0)));
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: fuser::OpenFlags, reply: ReplyOpen) {
        match self.tree.opendir(ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.tree.readdir(fh.0, offset, |listed| {
            let entry = &listed.entry;
            reply.add(INodeNo(entry.ino), listed.next, file_type(entry.kind), OsStr::from_bytes(&entry.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.tree.readdir(fh.0, offset, |listed| {
            let entry = &listed.entry;
            let Some(attr) = self.tree.attr_listed(ino.0, entry) else { return false };
            let name = OsStr::from_bytes(&entry.name);
            let full = reply.add(
                INodeNo(entry.ino),
                listed.next,
                name,
                &common_ttl(&attr),
                &file_attr(&attr),
                Generation(0),
            );
            // The kernel counts every entry it gets but these two.
            if !full && entry.name != b"." && entry.name != b".." {
                self.tree.remember(entry.ino);
            }
            full
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: fuser::OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.tree.releasedir(fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let tree = self.tree.clone();
        aside(move || reply_empty(reply, tree.fsyncdir()));
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(self.tree.store().layout().root()) {
            Ok(stat) => {
                let bsize = u32::try_from(stat.f_bsize).unwrap_or(4096);
                let frsize = u32::try_from(stat.f_frsize).unwrap_or(bsize);
                reply.statfs(
                    stat.f_blocks,
                    stat.f_bfree,
                    stat.f_bavail,
                    stat.f_files,
                    stat.f_ffree,
                    bsize,
                    255,
                    frsize,
                );
            }
            Err(error) => reply.error(errno(error.into())),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (create, replace) = (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0);
        reply_empty(reply, self.tree.setxattr(ino.0, name.as_bytes(), value, create, replace));
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        // Of all attributes only a digest may have to be computed first.
        let slow = name.as_bytes().ends_with(b".sha256");
        let (tree, name) = (self.tree.clone(), name.to_owned());
        let answer = move || reply_xattr(reply, size, tree.getxattr(ino.0, name.as_bytes()));
        if slow { aside(answer) } else { answer() }
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.tree.listxattr(ino.0);
        let joined = names.map(|names| names.into_iter().flat_map(|name| [name, vec![0]].concat()).collect());
        reply_xattr(reply, size, joined);
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.tree.removexattr(ino.0, name.as_bytes()));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let flags = open_flags(flags);
        let created = self.tree.create(parent.0, name.as_bytes(), mode, caller(request), flags).and_then(
            |(attr, opened)| {
                let register = |backing: &Backing| reply.open_backing(&backing.file);
                Ok((self.with_kernel(opened, attr.ino, flags, register)?, attr))
            },
        );
        let (opened, attr) = match created {
            Ok(created) => created,
            Err(error) => return reply.error(errno(error)),
        };
        self.tree.remember(attr.ino);
        let (ttl, file) = (common_ttl(&attr), file_attr(&attr));
        match &opened.backing {
            Some(backing) => with_backing_id(backing, |id| {
                let handle = FileHandle(opened.handle);
                reply.created_passthrough(&ttl, &file, Generation(0), handle, FopenFlags::empty(), id);
            }),
            None => {
                reply.created(&ttl, &file, Generation(0), FileHandle(opened.handle), cache_flags(&opened))
            }
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.tree.fallocate(fh.0, offset, length, mode));
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        if self.write_back {
            // The raw file may have a hole where the kernel has data that it has not written yet. After this
            // answer the kernel takes all of every file for data.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return reply.error(errno(Errno::INVAL)),
        };
        let found =
            u64::try_from(offset).map_err(|_| Errno::NXIO).and_then(|at| self.tree.seek(fh.0, at, hole));
        match found.map(i64::try_from) {
            Ok(Ok(at)) => reply.offset(at),
            Ok(Err(_)) => reply.error(errno(Errno(libc::EOVERFLOW))),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        match self.tree.copy_range((fh_in.0, offset_in), (fh_out.0, offset_out), len) {
            Ok(copied) => reply.written(u32::try_from(copied).expect("at most 1 GiB")),
            Err(error) => reply.error(errno(error)),
        }
    }
}
