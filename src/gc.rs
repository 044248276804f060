//! Collection of bytes that nothing needs any more.
//!
//! Why no live chunk can be collected. A chunk is live when a stored recipe names it, or when work in flight
//! has pinned it. Recipes are stored only inside transactions, and pins are taken only while the catalog is
//! held, together with the look-up that found the chunk. The collector marks and deletes rows inside ONE
//! transaction while it holds the catalog, so every recipe and every pin is either there when it marks, or
//! comes later and no longer finds the chunk, and then brings the bytes itself. Bytes go only after that
//! transaction is durable: whatever the catalog names after a crash is still there.
//!
//! What a crash leaves: before the commit, nothing; after it, dead bytes in packs, which the next collection
//! finds again, since it compares packs with the catalog and not with a list of its own.

use std::collections::HashSet;

use crate::catalog::{Durability, PackRow, Txn};
use crate::digest::ChunkDigest;
use crate::error::{IoContext, Result};
use crate::io::OpenMode;
use crate::pack::{self, IndexEntry, PackId};
use crate::settle::gaps;
use crate::store::Store;

/// What a collection did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Collected {
    pub recipes: u64,
    pub chunks: u64,
    pub packs_removed: u64,
    /// By how much the store's files shrank on disk.
    pub freed_bytes: u64,
}

impl Store {
    /// Collects what nothing needs. `in_use` names packs that are open as a whole and must keep every byte for
    /// now; a later collection deals with them.
    pub fn collect(&self, in_use: impl Fn(PackId) -> bool) -> Result<Collected> {
        let mut done = Collected::default();
        let _space = self.space.lock();
        self.write(Durability::Durable, |txn| {
            done.recipes = txn.drop_unused_recipes()? as u64;
            let live = live_chunks(txn)?;
            let mut dead = Vec::new();
            txn.for_each_chunk(|digest, _, _| {
                if !live.contains(&digest) && !self.pins.contains(digest) {
                    dead.push(digest);
                }
                Ok(())
            })?;
            for digest in &dead {
                txn.remove_chunk(*digest)?;
            }
            done.chunks = dead.len() as u64;
            recharge(txn)
        })?;
        for (row, id) in self.read(|txn| txn.packs())? {
            if !in_use(id) {
                self.sweep_pack(row, id, &mut done)?;
            }
        }
        Ok(done)
    }

    fn sweep_pack(&self, row: PackRow, id: PackId, done: &mut Collected) -> Result<()> {
        let (entries, whole) = self.read(|txn| Ok((txn.pack_chunks(row)?, txn.is_whole_image(row)?)))?;
        if whole {
            return Ok(());
        }
        let path = self.layout.pack(id);
        let before = self.disk_bytes(&path)?;
        if entries.is_empty() {
            // A settlement may be about to commit into a pack only if it made that pack, and that one is not
            // in the catalog yet.
            self.write(Durability::Durable, |txn| txn.remove_pack(row))?;
            self.reader.forget_pack(id);
            self.remove_pack_files(id)?;
            done.packs_removed += 1;
            done.freed_bytes += before;
            return Ok(());
        }
        let size_bytes = self.io.metadata(&path).at("stat", &path)?.len();
        let dead = gaps(&entries, size_bytes);
        if dead.is_empty() {
            return Ok(());
        }
        self.rewrite_index(id, &entries)?;
        self.write(Durability::Ordered, |txn| {
            dead.iter().try_for_each(|(start, len_bytes)| txn.add_punch(row, *start, *len_bytes))
        })?;
        self.punch_unused(|pack| pack != id)?;
        done.freed_bytes += before.saturating_sub(self.disk_bytes(&path)?);
        Ok(())
    }

    /// An index must not promise bytes that are about to be punched, or a rebuild would believe it.
    fn rewrite_index(&self, id: PackId, entries: &[IndexEntry]) -> Result<()> {
        if pack::read_index(&*self.io, &self.layout, id).is_ok_and(|listed| listed.len() == entries.len()) {
            return Ok(());
        }
        pack::write_index(&*self.io, &self.layout, id, entries)
    }

    fn disk_bytes(&self, path: &std::path::Path) -> Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let file = self.io.open(path, OpenMode::Read).at("open", path)?;
        Ok(file.metadata().at("stat", path)?.blocks() * 512)
    }
}

fn live_chunks(txn: &Txn<'_>) -> Result<HashSet<ChunkDigest>> {
    let mut live = HashSet::new();
    txn.for_each_recipe(|_, recipe| {
        live.extend(recipe.chunks().map(|(digest, _)| digest));
        Ok(())
    })?;
    Ok(live)
}

/// Charges every stored chunk to the oldest file that has it, so that the charges add up to what is stored.
fn recharge(txn: &Txn<'_>) -> Result<()> {
    let mut charged: HashSet<ChunkDigest> = HashSet::new();
    let mut seen = HashSet::new();
    for (ino, id) in txn.inode_recipes()? {
        let recipe = if seen.insert(id) { Some(txn.recipe(id)?) } else { None };
        let bytes = recipe.map_or(0, |recipe| {
            let chunks: u64 = recipe
                .chunks()
                .filter(|(digest, _)| charged.insert(*digest))
                .map(|(_, len)| u64::from(len))
                .sum();
            chunks + recipe.literal_bytes()
        });
        let mut inode = txn.inode(ino)?;
        if inode.charged_bytes != bytes {
            inode.charged_bytes = bytes;
            txn.put_inode(&inode)?;
        }
    }
    Ok(())
}
