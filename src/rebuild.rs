//! Rebuilding the catalog from what the packs, their indexes and the records say.
//!
//! Every sealed tree comes back byte for byte, under the name it had last, with LATEST and latest. Raw files,
//! whose names stood in the catalog alone, come back under `lost+found/`. Plain files that had settled do not:
//! their recipes stood in the catalog only.
//!
//! The new catalog is made beside the old place and moved there last, so an interrupted rebuild leaves none.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use crate::catalog::{
    Catalog, Checkpoint, Durability, Face, FileKind, Inode, NewInode, PackRow, ROOT_INO, RecipeId, SealState,
    StoredRecipe, Txn,
};
use crate::digest::ChunkDigest;
use crate::error::{IoContext, Result, StoreError};
use crate::faces::{self, Derive, Planting};
use crate::io::{Io, SystemIo, unlink_if_present};
use crate::layout::Layout;
use crate::names::Step;
use crate::pack::{self, PackId};
use crate::policy;
use crate::record::{Change, Entry, Event, Record, SealedTree, SegmentForm, recipe_from};
use crate::store::{Store, plant_tree};
use crate::time::now_ns;

/// Where raw files without a name go.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// What a rebuild found.
#[derive(Debug, Default, Clone, serde::Serialize)]
pub struct Rebuilt {
    pub packs: u64,
    pub chunks: u64,
    pub records: u64,
    pub trees: u64,
    pub files: u64,
    /// Raw files that are now in lost+found.
    pub lost_and_found: u64,
    /// What could not be used, each with its file.
    pub problems: Vec<String>,
}

/// A sealed tree as the records tell it, and when it was sealed.
struct Told {
    tree: SealedTree,
    seq: u64,
    at_ns: i64,
}

/// Rebuilds the catalog of the store at `path`; new directories belong to `uid` and `gid`. A catalog that is
/// there is refused, unless `force`: then it is kept as `catalog.db.old`.
pub fn rebuild(path: &Path, force: bool, uid: u32, gid: u32) -> Result<Rebuilt> {
    let io: Arc<dyn Io> = Arc::new(SystemIo);
    let layout = Layout::new(path);
    let _lock = Store::lock_for_rebuild(&*io, &layout)?;
    let present = io.metadata(&layout.catalog()).is_ok();
    if present && !force {
        let why = "the catalog is there; a rebuild would forget the names of plain files (--force keeps it as \
                   catalog.db.old)";
        return Err(StoreError::Forbidden { what: layout.catalog().display().to_string(), why });
    }
    for dir in [layout.live_dir(), layout.records(), layout.packs()] {
        io.create_dir_all(&dir).at("create directory", &dir)?;
    }
    let fresh = layout.root().join("catalog.db.new");
    for suffix in ["", "-wal", "-shm"] {
        unlink_if_present(&*io, &with_suffix(&fresh, suffix))?;
    }
    let mut done = Rebuilt::default();
    let (told, recipes) = read_records(&*io, &layout, &mut done)?;
    let mut catalog = Catalog::open(&fresh)?;
    catalog.write(Durability::Durable, |txn| {
        let filling = Filling { io: &*io, layout: &layout, txn, uid, gid };
        filling.fill(&told, &recipes, &mut done)
    })?;
    catalog.checkpoint_wal()?;
    drop(catalog);
    for suffix in ["", "-wal", "-shm"] {
        let old = with_suffix(&layout.catalog(), suffix);
        if io.metadata(&old).is_ok() {
            let kept = with_suffix(&layout.catalog(), &format!(".old{suffix}"));
            io.rename(&old, &kept).at("keep the old catalog as", &kept)?;
        }
        let new = with_suffix(&fresh, suffix);
        if suffix.is_empty() {
            io.rename(&new, &old).at("rename into place", &old)?;
        } else {
            unlink_if_present(&*io, &new)?;
        }
    }
    io.sync_dir(layout.root()).at("sync directory", layout.root())?;
    Ok(done)
}

