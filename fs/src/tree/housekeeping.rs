//! Work that nobody waits for: settling plain files that lie still, and punching holes once nobody reads there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tinyllm::catalog::Durability;
use tinyllm::settle::{Placing, Settlement};
use tinyllm::split::LITERAL_BELOW_BYTES;

use super::{Freeze, Result, State, Tree};
use crate::errno::Errno;
use crate::lease;

/// Files that were settled and opened for writing again wait twice as long each time, up to this many times.
const MAX_DOUBLINGS: u32 = 8;
/// How long a reader of a file's SHA-256 waits for a release that is on its way.
const RELEASE_PATIENCE: Duration = Duration::from_millis(200);
/// How often it is looked at what is due; more often where the mount options ask for less waiting.
const ROUND: Duration = Duration::from_millis(500);
const SHORTEST_ROUND: Duration = Duration::from_millis(20);
const SETTLE_BESIDE_AFTER: Duration = Duration::from_secs(5);
const MAPPING_POLL: Duration = Duration::from_millis(10);

/// Something to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Nobody has the inode open any more.
    Closed {
        ino: u64,
        written: bool,
    },
    /// Ranges may be waiting to be given back.
    Punch,
    /// Content lost its last user.
    Collect,
    Stop,
}

/// Does the work; `run` belongs on a thread of its own.
#[derive(Debug)]
pub struct Housekeeper {
    tree: Arc<Tree>,
    todo: mpsc::Receiver<Work>,
    waiting: HashMap<u64, Instant>,
    settled_before: HashMap<u64, u32>,
    /// Ranges may be waiting to be given back.
    punch: bool,
    collect_at: Option<Instant>,
}

impl Housekeeper {
    pub(super) fn new(tree: Arc<Tree>, todo: mpsc::Receiver<Work>) -> Self {
        let (waiting, settled_before) = (HashMap::new(), HashMap::new());
        Self { tree, todo, waiting, settled_before, punch: false, collect_at: None }
    }

