//! The model: what every operation must give, by the rules of POSIX and of docs/SEMANTICS.md, with no regard to how
//! anything is stored. It errs as the Linux kernel does, in the order in which the kernel looks at things.

use std::collections::BTreeMap;

use rustix::fs::FallocateFlags;
use tinyllm::catalog::RenameMode;

use super::ops::{Access, Op, Path, STEPS, manifest_bytes};
use super::{Kind, Node, Outcome, SLOTS, Snapshot, Value};
use crate::checkpoint::noise;

const MANIFEST: &str = "MANIFEST.json";
const WEIGHTS: &str = "model.safetensors";

/// What may still happen to an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seal {
    Open,
    Sealed,
    /// A directory of a checkpoint whose removal has begun.
    Dissolving,
}

#[derive(Debug, Clone)]
enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<String, usize>),
    Symlink(String),
}

#[derive(Debug, Clone)]
struct Inode {
    content: Content,
    mode: u32,
    nlink: u32,
    xattrs: BTreeMap<String, Vec<u8>>,
    mtime_ns: Option<i64>,
    seal: Seal,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    inode: usize,
    access: Access,
}

/// A run's checkpoint directory and everything in it.
#[derive(Debug)]
pub struct Reference {
    run: String,
    inodes: Vec<Inode>,
    slots: [Option<Slot>; SLOTS],
    /// The roots of the steps that are there, in the order of their seals.
    sealed: Vec<usize>,
    seals: u64,
    /// The portable faces, by the names of their steps.
    portable: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

const ROOT: usize = 0;

impl Inode {
    fn new(content: Content, mode: u32) -> Self {
        let nlink = if matches!(content, Content::Directory(_)) { 2 } else { 1 };
        Self { content, mode, nlink, xattrs: BTreeMap::new(), mtime_ns: None, seal: Seal::Open }
    }

    fn is_dir(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }
}

impl Reference {
    pub fn new(run: &str) -> Self {
        let root = Inode::new(Content::Directory(BTreeMap::new()), 0o755);
        Self {
            run: run.to_owned(),
            inodes: vec![root],
            slots: [None; SLOTS],
            sealed: vec![],
            seals: 0,
            portable: BTreeMap::new(),
        }
    }

    /// Counts the seals that have been.
    pub fn seals(&self) -> u64 {
        self.seals
    }

    pub fn is_open(&self, slot: usize) -> bool {
        self.slots[slot].is_some()
    }

    /// Gives what is in the file of an open slot.
    pub fn bytes_of(&self, slot: usize) -> &[u8] {
        self.slots[slot].map_or(&[], |slot| self.bytes(slot.inode))
    }

    /// Says whether a directory is there that may still change.
    pub fn is_open_dir(&self, path: &Path) -> bool {
        self.find(path).is_ok_and(|ino| self.inodes[ino].is_dir() && self.inodes[ino].seal == Seal::Open)
    }

    /// Gives the manifest under which a directory may be sealed as it is.
    pub fn manifest_for(&self, dir: &Path, step: usize) -> Vec<u8> {
        let files = self.find(dir).map(|ino| self.files_of(ino)).unwrap_or_default();
        manifest_bytes(&self.run, step, &files)
    }

