//! Open files. All opens of one inode share one content, so that they stay coherent: when a settled file is
//! opened for writing, readers that have it open read the new raw bytes too.
//!
//! The kernel's rules for passthrough: one backing file an inode at a time, and all opens of an inode in the
//! same mode. So the first open decides, and the mode lasts until nobody has the inode open.

use std::any::Any;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};
use tinyllm::catalog::{Durability, Inode, SealState};
use tinyllm::error::IoContext;
use tinyllm::io::{OpenMode, unlink_if_present};
use tinyllm::reader::FileReader;

use super::housekeeping::Work;
use super::{Caller, Result, State, Tree, inspect};
use crate::attr::Attr;
use crate::errno::Errno;

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenFlags {
    pub write: bool,
    /// For reading too: only such an open can be mapped for writing.
    pub read: bool,
    pub truncate: bool,
}

/// A file that the kernel reads and writes by itself, shared by all opens of one inode.
#[derive(Debug)]
pub struct Backing {
    pub file: File,
    /// What the kernel's side keeps for it, dropped with the last open.
    pub registration: Mutex<Option<Box<dyn Any + Send>>>,
}

/// An open file, as the kernel is told of it.
#[derive(Debug)]
pub struct Opened {
    pub handle: u64,
    pub backing: Option<Arc<Backing>>,
    /// Its content is generated: the size is not known to the kernel's cache.
    pub direct: bool,
}

impl Backing {
    fn new(file: &File) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { file: file.try_clone()?, registration: Mutex::new(None) }))
    }
}

/// Where an open inode's bytes are.
#[derive(Debug, Clone)]
pub(super) enum OpenContent {
    /// The raw file, open for reading: only handles that write hold it open for writing, so that whoever
    /// looks for writers does not find the daemon itself.
    Raw(Arc<File>),
    Settled(Arc<FileReader>),
    /// A whole pack that the kernel reads by itself.
    Packed(Arc<File>),
    Empty,
    Generated(Arc<Vec<u8>>),
}

/// What all opens of one inode share.
#[derive(Debug)]
pub(super) struct Shared {
    pub content: RwLock<OpenContent>,
}

impl Shared {
    pub fn raw_file(&self) -> Option<Arc<File>> {
        match &*self.content.read() {
            OpenContent::Raw(file) => Some(file.clone()),
            OpenContent::Settled(_)
            | OpenContent::Packed(_)
            | OpenContent::Empty
            | OpenContent::Generated(_) => None,
        }
    }

    /// Says whether reads go to the very file that `stat` is of, whatever its name.
    pub fn reads_from(&self, stat: &Metadata) -> bool {
        match &*self.content.read() {
            OpenContent::Raw(file) | OpenContent::Packed(file) => {
                // A file that can't be asked may be the one.
                file.metadata().map_or(true, |own| (own.dev(), own.ino()) == (stat.dev(), stat.ino()))
            }
            OpenContent::Settled(_) | OpenContent::Empty | OpenContent::Generated(_) => false,
        }
    }
}

/// An inode that somebody has open.
#[derive(Debug)]
pub(super) struct OpenInode {
    pub shared: Arc<Shared>,
    pub backing: Option<Arc<Backing>>,
    pub readers: u32,
    pub writers: u32,
}

/// One open.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub ino: u64,
    /// The raw file, open for writing.
    pub writer: Option<Arc<File>>,
    pub shared: Arc<Shared>,
}

impl Tree {
    /// Opens a file.
    pub fn open(&self, ino: u64, flags: OpenFlags) -> Result<Opened> {
        if let Some(content) = inspect::generate(self, ino) {
            return if flags.write { Err(Errno::PERM) } else { Ok(self.open_generated(ino, content)) };
        }
        let mut state = self.state.lock();
        if state.gone.contains(&ino) {
            return Err(Errno::NOENT);
        }
        loop {
            match self.wait_thawed(&mut state, ino) {
                // Reading what is being sealed is fine.
                Err(Errno::BUSY) if !flags.write => break,
                other => other?,
            }
            if !state.frozen.contains_key(&ino) {
                break;
            }
        }
        let inode = self.inode(ino)?;
        if !inode.is_file() {
            return Err(if inode.is_dir() { Errno::ISDIR } else { Errno::NXIO });
        }
        if flags.write || flags.truncate {
            self.writable()?;
            if inode.seal.immutable() {
                return Err(Errno::PERM);
            }
        }
        self.open_in(&mut state, &inode, flags)
    }