    /// Works until [`Tree::stop`].
    pub fn run(mut self) {
        self.find_raw_files();
        let options = &self.tree.options;
        let round = options.settle_after.min(options.collect_after).clamp(SHORTEST_ROUND, ROUND);
        let mut next_round = Instant::now() + round;
        loop {
            // Looked at first: on a busy mount there is always something to do.
            let left = next_round.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.make_round();
                next_round = Instant::now() + round;
                continue;
            }
            match self.todo.recv_timeout(left) {
                Ok(Work::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Ok(Work::Punch) => self.punch = true,
                Ok(Work::Collect) => {
                    let after = self.tree.options.collect_after;
                    self.collect_at.get_or_insert_with(|| Instant::now() + after);
                }
                Ok(Work::Closed { ino, written }) => {
                    self.punch = true;
                    if written {
                        self.wait_for(ino);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Does what has become due since the last round.
    fn make_round(&mut self) {
        if std::mem::take(&mut self.punch)
            && let Err(error) = self.tree.store.run_punches(|pack| self.tree.pack_in_use(pack))
        {
            tracing::warn!(%error, "freed ranges were not given back to the disk yet");
        }
        self.settle_what_is_due();
        if self.collect_at.take_if(|at| *at <= Instant::now()).is_some()
            && let Err(error) = self.tree.store.collect(|pack| self.tree.pack_in_use(pack))
        {
            tracing::warn!(%error, "removed bytes were not collected; `tinyllm gc` tries again");
        }
    }

    fn find_raw_files(&mut self) {
        match self.tree.store.read(|txn| txn.raw_inodes()) {
            Ok(inodes) => inodes.into_iter().for_each(|ino| self.wait_for(ino)),
            Err(error) => tracing::warn!(%error, "raw files from before the start will not settle"),
        }
    }

    fn wait_for(&mut self, ino: u64) {
        // A file whose recipe stands beside its raw bytes should not stay in two minds.
        let beside =
            self.tree.store.read(|txn| Ok(txn.find_inode(ino)?.is_some_and(|i| i.raw && i.recipe.is_some())));
        if beside.unwrap_or(false) {
            self.waiting.insert(ino, Instant::now() + SETTLE_BESIDE_AFTER);
            return;
        }
        let doublings = self.settled_before.get(&ino).copied().unwrap_or(0).min(MAX_DOUBLINGS);
        self.waiting.insert(ino, Instant::now() + self.tree.options.settle_after * 2u32.pow(doublings));
    }

    fn settle_what_is_due(&mut self) {
        let now = Instant::now();
        let due: Vec<u64> = self.waiting.iter().filter(|(_, at)| **at <= now).map(|(ino, _)| *ino).collect();
        for ino in due {
            self.waiting.remove(&ino);
            match self.tree.settle_plain(ino) {
                Ok(true) => *self.settled_before.entry(ino).or_insert(0) += 1,
                Ok(false) | Err(Errno::BUSY | Errno::NOENT) => {}
                Err(error) => {
                    tracing::warn!(ino, errno = error.0, "a file could not be settled; it stays raw")
                }
            }
        }
    }
}

impl Tree {
    /// Ends the housekeeper.
    pub fn stop(&self) {
        self.wake(Work::Stop);
    }

    /// Settles every plain file that nobody has open, without waiting for its time. Gives how many did.
    pub fn settle_closed(&self) -> Result<u64> {
        let mut settled = 0;
        for ino in self.store.read(|txn| txn.raw_inodes())? {
            match self.settle_plain(ino) {
                Ok(done) => settled += u64::from(done),
                // It was opened, or went.
                Err(Errno::BUSY | Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(settled)
    }

    /// Settles a plain file that nobody has open. False when it is not worth it, or not the time.
    fn settle_plain(&self, ino: u64) -> Result<bool> {
        let unused = |tree: &Self| {
            let state = tree.state.lock();
            !state.open.contains_key(&ino) && !tree.has_writers(&state, ino)
        };
        let Some(inode) = self.store.read(|txn| txn.find_inode(ino))? else { return Ok(false) };
        if !inode.raw || inode.seal.immutable() || inode.nlink == 0 || !unused(self) {
            return Ok(false);
        }
        let path = self.store.layout().live(ino);
        if std::fs::metadata(&path)?.len() < LITERAL_BELOW_BYTES {
            return Ok(false);
        }
        // The slow part first, without keeping anyone out. An open for writing makes it void.
        let hashed = self.store.hash_raw(ino, true)?;
        let mut state = self.state.lock();
        if state.open.contains_key(&ino) || state.frozen.contains_key(&ino) || self.has_writers(&state, ino) {
            return Ok(false);
        }
        state.frozen.insert(ino, Freeze::Settle);
        drop(state);
        let settled = self.settle_frozen(ino, &hashed);
        self.thaw(&[ino]);
        settled.map(|()| true)
    }

    fn settle_frozen(&self, ino: u64, hashed: &tinyllm::hash::Hashed) -> Result<()> {
        // Whoever wrote it meanwhile has closed it again; then the remembered hash is another one.
        if self.store.hash_raw(ino, true)?.signature != hashed.signature {
            return Err(Errno::BUSY);
        }
        let mut settlement = Settlement::new(&self.store);
        settlement.add_raw(ino, Placing::Any)?;
        settlement.make_durable()?;
        self.store.write(Durability::Durable, |txn| {
            let recipes = settlement.commit(txn)?;
            settlement.settle_inode(txn, &settlement.files[0], recipes[0])
        })?;
        settlement.finish()?;
        self.wake(Work::Punch);
        Ok(())
    }

    /// Gives releases that are on their way a moment; true when nobody can write to the file then.
    pub(super) fn wait_for_writers(&self, ino: u64) -> bool {
        let deadline = Instant::now() + RELEASE_PATIENCE;
        let mut state = self.state.lock();
        while self.has_writers(&state, ino) {
            if Instant::now() >= deadline {
                return false;
            }
            self.wait_for_change(&mut state);
        }
        true
    }

    /// Says whether anyone can write to a file, by a handle or by a mapping that outlived its handle.
    pub(super) fn has_writers(&self, state: &State, ino: u64) -> bool {
        if state.open.get(&ino).is_some_and(|open| open.writers > 0) {
            return true;
        }
        // Without passthrough too: files that an earlier daemon passed through may have outlived it.
        lease::has_writers(&self.store.layout().live(ino)).unwrap_or(false)
    }

    /// Waits for a release, or a moment: the end of a mapping is not announced.
    pub(super) fn wait_for_change(&self, state: &mut MutexGuard<'_, State>) {
        self.changed.wait_for(state, MAPPING_POLL);
    }
}
