//! The subjects that are reached by system calls: a directory of the host's own filesystem, and a mount.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path as FsPath, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, UTIME_OMIT, XattrFlags,
};
use rustix::io::Errno;
use tempfile::TempDir;
use tinyllm::catalog::RenameMode;

use super::exec::Subject;
use super::ops::{Access, Op, Path};
use super::{Kind, Node, Outcome, SLOTS, Snapshot, Value};
use crate::checkpoint::noise;
use crate::{Mount, binary, run, text_xattr};

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn done<T, E: Into<io::Error>>(result: Result<T, E>) -> Outcome {
    result.map(|_| Value::Done).map_err(|error| errno(&error.into()))
}

/// A directory, and the files that are open in it.
#[derive(Debug, Default)]
struct Calls {
    dir: PathBuf,
    slots: [Option<File>; SLOTS],
}

impl Calls {
    fn path(&self, path: &Path) -> PathBuf {
        self.dir.join(path.join("/"))
    }

    fn file(&self, slot: usize) -> &File {
        self.slots[slot].as_ref().expect("operations on empty slots are left out")
    }

    fn close_all(&mut self) {
        self.slots = Default::default();
    }

    fn open(&self, path: &Path, access: Access) -> Result<File, i32> {
        let mut flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        flags |= match (access.read, access.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            (_, false) => OFlags::RDONLY,
        };
        flags.set(OFlags::CREATE, access.create);
        flags.set(OFlags::EXCL, access.exclusive);
        flags.set(OFlags::TRUNC, access.truncate);
        let mode = Mode::from_raw_mode(0o644);
        let opened = rustix::fs::open(self.path(path), flags, mode).map_err(Errno::raw_os_error)?;
        let file = File::from(opened);
        // A directory can be opened for reading, which is of no use here.
        if file.metadata().is_ok_and(|stat| stat.is_dir()) { Err(libc::EISDIR) } else { Ok(file) }
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open { slot, path, access } => {
                self.slots[*slot] = Some(self.open(path, *access)?);
                Ok(Value::Done)
            }
            Op::Close { slot } => {
                self.slots[*slot] = None;
                Ok(Value::Done)
            }
            Op::Read { slot, at, len } => read_at(self.file(*slot), *at, *len),
            Op::Write { slot, at, len, seed } => {
                // An empty write is a write too.
                if *len == 0 {
                    return done(self.file(*slot).write_at(&[], *at));
                }
                done(self.file(*slot).write_all_at(&noise(*seed, *len), *at))
            }
            Op::MapWrite { slot, at, len, seed } => map_write(self.file(*slot), *at, *len, *seed),
            Op::SetLen { slot, len } => done(self.file(*slot).set_len(*len)),
            Op::Allocate { slot, mode, at, len } => {
                done(rustix::fs::fallocate(self.file(*slot), *mode, *at, *len))
            }
            Op::Copy { from, from_at, to, to_at, len } => {
                copy((self.file(*from), *from_at), (self.file(*to), *to_at), *len)
            }
            Op::Seek { slot, at, hole } => {
                let from = if *hole { SeekFrom::Hole(*at) } else { SeekFrom::Data(*at) };
                let found = rustix::fs::seek(self.file(*slot), from);
                found.map(Value::Count).map_err(Errno::raw_os_error)
            }
            Op::Sync { slot } => done(self.file(*slot).sync_all()),
            Op::Put { path, bytes } => {
                let access =
                    Access { read: false, write: true, create: true, exclusive: false, truncate: true };
                let file = self.open(path, access)?;
                done(file.write_all_at(bytes, 0).and_then(|()| file.sync_all()))
            }
            op => self.apply_to_names(op),
        }
    }

    fn apply_to_names(&self, op: &Op) -> Outcome {
        match op {
            // There is no call that cuts a file by its name in rustix; this is it in the C library's terms.
            Op::Truncate { path, len } => done(truncate(&self.path(path), *len)),
            Op::Mkdir { path } => done(rustix::fs::mkdir(self.path(path), Mode::from_raw_mode(0o755))),
            Op::Rmdir { path } => done(fs::remove_dir(self.path(path))),
            Op::Unlink { path } => done(rustix::fs::unlink(self.path(path))),
            Op::Symlink { path, target } => done(symlink(target, self.path(path))),
            Op::Link { from, to } => done(fs::hard_link(self.path(from), self.path(to))),
            Op::Rename { from, to, mode } => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                };
                done(rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags))
            }
            Op::SetXattr { path, name, value, create, replace } => {
                let mut flags = XattrFlags::empty();
                flags.set(XattrFlags::CREATE, *create);
                flags.set(XattrFlags::REPLACE, *replace);
                done(rustix::fs::setxattr(self.path(path), *name, value, flags))
            }
            Op::RemoveXattr { path, name } => done(rustix::fs::removexattr(self.path(path), *name)),
            Op::Chmod { path, mode } => {
                done(fs::set_permissions(self.path(path), Permissions::from_mode(*mode)))
            }
            Op::SetMtime { path, ns } => {
                let times = Timestamps {
                    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                    last_modification: Timespec {
                        tv_sec: ns.div_euclid(1_000_000_000),
                        tv_nsec: ns.rem_euclid(1_000_000_000),
                    },
                };
                done(rustix::fs::utimensat(CWD, self.path(path), &times, AtFlags::empty()))
            }
            Op::Stat { path } => Ok(Value::Node(describe(&self.path(path)).map_err(|error| errno(&error))?)),
            Op::List { path } => names(&self.path(path)).map(Value::Names).map_err(|error| errno(&error)),
            op => unreachable!("{op:?} is for the subject itself"),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let mut found = Snapshot::new();
        list_into(&self.dir, "", &mut found);
        found
    }
}