    /// Opens a file that was just created.
    pub(super) fn open_created(&self, inode: &Inode, flags: OpenFlags) -> Result<Opened> {
        self.open_in(&mut self.state.lock(), inode, flags)
    }

    fn open_in(&self, state: &mut MutexGuard<'_, State>, inode: &Inode, flags: OpenFlags) -> Result<Opened> {
        let ino = inode.ino;
        let changes = flags.write || flags.truncate;
        // Whatever fails here leaves the state as it was.
        let first = match state.open.get(&ino) {
            None => Some(self.first_open(inode, flags)?),
            Some(open) => {
                if changes && open.shared.raw_file().is_none() {
                    self.make_raw(inode, flags.truncate)?;
                    *open.shared.content.write() = OpenContent::Raw(self.open_raw(ino, OpenMode::Read)?);
                }
                None
            }
        };
        let mut writer = None;
        if changes {
            self.store.forget_hash(ino);
            let file = self.open_raw(ino, OpenMode::ReadWrite)?;
            if flags.truncate {
                file.set_len(0)?;
            }
            writer = Some(file).filter(|_| flags.write);
        }
        if flags.write && flags.read {
            self.store.note_mappable(ino);
        }
        if let Some(first) = first {
            state.open.insert(ino, first);
        }
        let open = state.open.get_mut(&ino).expect("found or inserted above");
        *(if flags.write { &mut open.writers } else { &mut open.readers }) += 1;
        let (shared, backing) = (open.shared.clone(), open.backing.clone());
        let handle = self.new_handle();
        state.handles.insert(handle, Handle { ino, writer, shared });
        Ok(Opened { handle, backing, direct: false })
    }

    fn first_open(&self, inode: &Inode, flags: OpenFlags) -> Result<OpenInode> {
        let (content, backing) = self.first_content(inode, flags)?;
        let shared = Arc::new(Shared { content: RwLock::new(content) });
        Ok(OpenInode { shared, backing, readers: 0, writers: 0 })
    }

    /// Decides how an inode that nobody has open is served.
    fn first_content(&self, inode: &Inode, flags: OpenFlags) -> Result<(OpenContent, Option<Arc<Backing>>)> {
        if inode.raw || flags.write || flags.truncate {
            if !inode.raw {
                self.make_raw(inode, flags.truncate)?;
            }
            let file = self.open_raw(inode.ino, OpenMode::Read)?;
            let backing = if self.passthrough() { Some(Backing::new(&file)?) } else { None };
            return Ok((OpenContent::Raw(file), backing));
        }
        let Some(recipe) = inode.recipe else { return Ok((OpenContent::Empty, None)) };
        if self.passthrough()
            && inode.seal.immutable()
            && let Some(pack) = self.whole_pack(inode)?
        {
            let backing = Backing::new(&pack)?;
            return Ok((OpenContent::Packed(pack), Some(backing)));
        }
        let reader = self.store.file_reader(recipe)?;
        Ok((OpenContent::Settled(Arc::new(reader)), None))
    }

    pub(super) fn open_raw(&self, ino: u64, mode: OpenMode) -> Result<Arc<File>> {
        let path = self.store.layout().live(ino);
        Ok(Arc::new(self.store.io().open(&path, mode).at("open", &path)?))
    }