fn with_suffix(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

type Recipes = BTreeMap<ChunkDigest, Vec<SegmentForm>>;

/// Replays the records: which trees there are, under which paths.
fn read_records(
    io: &dyn Io,
    layout: &Layout,
    done: &mut Rebuilt,
) -> Result<(BTreeMap<String, Told>, Recipes)> {
    let mut trees = BTreeMap::new();
    let mut recipes = Recipes::new();
    for seq in Record::list(io, layout)? {
        let record = match Record::read(io, layout, seq) {
            Ok(record) => record,
            Err(error) => {
                done.problems.push(error.to_string());
                continue;
            }
        };
        done.records += 1;
        match record.event {
            Event::Change { changes } => changes.iter().for_each(|change| apply(&mut trees, change)),
            Event::Seal { trees: sealed, replaced, recipes: listed } => {
                replaced.iter().for_each(|change| apply(&mut trees, change));
                recipes.extend(listed);
                renew_portable(&mut trees, &sealed, seq);
                for (at, tree) in sealed.into_iter().enumerate() {
                    let order = seq * 2 + at as u64;
                    trees.insert(tree.path.clone(), Told { tree, seq: order, at_ns: record.at_ns });
                }
            }
        }
    }
    Ok((trees, recipes))
}

/// A step that was saved again with the same content kept its portable face, which became the newest.
fn renew_portable(trees: &mut BTreeMap<String, Told>, sealed: &[SealedTree], seq: u64) {
    let [only] = sealed else { return };
    let names: Vec<&[u8]> = only.path.split('/').map(str::as_bytes).collect();
    let Some(target) = policy::seal_target(&names).filter(|target| target.face == Face::Resumable) else {
        return;
    };
    let portable = policy::SealTarget::portable(&target.run, target.step).path();
    if let Some(kept) = trees.get_mut(&crate::subtree::join_path(&portable)) {
        kept.seq = seq * 2 + 1;
    }
}

/// Applies a removal or move to every tree at or below its path.
fn apply(trees: &mut BTreeMap<String, Told>, change: &Change) {
    let moved = |path: &str, from: &str, to: &str| match path.strip_prefix(from) {
        Some("") => Some(to.to_owned()),
        Some(below) if below.starts_with('/') => Some(format!("{to}{below}")),
        _ => None,
    };
    let renamed = |path: &str| match change {
        Change::Remove { path: gone } => moved(path, gone, "").map(|_| None),
        Change::Move { from, to } => moved(path, from, to).map(Some),
        Change::Exchange { from, to } => moved(path, from, to).or_else(|| moved(path, to, from)).map(Some),
    };
    let old = std::mem::take(trees);
    for (path, told) in old {
        match renamed(&path) {
            None => {
                trees.insert(path, told);
            }
            Some(None) => {}
            Some(Some(path)) => {
                trees.insert(path, told);
            }
        }
    }
}

struct Filling<'a> {
    io: &'a dyn Io,
    layout: &'a Layout,
    txn: &'a Txn<'a>,
    uid: u32,
    gid: u32,
}

