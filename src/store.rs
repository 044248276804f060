//! An open store: its lock, its catalog, and what a start has to clean up.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FlockOperation, flock};

use crate::catalog::{Catalog, Durability, NewInode, ROOT_INO, Txn};
use crate::error::{IoContext, Result, StoreError};
use crate::format::Format;
use crate::hash_memory::HashMemory;
use crate::io::{Io, OpenMode, SystemIo, unlink_if_present};
use crate::layout::Layout;
use crate::pack::PackId;
use crate::pins::Pins;
use crate::policy;
use crate::reader::ChunkReader;
use crate::record::Record;
use crate::split::LITERAL_BELOW_BYTES;
use crate::time::{now_ns, rfc3339};

/// An open store. One process has it open for writing; any number read it.
#[derive(Debug)]
pub struct Store {
    pub(crate) io: Arc<dyn Io>,
    pub(crate) layout: Layout,
    pub(crate) pins: Pins,
    pub(crate) hashes: HashMemory,
    pub(crate) reader: ChunkReader,
    /// Held from taking a record's number until its commit: records and commits have the same order.
    pub(crate) record_order: Mutex<()>,
    /// Held while packs are punched or removed: whoever lists what is to go must find it there.
    pub(crate) space: Mutex<()>,
    /// Threads that remove the raw files of what has been sealed.
    pub(crate) removals: Mutex<Vec<JoinHandle<()>>>,
    format: Format,
    catalog: Mutex<Catalog>,
    /// The exclusive lock; None when the store is open for reading.
    lock: Option<File>,
}

impl Store {
    /// Creates a store in a directory that is missing or empty, with the tree's three top directories
    /// belonging to `uid` and `gid`.
    pub fn create(path: &Path, uid: u32, gid: u32) -> Result<Self> {
        Self::create_with(Arc::new(SystemIo), path, uid, gid)
    }

