//! The tree: everything a mounted store means, without a kernel.
//!
//! Locks, in the order they are taken: the store's for what is punched and removed, the tree's state, the store's
//! catalog. The last two are never held while bytes are hashed, copied or synced.

mod attrs;
mod dirs;
mod files;
mod housekeeping;
mod inspect;
mod names;
mod open;
mod rename;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tinyllm::catalog::Inode;
use tinyllm::seal::Aftermath;
use tinyllm::store::Store;

pub use attrs::{SetAttr, TimeChange};
pub use dirs::Listed;
pub use housekeeping::Housekeeper;
pub use open::{Backing, OpenFlags, Opened};

use crate::attr::{Attr, Validity};
use crate::errno::Errno;
use crate::lease;
use crate::problems::Problems;

pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// How the tree behaves.
#[derive(Debug, Clone)]
pub struct TreeOptions {
    /// Let the kernel read and write backing files itself.
    pub passthrough: bool,
    pub read_only: bool,
    /// How long a plain file lies closed before it settles.
    pub settle_after: Duration,
    /// How long after a removal its bytes are collected.
    pub collect_after: Duration,
}

impl Default for TreeOptions {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { passthrough: false, read_only: false, settle_after: minute, collect_after: minute }
    }
}

/// Who makes a call.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
}

/// A mounted store.
#[derive(Debug)]
pub struct Tree {
    store: Arc<Store>,
    options: TreeOptions,
    /// Cleared when the kernel turns out not to allow passthrough.
    passthrough: AtomicBool,
    state: Mutex<State>,
    /// Signalled when a file is released or thawed.
    changed: Condvar,
    next_handle: AtomicU64,
    problems: Problems,
    work: mpsc::Sender<housekeeping::Work>,
}

/// What the tree knows beyond the catalog: who uses what, now.
#[derive(Debug, Default)]
struct State {
    open: HashMap<u64, open::OpenInode>,
    handles: HashMap<u64, open::Handle>,
    dirs: HashMap<u64, Arc<dirs::DirHandle>>,
    /// How many times the kernel has been told of each inode and not forgotten it.
    lookups: HashMap<u64, u64>,
    frozen: HashMap<u64, Freeze>,
    /// Names that a removal took away and whose removal will be asked for again, until when.
    ghosts: HashMap<(u64, Vec<u8>), Instant>,
    /// Inodes behind such names: nobody may open them any more.
    gone: HashSet<u64>,
}

/// Why an inode can't be changed just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freeze {
    /// Being sealed, for as long as hashing takes: changes are refused.
    Seal,
    /// Being settled, for a moment: changes and opens wait.
    Settle,
}

impl Tree {
    /// Gives the tree and its housekeeper, whose `run` belongs on a thread of its own.
    pub fn new(store: Arc<Store>, options: TreeOptions) -> (Arc<Self>, Housekeeper) {
        let (work, todo) = mpsc::channel();
        let tree = Arc::new(Self {
            store,
            passthrough: AtomicBool::new(options.passthrough),
            options,
            state: Mutex::default(),
            changed: Condvar::new(),
            next_handle: AtomicU64::new(1),
            problems: Problems::default(),
            work,
        });
        let housekeeper = Housekeeper::new(tree.clone(), todo);
        (tree, housekeeper)
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub fn passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Relaxed)
    }

    /// Serves everything from user space from now on.
    pub fn disable_passthrough(&self) {
        self.passthrough.store(false, Ordering::Relaxed);
    }

    fn new_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    fn writable(&self) -> Result<()> {
        if self.options.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    fn inode(&self, ino: u64) -> Result<Inode> {
        Ok(self.store.read(|txn| txn.inode(ino))?)
    }

    /// Waits until `ino` may change; EBUSY while it is being sealed.
    fn wait_thawed(&self, state: &mut MutexGuard<'_, State>, ino: u64) -> Result<()> {
        loop {
            match state.frozen.get(&ino) {
                None => return Ok(()),
                Some(Freeze::Seal) => return Err(Errno::BUSY),
                Some(Freeze::Settle) => self.changed.wait(state),
            }
        }
    }

    /// Counts that the kernel has been told of an inode.
    pub fn remember(&self, ino: u64) {
        *self.state.lock().lookups.entry(ino).or_insert(0) += 1;
    }

    /// Counts what the kernel forgets. An inode without a name or user goes for good.
    pub fn forget(&self, ino: u64, count: u64) {
        let mut state = self.state.lock();
        let Some(known) = state.lookups.get_mut(&ino) else { return };
        *known = known.saturating_sub(count);
        if *known > 0 {
            return;
        }
        state.lookups.remove(&ino);
        state.gone.remove(&ino);
        if !state.open.contains_key(&ino) {
            drop(state);
            self.reclaim(ino);
        }
    }

    /// Lets inodes that lost their last name go, unless the kernel still uses them.
    fn reclaim_unused(&self, inodes: impl IntoIterator<Item = u64>) {
        for ino in inodes {
            let state = self.state.lock();
            let used = state.lookups.contains_key(&ino) || state.open.contains_key(&ino);
            drop(state);
            if !used {
                self.reclaim(ino);
            }
        }
    }

    fn reclaim(&self, ino: u64) {
        match self.store.reclaim(ino) {
            Ok(true) => self.wake(housekeeping::Work::Collect),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(ino, %error, "an unlinked file could not be reclaimed; the next start does it");
            }
        }
        self.problems.forget(ino);
    }

    /// Deals with what a seal or removal left to do.
    pub fn handle_aftermath(&self, aftermath: Aftermath) {
        self.reclaim_unused(aftermath.orphans);
        self.wake(housekeeping::Work::Punch);
    }

    fn wake(&self, work: housekeeping::Work) {
        // The housekeeper is gone only when the tree is being taken down.
        let _ = self.work.send(work);
    }

    /// Says whether a pack is open as a whole (a raw file that became a pack still is, for those who had it open),
    /// or mapped by someone who has closed it: no byte of it may go.
    pub fn pack_in_use(&self, pack: tinyllm::pack::PackId) -> bool {
        let path = self.store.layout().pack(pack);
        let Ok(stat) = std::fs::metadata(&path) else { return false };
        if self.state.lock().open.values().any(|open| open.shared.reads_from(&stat)) {
            return true;
        }
        self.store.close_pack(pack);
        lease::has_users(&path).unwrap_or(true)
    }

    fn attr_of(&self, inode: &Inode) -> Result<Attr> {
        if !inode.raw {
            return Ok(Attr::of(inode, None));
        }
        let open = self.state.lock().open.get(&inode.ino).map(|open| (open.shared.clone(), open.writers > 0));
        let written = open.as_ref().is_some_and(|(_, written)| *written);
        let stat = match open.and_then(|(shared, _)| shared.raw_file()) {
            Some(file) => file.metadata(),
            None => std::fs::metadata(self.store.layout().live(inode.ino)),
        };
        match stat {
            Ok(stat) => {
                let mut attr = Attr::of(inode, Some(&stat));
                if written && !self.passthrough() {
                    // The kernel may hold data that has not come here yet, and knows only the size of it.
                    attr.blocks = attr.blocks.max(1);
                    attr.validity = Validity::Never;
                }
                Ok(attr)
            }
            // It settled between the look-up and here.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Attr::of(&self.inode(inode.ino)?, None))
            }
            Err(error) => Err(error.into()),
        }
    }
}
