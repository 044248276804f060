//! What may happen to a sealed tree afterwards: it is removed, or gets another path. Each leaves a record.

use crate::catalog::{Checkpoint, Durability, Face, Inode, RenameMode, Replaced, SealState, Txn};
use crate::check::PORTABLE_MANIFEST_FILE;
use crate::error::{Result, StoreError};
use crate::faces::{self, Derive};
use crate::io::unlink_if_present;
use crate::manifest::MANIFEST_FILE;
use crate::policy;
use crate::record::{Change, Event, Record};
use crate::seal::{Aftermath, path_to};
use crate::store::Store;
use crate::subtree::{Subtree, join_path, remove_subtree};
use crate::time::now_ns;

impl Store {
    /// Runs a commit that changes sealed trees: the record first, then the transaction, durably.
    fn commit_change<T>(
        &self,
        changes: Vec<Change>,
        body: impl FnOnce(&Txn<'_>, i64) -> Result<T>,
    ) -> Result<T> {
        let _order = self.record_order.lock();
        let at_ns = now_ns();
        let seq = self.read(|txn| txn.meta("last_record"))? + 1;
        Record::new(seq, at_ns, Event::Change { changes }).write(&*self.io, &self.layout)?;
        let done = self.write(Durability::Durable, |txn| {
            txn.set_meta("last_record", seq)?;
            body(txn, at_ns)
        });
        if done.is_err() {
            unlink_if_present(&*self.io, &self.layout.record(seq))?;
        }
        done
    }

    /// Begins the removal of the sealed tree that holds directory `ino`: in one commit its manifest leaves the
    /// tree, LATEST and latest move, and from then on its entries may go one by one.
    ///
    /// The names that went are in `stale`: whoever is removing the tree will ask for them too, and should be
    /// told that it worked.
    pub fn dissolve(&self, ino: u64) -> Result<Aftermath> {
        let (root, checkpoint, path) = self.read(|txn| {
            let root = sealed_root(txn, ino)?;
            let path = join_path(&txn.path_of(root.ino)?.unwrap_or_default());
            Ok((root.clone(), txn.checkpoint_at(root.ino)?, path))
        })?;
        if root.seal == SealState::Released {
            return Err(StoreError::Forbidden { what: path, why: "a released model is immutable" });
        }
        self.commit_change(vec![Change::Remove { path }], |txn, at_ns| {
            let mut aftermath = Aftermath::default();
            for node in Subtree::list(txn, root.ino)?.nodes.iter().filter(|node| node.inode.is_dir()) {
                txn.put_inode(&Inode { seal: SealState::Dissolving, ..txn.inode(node.inode.ino)? })?;
            }
            for name in [MANIFEST_FILE, PORTABLE_MANIFEST_FILE].map(str::as_bytes) {
                if txn.lookup(root.ino, name)?.is_some() {
                    let gone = txn.unlink(root.ino, name, at_ns)?;
                    aftermath.orphans.push(gone.ino);
                    aftermath.stale.push((root.ino, name.to_vec()));
                }
            }
            if let Some(checkpoint) = checkpoint {
                txn.remove_checkpoint(root.ino)?;
                aftermath.orphans.extend(follow_latest(txn, &checkpoint, at_ns)?);
            }
            Ok(aftermath)
        })
    }

    /// Removes a whole sealed step in one commit.
    pub fn remove_sealed(&self, checkpoint: &Checkpoint) -> Result<Aftermath> {
        let (path, parent) = self.read(|txn| {
            let path = txn.path_of(checkpoint.root)?.unwrap_or_default();
            Ok((path, txn.parent_of(checkpoint.root)?))
        })?;
        let missing = || StoreError::NotFound { what: join_path(&path) };
        let (parent, name) = (parent.ok_or_else(missing)?, path.last().ok_or_else(missing)?.clone());
        self.commit_change(vec![Change::Remove { path: join_path(&path) }], |txn, at_ns| {
            txn.remove_checkpoint(checkpoint.root)?;
            let mut orphans = remove_subtree(txn, parent, &name, at_ns)?;
            orphans.extend(follow_latest(txn, checkpoint, at_ns)?);
            Ok(Aftermath { orphans, stale: vec![(parent, name)] })
        })
    }

    /// Renames something that is, or holds, sealed trees, without sealing anything new. LATEST and latest of
    /// every run concerned follow.
    pub fn move_sealed(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
    ) -> Result<(Replaced, Aftermath)> {
        let (old, new) = self.read(|txn| Ok((path_to(txn, from)?, path_to(txn, to)?)))?;
        let change = match mode {
            RenameMode::Exchange => Change::Exchange { from: old, to: new },
            RenameMode::Replace | RenameMode::NoReplace => Change::Move { from: old, to: new },
        };
        self.commit_change(vec![change], |txn, at_ns| {
            let replaced = txn.rename(from, to, mode, at_ns)?;
            Ok((replaced, Aftermath { orphans: reclassify(txn, at_ns)?, stale: vec![] }))
        })
    }

    /// Says whether `ino` is a sealed tree or a directory with one below it.
    pub fn holds_sealed(&self, ino: u64) -> Result<bool> {
        self.read(|txn| {
            let inode = txn.inode(ino)?;
            if !inode.is_dir() {
                return Ok(false);
            }
            if inode.seal.immutable() {
                return Ok(true);
            }
            for checkpoint in txn.checkpoints()? {
                let mut at = checkpoint.root;
                while at != crate::catalog::ROOT_INO && at != ino {
                    match txn.parent_of(at)? {
                        Some(parent) => at = parent,
                        None => break,
                    }
                }
                if at == ino {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

/// Finds the top directory of the sealed tree that `ino` belongs to.
fn sealed_root(txn: &Txn<'_>, ino: u64) -> Result<Inode> {
    let mut at = txn.inode(ino)?;
    while let Some(parent) = txn.parent_of(at.ino)? {
        let above = txn.inode(parent)?;
        if !above.seal.immutable() || above.ino == at.ino {
            break;
        }
        at = above;
    }
    Ok(at)
}

fn follow_latest(txn: &Txn<'_>, gone: &Checkpoint, at_ns: i64) -> Result<Vec<u64>> {
    faces::derive_latest(txn, gone.face, &gone.run, Derive::Move, at_ns)
}

/// Gives every sealed tree the face that its present path says, and lets LATEST and latest follow.
pub(crate) fn reclassify(txn: &Txn<'_>, at_ns: i64) -> Result<Vec<u64>> {
    let mut touched = Vec::new();
    for checkpoint in txn.checkpoints()? {
        let path = txn.path_of(checkpoint.root)?.unwrap_or_default();
        let now = match policy::seal_target(&path) {
            Some(target) if checkpoint.face != Face::Moved || target.step == checkpoint.step => Checkpoint {
                face: target.face,
                run: target.run,
                step: target.step,
                version: target.version,
                ..checkpoint.clone()
            },
            _ => Checkpoint { face: Face::Moved, ..checkpoint.clone() },
        };
        if (now.face, &now.run, now.step) != (checkpoint.face, &checkpoint.run, checkpoint.step) {
            txn.put_checkpoint(&now)?;
            touched.push((checkpoint.face, checkpoint.run));
            touched.push((now.face, now.run));
        }
    }
    let mut orphans = Vec::new();
    for (face, run) in touched {
        orphans.extend(faces::derive_latest(txn, face, &run, Derive::Move, at_ns)?);
    }
    Ok(orphans)
}
