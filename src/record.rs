//! Records: one self-describing JSON file for each seal, removal and move. With the packs they are enough to
//! rebuild every sealed tree.
//!
//! File form: `{"blake3": "<hex of the body's bytes>", "body": {...}}`, one line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::catalog::{Face, FileKind};
use crate::digest::{ChunkDigest, Sha256Digest};
use crate::error::{Result, StoreError};
use crate::io::{self as store_io, Io};
use crate::layout::Layout;
use crate::recipe::{Recipe, Segment};

const FORMAT: u32 = 1;

/// What happened to sealed trees, as one commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub format: u32,
    pub seq: u64,
    pub at_ns: i64,
    pub event: Event,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Trees came to be, in this order. `replaced` went first.
    Seal {
        trees: Vec<SealedTree>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        replaced: Vec<Change>,
        /// The recipes that the trees name, by the BLAKE3 of their binary form.
        recipes: BTreeMap<ChunkDigest, Vec<SegmentForm>>,
    },
    Change {
        changes: Vec<Change>,
    },
}

/// A tree that went, or got another path. Paths are relative to the mount, with slashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "change", rename_all = "lowercase")]
pub enum Change {
    Remove { path: String },
    Move { from: String, to: String },
    Exchange { from: String, to: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedTree {
    pub path: String,
    pub face: FaceName,
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaceName {
    Resumable,
    Portable,
    Release,
}

impl FaceName {
    pub fn of(face: Face) -> Option<Self> {
        match face {
            Face::Resumable => Some(Self::Resumable),
            Face::Portable => Some(Self::Portable),
            Face::Release => Some(Self::Release),
            Face::Moved => None,
        }
    }
}

/// A file or directory of a tree; the tree's own directory has the path "".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub path: String,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_ns: i64,
    /// Absent for a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<EntryFile>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryFile {
    pub size: u64,
    pub sha256: Sha256Digest,
    pub recipe: ChunkDigest,
    /// The pack whose bytes are this file, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
}

impl Entry {
    pub fn kind(&self) -> FileKind {
        if self.file.is_some() { FileKind::File } else { FileKind::Directory }
    }
}

/// A recipe segment as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum SegmentForm {
    /// Hex of the bytes.
    Literal(String),
    Chunk(ChunkDigest, u32),
    Zeros(u64),
}

impl SegmentForm {
    pub fn of(segment: &Segment) -> Self {
        match segment {
            Segment::Literal(bytes) => {
                Self::Literal(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
            }
            Segment::Chunk { digest, len_bytes } => Self::Chunk(*digest, *len_bytes),
            Segment::Zeros { len_bytes } => Self::Zeros(*len_bytes),
        }
    }

    fn segment(&self) -> Option<Segment> {
        Some(match self {
            Self::Literal(hex) => Segment::Literal(parse_hex(hex)?),
            Self::Chunk(digest, len_bytes) => Segment::Chunk { digest: *digest, len_bytes: *len_bytes },
            Self::Zeros(len_bytes) => Segment::Zeros { len_bytes: *len_bytes },
        })
    }
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits?;
    (digits.len() % 2 == 0).then(|| digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Turns the JSON form back into a recipe, which must have the name it is listed under.
pub fn recipe_from(name: ChunkDigest, segments: &[SegmentForm]) -> Option<Recipe> {
    let segments: Option<Vec<Segment>> = segments.iter().map(SegmentForm::segment).collect();
    let recipe = Recipe { segments: segments? };
    (ChunkDigest::of(&recipe.encode()) == name).then_some(recipe)
}

#[derive(Serialize)]
struct FileFormOut<'a> {
    blake3: ChunkDigest,
    body: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm<'a> {
    blake3: ChunkDigest,
    #[serde(borrow)]
    body: &'a RawValue,
}

impl Record {
    pub fn new(seq: u64, at_ns: i64, event: Event) -> Self {
        Self { format: FORMAT, seq, at_ns, event }
    }

    /// Writes the record durably under its number.
    pub fn write(&self, io: &dyn Io, layout: &Layout) -> Result<()> {
        let body = serde_json::to_string(self).expect("records are plain data");
        let blake3 = ChunkDigest::of(body.as_bytes());
        let body = RawValue::from_string(body).expect("just serialised");
        let mut bytes = serde_json::to_vec(&FileFormOut { blake3, body: &body }).expect("plain data");
        bytes.push(b'\n');
        store_io::write_durably(io, &layout.record(self.seq), &bytes)
    }

    pub fn read(io: &dyn Io, layout: &Layout, seq: u64) -> Result<Self> {
        let path = layout.record(seq);
        let bytes = store_io::read_file(io, &path)?;
        let corrupt = |detail: String| StoreError::Corrupt { path: path.clone(), detail };
        let form: FileForm<'_> =
            serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
        if ChunkDigest::of(form.body.get().as_bytes()) != form.blake3 {
            return Err(corrupt("checksum does not match".to_owned()));
        }
        let record: Self =
            serde_json::from_str(form.body.get()).map_err(|error| corrupt(error.to_string()))?;
        if record.format != FORMAT {
            let detail = format!("record format {} is not supported by this program", record.format);
            return Err(StoreError::UnsupportedFormat { path, detail });
        }
        if record.seq != seq {
            return Err(corrupt(format!("says that it is record {}", record.seq)));
        }
        Ok(record)
    }

    /// Lists the numbers of the records on disk, in order.
    pub fn list(io: &dyn Io, layout: &Layout) -> Result<Vec<u64>> {
        use crate::error::IoContext;
        let dir = layout.records();
        let names = io.list(&dir).at("list", &dir)?;
        let number = |name: &std::ffi::OsString| name.to_str()?.strip_suffix(".json")?.parse().ok();
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SystemIo;

    #[test]
    fn records_round_trip_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        SystemIo.create_dir_all(&layout.records()).unwrap();
        let recipe = Recipe {
            segments: vec![
                Segment::Literal(vec![0, 255, 7]),
                Segment::Chunk { digest: ChunkDigest::of(b"x"), len_bytes: 1 },
                Segment::Zeros { len_bytes: 1 << 40 },
            ],
        };
        let name = ChunkDigest::of(&recipe.encode());
        let forms: Vec<SegmentForm> = recipe.segments.iter().map(SegmentForm::of).collect();
        assert_eq!(recipe_from(name, &forms), Some(recipe));
        assert_eq!(recipe_from(ChunkDigest::of(b"other"), &forms), None);

        let tree =
            SealedTree { path: "runs/r/ckpt/step-000001".into(), face: FaceName::Resumable, entries: vec![] };
        let event = Event::Seal {
            trees: vec![tree],
            replaced: vec![Change::Remove { path: "x".into() }],
            recipes: BTreeMap::from([(name, forms)]),
        };
        let record = Record::new(3, 17, event);
        record.write(&SystemIo, &layout).unwrap();
        assert_eq!(Record::read(&SystemIo, &layout, 3).unwrap(), record);
        assert_eq!(Record::list(&SystemIo, &layout).unwrap(), [3]);

        let path = layout.record(3);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(6).position(|w| w == b"000001").unwrap();
        bytes[at] = b'1';
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(Record::read(&SystemIo, &layout, 3), Err(StoreError::Corrupt { .. })));
    }
}