    /// Opens the pack that holds a sealed file whole and in order, if one does.
    fn whole_pack(&self, inode: &Inode) -> Result<Option<Arc<File>>> {
        let Some(recipe) = inode.recipe else { return Ok(None) };
        let Some(pack) = self.store.read(|txn| Ok(txn.recipe_row(recipe)?.whole_pack))? else {
            return Ok(None);
        };
        let path = self.store.layout().pack(pack);
        let file = self.store.io().open(&path, OpenMode::Read).at("open", &path)?;
        // A pack of another size has been damaged; the checking path will say where.
        let intact = file.metadata()?.len() == inode.size_bytes;
        Ok(intact.then(|| Arc::new(file)))
    }

    /// Gives a file raw bytes of its own again, copied from its settled content unless that is cut away.
    pub(super) fn make_raw(&self, inode: &Inode, truncate: bool) -> Result<()> {
        let path = self.store.layout().live(inode.ino);
        unlink_if_present(&**self.store.io(), &path)?;
        let file = self.store.io().open(&path, OpenMode::CreateNew).at("create", &path)?;
        let made = self.fill_raw(inode, &file, truncate).and_then(|()| {
            self.store.write(Durability::Ordered, |txn| {
                let mut inode = txn.inode(inode.ino)?;
                inode.raw = true;
                inode.recipe = None;
                inode.charged_bytes = 0;
                txn.put_inode(&inode)
            })?;
            Ok(())
        });
        if let Err(error) = made {
            unlink_if_present(&**self.store.io(), &path)?;
            return Err(error);
        }
        Ok(())
    }

    fn fill_raw(&self, inode: &Inode, file: &File, truncate: bool) -> Result<()> {
        if !truncate {
            let path = self.store.layout().live(inode.ino);
            let mut at = 0;
            self.store.for_each_piece(inode, |piece| {
                if piece.iter().any(|byte| *byte != 0) {
                    self.store.io().write_all_at(file, piece, at).at("write", &path)?;
                }
                at += piece.len() as u64;
                Ok(())
            })?;
            file.set_len(inode.size_bytes)?;
        }
        let mtime = rustix::fs::Timespec {
            tv_sec: inode.mtime_ns.div_euclid(1_000_000_000),
            tv_nsec: inode.mtime_ns.rem_euclid(1_000_000_000),
        };
        rustix::fs::futimens(file, &rustix::fs::Timestamps { last_access: mtime, last_modification: mtime })?;
        Ok(())
    }

    fn open_generated(&self, ino: u64, content: Vec<u8>) -> Opened {
        let shared = Arc::new(Shared { content: RwLock::new(OpenContent::Generated(Arc::new(content))) });
        let handle = self.new_handle();
        self.state.lock().handles.insert(handle, Handle { ino, writer: None, shared });
        Opened { handle, backing: None, direct: true }
    }

    pub(super) fn handle(&self, handle: u64) -> Result<Handle> {
        self.state.lock().handles.get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// Closes a file for good.
    pub fn release(&self, handle: u64) {
        let mut state = self.state.lock();
        let Some(Handle { ino, writer, .. }) = state.handles.remove(&handle) else { return };
        let write = writer.is_some();
        drop(writer);
        let Some(open) = state.open.get_mut(&ino) else { return };
        if write {
            open.writers -= 1;
        } else {
            open.readers -= 1;
        }
        let last = open.readers == 0 && open.writers == 0;
        if last {
            state.open.remove(&ino);
        }
        let unknown = !state.lookups.contains_key(&ino);
        drop(state);
        self.changed.notify_all();
        if last {
            if unknown {
                self.reclaim(ino);
            }
            self.wake(Work::Closed { ino, written: write });
        }
    }

    /// Creates a file under a new name and opens it.
    pub fn create(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        caller: Caller,
        flags: OpenFlags,
    ) -> Result<(Attr, Opened)> {
        let inode = self.make_file(parent, name, mode, caller)?;
        let opened = self.open_created(&inode, flags)?;
        Ok((self.attr_of_entry(parent, name, &inode)?, opened))
    }

    pub(super) fn is_sealed(inode: &Inode) -> bool {
        matches!(inode.seal, SealState::Sealed | SealState::Released)
    }
}
