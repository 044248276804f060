//! Settling turns raw files into recipes: hashed in place, deduplicated, and with their new bytes in packs.
//!
//! Three ways to place a file's bytes, by how much of it is new:
//! - nothing new: only the recipe is stored, and the raw file goes;
//! - mostly new: adoption. The raw file itself becomes a pack, by a second name; what the store had already
//!   is punched out later, unless it is so little that keeping the file whole (and served by the kernel) wins;
//! - mostly known: extraction. The few new chunks are copied into a fresh pack and the raw file goes, its
//!   known bytes perhaps never written to the disk.
//!
//! Order, and what a crash leaves: the packs are noted as pending, written, synced, indexed; then the caller
//! commits. Before the commit the raw files are untouched and the pending packs are removed at the next start.
//! After it the raw names are left-overs, removed now or at the next start.

use std::collections::HashSet;
use std::sync::Arc;

use crate::catalog::{Durability, PackRow, RecipeId, StoredRecipe, Txn};
use crate::digest::{ChunkDigest, Sha256Digest};
use crate::error::{IoContext, Result, StoreError};
use crate::hash::{Hashed, Signature};
use crate::io::{OpenMode, read_exact_at, unlink_if_present};
use crate::pack::{self, IndexEntry, PackId};
use crate::pins::PinGuard;
use crate::recipe::{Recipe, Segment};
use crate::store::Store;

/// An adopted file keeps its known bytes up to this fraction of its size: it stays one piece for the kernel.
const WHOLE_IF_KNOWN_BELOW: u64 = 128;

/// Says how much a settlement may do to the raw file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placing {
    /// Nobody writes the file, and its raw bytes may become a pack.
    Any,
    /// The raw file stays as it is; new chunks are copied.
    CopyOnly,
}

/// A file's content, ready for the commit.
#[derive(Debug, Clone)]
pub struct SettledFile {
    /// None for generated content.
    pub ino: Option<u64>,
    pub size_bytes: u64,
    pub sha256: Sha256Digest,
    pub recipe: Arc<Recipe>,
    /// Bytes that the store did not have, literals included.
    pub new_bytes: u64,
    pub signature: Option<Signature>,
    /// An adopted file's pack.
    adopted: Option<Adoption>,
}

impl SettledFile {
    /// Gives the pack that this file becomes as a whole.
    pub fn whole_pack(&self) -> Option<PackId> {
        self.adopted.as_ref().filter(|adoption| adoption.punches.is_empty()).map(|adoption| adoption.pack)
    }
}

#[derive(Debug, Clone)]
struct Adoption {
    pack: PackId,
    entries: Vec<IndexEntry>,
    punches: Vec<(u64, u64)>,
}

/// New chunks to be copied into a pack of their own.
#[derive(Debug)]
struct Extraction {
    pack: PackId,
    /// From which raw file, at which offset, each entry comes.
    copies: Vec<(u64, u64, IndexEntry)>,
    next_offset: u64,
}

/// Files being settled together, as one commit.
#[derive(Debug)]
pub struct Settlement<'s> {
    store: &'s Store,
    pins: PinGuard,
    /// Chunks that earlier files of this settlement bring.
    planned: HashSet<ChunkDigest>,
    pub files: Vec<SettledFile>,
    extraction: Option<Extraction>,
    /// Packs that exist on disk but are not committed.
    uncommitted: Vec<PackId>,
}

impl<'s> Settlement<'s> {
    pub fn new(store: &'s Store) -> Self {
        Self {
            store,
            pins: store.pins.guard(),
            planned: HashSet::new(),
            files: Vec::new(),
            extraction: None,
            uncommitted: Vec::new(),
        }
    }

    /// Adds generated content, kept as a literal. Gives its index in `files`.
    pub fn add_bytes(&mut self, bytes: &[u8]) -> usize {
        self.files.push(SettledFile {
            ino: None,
            size_bytes: bytes.len() as u64,
            sha256: Sha256Digest::of(bytes),
            recipe: Arc::new(Recipe::literal(bytes.to_vec())),
            new_bytes: bytes.len() as u64,
            signature: None,
            adopted: None,
        });
        self.files.len() - 1
    }

    /// Hashes a raw file and decides how to place it. Nothing changes on disk yet.
    pub fn add_raw(&mut self, ino: u64, placing: Placing) -> Result<usize> {
        let hashed = self.store.hash_raw(ino, placing == Placing::Any)?;
        self.add_hashed(ino, &hashed, placing)
    }

