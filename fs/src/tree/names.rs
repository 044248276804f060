//! Names: looking up, making and removing them, with the rules of checkpoints on top of those of POSIX.

use std::time::{Duration, Instant};

use tinyllm::catalog::{Durability, FileKind, Inode, MAX_NAME_BYTES, NewInode, ROOT_INO, SealState, Txn};
use tinyllm::check::PORTABLE_MANIFEST_FILE;
use tinyllm::error::{IoContext, StoreError};
use tinyllm::io::{OpenMode, unlink_if_present};
use tinyllm::manifest::MANIFEST_FILE;
use tinyllm::policy;
use tinyllm::subtree::join_path;
use tinyllm::time::now_ns;

use super::{Caller, Result, State, Tree, inspect};
use crate::attr::{Attr, Validity};
use crate::errno::Errno;

/// How long a name that a removal took away can be "removed" once more without an error.
const GHOST_FOR: Duration = Duration::from_secs(60);
/// The inode number of such names; nothing can be done with it.
const GHOST_INO: u64 = (1 << 62) - 1;

const SETGID: u32 = 0o2000;

impl Tree {
    /// Finds a name.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attr> {
        if name.len() > MAX_NAME_BYTES {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        if let Some(attr) = inspect::lookup(self, parent, name) {
            return attr;
        }
        let found = self.store.read(|txn| txn.lookup(parent, name)?.map(|ino| txn.inode(ino)).transpose())?;
        match found {
            Some(inode) => self.attr_of_entry(parent, name, &inode),
            None if self.is_ghost(parent, name) => Ok(ghost_attr()),
            None => Err(Errno::NOENT),
        }
    }

    /// Gives an entry's attributes, and whether the kernel may keep its name.
    ///
    /// It may not where a name's meaning changes without the kernel: steps, releases, LATEST and latest, the files
    /// beside them (a kept name stays kept when it is renamed onto one of those), and manifests, which the first
    /// removal inside a sealed tree takes along. Telling the kernel of each change instead would not do: it takes
    /// the directory's lock for that, and a daemon killed while it waits for the lock's owner, who waits for the
    /// daemon, never ends.
    pub(super) fn attr_of_entry(&self, parent: u64, name: &[u8], inode: &Inode) -> Result<Attr> {
        let attr = self.attr_of(inode)?;
        let manifest = [MANIFEST_FILE, PORTABLE_MANIFEST_FILE].iter().any(|file| file.as_bytes() == name);
        let path = self.store.read(|txn| txn.path_of(parent))?;
        let beside_final_names = path.is_some_and(|path| policy::has_final_names(&path));
        Ok(Attr { name_lasts: !manifest && !beside_final_names, ..attr })
    }

    /// A removal in several calls (rm -r) finds names gone that its own first call took away; asking for them
    /// once more must work. Such a name can be looked up and removed, and neither seen nor opened.
    fn is_ghost(&self, parent: u64, name: &[u8]) -> bool {
        let mut state = self.state.lock();
        if state.ghosts.is_empty() {
            return false;
        }
        let now = Instant::now();
        state.ghosts.retain(|_, until| *until > now);
        state.ghosts.contains_key(&(parent, name.to_vec()))
    }

    pub(super) fn is_ghost_ino(ino: u64) -> bool {
        ino == GHOST_INO
    }

    fn add_ghost(state: &mut State, parent: u64, name: &[u8]) {
        state.ghosts.insert((parent, name.to_vec()), Instant::now() + GHOST_FOR);
    }

    fn remove_ghost(&self, parent: u64, name: &[u8]) -> bool {
        self.is_ghost(parent, name) && self.state.lock().ghosts.remove(&(parent, name.to_vec())).is_some()
    }

    /// Gives the directory for a change of its entries, or why there can be none.
    pub(super) fn changeable_dir(&self, parent: u64) -> Result<Inode> {
        self.writable()?;
        if inspect::is_virtual(parent) {
            return Err(Errno::PERM);
        }
        let mut state = self.state.lock();
        self.wait_thawed(&mut state, parent)?;
        drop(state);
        self.inode(parent)
    }