fn truncate(path: &FsPath, len: u64) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: `path` is a string that ends with NUL and lives through the call.
    let done = unsafe { libc::truncate(path.as_ptr(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn read_at(file: &File, at: u64, len: usize) -> Outcome {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    loop {
        match file.read_at(&mut bytes[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) => return Err(errno(&error)),
        }
    }
    bytes.truncate(filled);
    Ok(Value::Bytes(bytes))
}

fn copy((from, from_at): (&File, u64), (to, to_at): (&File, u64), len: u64) -> Outcome {
    let mut copied = 0;
    loop {
        let left = usize::try_from(len - copied).expect("small lengths");
        let (mut from_at, mut to_at) = (from_at + copied, to_at + copied);
        match rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), left) {
            Ok(0) => return Ok(Value::Count(copied)),
            Ok(got) => copied += got as u64,
            Err(error) => return Err(error.raw_os_error()),
        }
        if copied == len {
            return Ok(Value::Count(copied));
        }
    }
}

fn map_write(file: &File, at: u64, len: usize, seed: u64) -> Outcome {
    let size = file.metadata().map_err(|error| errno(&error))?.len();
    let writable = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    if !writable {
        return Err(libc::EACCES);
    }
    let room = size.saturating_sub(at).min(len as u64);
    if room == 0 {
        return Ok(Value::Done);
    }
    let room = usize::try_from(room).expect("small files");
    // SAFETY: nothing else cuts the file while it is mapped: a sequence has one thread.
    let mapped = unsafe { memmap2::MmapOptions::new().offset(at).len(room).map_mut(file) };
    let mut map = mapped.map_err(|error| errno(&error))?;
    map.copy_from_slice(&noise(seed, room));
    Ok(Value::Done)
}

fn names(dir: &FsPath) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        found.push(entry?.file_name().into_string().expect("plain names"));
    }
    // LATEST and latest are compared by themselves.
    found.retain(|name| name != "LATEST" && name != "latest");
    found.sort();
    Ok(found)
}

fn describe(path: &FsPath) -> io::Result<Node> {
    let stat = fs::symlink_metadata(path)?;
    let kind = if stat.is_dir() {
        Kind::Directory
    } else if stat.is_symlink() {
        Kind::Symlink { target: fs::read_link(path)?.to_string_lossy().into_owned() }
    } else {
        Kind::File { size_bytes: stat.len() }
    };
    let mut xattrs = std::collections::BTreeMap::new();
    if !stat.is_symlink() {
        for name in ["user.one", "user.two"] {
            let mut value = vec![0; 4096];
            if let Ok(len) = rustix::fs::getxattr(path, name, &mut value[..]) {
                xattrs.insert(name.to_owned(), value[..len].to_vec());
            }
        }
    }
    Ok(Node {
        kind,
        mode: stat.mode() & 0o7777,
        nlink: u32::try_from(stat.nlink()).expect("few links"),
        xattrs,
        mtime_ns: Some(stat.mtime() * 1_000_000_000 + stat.mtime_nsec()),
    })
}

fn list_into(dir: &FsPath, prefix: &str, found: &mut Snapshot) {
    for name in names(dir).unwrap() {
        let path = dir.join(&name);
        let node = describe(&path).unwrap();
        let bytes = match node.kind {
            Kind::File { .. } => fs::read(&path).unwrap(),
            Kind::Directory | Kind::Symlink { .. } => vec![],
        };
        found.insert(format!("{prefix}{name}"), (node, bytes));
        list_into_if_dir(&path, &format!("{prefix}{name}/"), found);
    }
}

