//! The tree without a kernel: what the kernel does before a request reaches the daemon is done here.

use std::collections::BTreeMap;
use std::sync::Arc;

use tempfile::TempDir;
use tinyllm::catalog::{FileKind, ROOT_INO, RenameMode};
use tinyllm::error::StoreError;
use tinyllm::store::Store;
use tinyllm_fs::attr::Attr;
use tinyllm_fs::errno::Errno;
use tinyllm_fs::tree::{Caller, OpenFlags, Opened, SetAttr, TimeChange, Tree, TreeOptions};

use super::exec::Subject;
use super::ops::{Access, Op, Path};
use super::{Kind, Node, Outcome, SLOTS, Snapshot, Value};
use crate::checkpoint::noise;
use crate::{eventually, verify_store};

const CALLER: Caller = Caller { uid: 0, gid: 0 };

#[derive(Debug, Clone, Copy)]
struct Slot {
    ino: u64,
    handle: u64,
    access: Access,
}

/// A store and its tree, and a directory in it.
#[derive(Debug)]
pub struct KernelFree {
    dir: TempDir,
    tree: Option<Arc<Tree>>,
    run: String,
    root: u64,
    slots: [Option<Slot>; SLOTS],
}

fn tree_of(store: Store) -> Arc<Tree> {
    // Nobody runs the housekeeper: what it does comes as operations.
    let (tree, _housekeeper) = Tree::new(Arc::new(store), TreeOptions::default());
    tree
}

type Try<T> = Result<T, Errno>;