impl Filling<'_> {
    fn fill(&self, told: &BTreeMap<String, Told>, recipes: &Recipes, done: &mut Rebuilt) -> Result<()> {
        let packs = self.read_packs(done)?;
        plant_tree(self.txn, self.uid, self.gid)?;
        // Raw files keep their inode numbers, so these are taken first.
        self.keep_raw_files(done)?;
        let mut runs = BTreeSet::new();
        for (path, tree) in told {
            match self.plant(path, tree, recipes, &packs, done) {
                Ok(checkpoint) => {
                    done.trees += 1;
                    runs.insert((checkpoint.run.clone(), checkpoint.face == Face::Portable));
                    self.txn.put_checkpoint(&checkpoint)?;
                }
                Err(error) => done.problems.push(format!("{path}: {error}")),
            }
        }
        for (run, portable) in runs {
            let face = if portable { Face::Portable } else { Face::Resumable };
            faces::derive_latest(self.txn, face, &run, Derive::Create, now_ns())?;
        }
        let last = Record::list(self.io, self.layout)?.last().copied().unwrap_or(0);
        self.txn.set_meta("last_record", last)
    }

    fn read_packs(&self, done: &mut Rebuilt) -> Result<BTreeMap<PackId, PackRow>> {
        let mut rows = BTreeMap::new();
        let packs = self.layout.packs();
        for dir in self.io.list(&packs).at("list", &packs)? {
            let dir = packs.join(dir);
            let Ok(names) = self.io.list(&dir) else { continue };
            for name in names {
                let id = Path::new(&name)
                    .file_stem()
                    .and_then(|stem| PackId::from_str(stem.to_str()?).ok())
                    .filter(|_| Path::new(&name).extension().is_some_and(|extension| extension == "pack"));
                let Some(id) = id else { continue };
                match self.read_pack(id) {
                    Ok((row, chunks)) => {
                        rows.insert(id, row);
                        done.packs += 1;
                        done.chunks += chunks;
                    }
                    Err(error) => done.problems.push(error.to_string()),
                }
            }
        }
        Ok(rows)
    }

    fn read_pack(&self, id: PackId) -> Result<(PackRow, u64)> {
        let path = self.layout.pack(id);
        let size = self.io.metadata(&path).at("stat", &path)?.len();
        let entries = pack::read_index(self.io, self.layout, id)?;
        let row = self.txn.put_pack(id)?;
        let mut chunks = 0;
        for entry in &entries {
            if entry.offset + u64::from(entry.stored_bytes) > size {
                return Err(StoreError::Truncated {
                    path,
                    detail: format!("chunk {} lies beyond its end", entry.digest),
                });
            }
            chunks += u64::from(self.txn.put_chunk(row, entry)?);
        }
        Ok((row, chunks))
    }

    fn keep_raw_files(&self, done: &mut Rebuilt) -> Result<()> {
        let dir = self.layout.live_dir();
        let names = self.io.list(&dir).at("list", &dir)?;
        let taken: HashSet<u64> = self.used_inodes()?;
        let mut inodes: Vec<u64> = names
            .iter()
            .filter_map(|name| name.to_str()?.parse().ok())
            .filter(|ino| !taken.contains(ino))
            .collect();
        inodes.sort_unstable();
        for ino in inodes {
            // A second name of a pack is what an adoption left behind, and not a file of its own.
            let path = self.layout.live(ino);
            if self.io.metadata(&path).at("stat", &path)?.nlink() > 1 {
                unlink_if_present(self.io, &path)?;
                continue;
            }
            let lost = self.lost_and_found()?;
            let new = NewInode::file(0o600, self.uid, self.gid, now_ns());
            self.txn.add_inode_numbered(ino, &new)?;
            self.txn.add_entry(lost, ino.to_string().as_bytes(), ino)?;
            self.txn.put_inode(&Inode { nlink: 1, raw: true, ..self.txn.inode(ino)? })?;
            done.lost_and_found += 1;
        }
        Ok(())
    }

    fn used_inodes(&self) -> Result<HashSet<u64>> {
        let mut used = HashSet::from([ROOT_INO]);
        used.extend(self.txn.list_dir(ROOT_INO)?.iter().map(|entry| entry.ino));
        Ok(used)
    }

    fn lost_and_found(&self) -> Result<u64> {
        match self.txn.lookup(ROOT_INO, LOST_AND_FOUND)? {
            Some(ino) => Ok(ino),
            None => {
                let new = NewInode::directory(0o700, self.uid, self.gid, now_ns());
                let high = self.highest_raw()? + 1;
                self.txn.reserve_inodes_to(high)?;
                Ok(self.txn.create(ROOT_INO, LOST_AND_FOUND, &new)?.ino)
            }
        }
    }

    fn highest_raw(&self) -> Result<u64> {
        let dir = self.layout.live_dir();
        let names = self.io.list(&dir).at("list", &dir)?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).max().unwrap_or(0))
    }

    fn plant(
        &self,
        path: &str,
        told: &Told,
        recipes: &Recipes,
        packs: &BTreeMap<PackId, PackRow>,
        done: &mut Rebuilt,
    ) -> Result<Checkpoint> {
        let names: Vec<Vec<u8>> = path.split('/').map(|name| name.as_bytes().to_vec()).collect();
        let likes: Vec<Inode> = told.tree.entries.iter().map(like).collect();
        let mut plantings = Vec::new();
        for (entry, like) in told.tree.entries.iter().zip(&likes) {
            let recipe = match &entry.file {
                None => None,
                Some(file) => {
                    done.files += 1;
                    let id = self.put_recipe(file, recipes, packs, path, &entry.path, done)?;
                    Some((id, file.size))
                }
            };
            plantings.push(Planting { path: &entry.path, like, recipe });
        }
        let top = likes
            .first()
            .ok_or_else(|| StoreError::Invalid { what: path.into(), why: "no entries".into() })?;
        let (name, parents) = names.split_last().expect("split gives at least one name");
        let parent_like = Inode { mode: 0o755, ..top.clone() };
        let parent = faces::ensure_dir(self.txn, parents, &parent_like, now_ns())?;
        let target = policy::seal_target(&names);
        let face = target.as_ref().map_or(Face::Moved, |target| target.face);
        let seal = if face == Face::Release { SealState::Released } else { SealState::Sealed };
        let root = faces::plant(self.txn, (parent, name), &plantings, seal, told.at_ns)?;
        let target = target.unwrap_or_else(|| policy::SealTarget::resumable("", Step(0)));
        Ok(Checkpoint {
            seq: told.seq,
            face,
            run: target.run,
            step: target.step,
            version: target.version,
            root,
            sealed_at_ns: told.at_ns,
            verified_at_ns: None,
        })
    }

    fn put_recipe(
        &self,
        file: &crate::record::EntryFile,
        recipes: &Recipes,
        packs: &BTreeMap<PackId, PackRow>,
        tree: &str,
        path: &str,
        done: &mut Rebuilt,
    ) -> Result<RecipeId> {
        let unknown =
            || StoreError::Corrupt { path: path.into(), detail: "its recipe is not in the records".into() };
        let recipe = recipes
            .get(&file.recipe)
            .and_then(|forms| recipe_from(file.recipe, forms))
            .ok_or_else(unknown)?;
        for (digest, _) in recipe.chunks() {
            if self.txn.chunk(digest)?.is_none() {
                done.problems.push(format!("{tree}/{path}: {}", StoreError::ChunkMissing { digest }));
            }
        }
        let pack = file.pack.as_ref().and_then(|pack| packs.get_key_value(&PackId::from_str(pack).ok()?));
        let whole =
            |id: &PackId| self.io.metadata(&self.layout.pack(*id)).is_ok_and(|stat| stat.len() == file.size);
        let whole_pack = pack.filter(|(id, _)| whole(id)).map(|(_, row)| *row);
        self.txn.put_recipe(StoredRecipe { recipe: &recipe, sha256: file.sha256, whole_pack })
    }
}

/// Gives an inode with the attributes that a record's entry tells.
fn like(entry: &Entry) -> Inode {
    Inode {
        ino: 0,
        kind: if entry.file.is_some() { FileKind::File } else { FileKind::Directory },
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        nlink: 1,
        rdev: 0,
        size_bytes: entry.file.as_ref().map_or(0, |file| file.size),
        atime_ns: entry.mtime_ns,
        mtime_ns: entry.mtime_ns,
        ctime_ns: entry.mtime_ns,
        raw: false,
        recipe: None,
        seal: SealState::Open,
        charged_bytes: 0,
    }
}
