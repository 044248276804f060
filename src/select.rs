//! Finds checkpoints by what people type: full names, `<run>/step-<n>`, `<run>/latest`, and paths of the tree.

use crate::catalog::{Checkpoint, Face, Txn};
use crate::check::{MAX_JSON_BYTES, PORTABLE_MANIFEST_FILE};
use crate::error::{Result, StoreError};
use crate::manifest::{CheckpointManifest, MANIFEST_FILE, Manifest};
use crate::names::{Step, full_name};
use crate::policy;
use crate::store::Store;
use crate::subtree::join_path;

/// How many candidates an error lists.
const NEAREST: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Step(Step),
    Latest,
}

impl Which {
    fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("latest") {
            return Some(Self::Latest);
        }
        Step::from_spelling(text).map(Self::Step)
    }
}

/// A checkpoint's name without its place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name<'a> {
    /// Given in full names only.
    base_model: Option<&'a str>,
    run: &'a str,
    which: Which,
}

impl<'a> Name<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        // From the right, since base models' names may hold ':' and '/'.
        let mut parts = text.rsplitn(3, ':');
        if let (Some(which), Some(run), Some(base)) = (parts.next(), parts.next(), parts.next())
            && let Some(which) = Which::parse(which)
        {
            return Some(Self { base_model: Some(base), run, which });
        }
        let (run, which) = text.rsplit_once('/')?;
        let which = Which::parse(which)?;
        (!run.contains('/')).then_some(Self { base_model: None, run, which })
    }
}

impl Store {
    /// Finds the one checkpoint that `text` names. A name without a face gives the resumable one, if it is
    /// still there. Absence is `NoCheckpoint` with the nearest that exist.
    pub fn select(&self, text: &str) -> Result<Checkpoint> {
        let name = Name::parse(text);
        let (by_path, by_name) = self.read(|txn| {
            Ok((at_path(txn, text)?, name.map(|name| named(txn, name)).transpose()?.flatten()))
        })?;
        match (by_path, by_name) {
            (Some(placed), Some(named)) if placed.root != named.root => Err(StoreError::Ambiguous {
                what: text.to_owned(),
                candidates: vec![self.tree_path(&placed)?, self.tree_path(&named)?],
            }),
            (None, Some(found)) if name.is_some_and(|name| name.base_model.is_some()) => {
                self.check_full_name(text, found)
            }
            (Some(found), _) | (None, Some(found)) => Ok(found),
            (None, None) => {
                let near = self.read(|txn| nearest(txn, text, name))?;
                Err(StoreError::NoCheckpoint { what: text.to_owned(), near })
            }
        }
    }

    /// Gives the faces of the record that a checkpoint belongs to, itself included.
    pub fn faces_of(&self, checkpoint: &Checkpoint) -> Result<Vec<Checkpoint>> {
        if !matches!(checkpoint.face, Face::Resumable | Face::Portable) {
            return Ok(vec![checkpoint.clone()]);
        }
        let faces = [Face::Resumable, Face::Portable];
        let find = |txn: &Txn<'_>| {
            faces.iter().map(|face| txn.checkpoint(*face, &checkpoint.run, checkpoint.step)).collect()
        };
        let found: Vec<Option<Checkpoint>> = self.read(find)?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Spells where a checkpoint stands in the tree.
    pub fn tree_path(&self, checkpoint: &Checkpoint) -> Result<String> {
        self.read(|txn| Ok(join_path(&txn.path_of(checkpoint.root)?.unwrap_or_default())))
    }

    /// Reads a checkpoint's full name from its sealed manifest. None for a release.
    pub fn full_name(&self, checkpoint: &Checkpoint) -> Result<Option<String>> {
        let what = self.tree_path(checkpoint)?;
        let invalid = |file: &str, error: &dyn std::fmt::Display| StoreError::Invalid {
            what: format!("{what}/{file}"),
            why: error.to_string(),
        };
        if let Some(bytes) = self.read_member(checkpoint, MANIFEST_FILE)? {
            let manifest = Manifest::parse(&bytes).map_err(|error| invalid(MANIFEST_FILE, &error))?;
            return Ok(manifest.full_name());
        }
        let Some(bytes) = self.read_member(checkpoint, PORTABLE_MANIFEST_FILE)? else { return Ok(None) };
        let manifest =
            CheckpointManifest::parse(&bytes).map_err(|error| invalid(PORTABLE_MANIFEST_FILE, &error))?;
        Ok(Some(manifest.name))
    }

    /// Reads one of a checkpoint's small files. None when it has no such file.
    fn read_member(&self, checkpoint: &Checkpoint, file: &str) -> Result<Option<Vec<u8>>> {
        let inode = self.read(|txn| match txn.lookup(checkpoint.root, file.as_bytes())? {
            Some(ino) => txn.find_inode(ino),
            None => Ok(None),
        })?;
        inode.map(|inode| self.read_whole(&inode, MAX_JSON_BYTES)).transpose()
    }

    /// The base model counts too: two lineages may have used one run name.
    fn check_full_name(&self, text: &str, found: Checkpoint) -> Result<Checkpoint> {
        let name = self.full_name(&found)?;
        let wanted = Name::parse(text).and_then(|n| Some(full_name(n.base_model?, &found.run, found.step)));
        if name == wanted {
            return Ok(found);
        }
        let near = format!("the store has {}", name.unwrap_or_default());
        Err(StoreError::NoCheckpoint { what: text.to_owned(), near })
    }
}

