//! The two directories that are compared.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::memory::sync_disk;

/// Where the same work is done twice.
#[derive(Debug)]
pub struct Sides {
    /// In the mount.
    pub ours: PathBuf,
    /// On the store's own disk.
    pub theirs: PathBuf,
    pub between: Option<String>,
    pub rounds: usize,
}

/// One round's times.
#[derive(Debug, Clone, Copy)]
pub struct Pair<T = Duration> {
    pub ours: T,
    pub theirs: T,
}

impl<T> Pair<T> {
    pub fn map<U>(self, change: impl Fn(T) -> U) -> Pair<U> {
        Pair { ours: change(self.ours), theirs: change(self.theirs) }
    }
}

impl Sides {
    /// Does `work` on each side, the one that begins changing with `round`.
    pub fn measure<T>(
        &self,
        round: usize,
        mut work: impl FnMut(&Path) -> anyhow::Result<T>,
    ) -> anyhow::Result<Pair<T>> {
        let mut ours_first = || -> anyhow::Result<(T, T)> {
            if round.is_multiple_of(2) {
                let ours = work(&self.ours).context("in the mount")?;
                Ok((ours, work(&self.theirs).context("on the plain directory")?))
            } else {
                let theirs = work(&self.theirs).context("on the plain directory")?;
                Ok((work(&self.ours).context("in the mount")?, theirs))
            }
        };
        let (ours, theirs) = ours_first()?;
        Ok(Pair { ours, theirs })
    }

    /// Has the disk idle before the next measurement.
    pub fn settle_disk(&self) -> anyhow::Result<()> {
        sync_disk(&self.theirs)
    }

    /// Runs the command that comes between rounds, and waits until the disks are quiet.
    pub fn rest(&self) -> anyhow::Result<()> {
        if let Some(command) = &self.between {
            let status = Command::new("sh").args(["-c", command]).status().context("starting sh")?;
            if !status.success() {
                bail!("{command:?} failed: {status}");
            }
        }
        self.settle_disk()
    }
}