    /// The same, for a file hashed already.
    pub fn add_hashed(&mut self, ino: u64, hashed: &Hashed, placing: Placing) -> Result<usize> {
        let fresh = self.claim_new_chunks(hashed)?;
        let new_bytes: u64 = fresh.iter().map(|entry| u64::from(entry.raw_bytes)).sum();
        let known_bytes = hashed.recipe.chunks().map(|(_, len)| u64::from(len)).sum::<u64>() - new_bytes;
        let size_bytes = hashed.signature.size_bytes;
        let mut adopted = None;
        let mut charged = new_bytes + hashed.recipe.literal_bytes();
        if placing == Placing::Any && new_bytes > 0 && new_bytes >= known_bytes {
            let whole = known_bytes <= size_bytes / WHOLE_IF_KNOWN_BELOW;
            let punches = if whole { vec![] } else { gaps(&fresh, size_bytes) };
            if whole {
                charged = charged.max(new_bytes + known_bytes);
            }
            adopted = Some(Adoption { pack: self.new_pack()?, entries: fresh, punches });
        } else if new_bytes > 0 {
            self.extract(ino, fresh)?;
        }
        self.files.push(SettledFile {
            ino: Some(ino),
            size_bytes,
            sha256: hashed.sha256,
            recipe: Arc::new(hashed.recipe.clone()),
            new_bytes: charged,
            signature: Some(hashed.signature),
            adopted,
        });
        Ok(self.files.len() - 1)
    }

    /// Finds the file's chunks that neither the store nor this settlement has, at their raw offsets, and pins
    /// the others.
    fn claim_new_chunks(&mut self, hashed: &Hashed) -> Result<Vec<IndexEntry>> {
        let store = self.store;
        let mut fresh = Vec::new();
        // Looking up and pinning happen under one hold of the catalog, as the collector deletes under one.
        store.read(|txn| {
            for (extent, segment) in hashed.extents.iter().zip(&hashed.recipe.segments) {
                let Segment::Chunk { digest, len_bytes } = segment else { continue };
                if self.planned.contains(digest) {
                    continue;
                }
                if txn.chunk(*digest)?.is_some() {
                    self.pins.pin(*digest);
                } else {
                    self.planned.insert(*digest);
                    fresh.push(IndexEntry::raw(*digest, extent.offset, *len_bytes));
                }
            }
            Ok(())
        })?;
        Ok(fresh)
    }

    fn new_pack(&self) -> Result<PackId> {
        PackId::random().at("draw random bytes for", &self.store.layout.packs())
    }

    fn extract(&mut self, ino: u64, fresh: Vec<IndexEntry>) -> Result<()> {
        if self.extraction.is_none() {
            self.extraction = Some(Extraction { pack: self.new_pack()?, copies: vec![], next_offset: 0 });
        }
        let extraction = self.extraction.as_mut().expect("set just above");
        for entry in fresh {
            let raw_offset = entry.offset;
            let entry = IndexEntry { offset: extraction.next_offset, ..entry };
            extraction.next_offset += u64::from(entry.stored_bytes);
            extraction.copies.push((ino, raw_offset, entry));
        }
        Ok(())
    }

    /// Puts every new byte on disk, with its index. Afterwards the caller commits.
    pub fn make_durable(&mut self) -> Result<()> {
        let adoptions: Vec<(u64, Adoption)> =
            self.files.iter().filter_map(|file| Some((file.ino?, file.adopted.clone()?))).collect();
        let packs: Vec<PackId> = adoptions
            .iter()
            .map(|(_, adoption)| adoption.pack)
            .chain(self.extraction.as_ref().map(|extraction| extraction.pack))
            .collect();
        if packs.is_empty() {
            return Ok(());
        }
        self.store.write(Durability::Ordered, |txn| {
            packs.iter().try_for_each(|pack| txn.add_pending_pack(*pack))
        })?;
        self.uncommitted = packs;
        for (ino, adoption) in &adoptions {
            self.write_adopted(*ino, adoption)?;
        }
        self.write_extracted()
    }

    fn prepare_pack_dir(&self, pack: PackId) -> Result<()> {
        let store = self.store;
        let dir = store.layout.pack_dir(pack);
        if store.io.metadata(&dir).is_err() {
            store.io.create_dir_all(&dir).at("create directory", &dir)?;
            store.io.sync_dir(&store.layout.packs()).at("sync directory", &store.layout.packs())?;
        }
        Ok(())
    }

    fn write_adopted(&self, ino: u64, adoption: &Adoption) -> Result<()> {
        let store = self.store;
        let live = store.layout.live(ino);
        let file = store.io.open(&live, OpenMode::Read).at("open", &live)?;
        store.io.sync(&file).at("sync", &live)?;
        self.prepare_pack_dir(adoption.pack)?;
        let path = store.layout.pack(adoption.pack);
        store.io.link(&live, &path).at("link into packs", &path)?;
        // Writing the index syncs the directory, and with it the pack's name.
        pack::write_index(&*store.io, &store.layout, adoption.pack, &adoption.entries)
    }

