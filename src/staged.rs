//! fsync for files that are about to be sealed: the moment when a save can be made cheaper.
//!
//! Two ways, chosen by a sample of the file's chunks:
//! - mostly known: the file is settled by extraction beside its raw bytes. Once the recipe's commit is durable
//!   the fsync is done, and the raw bytes need never reach the disk;
//! - mostly new: the raw bytes are synced, and hashed meanwhile.
//!
//! The hash is taken while a writer has the file open. Where that writer could only use write(2), any later
//! change shows in the file's times; where it could have mapped the file, the chunks are hashed once more
//! before a seal relies on them (see [`Store::hash_raw`]).

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::catalog::{Durability, Inode};
use crate::digest::ChunkDigest;
use crate::error::{IoContext, Result, StoreError};
use crate::hash::{CLOCK_TICK_NS, FileSource, Signature};
use crate::io::{Io, OpenMode};
use crate::recipe::MAX_CHUNK_BYTES;
use crate::settle::{Placing, Settlement};
use crate::split::{self, Extent, ExtentKind, Source};
use crate::store::Store;
use crate::time::now_ns;

/// Smaller files sync faster than they can be looked at.
const WORTH_HASHING_BYTES: u64 = 1 << 20;
/// A file that is synced again and again while it grows is hashed this often at most.
const MAX_HASHED_SYNCS: u32 = 4;
const SAMPLED_CHUNKS: usize = 8;
/// So many of them must be known for the extraction to be tried.
const KNOWN_OF_SAMPLE: usize = 6;

impl Store {
    /// Makes a staged file's present content durable; its name is made durable too.
    pub fn sync_staged(&self, ino: u64) -> Result<()> {
        let path = self.layout.live(ino);
        let file = self.io.open(&path, OpenMode::Read).at("open", &path)?;
        let size_bytes = file.metadata().at("stat", &path)?.len();
        if size_bytes < WORTH_HASHING_BYTES || self.hashes.count_sync(ino) > MAX_HASHED_SYNCS {
            return self.sync_raw(ino);
        }
        // So that a write from here on gets other times than the last one before.
        let last_change_ns = Signature::of(&file, &path)?.last_change_ns();
        let tick_left_ns = (last_change_ns + CLOCK_TICK_NS - now_ns()).clamp(0, CLOCK_TICK_NS);
        std::thread::sleep(Duration::from_nanos(tick_left_ns.unsigned_abs()));
        let began_ns = now_ns();
        if self.probably_known(&file, &path)? && self.settle_beside(ino, &file, &path)? {
            return Ok(());
        }
        let (synced, hashed) = std::thread::scope(|scope| {
            let hashing = scope.spawn(|| self.hash_open(&file, &path));
            (self.sync_raw(ino), hashing.join())
        });
        // What could not be hashed now will be at the seal, which then reports why.
        if let Ok(Ok(hashed)) = hashed {
            self.hashes.put_hashed_while_open(ino, Arc::new(hashed), began_ns);
        }
        synced
    }

    /// Makes a raw file's bytes durable, then its name in live/, then its names in the tree: a name that
    /// survives a power cut has its bytes.
    pub fn sync_raw(&self, ino: u64) -> Result<()> {
        let path = self.layout.live(ino);
        let file = self.io.open(&path, OpenMode::Read).at("open", &path)?;
        self.io.sync(&file).at("sync", &path)?;
        let dir = self.layout.live_dir();
        self.io.sync_dir(&dir).at("sync directory", &dir)?;
        self.write(Durability::Ordered, |txn| match txn.find_inode(ino)? {
            // The raw bytes are durable now, and newer than what was settled before.
            Some(inode) if inode.raw && inode.recipe.is_some() => {
                txn.put_inode(&Inode { recipe: None, ..inode })
            }
            _ => Ok(()),
        })?;
        self.sync()
    }

    fn probably_known(&self, file: &File, path: &Path) -> Result<bool> {
        let source = FileSource::new(&*self.io, file, path)?;
        let Some(extents) = split::plan_by_header(&source)? else { return Ok(false) };
        let chunks: Vec<&Extent> = extents.iter().filter(|extent| extent.kind == ExtentKind::Chunk).collect();
        let stride = chunks.len().div_ceil(SAMPLED_CHUNKS).max(1);
        let (mut sampled, mut known) = (0, 0);
        let mut buf = vec![0; MAX_CHUNK_BYTES as usize];
        for extent in chunks.into_iter().step_by(stride) {
            let bytes = &mut buf[..usize::try_from(extent.len_bytes).expect("chunks are at most 4 MiB")];
            source.read_exact(bytes, extent.offset)?;
            sampled += 1;
            known += usize::from(self.read(|txn| txn.chunk(ChunkDigest::of(bytes)))?.is_some());
        }
        Ok(sampled > 0 && known * SAMPLED_CHUNKS >= sampled * KNOWN_OF_SAMPLE)
    }

    /// Settles a file by extraction beside its raw bytes. False when that turns out not to pay, or the file
    /// changed meanwhile.
    fn settle_beside(&self, ino: u64, file: &File, path: &Path) -> Result<bool> {
        let began_ns = now_ns();
        let hashed = Arc::new(self.hash_open(file, path)?);
        self.hashes.put_hashed_while_open(ino, hashed.clone(), began_ns);
        let mut settlement = Settlement::new(self);
        let index = settlement.add_hashed(ino, &hashed, Placing::CopyOnly)?;
        if settlement.files[index].new_bytes > hashed.signature.size_bytes / 2 {
            return Ok(false);
        }
        match settlement.make_durable() {
            Err(StoreError::Busy { .. }) => return Ok(false),
            done => done?,
        }
        self.write(Durability::Durable, |txn| {
            let recipes = settlement.commit(txn)?;
            let inode = txn.inode(ino)?;
            txn.put_inode(&Inode { recipe: Some(recipes[index]), ..inode })
        })?;
        settlement.finish_keeping_raw();
        Ok(true)
    }

    /// Before a clean end: where a recipe stands beside newer raw bytes, the raw bytes win from now on, also
    /// after a restart of the machine.
    pub fn sync_unsettled(&self) -> Result<()> {
        for ino in self.read(|txn| txn.raw_inodes())? {
            if self.read(|txn| txn.inode(ino))?.recipe.is_some() {
                self.sync_raw(ino)?;
            }
        }
        self.sync()
    }
}

impl<'a> FileSource<'a> {
    fn new(io: &'a dyn Io, file: &'a File, path: &'a Path) -> Result<Self> {
        let size_bytes = file.metadata().at("stat", path)?.len();
        Ok(Self { io, file, path, size_bytes })
    }
}