impl KernelFree {
    #[allow(clippy::new_without_default, reason = "it makes a store")]
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("tinyllm-model-").unwrap();
        let store = Store::create(&dir.path().join("store"), 0, 0).unwrap();
        Self { dir, tree: Some(tree_of(store)), run: String::new(), root: ROOT_INO, slots: [None; SLOTS] }
    }

    /// Checks every byte of the store.
    pub fn finish(mut self) {
        self.reopen(true);
        verify_store(&self.dir.path().join("store"));
    }

    fn tree(&self) -> &Tree {
        self.tree.as_ref().expect("open")
    }

    fn reopen(&mut self, in_order: bool) {
        if in_order {
            for slot in 0..SLOTS {
                self.close(slot);
            }
            self.tree().store().sync_unsettled().unwrap();
        }
        self.slots = [None; SLOTS];
        drop(self.tree.take());
        // A process that another test is just starting holds the lock's descriptor for a moment.
        eventually("the store can be opened", || match Store::open(&self.dir.path().join("store")) {
            Err(StoreError::Locked { .. }) => false,
            opened => {
                self.tree = Some(tree_of(opened.unwrap()));
                true
            }
        });
    }

    fn close(&mut self, slot: usize) {
        if let Some(open) = self.slots[slot].take() {
            self.tree().release(open.handle);
        }
    }

    /// Walks to a directory from the run's own.
    fn walk(&self, dirs: &[&str]) -> Try<u64> {
        let mut at = self.root;
        for name in dirs {
            let attr = self.tree().lookup(at, name.as_bytes())?;
            at = match attr.kind {
                FileKind::Directory => attr.ino,
                // All of them dangle.
                FileKind::Symlink => return Err(Errno::NOENT),
                _ => return Err(Errno(libc::ENOTDIR)),
            };
        }
        Ok(at)
    }

    fn parent(&self, path: &Path) -> Try<(u64, &'static str)> {
        let (last, dirs) = path.split_last().expect("paths have names");
        Ok((self.walk(dirs)?, last))
    }

    fn find(&self, path: &Path) -> Try<Attr> {
        let (dir, name) = self.parent(path)?;
        self.tree().lookup(dir, name.as_bytes())
    }

    fn follow(&self, path: &Path) -> Try<Attr> {
        let attr = self.find(path)?;
        if attr.kind == FileKind::Symlink { Err(Errno::NOENT) } else { Ok(attr) }
    }

    /// Gives the place of a new name; EEXIST when it is taken.
    fn free_name(&self, path: &Path) -> Try<(u64, &'static [u8])> {
        let (dir, name) = self.parent(path)?;
        match self.tree().lookup(dir, name.as_bytes()) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => Ok((dir, name.as_bytes())),
            Err(error) => Err(error),
        }
    }

    fn open(&self, path: &Path, access: Access) -> Try<Slot> {
        let (dir, name) = self.parent(path)?;
        let flags = OpenFlags { write: access.write, read: access.read, truncate: access.truncate };
        let slot = |ino, opened: Opened| Slot { ino, handle: opened.handle, access };
        let attr = match self.tree().lookup(dir, name.as_bytes()) {
            Err(Errno::NOENT) if access.create => {
                let flags = OpenFlags { truncate: false, ..flags };
                let (attr, opened) = self.tree().create(dir, name.as_bytes(), 0o644, CALLER, flags)?;
                return Ok(slot(attr.ino, opened));
            }
            other => other?,
        };
        match attr.kind {
            _ if access.exclusive => Err(Errno::EXIST),
            FileKind::Symlink => Err(Errno(libc::ELOOP)),
            FileKind::Directory => Err(Errno::ISDIR),
            _ => Ok(slot(attr.ino, self.tree().open(attr.ino, flags)?)),
        }
    }

    fn slot(&self, slot: usize) -> Slot {
        self.slots[slot].expect("operations on empty slots are left out")
    }

    fn writer(&self, slot: usize, otherwise: Errno) -> Try<Slot> {
        let slot = self.slot(slot);
        if slot.access.write { Ok(slot) } else { Err(otherwise) }
    }

    fn read(&self, handle: u64, at: u64, len: usize) -> Try<Vec<u8>> {
        let mut bytes = vec![0; len];
        let got = self.tree().read(handle, &mut bytes, at)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    fn write(&self, handle: u64, at: u64, bytes: &[u8]) -> Try<()> {
        // The kernel asks for nothing to be written to nowhere.
        if !bytes.is_empty() {
            self.tree().write(handle, bytes, at)?;
        }
        Ok(())
    }

    fn map_write(&self, slot: usize, at: u64, len: usize, seed: u64) -> Try<()> {
        let slot = self.slot(slot);
        if !slot.access.read || !slot.access.write {
            return Err(Errno::ACCES);
        }
        let room = self.tree().getattr(slot.ino)?.size_bytes.saturating_sub(at).min(len as u64);
        self.write(slot.handle, at, &noise(seed, usize::try_from(room).expect("small files")))
    }

    fn copy(&self, (from, from_at): (usize, u64), (to, to_at): (usize, u64), len: u64) -> Try<u64> {
        let (from, to) = (self.slot(from), self.slot(to));
        if !from.access.read || !to.access.write {
            return Err(Errno::BADF);
        }
        if from.ino == to.ino && from_at < to_at + len && to_at < from_at + len {
            return Err(Errno::INVAL);
        }
        let mut copied = 0;
        while copied < len {
            let (from_at, to_at) = (from_at + copied, to_at + copied);
            let asked = self.tree().copy_range((from.handle, from_at), (to.handle, to_at), len - copied);
            let got = match asked {
                Err(Errno::NOTSUP) => {
                    let bytes =
                        self.read(from.handle, from_at, usize::try_from(len - copied).expect("small"))?;
                    self.write(to.handle, to_at, &bytes)?;
                    bytes.len() as u64
                }
                other => other?,
            };
            if got == 0 {
                break;
            }
            copied += got;
        }
        Ok(copied)
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Try<()> {
        let (dir, name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        let source = self.tree().lookup(dir, name.as_bytes())?;
        let target = match self.tree().lookup(new_dir, new_name.as_bytes()) {
            Err(Errno::NOENT) => None,
            other => Some(other?),
        };
        match (mode, &target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        // An ancestor can't be renamed into its descendant, nor replaced by it.
        if to.len() > from.len() && to.starts_with(from) {
            return Err(Errno::INVAL);
        }
        if from.len() > to.len() && from.starts_with(to) {
            return Err(if mode == RenameMode::Exchange { Errno::INVAL } else { Errno(libc::ENOTEMPTY) });
        }
        if let Some(target) = &target {
            let dirs = (source.kind == FileKind::Directory, target.kind == FileKind::Directory);
            match dirs {
                _ if target.ino == source.ino => return Ok(()),
                (true, false) if mode == RenameMode::Replace => return Err(Errno(libc::ENOTDIR)),
                (false, true) if mode == RenameMode::Replace => return Err(Errno::ISDIR),
                _ => {}
            }
        }
        self.tree().rename((dir, name.as_bytes()), (new_dir, new_name.as_bytes()), mode)
    }

    fn set(&self, path: &Path, change: SetAttr) -> Try<Value> {
        self.tree().setattr(self.follow(path)?.ino, change).map(|_| Value::Done)
    }

    fn names(&self, dir: u64) -> Try<Vec<String>> {
        let handle = self.tree().opendir(dir)?;
        let mut found = Vec::new();
        let listed = self.tree().readdir(handle, 0, |listed| {
            found.push(String::from_utf8(listed.entry.name.clone()).expect("plain names"));
            false
        });
        self.tree().releasedir(handle);
        listed?;
        found.retain(|name| ![".", "..", "LATEST", "latest"].contains(&name.as_str()));
        found.sort();
        Ok(found)
    }

    fn node(&self, attr: &Attr) -> Try<Node> {
        let kind = match attr.kind {
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink {
                target: String::from_utf8(self.tree().readlink(attr.ino)?).expect("plain names"),
            },
            _ => Kind::File { size_bytes: attr.size_bytes },
        };
        let mut xattrs = BTreeMap::new();
        for name in ["user.one", "user.two"] {
            match self.tree().getxattr(attr.ino, name.as_bytes()) {
                Ok(value) => xattrs.insert(name.to_owned(), value),
                Err(Errno::NODATA) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(Node { kind, mode: attr.mode, nlink: attr.nlink, xattrs, mtime_ns: Some(attr.mtime_ns) })
    }

    fn list_into(&self, dir: u64, prefix: &str, found: &mut Snapshot) -> Try<()> {
        for name in self.names(dir)? {
            let attr = self.tree().lookup(dir, name.as_bytes())?;
            let bytes = if attr.kind == FileKind::File { self.read_file(attr)? } else { vec![] };
            found.insert(format!("{prefix}{name}"), (self.node(&attr)?, bytes));
            if attr.kind == FileKind::Directory {
                self.list_into(attr.ino, &format!("{prefix}{name}/"), found)?;
            }
        }
        Ok(())
    }

    fn read_file(&self, attr: Attr) -> Try<Vec<u8>> {
        let opened = self.tree().open(attr.ino, OpenFlags { read: true, ..OpenFlags::default() })?;
        let len = usize::try_from(attr.size_bytes).expect("small files");
        let bytes = self.read(opened.handle, 0, len + 1);
        self.tree().release(opened.handle);
        bytes
    }

    fn try_apply(&mut self, op: &Op) -> Try<Value> {
        match op {
            Op::Open { slot, path, access } => self.slots[*slot] = Some(self.open(path, *access)?),
            Op::Close { slot } => self.close(*slot),
            Op::Read { slot, at, len } => {
                let slot = self.slot(*slot);
                if !slot.access.read {
                    return Err(Errno::BADF);
                }
                return self.read(slot.handle, *at, *len).map(Value::Bytes);
            }
            Op::Write { slot, at, len, seed } => {
                self.write(self.writer(*slot, Errno::BADF)?.handle, *at, &noise(*seed, *len))?;
            }
            Op::MapWrite { slot, at, len, seed } => self.map_write(*slot, *at, *len, *seed)?,
            Op::SetLen { slot, len } => {
                let ino = self.writer(*slot, Errno::INVAL)?.ino;
                self.tree().setattr(ino, SetAttr { size_bytes: Some(*len), ..SetAttr::default() })?;
            }
            Op::Allocate { len: 0, .. } => return Err(Errno::INVAL),
            Op::Allocate { slot, mode, at, len } => {
                let handle = self.writer(*slot, Errno::BADF)?.handle;
                self.tree().fallocate(handle, *at, *len, mode.bits().cast_signed())?;
            }
            Op::Copy { from, from_at, to, to_at, len } => {
                return self.copy((*from, *from_at), (*to, *to_at), *len).map(Value::Count);
            }
            Op::Seek { slot, at, hole } => {
                return self.tree().seek(self.slot(*slot).handle, *at, *hole).map(Value::Count);
            }
            Op::Sync { slot } => self.tree().fsync(self.slot(*slot).ino, self.slot(*slot).handle)?,
            Op::Put { path, bytes } => {
                let access =
                    Access { read: false, write: true, create: true, exclusive: false, truncate: true };
                let slot = self.open(path, access)?;
                let written = self.write(slot.handle, 0, bytes);
                let synced = self.tree().fsync(slot.ino, slot.handle);
                self.tree().release(slot.handle);
                written.and(synced)?;
            }
            Op::Settle => {
                self.tree().settle_closed()?;
            }
            Op::Collect => {
                let tree = self.tree();
                tree.store().collect(|pack| tree.pack_in_use(pack))?;
            }
            Op::Reopen => self.reopen(true),
            Op::Crash => self.reopen(false),
            op => return self.apply_to_names(op),
        }
        Ok(Value::Done)
    }

    fn apply_to_names(&self, op: &Op) -> Try<Value> {
        let tree = self.tree();
        match op {
            Op::Truncate { path, len } => {
                let attr = self.follow(path)?;
                if attr.kind == FileKind::Directory {
                    return Err(Errno::ISDIR);
                }
                return self.set(path, SetAttr { size_bytes: Some(*len), ..SetAttr::default() });
            }
            Op::Mkdir { path } => {
                let (dir, name) = self.free_name(path)?;
                tree.mkdir(dir, name, 0o755, CALLER)?;
            }
            Op::Symlink { path, target } => {
                let (dir, name) = self.free_name(path)?;
                tree.symlink(dir, name, target.as_bytes(), CALLER)?;
            }
            Op::Rmdir { path } => {
                if self.find(path)?.kind != FileKind::Directory {
                    return Err(Errno(libc::ENOTDIR));
                }
                let (dir, name) = self.parent(path)?;
                tree.rmdir(dir, name.as_bytes())?;
            }
            Op::Unlink { path } => {
                if self.find(path)?.kind == FileKind::Directory {
                    return Err(Errno::ISDIR);
                }
                let (dir, name) = self.parent(path)?;
                tree.unlink(dir, name.as_bytes())?;
            }
            Op::Link { from, to } => {
                let attr = self.find(from)?;
                let (dir, name) = self.free_name(to)?;
                if attr.kind == FileKind::Directory {
                    return Err(Errno::PERM);
                }
                tree.link(attr.ino, dir, name)?;
            }
            Op::Rename { from, to, mode } => self.rename(from, to, *mode)?,
            Op::SetXattr { path, name, value, create, replace } => {
                tree.setxattr(self.follow(path)?.ino, name.as_bytes(), value, *create, *replace)?;
            }
            Op::RemoveXattr { path, name } => tree.removexattr(self.follow(path)?.ino, name.as_bytes())?,
            Op::Chmod { path, mode } => {
                return self.set(path, SetAttr { mode: Some(*mode), ..SetAttr::default() });
            }
            Op::SetMtime { path, ns } => {
                return self.set(path, SetAttr { mtime: Some(TimeChange::At(*ns)), ..SetAttr::default() });
            }
            Op::Stat { path } => return self.node(&self.find(path)?).map(Value::Node),
            Op::List { path } => {
                let attr = self.follow(path)?;
                return self.names(attr.ino).map(Value::Names);
            }
            op => unreachable!("{op:?} is carried out elsewhere"),
        }
        Ok(Value::Done)
    }
}

impl Subject for KernelFree {
    fn name(&self) -> String {
        "the tree without a kernel".into()
    }

    fn begin(&mut self, run: &str) {
        for slot in 0..SLOTS {
            self.close(slot);
        }
        self.run = run.to_owned();
        let runs = self.tree().lookup(ROOT_INO, b"runs").unwrap().ino;
        let dir = self.tree().mkdir(runs, run.as_bytes(), 0o755, CALLER).unwrap().ino;
        self.root = self.tree().mkdir(dir, b"ckpt", 0o755, CALLER).unwrap().ino;
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        self.try_apply(op).map_err(|error| error.0)
    }

    fn snapshot(&mut self) -> Snapshot {
        let mut found = Snapshot::new();
        self.list_into(self.root, "", &mut found).unwrap();
        found
    }

    fn latest(&mut self) -> Option<String> {
        // A name that a removal took away can be looked up for a while, to be removed once more.
        let text = self.tree().lookup(self.root, b"LATEST").ok().filter(|attr| attr.nlink > 0)?;
        let link = self.tree().lookup(self.root, b"latest").unwrap();
        let link = String::from_utf8(self.tree().readlink(link.ino).unwrap()).unwrap();
        let text = String::from_utf8(self.read_file(text).unwrap()).unwrap();
        assert_eq!(text.trim_end(), link, "LATEST and latest");
        Some(link)
    }

    fn portable(&mut self, step: &str, path: &str) -> Result<Vec<u8>, i32> {
        let mut at = ROOT_INO;
        let mut attr = None;
        for name in ["checkpoints", &self.run, step].into_iter().chain(path.split('/')) {
            let found = self.tree().lookup(at, name.as_bytes()).map_err(|error| error.0)?;
            at = found.ino;
            attr = Some(found);
        }
        self.read_file(attr.expect("some names")).map_err(|error| error.0)
    }
}
