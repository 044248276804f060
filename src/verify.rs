//! Verification: every byte is read again and compared with what was recorded of it, twice over: each chunk
//! with its name, each file with its SHA-256 and its checkpoint's manifest.

mod image;
mod structure;

use std::collections::{BTreeMap, HashMap, HashSet};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::catalog::{Checkpoint, Durability, Face, RecipeId};
use crate::check::{self, Candidate, FileFacts, MAX_JSON_BYTES};
use crate::digest::Sha256Digest;
use crate::error::{Result, StoreError};
use crate::manifest::MANIFEST_FILE;
use crate::policy::SealTarget;
use crate::progress::{Meter, Watcher};
use crate::store::Store;
use crate::subtree::{Node, Subtree, join_path};
use crate::time::now_ns;

/// Something that is not as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Relative to the checkpoint, to the tree, or to the store, as the list says that it stands in.
    pub path: String,
    pub what: String,
}

/// What was found in one checkpoint, or in all plain files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// The checkpoint's path in the tree; empty for plain files.
    pub path: String,
    pub files: u64,
    pub bytes: u64,
    /// Every damaged file, not only the first.
    pub problems: Vec<Problem>,
}

/// What was found in a whole store, or in some of its checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    pub checkpoints: Vec<Verified>,
    /// Settled files outside checkpoints, by their path in the tree. None when they were not asked for.
    pub plain: Option<Verified>,
    /// Pack indexes, records and the catalog itself, by their path in the store.
    pub structure: Vec<Problem>,
}

impl Verification {
    pub fn is_sound(&self) -> bool {
        self.structure.is_empty()
            && self.checkpoints.iter().chain(&self.plain).all(|verified| verified.problems.is_empty())
    }
}

impl Store {
    /// Verifies one checkpoint and, if it is right and the store is open for writing, notes when.
    pub fn verify_checkpoint(&self, checkpoint: &Checkpoint, watcher: Watcher<'_>) -> Result<Verified> {
        let mut found = self.verify_checkpoints(std::slice::from_ref(checkpoint), watcher)?;
        Ok(found.pop().expect("one checkpoint gives one result"))
    }

    /// Verifies several checkpoints. Content that they share is read once.
    pub fn verify_checkpoints(
        &self,
        checkpoints: &[Checkpoint],
        watcher: Watcher<'_>,
    ) -> Result<Vec<Verified>> {
        let trees = self.read(|txn| {
            checkpoints
                .iter()
                .map(|checkpoint| Subtree::list(txn, checkpoint.root))
                .collect::<Result<Vec<_>>>()
        })?;
        let recipes = trees.iter().flat_map(Subtree::files).filter_map(|node| node.inode.recipe).collect();
        let contents = self.read_contents(recipes, watcher)?;
        checkpoints.iter().zip(&trees).map(|(one, tree)| self.judge(one, tree, &contents)).collect()
    }

    /// Verifies everything that the store holds.
    pub fn verify_all(&self, watcher: Watcher<'_>) -> Result<Verification> {
        let (checkpoints, inodes) = self.read(|txn| Ok((txn.checkpoints()?, txn.inode_recipes()?)))?;
        let contents = self.read_contents(inodes.iter().map(|(_, recipe)| *recipe).collect(), watcher)?;
        let mut sealed = HashSet::new();
        let mut verified = Vec::with_capacity(checkpoints.len());
        for checkpoint in &checkpoints {
            let tree = self.read(|txn| Subtree::list(txn, checkpoint.root))?;
            sealed.extend(tree.files().map(|node| node.inode.ino));
            verified.push(self.judge(checkpoint, &tree, &contents)?);
        }
        let mut plain = Verified { path: String::new(), files: 0, bytes: 0, problems: vec![] };
        for (ino, recipe) in inodes.iter().filter(|(ino, _)| !sealed.contains(ino)) {
            let Some(content) = contents.get(recipe) else { continue };
            plain.files += 1;
            plain.bytes += content.recorded.size_bytes;
            if let Err(what) = &content.sound {
                let path = self.read(|txn| Ok(txn.path_of(*ino)?.map(|path| join_path(&path))))?;
                let path = path.unwrap_or_else(|| format!("inode {ino}"));
                plain.problems.push(Problem { path, what: what.clone() });
            }
        }
        let structure = structure::problems(self)?;
        Ok(Verification { checkpoints: verified, plain: Some(plain), structure })
    }