    pub fn create_with(io: Arc<dyn Io>, path: &Path, uid: u32, gid: u32) -> Result<Self> {
        let layout = Layout::new(path);
        let fresh = !path.exists();
        io.create_dir_all(path).at("create directory", path)?;
        if io.metadata(&layout.format()).is_ok() {
            return Err(StoreError::Exists { what: path.display().to_string() });
        }
        if fresh {
            // What users write may be private; who may read it is decided by the mount, not by the store's files.
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).at("set mode of", path)?;
        }
        // An interrupted creation left only these; anything else belongs to somebody.
        let ours = [
            "lock",
            "FORMAT.tmp",
            "catalog.db",
            "catalog.db-wal",
            "catalog.db-shm",
            "packs",
            "live",
            "cache",
            "records",
        ];
        if let Some(_other) =
            io.list(path).at("list", path)?.iter().find(|name| !ours.iter().any(|our| *name == our))
        {
            return Err(StoreError::NotEmptyDirectory { path: path.to_owned() });
        }
        let lock = take_lock(&*io, &layout)?;
        make_dirs(&*io, &layout)?;
        let catalog = Catalog::open(&layout.catalog())?;
        let store =
            Self::assemble(io, layout, Format::new(new_uuid()?, rfc3339(now_ns())), catalog, Some(lock));
        store.write(Durability::Durable, |txn| plant_tree(txn, uid, gid))?;
        // FORMAT comes last: with it the store exists.
        store.format.write(&*store.io, &store.layout)?;
        Ok(store)
    }

    /// Opens a store for writing.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(Arc::new(SystemIo), path)
    }

    pub fn open_with(io: Arc<dyn Io>, path: &Path) -> Result<Self> {
        let layout = Layout::new(path);
        let format = Format::read(&*io, &layout, true)?;
        let lock = take_lock(&*io, &layout)?;
        if io.metadata(&layout.catalog()).is_err() {
            return Err(StoreError::CatalogMissing { path: path.to_owned() });
        }
        // Tools that copy a store may leave out empty directories.
        make_dirs(&*io, &layout)?;
        let catalog = Catalog::open(&layout.catalog())?;
        let store = Self::assemble(io, layout, format, catalog, Some(lock));
        store.recover()?;
        Ok(store)
    }

    /// Opens a store for writing, creating it first if there is none.
    pub fn open_or_create(path: &Path, uid: u32, gid: u32) -> Result<Self> {
        if Layout::new(path).format().exists() { Self::open(path) } else { Self::create(path, uid, gid) }
    }

    /// Opens a store for reading beside whoever writes it.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let io: Arc<dyn Io> = Arc::new(SystemIo);
        let layout = Layout::new(path);
        let format = Format::read(&*io, &layout, false)?;
        if io.metadata(&layout.catalog()).is_err() {
            return Err(StoreError::CatalogMissing { path: path.to_owned() });
        }
        let catalog = Catalog::open_read_only(&layout.catalog())?;
        Ok(Self::assemble(io, layout, format, catalog, None))
    }

    /// Takes the lock of a store whose catalog is to be rebuilt.
    pub(crate) fn lock_for_rebuild(io: &dyn Io, layout: &Layout) -> Result<File> {
        Format::read(io, layout, true)?;
        take_lock(io, layout)
    }

    fn assemble(
        io: Arc<dyn Io>,
        layout: Layout,
        format: Format,
        catalog: Catalog,
        lock: Option<File>,
    ) -> Self {
        let reader = ChunkReader::new(io.clone(), layout.clone());
        Self {
            io,
            layout,
            pins: Pins::default(),
            hashes: HashMemory::default(),
            reader,
            record_order: Mutex::new(()),
            space: Mutex::new(()),
            removals: Mutex::default(),
            format,
            catalog: Mutex::new(catalog),
            lock,
        }
    }

    pub fn format(&self) -> &Format {
        &self.format
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn io(&self) -> &Arc<dyn Io> {
        &self.io
    }

    pub fn writable(&self) -> bool {
        self.lock.is_some()
    }

    /// Gives exclusive use of the catalog.
    pub fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock()
    }

    /// Runs one transaction that changes the catalog.
    pub fn write<T>(&self, durability: Durability, body: impl FnOnce(&Txn<'_>) -> Result<T>) -> Result<T> {
        if !self.writable() {
            return Err(StoreError::ReadOnly { path: self.layout.root().to_owned() });
        }
        self.catalog().write(durability, body)
    }

    /// Runs one transaction that only reads.
    pub fn read<T>(&self, body: impl FnOnce(&Txn<'_>) -> Result<T>) -> Result<T> {
        self.catalog().read(body)
    }

    /// Makes everything committed so far durable.
    pub fn sync(&self) -> Result<()> {
        self.catalog().sync()
    }

    /// Waits until the raw files of everything sealed so far are gone, and their bytes back on the disk.
    pub fn wait_for_removals(&self) {
        for removal in std::mem::take(&mut *self.removals.lock()) {
            // It only ends early by panicking, which has been reported already; the next start removes the rest.
            let _ = removal.join();
        }
    }

    /// Brings the store back to order after a crash; after a clean end there is nothing to do.
    fn recover(&self) -> Result<()> {
        self.check_records()?;
        for pack in self.read(|txn| txn.pending_packs())? {
            self.remove_pack_files(pack)?;
            self.write(Durability::Ordered, |txn| txn.remove_pending_pack(pack))?;
        }
        self.remove_stale_imports()?;
        for ino in self.read(|txn| txn.unlinked_inodes())? {
            self.reclaim(ino)?;
        }
        self.recover_raw_files()?;
        self.run_punches(|_| false)
    }

    /// A record is written just before its commit, so a crash leaves at most one that counts for nothing.
    /// More of them mean that the catalog is an old copy, and everything done with it would be wrong.
    fn check_records(&self) -> Result<()> {
        let last = self.read(|txn| txn.meta("last_record"))?;
        let newer: Vec<u64> =
            Record::list(&*self.io, &self.layout)?.into_iter().filter(|seq| *seq > last).collect();
        match newer.as_slice() {
            [] => Ok(()),
            [one] if *one == last + 1 => unlink_if_present(&*self.io, &self.layout.record(*one)),
            _ => {
                let detail =
                    format!("it knows {last} records and the directory holds {}", newer[newer.len() - 1]);
                Err(StoreError::StaleCatalog { path: self.layout.root().to_owned(), detail })
            }
        }
    }

    /// Makes live/ and the catalog agree. Raw files the catalog does not speak of are left-overs of a
    /// settlement that was committed, or of a creation that was not.
    fn recover_raw_files(&self) -> Result<()> {
        let dir = self.layout.live_dir();
        let names = self.io.list(&dir).at("list", &dir)?;
        let mut on_disk: std::collections::HashSet<u64> =
            names.iter().filter_map(|n| n.to_str()?.parse().ok()).collect();
        let after_reboot = self.note_boot()?;
        for ino in self.read(|txn| txn.raw_inodes())? {
            let present = on_disk.remove(&ino);
            let inode = self.read(|txn| txn.inode(ino))?;
            // Beside a recipe the raw file may be newer, but after a power cut only the recipe is sure.
            if inode.recipe.is_some() && (after_reboot || !present) {
                self.write(Durability::Ordered, |txn| {
                    let mut inode = txn.inode(ino)?;
                    inode.raw = false;
                    txn.put_inode(&inode)
                })?;
                unlink_if_present(&*self.io, &self.layout.live(ino))?;
            } else if !present {
                // Its name outlived a power cut, its bytes were never synced.
                let path = self.layout.live(ino);
                self.io.open(&path, OpenMode::CreateNew).at("create", &path)?;
            }
        }
        for stray in on_disk {
            unlink_if_present(&*self.io, &self.layout.live(stray))?;
        }
        Ok(())
    }

    /// Remembers this boot of the machine; true when the catalog last ran under another.
    fn note_boot(&self) -> Result<bool> {
        let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digest = blake3::hash(&id);
        let boot = u64::from_le_bytes(digest.as_bytes()[..8].try_into().expect("8 bytes")) >> 1;
        self.write(Durability::Ordered, |txn| {
            let changed = txn.meta("boot")? != boot;
            txn.set_meta("boot", boot)?;
            Ok(changed)
        })
    }

    /// Closes a pack that was opened for reading chunks; the next read opens it again.
    pub fn close_pack(&self, pack: PackId) {
        self.reader.forget_pack(pack);
    }

    pub(crate) fn remove_pack_files(&self, pack: PackId) -> Result<()> {
        unlink_if_present(&*self.io, &self.layout.pack_index(pack))?;
        unlink_if_present(&*self.io, &self.layout.pack(pack))
    }

    /// Forgets an inode that has no name and no user any more, with its raw bytes. Others are left alone. True
    /// when it had content in packs, so that a collection may find something.
    pub fn reclaim(&self, ino: u64) -> Result<bool> {
        let (raw, packed) = self.write(Durability::Ordered, |txn| match txn.find_inode(ino)? {
            Some(inode) if inode.nlink == 0 => {
                txn.drop_inode(ino)?;
                Ok((inode.raw, inode.recipe.is_some() && inode.size_bytes >= LITERAL_BELOW_BYTES))
            }
            _ => Ok((false, false)),
        })?;
        self.hashes.forget_all(ino);
        if raw {
            unlink_if_present(&*self.io, &self.layout.live(ino))?;
        }
        Ok(packed)
    }

    /// Gives punched ranges back to the disk, but for packs that `in_use` says are open as a whole.
    ///
    /// A crash between a punch and forgetting it repeats the punch, which changes nothing.
    pub fn run_punches(&self, in_use: impl Fn(PackId) -> bool) -> Result<()> {
        let _space = self.space.lock();
        self.punch_unused(in_use)
    }

    /// The same for a caller that holds `space`.
    pub(crate) fn punch_unused(&self, in_use: impl Fn(PackId) -> bool) -> Result<()> {
        for (row, id, start, len_bytes) in self.read(|txn| txn.punches())? {
            if in_use(id) {
                continue;
            }
            let path = self.layout.pack(id);
            let file = self.io.open(&path, OpenMode::ReadWrite).at("open", &path)?;
            match self.io.punch(&file, start, len_bytes) {
                // The disk can't punch: the bytes stay until their pack goes.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                result => result.at("punch a hole into", &path)?,
            }
            self.write(Durability::Ordered, |txn| txn.remove_punch(row, start, len_bytes))?;
        }
        Ok(())
    }
}

fn make_dirs(io: &dyn Io, layout: &Layout) -> Result<()> {
    for dir in [layout.packs(), layout.live_dir(), layout.cache_dir(), layout.records()] {
        io.create_dir_all(&dir).at("create directory", &dir)?;
    }
    Ok(())
}

impl Drop for Store {
    /// A short command leaves nothing for the next start to do.
    fn drop(&mut self) {
        self.wait_for_removals();
    }
}

fn take_lock(io: &dyn Io, layout: &Layout) -> Result<File> {
    let path = layout.lock();
    let file = match io.open(&path, OpenMode::CreateNew) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            io.open(&path, OpenMode::ReadWrite)
        }
        other => other,
    }
    .at("open", &path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { path: layout.root().to_owned() }),
        Err(error) => Err(error).at("lock", &path),
    }
}

fn new_uuid() -> Result<String> {
    let id = PackId::random().at("draw random bytes for", Path::new("FORMAT"))?.to_string();
    Ok(format!("{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]))
}

/// Makes the root and the directories of DESIGN's tree.
pub(crate) fn plant_tree(txn: &Txn<'_>, uid: u32, gid: u32) -> Result<()> {
    if txn.find_inode(ROOT_INO)?.is_none() {
        let root = txn.add_inode(&NewInode::directory(0o755, uid, gid, now_ns()))?;
        debug_assert_eq!(root, ROOT_INO);
    }
    for name in [policy::RUNS, policy::CHECKPOINTS, policy::MODELS] {
        if txn.lookup(ROOT_INO, name)?.is_none() {
            txn.create(ROOT_INO, name, &NewInode::directory(0o755, uid, gid, now_ns()))?;
        }
    }
    Ok(())
}