fn named(txn: &Txn<'_>, name: Name<'_>) -> Result<Option<Checkpoint>> {
    match name.which {
        Which::Step(step) => match txn.checkpoint(Face::Resumable, name.run, step)? {
            None => txn.checkpoint(Face::Portable, name.run, step),
            found => Ok(found),
        },
        Which::Latest => {
            let resumable = txn.newest(Face::Resumable, name.run)?;
            let portable = txn.newest(Face::Portable, name.run)?;
            // One seal numbers the faces that it makes 2n and 2n + 1.
            Ok(match (resumable, portable) {
                (Some(r), Some(p)) => Some(if p.seq / 2 > r.seq / 2 { p } else { r }),
                (r, p) => r.or(p),
            })
        }
    }
}

/// Finds the checkpoint at a path of the tree; its step may be unpadded, LATEST and latest are followed.
fn at_path(txn: &Txn<'_>, text: &str) -> Result<Option<Checkpoint>> {
    let names: Vec<&[u8]> = path_names(text);
    let Some((last, dir)) = names.split_last() else { return Ok(None) };
    if let Some((face, run)) = policy::latest_home(dir)
        && [policy::LATEST_FILE, policy::LATEST_LINK].contains(last)
    {
        return txn.newest(face, &run);
    }
    let step =
        std::str::from_utf8(last).ok().filter(|l| l.starts_with("step-")).and_then(Step::from_spelling);
    let padded = step.map(|step| step.dir_name().into_bytes());
    for last in [Some(*last), padded.as_deref()].into_iter().flatten() {
        let path = dir.iter().copied().chain([last]);
        if let Some(inode) = txn.resolve(path)?
            && let Some(found) = txn.checkpoint_at(inode.ino)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn path_names(text: &str) -> Vec<&[u8]> {
    text.split('/').filter(|name| !matches!(*name, "" | ".")).map(str::as_bytes).collect()
}

/// Says what there is, closest first, to someone who asked for what there is not.
fn nearest(txn: &Txn<'_>, text: &str, name: Option<Name<'_>>) -> Result<String> {
    let all = txn.checkpoints()?;
    if all.is_empty() {
        return Ok("the store holds no checkpoints yet".to_owned());
    }
    let names = path_names(text);
    let target = policy::seal_target(&names);
    let home = names.split_last().and_then(|(_, dir)| policy::latest_home(dir));
    let (run, step) = match (name, &target, &home) {
        (_, Some(target), _) => (target.run.as_str(), Some(target.step)),
        (_, _, Some((_, run))) => (run.as_str(), None),
        (Some(Name { run, which: Which::Step(step), .. }), ..) => (run, Some(step)),
        (Some(Name { run, .. }), ..) => (run, None),
        _ => (text, None),
    };
    let mut steps: Vec<Step> =
        all.iter().filter(|c| c.run == run && c.version.is_empty()).map(|c| c.step).collect();
    steps.dedup();
    let versions: Vec<&Checkpoint> = all.iter().filter(|c| c.run == run && !c.version.is_empty()).collect();
    if !steps.is_empty() {
        return Ok(near_steps(run, steps, step));
    }
    if !versions.is_empty() {
        let names: Vec<&str> = versions.iter().rev().take(NEAREST).map(|c| c.version.as_str()).collect();
        return Ok(format!("model {run} has the versions {}", names.join(", ")));
    }
    let mut runs: Vec<&str> = all.iter().map(|checkpoint| checkpoint.run.as_str()).collect();
    runs.dedup();
    let (count, alike) = (runs.len(), |other: &str| {
        std::cmp::Reverse(other.bytes().zip(run.bytes()).take_while(|(a, b)| a == b).count())
    });
    runs.sort_by_key(|run| alike(run));
    runs.truncate(NEAREST);
    Ok(format!("the store has {}{}", runs.join(", "), more(count)))
}

fn near_steps(run: &str, mut steps: Vec<Step>, wanted: Option<Step>) -> String {
    let count = steps.len();
    let wanted = wanted.unwrap_or(Step(u64::MAX));
    steps.sort_by_key(|step| step.0.abs_diff(wanted.0));
    steps.truncate(NEAREST);
    steps.sort_unstable();
    let names: Vec<String> = steps.iter().map(|step| step.dir_name()).collect();
    format!("run {run} has {}{}", names.join(", "), more(count))
}

fn more(count: usize) -> String {
    if count > NEAREST { format!(" (the nearest of {count})") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_right() {
        let name = |base_model, run, which| Some(Name { base_model, run, which });
        let step = Which::Step(Step(500));
        assert_eq!(Name::parse("org/m:8b:a:step-500"), name(Some("org/m:8b"), "a", step));
        assert_eq!(Name::parse("m:a:latest"), name(Some("m"), "a", Which::Latest));
        assert_eq!(Name::parse("a/step-000500"), name(None, "a", step));
        assert_eq!(Name::parse("a/500"), name(None, "a", step));
        assert_eq!(Name::parse("a/LATEST"), name(None, "a", Which::Latest));
        for other in ["a", "a/b", "a:step-500", "runs/a/ckpt/step-000500", "models/m/v1", ""] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