    fn read_contents(
        &self,
        recipes: HashSet<RecipeId>,
        watcher: Watcher<'_>,
    ) -> Result<HashMap<RecipeId, Content>> {
        let rows =
            self.read(|txn| recipes.iter().map(|id| txn.recipe_row(*id)).collect::<Result<Vec<_>>>())?;
        let meter = Meter::new(rows.iter().map(|row| row.size_bytes).sum(), watcher);
        rows.par_iter()
            .map(|row| {
                let sound = match self.read_content(row.id, row.sha256, &meter) {
                    Err(StoreError::Interrupted) => return Err(StoreError::Interrupted),
                    found => found.map_err(|error| error.to_string()),
                };
                let recorded = FileFacts { size_bytes: row.size_bytes, sha256: row.sha256 };
                Ok((row.id, Content { recorded, sound }))
            })
            .collect()
    }

    /// Reads a recipe's bytes again, from every place that a reader may get them from.
    fn read_content(&self, id: RecipeId, recorded: Sha256Digest, meter: &Meter<'_>) -> Result<()> {
        let mut hasher = sha2::Sha256::new();
        self.file_reader(id)?.for_each_verified(&self.reader, |piece| {
            hasher.update(piece);
            meter.advance(piece.len())
        })?;
        image::check(self, id)?;
        let found = Sha256Digest(hasher.finalize().into());
        if found != recorded {
            let detail = format!("SHA-256 is {found}, {recorded} was recorded");
            return Err(StoreError::Corrupt { path: format!("recipe {}", id.0).into(), detail });
        }
        Ok(())
    }

    /// Compares a checkpoint's files with its manifest, and notes the time when everything is right.
    fn judge(
        &self,
        checkpoint: &Checkpoint,
        tree: &Subtree,
        contents: &HashMap<RecipeId, Content>,
    ) -> Result<Verified> {
        let mut verified =
            Verified { path: self.tree_path(checkpoint)?, files: 0, bytes: 0, problems: vec![] };
        let mut files = BTreeMap::new();
        for node in tree.files() {
            let Some(content) = node.inode.recipe.and_then(|recipe| contents.get(&recipe)) else {
                let what = "has no settled content".to_owned();
                verified.problems.push(Problem { path: node.path.clone(), what });
                continue;
            };
            verified.files += 1;
            verified.bytes += content.recorded.size_bytes;
            files.insert(node.path.clone(), content.recorded);
            if let Err(what) = &content.sound {
                verified.problems.push(Problem { path: node.path.clone(), what: what.clone() });
            }
        }
        verified.problems.extend(self.manifest_problems(checkpoint, tree, &files)?);
        if verified.problems.is_empty() && self.writable() {
            self.write(Durability::Ordered, |txn| txn.set_verified(checkpoint.root, now_ns()))?;
        }
        Ok(verified)
    }

    fn manifest_problems(
        &self,
        checkpoint: &Checkpoint,
        tree: &Subtree,
        files: &BTreeMap<String, FileFacts>,
    ) -> Result<Vec<Problem>> {
        let by_path: HashMap<&str, &Node> = tree.files().map(|node| (node.path.as_str(), node)).collect();
        let read = |path: &str| match by_path.get(path) {
            Some(node) => self.read_whole(&node.inode, MAX_JSON_BYTES),
            None => Err(StoreError::NotFound { what: path.to_owned() }),
        };
        let target = target_of(checkpoint, files.contains_key(MANIFEST_FILE));
        let reasons = match check::check(&target, &Candidate { files, read: &read }) {
            Ok(Ok(_)) => vec![],
            Ok(Err(reasons)) => reasons,
            // An unreadable manifest is on the list already, as a damaged file.
            Err(_) => vec![],
        };
        Ok(reasons.iter().map(|reason| problem_of(reason)).collect())
    }
}

/// A recipe's content as found.
struct Content {
    recorded: FileFacts,
    /// Why it is not, otherwise.
    sound: Result<(), String>,
}

/// Says what a checkpoint was sealed as; one that was moved away is still held to it.
fn target_of(checkpoint: &Checkpoint, has_manifest: bool) -> SealTarget {
    let Checkpoint { face, run, step, version, .. } = checkpoint.clone();
    let face = match face {
        Face::Moved if !version.is_empty() => Face::Release,
        Face::Moved if has_manifest => Face::Resumable,
        Face::Moved => Face::Portable,
        kept => kept,
    };
    SealTarget { face, run, step, version }
}

/// A check's reasons begin with the file that they are about.
fn problem_of(reason: &str) -> Problem {
    let (path, what) = reason.split_once(": ").unwrap_or((MANIFEST_FILE, reason));
    Problem { path: path.to_owned(), what: what.to_owned() }
}
