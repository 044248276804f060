//! Recipes: the ordered chunks and literal bytes that make one file, byte for byte.
//!
//! Binary form, little-endian, one segment after another (docs/FORMAT.md): a tag byte, then
//! `0` literal: u32 length, bytes; `1` chunk: u32 length, 32-byte digest; `2` zeros: u64 length.

use crate::digest::ChunkDigest;

/// The largest chunk, in raw bytes.
pub const MAX_CHUNK_BYTES: u32 = 4 << 20;

/// One stretch of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    Literal(Vec<u8>),
    Chunk {
        digest: ChunkDigest,
        len_bytes: u32,
    },
    /// A hole that was never written.
    Zeros {
        len_bytes: u64,
    },
}

impl Segment {
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Literal(bytes) => bytes.len() as u64,
            Self::Chunk { len_bytes, .. } => u64::from(*len_bytes),
            Self::Zeros { len_bytes } => *len_bytes,
        }
    }
}

/// Describes a file's content. Two files with the same recipe have the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipe {
    pub segments: Vec<Segment>,
}

/// Reports bytes that are not a recipe.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a recipe: {what} at byte {at}")]
pub struct RecipeError {
    pub what: &'static str,
    pub at: usize,
}

const LITERAL: u8 = 0;
const CHUNK: u8 = 1;
const ZEROS: u8 = 2;

impl Recipe {
    /// Makes the recipe of a small file kept whole.
    pub fn literal(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() { Self::default() } else { Self { segments: vec![Segment::Literal(bytes)] } }
    }

    pub fn size_bytes(&self) -> u64 {
        self.segments.iter().map(Segment::len_bytes).sum()
    }

    /// Bytes that stand in the recipe itself.
    pub fn literal_bytes(&self) -> u64 {
        let literal = |segment: &Segment| matches!(segment, Segment::Literal(_));
        self.segments.iter().filter(|s| literal(s)).map(Segment::len_bytes).sum()
    }

    pub fn chunks(&self) -> impl Iterator<Item = (ChunkDigest, u32)> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Chunk { digest, len_bytes } => Some((*digest, *len_bytes)),
            Segment::Literal(_) | Segment::Zeros { .. } => None,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.segments.len() * 37);
        for segment in &self.segments {
            match segment {
                Segment::Literal(bytes) => {
                    out.push(LITERAL);
                    let len = u32::try_from(bytes.len()).expect("literals are far below 4 GiB");
                    out.extend_from_slice(&len.to_le_bytes());
                    out.extend_from_slice(bytes);
                }
                Segment::Chunk { digest, len_bytes } => {
                    out.push(CHUNK);
                    out.extend_from_slice(&len_bytes.to_le_bytes());
                    out.extend_from_slice(&digest.0);
                }
                Segment::Zeros { len_bytes } => {
                    out.push(ZEROS);
                    out.extend_from_slice(&len_bytes.to_le_bytes());
                }
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecipeError> {
        let mut input = Input { bytes, at: 0 };
        let mut segments = Vec::with_capacity(bytes.len() / 37);
        while input.at < bytes.len() {
            let segment = match input.array::<1>()?[0] {
                LITERAL => {
                    let len = u32::from_le_bytes(input.array()?);
                    Segment::Literal(input.take(len as usize)?.to_vec())
                }
                CHUNK => {
                    let len_bytes = u32::from_le_bytes(input.array()?);
                    Segment::Chunk { digest: ChunkDigest(input.array()?), len_bytes }
                }
                ZEROS => Segment::Zeros { len_bytes: u64::from_le_bytes(input.array()?) },
                _ => return Err(RecipeError { what: "unknown segment tag", at: input.at - 1 }),
            };
            segments.push(segment);
        }
        let recipe = Self { segments };
        let total =
            recipe.segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.len_bytes()));
        match total {
            Some(total) if i64::try_from(total).is_ok() => Ok(recipe),
            _ => Err(RecipeError { what: "total size overflows", at: bytes.len() }),
        }
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], RecipeError> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(RecipeError { what: "ends early", at: self.at })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecipeError> {
        Ok(self.take(N)?.try_into().expect("take gives exactly N bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment() -> impl Strategy<Value = Segment> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 1..50).prop_map(Segment::Literal),
            (any::<[u8; 32]>(), 1..=MAX_CHUNK_BYTES)
                .prop_map(|(digest, len_bytes)| Segment::Chunk { digest: ChunkDigest(digest), len_bytes }),
            (1..1u64 << 40).prop_map(|len_bytes| Segment::Zeros { len_bytes }),
        ]
    }

    proptest! {
        #[test]
        fn encoding_round_trips(segments in prop::collection::vec(segment(), 0..20)) {
            let recipe = Recipe { segments };
            prop_assert_eq!(Recipe::decode(&recipe.encode()).unwrap(), recipe);
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Recipe::decode(&bytes);
        }

        #[test]
        fn truncation_is_an_error_or_a_shorter_recipe(segments in prop::collection::vec(segment(), 1..5)) {
            let bytes = Recipe { segments: segments.clone() }.encode();
            if let Ok(short) = Recipe::decode(&bytes[..bytes.len() - 1]) {
                prop_assert!(short.segments.len() < segments.len());
            }
        }
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let huge = Recipe { segments: vec![Segment::Zeros { len_bytes: u64::MAX }; 2] };
        assert!(Recipe::decode(&huge.encode()).is_err());
    }
}