    /// Applies an operation that the subjects are given too.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open { slot, path, access } => self.open(path, *access).map(|inode| {
                self.slots[*slot] = Some(Slot { inode, access: *access });
                Value::Done
            }),
            Op::Close { slot } => {
                self.slots[*slot] = None;
                Ok(Value::Done)
            }
            Op::Read { slot, at, len } => self.read(*slot, *at, *len),
            Op::Write { slot, at, len, seed } => {
                let file = self.writer(*slot, libc::EBADF)?;
                self.put_bytes(file, *at, &noise(*seed, *len));
                Ok(Value::Done)
            }
            Op::MapWrite { slot, at, len, seed } => self.map_write(*slot, *at, *len, *seed),
            Op::SetLen { slot, len } => {
                let file = self.writer(*slot, libc::EINVAL)?;
                self.resize(file, *len);
                Ok(Value::Done)
            }
            Op::Allocate { slot, mode, at, len } => self.allocate(*slot, *mode, *at, *len),
            Op::Copy { from, from_at, to, to_at, len } => self.copy((*from, *from_at), (*to, *to_at), *len),
            Op::Sync { .. } | Op::Seek { .. } | Op::Settle | Op::Collect => Ok(Value::Done),
            Op::Truncate { path, len } => {
                let ino = self.follow(path)?;
                if self.inodes[ino].is_dir() {
                    return Err(libc::EISDIR);
                }
                self.check_open(ino)?;
                self.resize(ino, *len);
                Ok(Value::Done)
            }
            Op::Mkdir { path } => self.make(path, Inode::new(Content::Directory(BTreeMap::new()), 0o755)),
            Op::Symlink { path, target } => {
                self.make(path, Inode::new(Content::Symlink((*target).to_owned()), 0o777))
            }
            Op::Rmdir { path } => self.rmdir(path),
            Op::Unlink { path } => self.unlink(path),
            Op::Link { from, to } => self.link(from, to),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::SetXattr { path, name, value, create, replace } => {
                let ino = self.follow(path)?;
                self.check_open(ino)?;
                let xattrs = &mut self.inodes[ino].xattrs;
                match xattrs.contains_key(*name) {
                    true if *create => return Err(libc::EEXIST),
                    false if *replace => return Err(libc::ENODATA),
                    _ => xattrs.insert((*name).to_owned(), value.clone()),
                };
                Ok(Value::Done)
            }
            Op::RemoveXattr { path, name } => {
                let ino = self.follow(path)?;
                self.check_open(ino)?;
                self.inodes[ino].xattrs.remove(*name).map(|_| Value::Done).ok_or(libc::ENODATA)
            }
            Op::Chmod { path, mode } => {
                let ino = self.follow(path)?;
                self.check_open(ino)?;
                self.inodes[ino].mode = *mode;
                Ok(Value::Done)
            }
            Op::SetMtime { path, ns } => {
                let ino = self.follow(path)?;
                // To set the time that it has is no change.
                if self.inodes[ino].mtime_ns != Some(*ns) {
                    self.check_open(ino)?;
                }
                self.inodes[ino].mtime_ns = Some(*ns);
                Ok(Value::Done)
            }
            Op::Stat { path } => Ok(Value::Node(self.node(self.find(path)?))),
            Op::List { path } => {
                let ino = self.follow(path)?;
                Ok(Value::Names(self.entries(ino)?.keys().cloned().collect()))
            }
            Op::Put { path, bytes } => {
                let access =
                    Access { read: false, write: true, create: true, exclusive: false, truncate: true };
                let file = self.open(path, access)?;
                self.put_bytes(file, 0, bytes);
                Ok(Value::Done)
            }
            Op::Reopen | Op::Crash => {
                self.slots = [None; SLOTS];
                Ok(Value::Done)
            }
            Op::Save { .. } => unreachable!("carried out as the operations it is made of"),
        }
    }

    /// Describes everything below the checkpoint directory.
    pub fn snapshot(&self) -> Snapshot {
        let mut found = Snapshot::new();
        self.describe(ROOT, "", &mut found);
        found
    }

    /// Says what LATEST and latest name, if they are there.
    pub fn latest(&self) -> Option<String> {
        let root = *self.sealed.last()?;
        let Content::Directory(entries) = &self.inodes[ROOT].content else { unreachable!("the root is one") };
        entries.iter().find(|(_, ino)| **ino == root).map(|(name, _)| name.clone())
    }

    /// Lists the files of every portable face but its manifest.
    pub fn portable(&self) -> &BTreeMap<String, BTreeMap<String, Vec<u8>>> {
        &self.portable
    }

    fn describe(&self, ino: usize, prefix: &str, found: &mut Snapshot) {
        let Content::Directory(entries) = &self.inodes[ino].content else { return };
        for (name, child) in entries {
            let path = format!("{prefix}{name}");
            let bytes = match &self.inodes[*child].content {
                Content::File(bytes) => bytes.clone(),
                Content::Directory(_) | Content::Symlink(_) => vec![],
            };
            found.insert(path.clone(), (self.node(*child), bytes));
            self.describe(*child, &format!("{path}/"), found);
        }
    }

    fn node(&self, ino: usize) -> Node {
        let inode = &self.inodes[ino];
        let kind = match &inode.content {
            Content::File(bytes) => Kind::File { size_bytes: bytes.len() as u64 },
            Content::Directory(_) => Kind::Directory,
            Content::Symlink(target) => Kind::Symlink { target: target.clone() },
        };
        Node {
            kind,
            mode: inode.mode,
            nlink: inode.nlink,
            xattrs: inode.xattrs.clone(),
            mtime_ns: inode.mtime_ns,
        }
    }

    fn entries(&self, ino: usize) -> Result<&BTreeMap<String, usize>, i32> {
        match &self.inodes[ino].content {
            Content::Directory(entries) => Ok(entries),
            Content::File(_) => Err(libc::ENOTDIR),
            // All of them dangle.
            Content::Symlink(_) => Err(libc::ENOENT),
        }
    }

    fn entries_mut(&mut self, ino: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.inodes[ino].content {
            Content::Directory(entries) => entries,
            Content::File(_) | Content::Symlink(_) => unreachable!("looked at before"),
        }
    }

    /// Finds the directory of a path's last name.
    fn parent(&self, path: &Path) -> Result<(usize, &'static str), i32> {
        let (last, dirs) = path.split_last().expect("paths have names");
        let mut at = ROOT;
        for name in dirs {
            at = *self.entries(at)?.get(*name).ok_or(libc::ENOENT)?;
        }
        self.entries(at)?;
        Ok((at, last))
    }

    fn lookup(&self, dir: usize, name: &str) -> Option<usize> {
        self.entries(dir).ok()?.get(name).copied()
    }

    fn find(&self, path: &Path) -> Result<usize, i32> {
        let (dir, name) = self.parent(path)?;
        self.lookup(dir, name).ok_or(libc::ENOENT)
    }

    /// The same for calls that follow a symbolic link.
    fn follow(&self, path: &Path) -> Result<usize, i32> {
        let ino = self.find(path)?;
        if matches!(self.inodes[ino].content, Content::Symlink(_)) { Err(libc::ENOENT) } else { Ok(ino) }
    }

    fn check_open(&self, ino: usize) -> Result<(), i32> {
        if self.inodes[ino].seal == Seal::Open { Ok(()) } else { Err(libc::EPERM) }
    }

    /// A directory takes new names while it is open; final names come by sealing only.
    fn check_new_name(&self, dir: usize, name: &str) -> Result<(), i32> {
        self.check_open(dir)?;
        if dir == ROOT && STEPS.contains(&name) { Err(libc::EPERM) } else { Ok(()) }
    }

    fn add(&mut self, dir: usize, name: &str, inode: Inode) -> usize {
        if inode.is_dir() {
            self.inodes[dir].nlink += 1;
        }
        self.inodes.push(inode);
        let ino = self.inodes.len() - 1;
        self.entries_mut(dir).insert(name.to_owned(), ino);
        self.inodes[dir].mtime_ns = None;
        ino
    }

    fn open(&mut self, path: &Path, access: Access) -> Result<usize, i32> {
        let (dir, name) = self.parent(path)?;
        let Some(ino) = self.lookup(dir, name) else {
            if !access.create {
                return Err(libc::ENOENT);
            }
            self.check_new_name(dir, name)?;
            return Ok(self.add(dir, name, Inode::new(Content::File(vec![]), 0o644)));
        };
        if access.exclusive {
            return Err(libc::EEXIST);
        }
        match self.inodes[ino].content {
            Content::Symlink(_) => return Err(libc::ELOOP),
            Content::Directory(_) => return Err(libc::EISDIR),
            Content::File(_) => {}
        }
        if access.write {
            self.check_open(ino)?;
        }
        if access.truncate {
            self.resize(ino, 0);
        }
        Ok(ino)
    }

    fn bytes(&self, ino: usize) -> &[u8] {
        match &self.inodes[ino].content {
            Content::File(bytes) => bytes,
            Content::Directory(_) | Content::Symlink(_) => unreachable!("only files are opened"),
        }
    }

    fn bytes_mut(&mut self, ino: usize) -> &mut Vec<u8> {
        self.inodes[ino].mtime_ns = None;
        match &mut self.inodes[ino].content {
            Content::File(bytes) => bytes,
            Content::Directory(_) | Content::Symlink(_) => unreachable!("only files are opened"),
        }
    }

    fn slot(&self, slot: usize) -> Slot {
        self.slots[slot].expect("operations on empty slots are left out")
    }

    fn writer(&self, slot: usize, otherwise: i32) -> Result<usize, i32> {
        let slot = self.slot(slot);
        if slot.access.write { Ok(slot.inode) } else { Err(otherwise) }
    }

    fn read(&self, slot: usize, at: u64, len: usize) -> Outcome {
        let slot = self.slot(slot);
        if !slot.access.read {
            return Err(libc::EBADF);
        }
        Ok(Value::Bytes(piece(self.bytes(slot.inode), at, len as u64).to_vec()))
    }

    fn put_bytes(&mut self, ino: usize, at: u64, new: &[u8]) {
        if new.is_empty() {
            return;
        }
        let start = usize::try_from(at).expect("small offsets");
        let bytes = self.bytes_mut(ino);
        if bytes.len() < start + new.len() {
            bytes.resize(start + new.len(), 0);
        }
        bytes[start..start + new.len()].copy_from_slice(new);
    }

    fn resize(&mut self, ino: usize, len: u64) {
        self.bytes_mut(ino).resize(usize::try_from(len).expect("small sizes"), 0);
    }

    fn map_write(&mut self, slot: usize, at: u64, len: usize, seed: u64) -> Outcome {
        let slot = self.slot(slot);
        if !slot.access.read || !slot.access.write {
            return Err(libc::EACCES);
        }
        // A mapping does not lengthen a file.
        let room = piece(self.bytes(slot.inode), at, len as u64).len();
        self.put_bytes(slot.inode, at, &noise(seed, room));
        Ok(Value::Done)
    }

    fn allocate(&mut self, slot: usize, mode: FallocateFlags, at: u64, len: u64) -> Outcome {
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let file = self.writer(slot, libc::EBADF)?;
        let size = self.bytes(file).len() as u64;
        if mode.intersects(FallocateFlags::ZERO_RANGE | FallocateFlags::PUNCH_HOLE) {
            let zeros = vec![0; piece(self.bytes(file), at, len).len()];
            self.put_bytes(file, at, &zeros);
        }
        let keeps = mode.contains(FallocateFlags::KEEP_SIZE);
        self.resize(file, if keeps { size } else { size.max(at + len) });
        Ok(Value::Done)
    }

    fn copy(&mut self, (from, from_at): (usize, u64), (to, to_at): (usize, u64), len: u64) -> Outcome {
        let (from, to) = (self.slot(from), self.slot(to));
        if !from.access.read || !to.access.write {
            return Err(libc::EBADF);
        }
        if from.inode == to.inode && from_at < to_at + len && to_at < from_at + len {
            return Err(libc::EINVAL);
        }
        let bytes = piece(self.bytes(from.inode), from_at, len).to_vec();
        self.put_bytes(to.inode, to_at, &bytes);
        Ok(Value::Count(bytes.len() as u64))
    }

    fn make(&mut self, path: &Path, inode: Inode) -> Outcome {
        let (dir, name) = self.parent(path)?;
        if self.lookup(dir, name).is_some() {
            return Err(libc::EEXIST);
        }
        self.check_new_name(dir, name)?;
        self.add(dir, name, inode);
        Ok(Value::Done)
    }

    fn link(&mut self, from: &Path, to: &Path) -> Outcome {
        let ino = self.find(from)?;
        let (dir, name) = self.parent(to)?;
        if self.lookup(dir, name).is_some() {
            return Err(libc::EEXIST);
        }
        if self.inodes[ino].is_dir() {
            return Err(libc::EPERM);
        }
        self.check_new_name(dir, name)?;
        self.check_open(ino)?;
        self.entries_mut(dir).insert(name.to_owned(), ino);
        self.inodes[dir].mtime_ns = None;
        self.inodes[ino].nlink += 1;
        Ok(Value::Done)
    }

    fn unlink(&mut self, path: &Path) -> Outcome {
        let (dir, name) = self.parent(path)?;
        let ino = self.lookup(dir, name).ok_or(libc::ENOENT)?;
        if self.inodes[ino].is_dir() {
            return Err(libc::EISDIR);
        }
        self.begin_removal(dir);
        self.drop_name(dir, name);
        Ok(Value::Done)
    }

    fn rmdir(&mut self, path: &Path) -> Outcome {
        let (dir, name) = self.parent(path)?;
        let ino = self.lookup(dir, name).ok_or(libc::ENOENT)?;
        if !self.entries(ino).map_err(|_| libc::ENOTDIR)?.is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.begin_removal(dir);
        self.begin_removal(ino);
        self.drop_name(dir, name);
        Ok(Value::Done)
    }

    fn drop_name(&mut self, dir: usize, name: &str) {
        let Some(ino) = self.entries_mut(dir).remove(name) else { return };
        self.inodes[dir].mtime_ns = None;
        if self.inodes[ino].is_dir() {
            self.inodes[dir].nlink -= 1;
        }
        self.inodes[ino].nlink -= 1;
    }

    /// The first removal inside a sealed tree takes its manifest along, and the step is one no more.
    fn begin_removal(&mut self, dir: usize) {
        if self.inodes[dir].seal != Seal::Sealed {
            return;
        }
        let mut root = dir;
        while let Some(above) = self.parent_of(root).filter(|above| self.inodes[*above].seal != Seal::Open) {
            root = above;
        }
        for ino in self.below(root) {
            if self.inodes[ino].is_dir() {
                self.inodes[ino].seal = Seal::Dissolving;
            }
        }
        self.drop_name(root, MANIFEST);
        self.sealed.retain(|step| *step != root);
    }

    fn parent_of(&self, dir: usize) -> Option<usize> {
        (0..self.inodes.len()).find(|ino| {
            matches!(&self.inodes[*ino].content, Content::Directory(entries) if entries.values().any(|c| *c == dir))
        })
    }

    /// Lists a directory and everything in it.
    fn below(&self, ino: usize) -> Vec<usize> {
        let mut found = vec![ino];
        let mut at = 0;
        while at < found.len() {
            if let Content::Directory(entries) = &self.inodes[found[at]].content {
                found.extend(entries.values());
            }
            at += 1;
        }
        found
    }

    /// Lists the files below a directory, but for its own manifest, in the order of their paths.
    fn files_of(&self, dir: usize) -> Vec<(String, Vec<u8>)> {
        let mut found = Snapshot::new();
        self.describe(dir, "", &mut found);
        let files = found.into_iter().filter(|(_, (node, _))| matches!(node.kind, Kind::File { .. }));
        files.filter(|(path, _)| path != MANIFEST).map(|(path, (_, bytes))| (path, bytes)).collect()
    }

    fn rename(&mut self, from: &Path, to: &Path, mode: RenameMode) -> Outcome {
        let (dir, name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        let source = self.lookup(dir, name).ok_or(libc::ENOENT)?;
        let target = self.lookup(new_dir, new_name);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(libc::EEXIST),
            (RenameMode::Exchange, None) => return Err(libc::ENOENT),
            _ => {}
        }
        if self.below(source).contains(&new_dir) {
            return Err(libc::EINVAL);
        }
        if target.is_some_and(|target| self.below(target).contains(&dir)) {
            return Err(if mode == RenameMode::Exchange { libc::EINVAL } else { libc::ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(Value::Done);
        }
        if mode == RenameMode::Replace
            && let Some(target) = target
        {
            match (self.inodes[source].is_dir(), self.inodes[target].is_dir()) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                _ => {}
            }
        }
        self.check_open(dir)?;
        self.check_open(new_dir)?;
        if new_dir == ROOT && STEPS.contains(&new_name) {
            return self.rename_onto_step((dir, name, source), new_name, target, mode);
        }
        if mode == RenameMode::Exchange && dir == ROOT && STEPS.contains(&name) {
            return Err(libc::EPERM);
        }
        if mode != RenameMode::Exchange
            && let Some(target) = target
            && self.entries(target).is_ok_and(|entries| !entries.is_empty())
        {
            return Err(libc::ENOTEMPTY);
        }
        self.swap((dir, name), (new_dir, new_name), mode);
        self.sealed.retain(|step| *step != source);
        Ok(Value::Done)
    }

    /// Moves one name, or exchanges two, that may be.
    fn swap(&mut self, (dir, name): (usize, &str), (new_dir, new_name): (usize, &str), mode: RenameMode) {
        let source = self.lookup(dir, name).expect("looked up before");
        let target = self.lookup(new_dir, new_name);
        if mode != RenameMode::Exchange && target.is_some() {
            self.drop_name(new_dir, new_name);
        }
        self.entries_mut(dir).remove(name);
        self.entries_mut(new_dir).insert(new_name.to_owned(), source);
        let moves = |ino: usize, inodes: &mut Vec<Inode>, from: usize, to: usize| {
            if inodes[ino].is_dir() {
                inodes[from].nlink -= 1;
                inodes[to].nlink += 1;
            }
        };
        moves(source, &mut self.inodes, dir, new_dir);
        if mode == RenameMode::Exchange
            && let Some(target) = target
        {
            self.entries_mut(dir).insert(name.to_owned(), target);
            moves(target, &mut self.inodes, new_dir, dir);
        }
        self.inodes[dir].mtime_ns = None;
        self.inodes[new_dir].mtime_ns = None;
    }

    fn rename_onto_step(
        &mut self,
        (dir, name, source): (usize, &str, usize),
        step: &str,
        old: Option<usize>,
        mode: RenameMode,
    ) -> Outcome {
        if !self.inodes[source].is_dir() {
            return Err(libc::EBADMSG);
        }
        let below = self.below(source);
        let unfit = |ino: &usize| match self.inodes[*ino].content {
            Content::Directory(_) => false,
            Content::File(_) => self.inodes[*ino].nlink != 1,
            Content::Symlink(_) => true,
        };
        if below.iter().any(unfit) {
            return Err(libc::EBADMSG);
        }
        if old.is_some() && mode != RenameMode::Exchange {
            return Err(libc::ENOTEMPTY);
        }
        let files = self.files_of(source);
        let number = STEPS.iter().position(|known| *known == step).expect("a step");
        let manifest = self.lookup(source, MANIFEST).map(|ino| self.bytes(ino));
        // A manifest lists one file at least.
        if files.is_empty() || manifest != Some(&manifest_bytes(&self.run, number, &files)) {
            return Err(libc::EBADMSG);
        }
        self.swap((dir, name), (ROOT, step), mode);
        for ino in below {
            self.inodes[ino].seal = Seal::Sealed;
        }
        self.sealed.retain(|sealed| Some(*sealed) != old && *sealed != source);
        self.sealed.push(source);
        self.seals += 1;
        if files.iter().any(|(path, _)| path == WEIGHTS) {
            let portable = files.into_iter().filter(|(path, _)| !path.ends_with(MANIFEST)).collect();
            self.portable.insert(step.to_owned(), portable);
        }
        Ok(Value::Done)
    }
}

/// Cuts what there is of `len` bytes from `at` on.
fn piece(bytes: &[u8], at: u64, len: u64) -> &[u8] {
    let start = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    let end = usize::try_from(at + len).unwrap_or(usize::MAX).min(bytes.len());
    &bytes[start..end]
}
