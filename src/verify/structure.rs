//! What a rebuild would rely on: that pack indexes and records are whole and agree with the catalog.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::Problem;
use crate::catalog::PackRow;
use crate::digest::ChunkDigest;
use crate::error::{IoContext, Result};
use crate::io::Io;
use crate::layout::Layout;
use crate::pack::{self, IndexEntry, PackId};
use crate::record::Record;
use crate::store::Store;

pub(super) fn problems(store: &Store) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let root = store.layout.root();
    let mut note = |path: &Path, what: String| {
        let path = path.strip_prefix(root).unwrap_or(path).display().to_string();
        problems.push(Problem { path, what });
    };
    if let Err(error) = store.catalog().check_integrity() {
        note(&store.layout.catalog(), error.to_string());
    }
    // Listed first: a pack is in the catalog, or pending, before its file exists.
    let on_disk = packs_on_disk(&*store.io, &store.layout)?;
    let (packs, pending) = store.read(|txn| Ok((txn.packs()?, txn.pending_packs()?)))?;
    for (row, id) in &packs {
        if let Some(what) = index_problem(store, *row, *id)? {
            note(&store.layout.pack_index(*id), what);
        }
    }
    let known: HashSet<PackId> = packs.iter().map(|(_, id)| *id).chain(pending).collect();
    for id in on_disk.iter().filter(|id| !known.contains(id)) {
        // One that is gone by now belonged to a settlement that was taken back.
        if store.io.metadata(&store.layout.pack(*id)).is_ok() {
            note(&store.layout.pack(*id), "the catalog does not know this pack".to_owned());
        }
    }
    for seq in Record::list(&*store.io, &store.layout)? {
        if let Err(error) = Record::read(&*store.io, &store.layout, seq) {
            note(&store.layout.record(seq), error.to_string());
        }
    }
    Ok(problems)
}

/// The index must promise every chunk that the catalog places in the pack. It may promise more: chunks that
/// were collected, as long as the pack is kept whole.
fn index_problem(store: &Store, row: PackRow, id: PackId) -> Result<Option<String>> {
    let listed = match pack::read_index(&*store.io, &store.layout, id) {
        Ok(entries) => entries,
        Err(error) => return Ok(Some(error.to_string())),
    };
    let mut missing = store.read(|txn| txn.pack_chunks(row))?;
    let listed: HashMap<ChunkDigest, IndexEntry> =
        listed.into_iter().map(|entry| (entry.digest, entry)).collect();
    missing.retain(|entry| listed.get(&entry.digest) != Some(entry));
    Ok(missing.first().map(|entry| {
        format!("{} chunks of the catalog are not in this index, {} the first", missing.len(), entry.digest)
    }))
}

fn packs_on_disk(io: &dyn Io, layout: &Layout) -> Result<Vec<PackId>> {
    let mut ids = Vec::new();
    for dir in io.list(&layout.packs()).at("list", &layout.packs())? {
        let dir = layout.packs().join(dir);
        let names = io.list(&dir).at("list", &dir)?;
        ids.extend(
            names.iter().filter_map(|name| name.to_str()?.strip_suffix(".pack")?.parse::<PackId>().ok()),
        );
    }
    Ok(ids)
}
