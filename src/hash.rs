//! Hashes a file once for everything: its chunks' names and its SHA-256, both at a time.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rayon::prelude::*;
use sha2::Digest as _;

use crate::digest::{ChunkDigest, Sha256Digest};
use crate::error::{IoContext, Result};
use crate::io::{Io, read_exact_at};
use crate::recipe::{Recipe, Segment};
use crate::split::{self, Extent, ExtentKind, Source};

/// Longer than any disk's coarsest clock for the times of files.
pub(crate) const CLOCK_TICK_NS: i64 = 12_000_000;

/// What tells one state of a raw file from another, as long as nobody has it open for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    pub size_bytes: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
}

impl Signature {
    /// A later write would show in the times: they are not of this very tick of the disk's clock.
    pub fn settled_before(&self, now_ns: i64) -> bool {
        self.last_change_ns() + CLOCK_TICK_NS <= now_ns
    }

    pub(crate) fn last_change_ns(&self) -> i64 {
        self.mtime_ns.max(self.ctime_ns)
    }

    pub fn of(file: &File, path: &Path) -> Result<Self> {
        let stat = file.metadata().at("stat", path)?;
        let ns = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        Ok(Self {
            size_bytes: stat.len(),
            mtime_ns: ns(stat.mtime(), stat.mtime_nsec()),
            ctime_ns: ns(stat.ctime(), stat.ctime_nsec()),
        })
    }
}

/// A raw file's content, hashed.
#[derive(Debug)]
pub struct Hashed {
    pub signature: Signature,
    pub extents: Vec<Extent>,
    /// One segment for each extent.
    pub recipe: Recipe,
    pub sha256: Sha256Digest,
}

/// An open file as splitters read it.
#[derive(Debug)]
pub(crate) struct FileSource<'a> {
    pub(crate) io: &'a dyn Io,
    pub(crate) file: &'a File,
    pub(crate) path: &'a Path,
    pub(crate) size_bytes: u64,
}

impl Source for FileSource<'_> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        read_exact_at(self.io, self.file, buf, offset, self.path)
    }

    fn data_ranges(&self) -> Result<Vec<(u64, u64)>> {
        data_ranges(self.file, self.size_bytes, self.path)
    }
}

fn data_ranges(file: &File, size_bytes: u64, path: &Path) -> Result<Vec<(u64, u64)>> {
    use rustix::fs::{SeekFrom, seek};
    use rustix::io::Errno;
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(Errno::NXIO) => break,
            // A disk that can't tell holes from data has none.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(vec![(0, size_bytes)]),
            Err(error) => return Err(error).at("seek data in", path),
        };
        let end = seek(file, SeekFrom::Hole(begin)).at("seek a hole in", path)?.min(size_bytes);
        if begin >= end {
            break;
        }
        ranges.push((begin, end));
        at = end;
    }
    Ok(ranges)
}

/// Says whether an open file still has the chunks and literal bytes that were hashed before. Much cheaper than
/// hashing it anew: there is no SHA-256 to be computed byte after byte.
pub fn still_holds(io: &dyn Io, file: &File, path: &Path, hashed: &Hashed) -> Result<bool> {
    let source = FileSource { io, file, path, size_bytes: hashed.signature.size_bytes };
    let same = |buf: &mut Vec<u8>, (extent, before): (&Extent, &Segment)| {
        Ok(segment(&source, extent, buf)? == *before)
    };
    let pairs = hashed.extents.par_iter().zip(&hashed.recipe.segments);
    let all: Vec<bool> = pairs.map_init(Vec::new, same).collect::<Result<_>>()?;
    Ok(all.into_iter().all(|same| same))
}

/// Plans, cuts and hashes an open file. `known` finds the SHA-256 of a recipe that was seen before: computing
/// it anew takes several times as long as naming the chunks.
pub fn hash_file(
    io: &dyn Io,
    file: &File,
    path: &Path,
    known: impl FnOnce(&Recipe) -> Result<Option<Sha256Digest>>,
) -> Result<Hashed> {
    let signature = Signature::of(file, path)?;
    let source = FileSource { io, file, path, size_bytes: signature.size_bytes };
    let extents = split::plan(&source)?;
    let segments = extents
        .par_iter()
        .map_init(Vec::new, |buf, extent| segment(&source, extent, buf))
        .collect::<Result<Vec<Segment>>>()?;
    let recipe = Recipe { segments };
    let sha256 = match known(&recipe)? {
        Some(sha256) => sha256,
        None => sha256_of(&source, &extents)?,
    };
    Ok(Hashed { signature, recipe, sha256, extents })
}

/// Reads and names one extent. `buf` is used again and again: fresh memory costs more than the hash.
fn segment(source: &FileSource<'_>, extent: &Extent, buf: &mut Vec<u8>) -> Result<Segment> {
    if extent.kind == ExtentKind::Hole {
        return Ok(Segment::Zeros { len_bytes: extent.len_bytes });
    }
    let len = usize::try_from(extent.len_bytes).expect("extents with data are at most 4 MiB");
    buf.resize(buf.len().max(len), 0);
    let bytes = &mut buf[..len];
    source.read_exact(bytes, extent.offset)?;
    Ok(match extent.kind {
        ExtentKind::Literal => Segment::Literal(bytes.to_vec()),
        _ => Segment::Chunk {
            digest: ChunkDigest::of(bytes),
            len_bytes: u32::try_from(bytes.len()).expect("at most 4 MiB"),
        },
    })
}

fn sha256_of(source: &FileSource<'_>, extents: &[Extent]) -> Result<Sha256Digest> {
    let mut hasher = sha2::Sha256::new();
    let mut buf = vec![0; 1 << 20];
    for extent in extents {
        let mut at = extent.offset;
        let end = extent.offset + extent.len_bytes;
        if extent.kind == ExtentKind::Hole {
            buf.fill(0);
        }
        while at < end {
            let piece = &mut buf[..(end - at).min(1 << 20) as usize];
            if extent.kind != ExtentKind::Hole {
                source.read_exact(piece, at)?;
            }
            hasher.update(&piece);
            at += piece.len() as u64;
        }
    }
    Ok(Sha256Digest(hasher.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{OpenMode, SystemIo};

    #[test]
    fn sparse_files_hash_like_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![3u8; 100_000]).unwrap();
        let file = SystemIo.open(&path, OpenMode::ReadWrite).unwrap();
        file.set_len(3 << 20).unwrap();
        let hashed = hash_file(&SystemIo, &file, &path, |_| Ok(None)).unwrap();
        assert_eq!(hashed.sha256, Sha256Digest::of(&std::fs::read(&path).unwrap()));
        assert_eq!(hashed.recipe.size_bytes(), 3 << 20);
    }
}
