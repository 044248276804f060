//! Renames. Most are plain; one onto a final name seals, and one of LATEST or latest must say the truth.

use std::time::{Duration, Instant};

use tinyllm::catalog::{Durability, FileKind, Inode, RenameMode, Replaced, SealState};
use tinyllm::error::StoreError;
use tinyllm::policy::{self, SealTarget};
use tinyllm::seal::{Aftermath, SealRequest};
use tinyllm::subtree::{Subtree, join_path};
use tinyllm::time::now_ns;

use super::{Freeze, Result, Tree};
use crate::errno::Errno;

/// How long a seal waits for releases: close() returns before the daemon hears of it.
const RELEASE_PATIENCE: Duration = Duration::from_millis(1000);

/// LATEST is a line of text; anything longer names no step.
const MAX_LATEST_BYTES: u64 = 4096;

type Name<'a> = (u64, &'a [u8]);

impl Tree {
    /// Renames as renameat2 does.
    pub fn rename(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        let from_dir = self.changeable_dir(from.0)?;
        let to_dir = self.changeable_dir(to.0)?;
        if from_dir.seal.immutable() || to_dir.seal.immutable() {
            return Err(Errno::PERM);
        }
        let source = self.store.read(|txn| txn.child(from.0, from.1))?;
        let mut state = self.state.lock();
        self.wait_thawed(&mut state, source.ino)?;
        drop(state);
        if source.seal == SealState::Released {
            return Err(Errno::PERM);
        }
        let path = self.path_of_name(to)?;
        if let Some((face, run)) = policy::latest_home(&path[..path.len() - 1])
            && policy::is_derived(face, to.1)
        {
            return self.rename_onto_latest(&source, from, to, face, &run, mode);
        }
        match policy::seal_target(&path) {
            Some(target) if source.is_dir() => self.rename_onto_final(&source, from, to, &target, mode),
            Some(target) if target.face != tinyllm::catalog::Face::Release => {
                let path = join_path(&path);
                self.problems.note(source.ino, &format!("{path}: only a directory can become a checkpoint"));
                Err(Errno(libc::EBADMSG))
            }
            _ => self.rename_plainly(&source, from, to, mode),
        }
    }

    fn path_of_name(&self, (parent, name): Name<'_>) -> Result<Vec<Vec<u8>>> {
        let mut path = self.store.read(|txn| txn.path_of(parent))?.ok_or(Errno::NOENT)?;
        path.push(name.to_vec());
        Ok(path)
    }

    fn rename_plainly(&self, source: &Inode, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        if source.seal == SealState::Derived {
            return Err(Errno::PERM);
        }
        let target = self.store.read(|txn| txn.lookup(to.0, to.1)?.map(|ino| txn.inode(ino)).transpose())?;
        if mode == RenameMode::Exchange {
            self.check_exchange(from, target.as_ref())?;
        }
        let moves_sealed = self.store.holds_sealed(source.ino)?
            || (mode == RenameMode::Exchange
                && target
                    .as_ref()
                    .map(|target| self.store.holds_sealed(target.ino))
                    .transpose()?
                    .unwrap_or(false));
        let replaced = if moves_sealed {
            let (replaced, aftermath) = self.store.move_sealed(from, to, mode)?;
            self.handle_aftermath(aftermath);
            replaced
        } else {
            self.store.write(Durability::Ordered, |txn| txn.rename(from, to, mode, now_ns()))?
        };
        if let Replaced::Unlinked(gone) = replaced
            && gone.nlink == 0
        {
            self.reclaim_unused([gone.ino]);
        }
        Ok(())
    }

    /// What an exchange brings to the old name must be allowed there, too.
    fn check_exchange(&self, from: Name<'_>, target: Option<&Inode>) -> Result<()> {
        let Some(target) = target else { return Ok(()) };
        let back = self.path_of_name(from)?;
        let final_name = policy::comes_by_sealing_only(&back, target.is_dir());
        if matches!(target.seal, SealState::Derived | SealState::Released) || final_name {
            return Err(Errno::PERM);
        }
        let mut state = self.state.lock();
        self.wait_thawed(&mut state, target.ino)
    }

