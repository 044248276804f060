//! The names of an import: what it is to be called, and what it is called until then.

use std::path::Path;

use super::SourceLayout;
use crate::catalog::{Face, ROOT_INO, Txn};
use crate::error::{IoContext, Result, StoreError};
use crate::names::Step;
use crate::pack::PackId;
use crate::policy::{self, SealTarget};

/// The temporary directories' names: this, 32 hexadecimal digits, `.tmp`.
pub(super) const TEMPORARY_PREFIX: &str = ".tinyllm-import-";
const TEMPORARY_SUFFIX: &str = ".tmp";

/// A name with the directory that it stands in.
pub(super) type Name = (u64, Vec<u8>);

/// Reads the name that a directory of this layout is to have.
pub(super) fn target_named(name: &str, layout: SourceLayout) -> Result<SealTarget> {
    let bad = |why| StoreError::BadName { text: name.to_owned(), why };
    let names: Vec<&str> = name.trim_matches('/').split('/').collect();
    if let [run, step] = names.as_slice()
        && let Some(step) = Step::from_spelling(step)
    {
        let target = match layout {
            SourceLayout::TinyLlm => SealTarget::resumable(run, step),
            SourceLayout::Portable | SourceLayout::HuggingFace => SealTarget::portable(run, step),
        };
        let why = "a run's name is a letter or digit, then up to 127 letters, digits, '.', '_' or '-'";
        return policy::seal_target(&target.path()).ok_or_else(|| bad(why));
    }
    let target = policy::seal_target(&names)
        .ok_or_else(|| bad("a checkpoint's name is <run>/step-<n>, models/<model>/<version> or its path"))?;
    if layout == SourceLayout::HuggingFace && target.face != Face::Portable {
        return Err(bad("a directory without a manifest can only become <run>/step-<n> of checkpoints/"));
    }
    Ok(target)
}

pub(super) fn temporary_name() -> Result<Vec<u8>> {
    let id = PackId::random().at("draw random bytes for", Path::new(TEMPORARY_PREFIX))?;
    Ok(format!("{TEMPORARY_PREFIX}{id}{TEMPORARY_SUFFIX}").into_bytes())
}

pub(super) fn is_temporary(name: &[u8]) -> bool {
    let id = std::str::from_utf8(name)
        .ok()
        .and_then(|name| name.strip_prefix(TEMPORARY_PREFIX)?.strip_suffix(TEMPORARY_SUFFIX));
    id.is_some_and(|id| id.parse::<PackId>().is_ok())
}

/// Lists the names of a path as far as they exist.
pub(super) fn names_along(txn: &Txn<'_>, path: &[Vec<u8>]) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    let mut at = ROOT_INO;
    for name in path {
        let Some(ino) = txn.lookup(at, name)? else { break };
        names.push((at, name.clone()));
        at = ino;
    }
    Ok(names)
}

/// Lists the directories that checkpoints stand in.
pub(super) fn checkpoint_dirs(txn: &Txn<'_>) -> Result<Vec<u64>> {
    let mut dirs = Vec::new();
    for (view, below) in
        [(policy::RUNS, Some(policy::CKPT)), (policy::CHECKPOINTS, None), (policy::MODELS, None)]
    {
        let Some(view) = txn.resolve([view])? else { continue };
        for entry in txn.list_dir(view.ino)? {
            dirs.extend(match below {
                Some(name) => txn.lookup(entry.ino, name)?,
                None => Some(entry.ino),
            });
        }
    }
    Ok(dirs)
}
