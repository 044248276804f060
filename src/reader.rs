//! Reads chunks and files back. Every chunk is checked against its name when its bytes first enter memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::catalog::{ChunkLocation, Txn};
use crate::digest::ChunkDigest;
use crate::error::{IoContext, Result, StoreError};
use crate::io::{Io, OpenMode, read_exact_at};
use crate::layout::Layout;
use crate::pack::{Encoding, PackId};
use crate::recipe::{Recipe, Segment};

/// How many pack files stay open at once.
const OPEN_PACKS: usize = 256;
/// How many chunks of up to 4 MiB are kept in memory after their check, for the reads that follow at once.
const KEPT_CHUNKS: usize = 16;

type SharedChunk = Arc<OnceLock<Arc<Vec<u8>>>>;

/// Reads chunks from packs. Memory: at most [`KEPT_CHUNKS`] chunks, and 32 bytes for each chunk read so far.
#[derive(Debug)]
pub struct ChunkReader {
    io: Arc<dyn Io>,
    layout: Layout,
    files: Mutex<Recent<PackId, Arc<File>>>,
    kept: Mutex<Recent<ChunkDigest, SharedChunk>>,
    verified: Mutex<HashSet<ChunkDigest>>,
}

/// A map that forgets its oldest entries.
#[derive(Debug)]
struct Recent<K, V> {
    capacity: usize,
    map: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K: Copy + Eq + std::hash::Hash, V: Clone> Recent<K, V> {
    fn new(capacity: usize) -> Self {
        Self { capacity, map: HashMap::new(), order: VecDeque::new() }
    }

    fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> V {
        if let Some(value) = self.map.get(&key) {
            return value.clone();
        }
        while self.order.len() >= self.capacity {
            if let Some(oldest) = self.order.pop_front() {
                self.map.remove(&oldest);
            }
        }
        let value = make();
        self.map.insert(key, value.clone());
        self.order.push_back(key);
        value
    }

    fn remove(&mut self, key: &K) {
        if self.map.remove(key).is_some() {
            self.order.retain(|kept| kept != key);
        }
    }
}

impl ChunkReader {
    pub(crate) fn new(io: Arc<dyn Io>, layout: Layout) -> Self {
        Self {
            io,
            layout,
            files: Mutex::new(Recent::new(OPEN_PACKS)),
            kept: Mutex::new(Recent::new(KEPT_CHUNKS)),
            verified: Mutex::new(HashSet::new()),
        }
    }

    fn pack_file(&self, id: PackId) -> Result<Arc<File>> {
        if let Some(file) = self.files.lock().map.get(&id) {
            return Ok(file.clone());
        }
        let path = self.layout.pack(id);
        let file = Arc::new(self.io.open(&path, OpenMode::Read).at("open", &path)?);
        Ok(self.files.lock().get_or_insert_with(id, || file))
    }

    /// Closes a pack, for one: because it is about to be removed.
    pub(crate) fn forget_pack(&self, id: PackId) {
        self.files.lock().remove(&id);
    }

    /// Reads a whole chunk and checks it, whatever is remembered of it.
    pub fn read_verified(&self, location: &ChunkLocation) -> Result<Vec<u8>> {
        let entry = &location.entry;
        if entry.encoding != Encoding::RAW {
            return Err(StoreError::UnknownEncoding { digest: entry.digest, encoding: entry.encoding.0 });
        }
        let path = self.layout.pack(location.pack);
        let file = self.pack_file(location.pack)?;
        let mut bytes = vec![0; entry.raw_bytes as usize];
        read_exact_at(&*self.io, &file, &mut bytes, entry.offset, &path)?;
        if ChunkDigest::of(&bytes) != entry.digest {
            self.verified.lock().remove(&entry.digest);
            return Err(StoreError::ChunkCorrupt { digest: entry.digest, path, offset: entry.offset });
        }
        self.verified.lock().insert(entry.digest);
        Ok(bytes)
    }

    /// Fills `buf` from `within` bytes into the chunk. The first read of a chunk since the start checks all of
    /// it; several threads asking at once share that work.
    fn read_part(&self, location: &ChunkLocation, within: u64, buf: &mut [u8]) -> Result<()> {
        let digest = location.entry.digest;
        let kept = self.kept.lock().map.get(&digest).cloned();
        if kept.is_none()
            && self.verified.lock().contains(&digest)
            && location.entry.encoding == Encoding::RAW
        {
            let file = self.pack_file(location.pack)?;
            let path = self.layout.pack(location.pack);
            return read_exact_at(&*self.io, &file, buf, location.entry.offset + within, &path);
        }
        let slot = self.kept.lock().get_or_insert_with(digest, SharedChunk::default);
        let chunk = match slot.get() {
            Some(chunk) => chunk.clone(),
            None => self.load(&slot, location)?,
        };
        let start = usize::try_from(within).expect("chunks are at most 4 MiB");
        buf.copy_from_slice(&chunk[start..start + buf.len()]);
        Ok(())
    }

