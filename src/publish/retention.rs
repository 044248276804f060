//! Step 6 of the protocol: removing old steps and what dead writers left.

use std::fs;
use std::io;
use std::path::Path;

use super::{
    IoContext as _, LATEST_TMP_FILE, PublishError, TMP_SUFFIX, directory_names, list_steps, read_latest,
    remove_tree, sync_dir, tmp_path,
};
use crate::names::Step;

/// Removes the steps beyond the `keep` numerically newest and every stale `step-*.tmp`; returns the removed
/// steps. The step that LATEST names and the steps of `protect` stay whatever their number. Only exact step
/// names are looked at, so `step-000100.backup` is never touched.
///
/// The caller must be the directory's only writer, since a living writer's `.tmp` looks like a dead one's.
///
/// A step is renamed to its `.tmp` name before its files go: a crash in between leaves a stale `.tmp`, never a
/// step with missing files under its final name.
pub fn prune(ckpt_dir: &Path, keep: usize, protect: &[Step]) -> Result<Vec<Step>, PublishError> {
    if keep == 0 {
        return Err(PublishError::KeepZero);
    }
    let newest = read_latest(ckpt_dir)?;
    remove_stale(ckpt_dir)?;
    let steps = list_steps(ckpt_dir)?;
    let removed: Vec<Step> = steps[..steps.len().saturating_sub(keep)]
        .iter()
        .copied()
        .filter(|step| Some(*step) != newest && !protect.contains(step))
        .collect();
    for step in &removed {
        let (path, doomed) = (ckpt_dir.join(step.dir_name()), tmp_path(ckpt_dir, *step));
        fs::rename(&path, &doomed).context("renaming away", &path)?;
        remove_tree(&doomed)?;
    }
    if !removed.is_empty() {
        sync_dir(ckpt_dir)?;
    }
    Ok(removed)
}

fn remove_stale(ckpt_dir: &Path) -> Result<(), PublishError> {
    for name in directory_names(ckpt_dir)? {
        if name.starts_with("step-") && name.ends_with(TMP_SUFFIX) {
            remove_tree(&ckpt_dir.join(name))?;
        }
    }
    let latest_tmp = ckpt_dir.join(LATEST_TMP_FILE);
    match fs::remove_file(&latest_tmp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context("removing", &latest_tmp),
        _ => Ok(()),
    }
}
