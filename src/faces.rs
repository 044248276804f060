//! What follows from a seal: the portable face of a resumable step, and LATEST and latest.

use crate::catalog::{Face, Inode, NewInode, ROOT_INO, RecipeId, SealState, StoredRecipe, Txn};
use crate::digest::Sha256Digest;
use crate::error::{Result, StoreError};
use crate::names::Step;
use crate::policy;
use crate::recipe::Recipe;

/// One file or directory of a tree to be made: its path, the inode whose attributes it takes, its content.
pub(crate) struct Planting<'a> {
    pub path: &'a str,
    pub like: &'a Inode,
    /// None for a directory.
    pub recipe: Option<(RecipeId, u64)>,
}

/// Finds a directory, making it and its parents like `like` where they are missing.
pub(crate) fn ensure_dir(txn: &Txn<'_>, path: &[Vec<u8>], like: &Inode, now_ns: i64) -> Result<u64> {
    let mut at = ROOT_INO;
    for name in path {
        at = match txn.lookup(at, name)? {
            Some(ino) => ino,
            None => {
                let new = NewInode::directory(like.mode, like.uid, like.gid, now_ns);
                txn.create(at, name, &new)?.ino
            }
        };
    }
    if !txn.inode(at)?.is_dir() {
        return Err(StoreError::NotADirectory { what: crate::subtree::join_path(path) });
    }
    Ok(at)
}

/// Makes a sealed tree named `name` in `parent` out of settled content, parents before children; the first
/// planting is the tree's own directory. Gives the tree's root.
pub(crate) fn plant(
    txn: &Txn<'_>,
    (parent, name): (u64, &[u8]),
    plantings: &[Planting<'_>],
    seal: SealState,
    now_ns: i64,
) -> Result<u64> {
    let mut root = None;
    for planting in plantings {
        let (dir, name) = match root {
            None => (parent, name),
            Some(root) => {
                let (dir, name) = planting.path.rsplit_once('/').unwrap_or(("", planting.path));
                let mut at = root;
                for step in dir.split('/').filter(|part| !part.is_empty()) {
                    at = txn.child(at, step.as_bytes())?.ino;
                }
                (at, name.as_bytes())
            }
        };
        let like = planting.like;
        let new = match planting.recipe {
            None => NewInode::directory(like.mode, like.uid, like.gid, now_ns),
            Some(_) => NewInode::file(like.mode, like.uid, like.gid, now_ns),
        };
        let made = txn.create(dir, name, &new)?;
        if let Some((recipe, size_bytes)) = planting.recipe {
            let inode = Inode { recipe: Some(recipe), size_bytes, mtime_ns: like.mtime_ns, seal, ..made };
            txn.put_inode(&inode)?;
        }
        root = root.or(Some(made.ino));
    }
    let root = root.ok_or_else(|| StoreError::Invalid { what: "tree".into(), why: "it is empty".into() })?;
    // Making children moved the directories' times; their seal and times come last.
    for planting in plantings.iter().filter(|planting| planting.recipe.is_none()) {
        let mut at = root;
        for step in planting.path.split('/').filter(|part| !part.is_empty()) {
            at = txn.child(at, step.as_bytes())?.ino;
        }
        let inode = Inode { mtime_ns: planting.like.mtime_ns, seal, ..txn.inode(at)? };
        txn.put_inode(&inode)?;
    }
    Ok(root)
}

/// Says when LATEST and latest may come to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Derive {
    /// A seal makes them where they are missing.
    Create,
    /// A removal only moves those that are there: whoever deletes a whole run may have deleted them already.
    Move,
}

/// Brings LATEST and latest of a run into line with its newest sealed step. Gives the inodes that lost their
/// last name.
pub(crate) fn derive_latest(
    txn: &Txn<'_>,
    face: Face,
    run: &str,
    how: Derive,
    now_ns: i64,
) -> Result<Vec<u64>> {
    if !matches!(face, Face::Resumable | Face::Portable) {
        return Ok(vec![]);
    }
    let mut path =
        policy::SealTarget { face, run: run.to_owned(), step: Step(0), version: String::new() }.path();
    path.pop();
    let Some(dir) = txn.resolve(path.iter().map(Vec::as_slice))? else { return Ok(vec![]) };
    let newest = txn.newest(face, run)?.map(|checkpoint| checkpoint.step.dir_name());
    let mut orphans = Vec::new();
    for name in [policy::LATEST_FILE, policy::LATEST_LINK] {
        if policy::is_derived(face, name) {
            orphans.extend(derive_one(txn, &dir, name, newest.as_deref(), how, now_ns)?);
        }
    }
    Ok(orphans)
}

fn derive_one(
    txn: &Txn<'_>,
    dir: &Inode,
    name: &[u8],
    newest: Option<&str>,
    how: Derive,
    now_ns: i64,
) -> Result<Option<u64>> {
    let present = txn.lookup(dir.ino, name)?;
    if present.is_none() && how == Derive::Move {
        return Ok(None);
    }
    let mut orphan = None;
    if let (Some(ino), Some(step)) = (present, newest)
        && says(txn, ino, name, step)?
    {
        return Ok(None);
    }
    if present.is_some() {
        let gone = txn.unlink(dir.ino, name, now_ns)?;
        orphan = (gone.nlink == 0).then_some(gone.ino);
    }
    let Some(step) = newest else { return Ok(orphan) };
    let file = NewInode { seal: SealState::Derived, ..NewInode::file(0o644, dir.uid, dir.gid, now_ns) };
    if name == policy::LATEST_LINK {
        let target = Some(step.as_bytes().to_vec());
        let link = NewInode { kind: crate::catalog::FileKind::Symlink, mode: 0o777, target, ..file };
        txn.create(dir.ino, name, &link)?;
    } else {
        let inode = txn.create(dir.ino, name, &file)?;
        let content = format!("{step}\n").into_bytes();
        let size_bytes = content.len() as u64;
        let sha256 = Sha256Digest::of(&content);
        let recipe = Recipe::literal(content);
        let id = txn.put_recipe(StoredRecipe { recipe: &recipe, sha256, whole_pack: None })?;
        txn.put_inode(&Inode { recipe: Some(id), size_bytes, charged_bytes: size_bytes, ..inode })?;
    }
    Ok(orphan)
}

/// Says whether LATEST or latest names `step` already.
fn says(txn: &Txn<'_>, ino: u64, name: &[u8], step: &str) -> Result<bool> {
    if name == policy::LATEST_LINK {
        return Ok(txn.inode(ino)?.kind == crate::catalog::FileKind::Symlink
            && txn.symlink_target(ino)? == step.as_bytes());
    }
    let inode = txn.inode(ino)?;
    let content = Recipe::literal(format!("{step}\n").into_bytes());
    Ok(!inode.raw && inode.recipe.map(|id| txn.recipe(id)).transpose()? == Some(content))
}