    /// Gives the directory if a new name may appear in it. Final names of checkpoints come by sealing only,
    /// and LATEST and latest by themselves.
    fn dir_for_new_name(&self, parent: u64, name: &[u8], kind: FileKind) -> Result<Inode> {
        let dir = self.changeable_dir(parent)?;
        if dir.seal.immutable() || (parent == ROOT_INO && name == policy::INSPECTION_DIR) {
            return Err(Errno::PERM);
        }
        let Some(mut path) = self.store.read(|txn| txn.path_of(parent))? else { return Err(Errno::NOENT) };
        if let Some((face, _)) = policy::latest_home(&path)
            && policy::is_derived(face, name)
        {
            self.problems.note(parent, &format!("{}: follows the seals by itself", join_path(&path)));
            return Err(Errno::PERM);
        }
        path.push(name.to_vec());
        if policy::comes_by_sealing_only(&path, kind == FileKind::Directory) {
            let path = join_path(&path);
            self.problems.note(
                parent,
                &format!("{path}: a final name comes by sealing only; write into {path}.tmp and rename it"),
            );
            return Err(Errno::PERM);
        }
        Ok(dir)
    }

    fn new_inode(dir: &Inode, kind: FileKind, mode: u32, caller: Caller) -> NewInode {
        let inherits = dir.mode & SETGID != 0;
        let gid = if inherits { dir.gid } else { caller.gid };
        let mode = if inherits && kind == FileKind::Directory { mode | SETGID } else { mode };
        NewInode { kind, ..NewInode::file(mode & 0o7777, caller.uid, gid, now_ns()) }
    }

    /// Creates an empty file with its raw file.
    pub(super) fn make_file(&self, parent: u64, name: &[u8], mode: u32, caller: Caller) -> Result<Inode> {
        let dir = self.dir_for_new_name(parent, name, FileKind::File)?;
        let new = Self::new_inode(&dir, FileKind::File, mode, caller);
        let io = self.store.io().clone();
        let mut made = None;
        let created = self.store.write(Durability::Ordered, |txn| {
            let inode = txn.create(parent, name, &new)?;
            let path = self.store.layout().live(inode.ino);
            // A commit that failed may have left the file of this number.
            unlink_if_present(&*io, &path)?;
            io.open(&path, OpenMode::CreateNew).at("create", &path)?;
            made = Some(path);
            let inode = Inode { raw: true, ..inode };
            txn.put_inode(&inode)?;
            Ok(inode)
        });
        if let (Err(_), Some(path)) = (&created, made) {
            unlink_if_present(&*io, &path)?;
        }
        let inode = created?;
        self.store.note_new_raw(inode.ino);
        Ok(inode)
    }

    pub fn mknod(
        &self,
        parent: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u32,
        caller: Caller,
    ) -> Result<Attr> {
        if kind == FileKind::File {
            return self.attr_of_entry(parent, name, &self.make_file(parent, name, mode, caller)?);
        }
        let dir = self.dir_for_new_name(parent, name, kind)?;
        let new = NewInode { rdev, ..Self::new_inode(&dir, kind, mode, caller) };
        let inode = self.store.write(Durability::Ordered, |txn| txn.create(parent, name, &new))?;
        self.attr_of_entry(parent, name, &inode)
    }

    pub fn mkdir(&self, parent: u64, name: &[u8], mode: u32, caller: Caller) -> Result<Attr> {
        let dir = self.dir_for_new_name(parent, name, FileKind::Directory)?;
        let new = Self::new_inode(&dir, FileKind::Directory, mode, caller);
        let inode = self.store.write(Durability::Ordered, |txn| txn.create(parent, name, &new))?;
        self.attr_of_entry(parent, name, &inode)
    }

    pub fn symlink(&self, parent: u64, name: &[u8], target: &[u8], caller: Caller) -> Result<Attr> {
        let dir = self.dir_for_new_name(parent, name, FileKind::Symlink)?;
        let target = Some(target.to_vec());
        let new = NewInode { target, ..Self::new_inode(&dir, FileKind::Symlink, 0o777, caller) };
        let inode = self.store.write(Durability::Ordered, |txn| txn.create(parent, name, &new))?;
        self.attr_of_entry(parent, name, &inode)
    }

    pub fn readlink(&self, ino: u64) -> Result<Vec<u8>> {
        Ok(self.store.read(|txn| txn.symlink_target(ino))?)
    }

    pub fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attr> {
        let inode = self.inode(ino)?;
        self.dir_for_new_name(parent, name, inode.kind)?;
        let mut state = self.state.lock();
        self.wait_thawed(&mut state, ino)?;
        drop(state);
        if inode.seal.immutable() {
            return Err(Errno::PERM);
        }
        let inode = self.store.write(Durability::Ordered, |txn| txn.link(ino, parent, name, now_ns()))?;
        self.attr_of_entry(parent, name, &inode)
    }

