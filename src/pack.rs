//! Packs hold chunk bytes; the index beside each says which chunk lies where, and in which encoding.
//!
//! Index file, little-endian (docs/FORMAT.md): the 8 bytes `TLPACKIX`, u32 version, u32 entry count, the
//! pack's 16-byte id, then one 88-byte entry a chunk, then the BLAKE3 of everything before it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::digest::ChunkDigest;
use crate::error::{Result, StoreError};
use crate::io::{self as store_io, Io};
use crate::layout::Layout;

/// Names a pack: 128 random bits, 32 hex digits in file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackId(pub u128);

impl PackId {
    /// Draws a new id from the operating system's generator.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }
}

impl fmt::Display for PackId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

impl FromStr for PackId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let canonical = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if canonical { u128::from_str_radix(text, 16).map(Self).map_err(|_| ()) } else { Err(()) }
    }
}

/// How a chunk's bytes are stored. The number is what stands on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding(pub u8);

impl Encoding {
    /// The bytes themselves; the base digest is all zeros.
    pub const RAW: Self = Self(0);
}

/// Says where one chunk lies in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    pub digest: ChunkDigest,
    pub offset: u64,
    pub stored_bytes: u32,
    pub raw_bytes: u32,
    pub encoding: Encoding,
    /// The chunk this one is a delta against; all zeros when it stands alone.
    pub base: ChunkDigest,
}

impl IndexEntry {
    pub fn raw(digest: ChunkDigest, offset: u64, len_bytes: u32) -> Self {
        let base = ChunkDigest([0; 32]);
        Self { digest, offset, stored_bytes: len_bytes, raw_bytes: len_bytes, encoding: Encoding::RAW, base }
    }
}

const MAGIC: &[u8; 8] = b"TLPACKIX";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 88;
const CHECKSUM_BYTES: usize = 32;

/// Writes the index file's bytes.
pub fn encode_index(id: PackId, entries: &[IndexEntry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + entries.len() * ENTRY_BYTES + CHECKSUM_BYTES);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    let count = u32::try_from(entries.len()).expect("a pack holds fewer than 2^32 chunks");
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&id.0.to_be_bytes());
    for entry in entries {
        out.extend_from_slice(&entry.digest.0);
        out.extend_from_slice(&entry.offset.to_le_bytes());
        out.extend_from_slice(&entry.stored_bytes.to_le_bytes());
        out.extend_from_slice(&entry.raw_bytes.to_le_bytes());
        out.extend_from_slice(&[entry.encoding.0, 0, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&entry.base.0);
    }
    let checksum = blake3::hash(&out);
    out.extend_from_slice(checksum.as_bytes());
    out
}

/// Reads an index file's bytes; `path` is for the error only. Entries of an unknown encoding are kept: only
/// reading such a chunk is refused.
pub fn decode_index(bytes: &[u8], id: PackId, path: &Path) -> Result<Vec<IndexEntry>> {
    let corrupt = |detail: &str| StoreError::Corrupt { path: path.to_owned(), detail: detail.to_owned() };
    let short = || StoreError::Truncated { path: path.to_owned(), detail: "pack index".to_owned() };
    let body_bytes =
        bytes.len().checked_sub(CHECKSUM_BYTES).filter(|n| *n >= HEADER_BYTES).ok_or_else(short)?;
    let (body, checksum) = bytes.split_at(body_bytes);
    if &body[..8] != MAGIC {
        return Err(corrupt("not a pack index"));
    }
    let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("4 bytes"));
    if word(8) != VERSION {
        let detail = format!("pack index version {} is not supported by this program", word(8));
        return Err(StoreError::UnsupportedFormat { path: path.to_owned(), detail });
    }
    if blake3::hash(body).as_bytes() != checksum {
        return Err(corrupt("checksum does not match"));
    }
    if body[16..32] != id.0.to_be_bytes() {
        return Err(corrupt("belongs to another pack"));
    }
    let entries = &body[HEADER_BYTES..];
    if entries.len() != word(12) as usize * ENTRY_BYTES {
        return Err(corrupt("entry count does not match its length"));
    }
    Ok(entries.chunks_exact(ENTRY_BYTES).map(decode_entry).collect())
}

fn decode_entry(bytes: &[u8]) -> IndexEntry {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    IndexEntry {
        digest: ChunkDigest(bytes[..32].try_into().expect("32 bytes")),
        offset: u64::from_le_bytes(bytes[32..40].try_into().expect("8 bytes")),
        stored_bytes: word(40),
        raw_bytes: word(44),
        encoding: Encoding(bytes[48]),
        base: ChunkDigest(bytes[56..88].try_into().expect("32 bytes")),
    }
}

/// Writes a pack's index durably. Its pack's bytes must be durable already.
pub fn write_index(io: &dyn Io, layout: &Layout, id: PackId, entries: &[IndexEntry]) -> Result<()> {
    store_io::write_durably(io, &layout.pack_index(id), &encode_index(id, entries))
}

/// Reads a pack's index.
pub fn read_index(io: &dyn Io, layout: &Layout, id: PackId) -> Result<Vec<IndexEntry>> {
    let path = layout.pack_index(id);
    decode_index(&store_io::read_file(io, &path)?, id, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_round_trips_and_every_flipped_byte_is_noticed() {
        let id = PackId(0x1234_5678);
        let base = ChunkDigest::of(b"base");
        let delta =
            IndexEntry { encoding: Encoding(3), base, ..IndexEntry::raw(ChunkDigest::of(b"b"), 9, 7) };
        let entries = [IndexEntry::raw(ChunkDigest::of(b"a"), 0, 4 << 20), delta];
        let bytes = encode_index(id, &entries);
        let path = Path::new("x.idx");
        assert_eq!(decode_index(&bytes, id, path).unwrap(), entries);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode_index(&bad, id, path).is_err(), "byte {at}");
            assert!(decode_index(&bytes[..at], id, path).is_err(), "cut at {at}");
        }
        assert!(decode_index(&bytes, PackId(1), path).is_err());
    }

    #[test]
    fn ids_print_and_parse() {
        let id = PackId::random().unwrap();
        assert_eq!(id.to_string().parse::<PackId>(), Ok(id));
        assert!("12".parse::<PackId>().is_err());
    }
}