    fn write_extracted(&self) -> Result<()> {
        let Some(extraction) = &self.extraction else { return Ok(()) };
        let store = self.store;
        self.prepare_pack_dir(extraction.pack)?;
        let path = store.layout.pack(extraction.pack);
        let out = store.io.open(&path, OpenMode::CreateNew).at("create", &path)?;
        for (ino, raw_offset, entry) in &extraction.copies {
            let live = store.layout.live(*ino);
            let file = store.io.open(&live, OpenMode::Read).at("open", &live)?;
            let mut bytes = vec![0; entry.raw_bytes as usize];
            read_exact_at(&*store.io, &file, &mut bytes, *raw_offset, &live)?;
            // The file may be open for writing while an fsync extracts from it.
            if ChunkDigest::of(&bytes) != entry.digest {
                return Err(StoreError::Busy { what: live.display().to_string() });
            }
            store.io.write_all_at(&out, &bytes, entry.offset).at("write", &path)?;
        }
        store.io.sync(&out).at("sync", &path)?;
        let entries: Vec<IndexEntry> = extraction.copies.iter().map(|(_, _, entry)| *entry).collect();
        pack::write_index(&*store.io, &store.layout, extraction.pack, &entries)
    }

    /// Adds chunks and recipes to the catalog, inside the caller's transaction. Gives each file's recipe.
    pub fn commit(&self, txn: &Txn<'_>) -> Result<Vec<RecipeId>> {
        if let Some(extraction) = &self.extraction {
            let row = txn.put_pack(extraction.pack)?;
            for (_, _, entry) in &extraction.copies {
                txn.put_chunk(row, entry)?;
            }
        }
        self.files.iter().map(|file| self.commit_file(txn, file)).collect()
    }

    fn commit_file(&self, txn: &Txn<'_>, file: &SettledFile) -> Result<RecipeId> {
        let mut whole_pack: Option<PackRow> = None;
        if let Some(adoption) = &file.adopted {
            let row = txn.put_pack(adoption.pack)?;
            for entry in &adoption.entries {
                txn.put_chunk(row, entry)?;
            }
            for (start, len_bytes) in &adoption.punches {
                txn.add_punch(row, *start, *len_bytes)?;
            }
            whole_pack = adoption.punches.is_empty().then_some(row);
        }
        txn.put_recipe(StoredRecipe { recipe: &file.recipe, sha256: file.sha256, whole_pack })
    }

    /// Points a raw file's inode at its recipe. The raw file is no longer its content.
    pub fn settle_inode(&self, txn: &Txn<'_>, file: &SettledFile, recipe: RecipeId) -> Result<()> {
        let ino = file.ino.expect("only raw files have an inode to settle");
        let signature = file.signature.expect("raw files are hashed with their signature");
        let mut inode = txn.inode(ino)?;
        inode.raw = false;
        inode.recipe = Some(recipe);
        inode.size_bytes = file.size_bytes;
        inode.mtime_ns = signature.mtime_ns;
        inode.ctime_ns = inode.ctime_ns.max(signature.ctime_ns);
        inode.charged_bytes = file.new_bytes;
        txn.put_inode(&inode)
    }

    /// Ends a settlement that was committed: the raw names go.
    pub fn finish(mut self) -> Result<()> {
        self.uncommitted.clear();
        for file in &self.files {
            if let Some(ino) = file.ino {
                self.store.hashes.forget_all(ino);
                unlink_if_present(&*self.store.io, &self.store.layout.live(ino))?;
            }
        }
        Ok(())
    }

    /// Ends a settlement that was committed, for inodes that never become raw again: freeing the memory of
    /// large raw files takes a while, and nobody has to wait for it.
    pub fn finish_aside(mut self) {
        self.uncommitted.clear();
        let mut left_over = Vec::new();
        for ino in self.files.iter().filter_map(|file| file.ino) {
            self.store.hashes.forget_all(ino);
            left_over.push(self.store.layout.live(ino));
        }
        let io = self.store.io.clone();
        // What does not go now goes at the next start.
        let remove = move || left_over.iter().for_each(|path| drop(unlink_if_present(&*io, path)));
        let started = std::thread::Builder::new().name("left-overs".into()).spawn(remove);
        let mut removals = self.store.removals.lock();
        removals.retain(|removal| !removal.is_finished());
        removals.extend(started);
    }

    /// Ends a settlement that was committed beside the raw files, which stay.
    pub fn finish_keeping_raw(mut self) {
        self.uncommitted.clear();
    }
}

impl Drop for Settlement<'_> {
    /// Takes back packs that were never committed. What fails here is left to the next start.
    fn drop(&mut self) {
        for pack in std::mem::take(&mut self.uncommitted) {
            let undone = self
                .store
                .remove_pack_files(pack)
                .and_then(|()| self.store.write(Durability::Ordered, |txn| txn.remove_pending_pack(pack)));
            if let Err(error) = undone {
                tracing::warn!(%pack, %error, "an unused pack could not be removed; the next start removes it");
            }
        }
    }
}

/// Lists the ranges of a file that no entry covers.
pub(crate) fn gaps(entries: &[IndexEntry], size_bytes: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for entry in entries {
        if entry.offset > at {
            gaps.push((at, entry.offset - at));
        }
        at = at.max(entry.offset + u64::from(entry.stored_bytes));
    }
    if at < size_bytes {
        gaps.push((at, size_bytes - at));
    }
    gaps
}