    pub fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        let dir = self.changeable_dir(parent)?;
        let Some(child) = self.child_to_remove(parent, name)? else { return Ok(()) };
        if child.is_dir() {
            return Err(Errno::ISDIR);
        }
        self.begin_removal(&dir)?;
        let gone = self.store.write(Durability::Ordered, |txn| {
            check_not_sealed(txn, parent, name)?;
            txn.unlink(parent, name, now_ns())
        });
        self.removed(parent, name, gone)
    }

    pub fn rmdir(&self, parent: u64, name: &[u8]) -> Result<()> {
        let dir = self.changeable_dir(parent)?;
        let Some(child) = self.child_to_remove(parent, name)? else { return Ok(()) };
        self.store.read(|txn| txn.check_removable_dir(&child, name))?;
        self.begin_removal(&dir)?;
        // An empty directory that was sealed as part of a tree: the tree goes first.
        self.begin_removal(&self.inode(child.ino)?)?;
        let gone = self.store.write(Durability::Ordered, |txn| {
            check_not_sealed(txn, parent, name)?;
            txn.rmdir(parent, name, now_ns())
        });
        self.removed(parent, name, gone)
    }

    /// Finds what is to be removed, before anything is done for it: a removal that fails must not have broken a
    /// seal. None when an earlier removal took the name along.
    fn child_to_remove(&self, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        match self.store.read(|txn| txn.lookup(parent, name)?.map(|ino| txn.inode(ino)).transpose())? {
            None if self.remove_ghost(parent, name) => Ok(None),
            None => Err(Errno::NOENT),
            child => Ok(child),
        }
    }

    fn begin_removal(&self, dir: &Inode) -> Result<()> {
        match dir.seal {
            SealState::Open | SealState::Dissolving | SealState::Derived => Ok(()),
            SealState::Released => Err(Errno::PERM),
            SealState::Sealed => self.dissolve(dir.ino),
        }
    }

    fn removed(&self, parent: u64, name: &[u8], gone: Result<Inode, StoreError>) -> Result<()> {
        match gone {
            Ok(inode) => {
                if inode.nlink == 0 {
                    self.reclaim_unused([inode.ino]);
                }
                Ok(())
            }
            Err(StoreError::NotFound { .. }) if self.remove_ghost(parent, name) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins the removal of a sealed tree: its manifest and its claim to LATEST go, in one commit.
    fn dissolve(&self, ino: u64) -> Result<()> {
        let before = self.derived_names(ino)?;
        let aftermath = self.store.dissolve(ino)?;
        let mut state = self.state.lock();
        for (parent, name) in &aftermath.stale {
            Self::add_ghost(&mut state, *parent, name);
        }
        state.gone.extend(aftermath.orphans.iter().copied());
        for (parent, name) in before {
            if self.store.read(|txn| txn.lookup(parent, &name))?.is_none() {
                Self::add_ghost(&mut state, parent, &name);
            }
        }
        drop(state);
        self.handle_aftermath(aftermath);
        Ok(())
    }

    /// Lists LATEST and latest beside the tree that holds `ino`.
    fn derived_names(&self, ino: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut found = Vec::new();
        self.store.read(|txn| {
            let mut at = ino;
            while let Some(parent) = txn.parent_of(at)? {
                if !txn.inode(parent)?.seal.immutable() {
                    for name in [policy::LATEST_FILE, policy::LATEST_LINK] {
                        if txn.lookup(parent, name)?.is_some() {
                            found.push((parent, name.to_vec()));
                        }
                    }
                    break;
                }
                at = parent;
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// A seal may have come since the caller looked; then the removal has to begin anew.
fn check_not_sealed(txn: &Txn<'_>, parent: u64, name: &[u8]) -> Result<(), StoreError> {
    if Tree::is_sealed(&txn.inode(parent)?) {
        return Err(StoreError::Busy { what: String::from_utf8_lossy(name).into_owned() });
    }
    Ok(())
}

fn ghost_attr() -> Attr {
    Attr {
        ino: GHOST_INO,
        kind: FileKind::File,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes: 0,
        blocks: 0,
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        validity: Validity::Never,
        name_lasts: false,
    }
}
