//! Packs that are a file as a whole.
//!
//! Such a file is served by the kernel straight from the pack, past the recipe. So the bytes between the
//! chunks, whose truth otherwise stands in the recipe, have to be right in the pack too.

use crate::catalog::RecipeId;
use crate::digest::ChunkDigest;
use crate::error::{IoContext, Result, StoreError};
use crate::io::{OpenMode, read_exact_at};
use crate::recipe::Segment;
use crate::store::Store;

const PIECE_BYTES: u64 = 1 << 20;

/// Checks the pack that is this recipe's file, if one is. Chunks that the catalog places in it at their own
/// offset are left out: reading the recipe has checked them.
pub(super) fn check(store: &Store, id: RecipeId) -> Result<()> {
    let (row, recipe, elsewhere) = store.read(|txn| {
        let (row, recipe) = (txn.recipe_row(id)?, txn.recipe(id)?);
        let mut elsewhere = Vec::with_capacity(recipe.segments.len());
        let mut at = 0;
        for segment in &recipe.segments {
            let placed = match segment {
                Segment::Chunk { digest, .. } => txn.chunk(*digest)?,
                Segment::Literal(_) | Segment::Zeros { .. } => None,
            };
            elsewhere.push(!placed.is_some_and(|p| Some(p.pack) == row.whole_pack && p.entry.offset == at));
            at += segment.len_bytes();
        }
        Ok((row, recipe, elsewhere))
    })?;
    let Some(pack) = row.whole_pack else { return Ok(()) };
    let path = store.layout.pack(pack);
    let file = store.io.open(&path, OpenMode::Read).at("open", &path)?;
    let found_bytes = file.metadata().at("stat", &path)?.len();
    let corrupt = |detail: String| StoreError::Corrupt { path: path.clone(), detail };
    if found_bytes != row.size_bytes {
        return Err(corrupt(format!("{found_bytes} bytes, {} were recorded", row.size_bytes)));
    }
    let read = |at: u64, len_bytes: u64| {
        let mut bytes = vec![0; usize::try_from(len_bytes).expect("pieces fit in memory")];
        read_exact_at(&*store.io, &file, &mut bytes, at, &path).map(|()| bytes)
    };
    let mut at = 0;
    for (segment, elsewhere) in recipe.segments.iter().zip(elsewhere) {
        let len_bytes = segment.len_bytes();
        let same = match segment {
            _ if !elsewhere => true,
            Segment::Literal(bytes) => read(at, len_bytes)? == *bytes,
            Segment::Chunk { digest, .. } => ChunkDigest::of(&read(at, len_bytes)?) == *digest,
            Segment::Zeros { .. } => all_zeros(at, len_bytes, &read)?,
        };
        if !same {
            let detail = format!("bytes {at} to {} are not those that were written", at + len_bytes);
            return Err(corrupt(detail));
        }
        at += len_bytes;
    }
    Ok(())
}

fn all_zeros(start: u64, len_bytes: u64, read: &dyn Fn(u64, u64) -> Result<Vec<u8>>) -> Result<bool> {
    let (mut at, end) = (start, start + len_bytes);
    while at < end {
        let piece = PIECE_BYTES.min(end - at);
        if read(at, piece)?.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += piece;
    }
    Ok(true)
}