    /// A trainer that keeps LATEST itself may go on doing so, as long as it tells the truth.
    fn rename_onto_latest(
        &self,
        source: &Inode,
        from: Name<'_>,
        to: Name<'_>,
        face: tinyllm::catalog::Face,
        run: &str,
        mode: RenameMode,
    ) -> Result<()> {
        let content = match source.kind {
            FileKind::Symlink => self.readlink(source.ino)?,
            FileKind::File => self.store.read_whole(source, MAX_LATEST_BYTES)?,
            _ => return Err(Errno::INVAL),
        };
        let newest = self.store.read(|txn| txn.newest(face, run))?.map(|checkpoint| checkpoint.step);
        let right_kind = (source.kind == FileKind::Symlink) == (to.1 == policy::LATEST_LINK);
        if mode != RenameMode::Replace
            || !right_kind
            || newest.is_none()
            || policy::latest_wish(&content) != newest
        {
            let newest = newest.map_or("none".to_owned(), |step| step.dir_name());
            let wish = String::from_utf8_lossy(&content).trim_end().to_owned();
            let path = join_path(&self.path_of_name(to)?);
            self.problems
                .note(source.ino, &format!("{path}: {wish:?} is not the newest complete step ({newest})"));
            return Err(Errno::INVAL);
        }
        let replaced = self.store.write(Durability::Ordered, |txn| {
            let replaced = txn.rename(from, to, RenameMode::Replace, now_ns())?;
            txn.put_inode(&Inode { seal: SealState::Derived, ..txn.inode(source.ino)? })?;
            Ok(replaced)
        })?;
        if let Replaced::Unlinked(gone) = replaced {
            self.reclaim_unused([gone.ino]);
        }
        Ok(())
    }

    fn rename_onto_final(
        &self,
        source: &Inode,
        from: Name<'_>,
        to: Name<'_>,
        target: &SealTarget,
        mode: RenameMode,
    ) -> Result<()> {
        let exchange = mode == RenameMode::Exchange;
        let sealed = self.freeze(source.ino).and_then(|frozen| {
            let sealed = self.store.seal(SealRequest { from, to, target, exchange });
            self.thaw(&frozen);
            Ok(sealed?)
        });
        match sealed {
            Ok(aftermath) => {
                self.problems.forget(source.ino);
                self.handle_aftermath(Aftermath { orphans: aftermath.orphans, stale: aftermath.stale });
                Ok(())
            }
            Err(Refusal::Store(error @ StoreError::SealRefused { .. })) => {
                self.problems.note(source.ino, &error.to_string());
                Err(error.into())
            }
            Err(Refusal::Store(StoreError::NotEmpty { .. })) if mode == RenameMode::NoReplace => {
                Err(Errno::EXIST)
            }
            Err(Refusal::Store(error)) => Err(error.into()),
            Err(Refusal::Writers(path)) => {
                let message = format!("{}: {path} is still open for writing", join_path(&target.path()));
                self.problems.note(source.ino, &message);
                Err(Errno::BUSY)
            }
        }
    }

    /// Keeps everyone from changing a directory, once nobody has a file of it open for writing.
    fn freeze(&self, root: u64) -> Result<Vec<u64>, Refusal> {
        let deadline = Instant::now() + RELEASE_PATIENCE;
        let mut state = self.state.lock();
        loop {
            let tree = self.store.read(|txn| Subtree::list(txn, root))?;
            let busy = tree.nodes.iter().find(|node| {
                let ino = node.inode.ino;
                state.frozen.contains_key(&ino) || (node.inode.raw && self.has_writers(&state, ino))
            });
            let Some(busy) = busy else {
                let inodes: Vec<u64> = tree.nodes.iter().map(|node| node.inode.ino).collect();
                state.frozen.extend(inodes.iter().map(|ino| (*ino, Freeze::Seal)));
                return Ok(inodes);
            };
            if Instant::now() >= deadline {
                return Err(Refusal::Writers(busy.path.clone()));
            }
            self.wait_for_change(&mut state);
        }
    }

    pub(super) fn thaw(&self, inodes: &[u64]) {
        let mut state = self.state.lock();
        for ino in inodes {
            state.frozen.remove(ino);
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// Why a directory was not sealed.
enum Refusal {
    Store(StoreError),
    /// This file has a writer.
    Writers(String),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