    fn load(&self, slot: &SharedChunk, location: &ChunkLocation) -> Result<Arc<Vec<u8>>> {
        let mut failure = None;
        let chunk = slot.get_or_init(|| {
            let read = self.read_verified(location);
            Arc::new(read.unwrap_or_else(|error| {
                failure = Some(error);
                Vec::new()
            }))
        });
        if chunk.len() == location.entry.raw_bytes as usize {
            return Ok(chunk.clone());
        }
        // A failed load must not be remembered: the next reader tries again.
        self.kept.lock().remove(&location.entry.digest);
        Err(failure.unwrap_or(StoreError::ChunkMissing { digest: location.entry.digest }))
    }
}

/// A file ready to be read: its segments with their offsets and places.
#[derive(Debug)]
pub struct FileReader {
    parts: Vec<Part>,
    size_bytes: u64,
}

#[derive(Debug)]
struct Part {
    start: u64,
    kind: PartKind,
}

#[derive(Debug)]
enum PartKind {
    Literal(Vec<u8>),
    Chunk(ChunkLocation),
    Zeros,
}

impl FileReader {
    /// Finds where every chunk of the recipe lies.
    pub fn new(txn: &Txn<'_>, recipe: Recipe) -> Result<Self> {
        let mut start = 0;
        let mut parts = Vec::with_capacity(recipe.segments.len());
        for segment in recipe.segments {
            let len_bytes = segment.len_bytes();
            let kind = match segment {
                Segment::Literal(bytes) => PartKind::Literal(bytes),
                Segment::Zeros { .. } => PartKind::Zeros,
                Segment::Chunk { digest, .. } => {
                    PartKind::Chunk(txn.chunk(digest)?.ok_or(StoreError::ChunkMissing { digest })?)
                }
            };
            parts.push(Part { start, kind });
            start += len_bytes;
        }
        Ok(Self { parts, size_bytes: start })
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn part_end(&self, index: usize) -> u64 {
        self.parts.get(index + 1).map_or(self.size_bytes, |next| next.start)
    }

    /// Reads up to `buf.len()` bytes from `offset`; fewer only at the end of the file.
    pub fn read_at(&self, chunks: &ChunkReader, buf: &mut [u8], offset: u64) -> Result<usize> {
        let want = self.size_bytes.saturating_sub(offset).min(buf.len() as u64);
        let end = offset + want;
        let mut at = offset;
        let mut index = self.parts.partition_point(|part| part.start <= offset).saturating_sub(1);
        while at < end {
            let part_end = self.part_end(index).min(end);
            let out = &mut buf[(at - offset) as usize..(part_end - offset) as usize];
            let within = at - self.parts[index].start;
            match &self.parts[index].kind {
                PartKind::Literal(bytes) => out.copy_from_slice(&bytes[within as usize..][..out.len()]),
                PartKind::Zeros => out.fill(0),
                PartKind::Chunk(location) => chunks.read_part(location, within, out)?,
            }
            at = part_end;
            index += 1;
        }
        Ok(want as usize)
    }

    /// Reads the whole file in pieces of at most a chunk, checking every chunk again.
    pub fn for_each_verified(
        &self,
        chunks: &ChunkReader,
        mut visit: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        for (index, part) in self.parts.iter().enumerate() {
            match &part.kind {
                PartKind::Literal(bytes) => visit(bytes)?,
                PartKind::Chunk(location) => visit(&chunks.read_verified(location)?)?,
                PartKind::Zeros => {
                    let zeros = [0u8; 64 << 10];
                    let mut left = self.part_end(index) - part.start;
                    while left > 0 {
                        let len = left.min(zeros.len() as u64);
                        visit(&zeros[..len as usize])?;
                        left -= len;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives the next offset at or after `offset` that is in a hole, or in data. None when there is none.
    pub fn seek(&self, offset: u64, hole: bool) -> Option<u64> {
        if offset >= self.size_bytes {
            return None;
        }
        let first = self.parts.partition_point(|part| part.start <= offset).saturating_sub(1);
        let wanted = |part: &Part| matches!(part.kind, PartKind::Zeros) == hole;
        let found = self.parts[first..].iter().find(|part| wanted(part)).map(|part| part.start.max(offset));
        // The end of the file counts as a hole.
        found.or(hole.then_some(self.size_bytes))
    }
}