fn list_into_if_dir(path: &FsPath, prefix: &str, found: &mut Snapshot) {
    if fs::symlink_metadata(path).unwrap().is_dir() {
        list_into(path, prefix, found);
    }
}

/// A directory of the host's own filesystem. It knows nothing of seals.
#[derive(Debug)]
pub struct HostDir {
    dir: TempDir,
    calls: Calls,
}

impl HostDir {
    #[allow(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        Self { dir: TempDir::with_prefix("tinyllm-model-").unwrap(), calls: Calls::default() }
    }
}

impl Subject for HostDir {
    fn name(&self) -> String {
        "the host's own filesystem".into()
    }

    fn begin(&mut self, run: &str) {
        self.calls.close_all();
        self.calls.dir = self.dir.path().join(run);
        fs::create_dir(&self.calls.dir).unwrap();
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Settle | Op::Collect => {}
            Op::Reopen | Op::Crash => self.calls.close_all(),
            op => return self.calls.apply(op),
        }
        Ok(Value::Done)
    }

    fn snapshot(&mut self) -> Snapshot {
        self.calls.snapshot()
    }

    fn latest(&mut self) -> Option<String> {
        None
    }

    fn portable(&mut self, _step: &str, _path: &str) -> Result<Vec<u8>, i32> {
        Err(libc::ENOENT)
    }

    fn counts_dir_links(&self) -> bool {
        // Some filesystems always say 1.
        fs::metadata(self.dir.path()).unwrap().nlink() >= 2
    }
}

/// A directory of a mount.
#[derive(Debug)]
pub struct MountedDir {
    mount: Mount,
    passthrough: bool,
    run: String,
    calls: Calls,
}

impl MountedDir {
    /// Mounts a new store. Closed files settle at once, collections run as soon as anything was removed.
    pub fn new(passthrough: bool) -> Self {
        let yes_no = if passthrough { "yes" } else { "no" };
        let mount = Mount::new(&format!("passthrough={yes_no},settle_after=0,gc_after=0"));
        Self { mount, passthrough, run: String::new(), calls: Calls::default() }
    }

    /// Unmounts and gives the store, which must be sound.
    pub fn finish(mut self) -> Mount {
        self.calls.close_all();
        self.mount.unmount();
        self.mount
    }

    /// Waits until the raw files that nobody has open have settled.
    fn settle(&self) {
        // With nothing to wait for the daemon looks every 20 ms.
        std::thread::sleep(std::time::Duration::from_millis(60));
    }
}

impl Subject for MountedDir {
    fn name(&self) -> String {
        format!("the mount with passthrough={}", self.passthrough)
    }

    fn begin(&mut self, run: &str) {
        self.calls.close_all();
        self.run = run.to_owned();
        self.calls.dir = self.mount.run_dir(run);
        fs::create_dir_all(&self.calls.dir).unwrap();
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Settle => self.settle(),
            Op::Collect => {
                run(std::process::Command::new(binary("tinyllm"))
                    .arg("--store")
                    .arg(self.mount.store())
                    .arg("gc"));
            }
            Op::Reopen => {
                self.calls.close_all();
                self.mount.remount();
            }
            Op::Crash => {
                // Without passthrough the kernel holds back what was written; that a kill loses it is allowed.
                for file in self.calls.slots.iter().flatten().filter(|_| !self.passthrough) {
                    file.sync_all().unwrap();
                }
                self.mount.kill();
                self.calls.close_all();
                self.mount.mount();
            }
            op => return self.calls.apply(op),
        }
        Ok(Value::Done)
    }

    fn snapshot(&mut self) -> Snapshot {
        self.calls.snapshot()
    }

    fn latest(&mut self) -> Option<String> {
        let text = fs::read_to_string(self.calls.dir.join("LATEST")).ok();
        let link = fs::read_link(self.calls.dir.join("latest")).ok();
        let named = text.map(|text| text.trim_end().to_owned());
        assert_eq!(named, link.map(|link| link.to_string_lossy().into_owned()), "LATEST and latest");
        named
    }

    fn portable(&mut self, step: &str, path: &str) -> Result<Vec<u8>, i32> {
        let dir = self.mount.join("checkpoints").join(&self.run).join(step);
        // What a sealed face is asked for here must be sealed.
        assert_eq!(text_xattr(&dir, "user.tinyllm.sealed").as_deref(), Some("1"), "{}", dir.display());
        fs::read(dir.join(path)).map_err(|error| errno(&error))
    }
}
