//! Statistics: how much there is, how much disk it takes, and who alone holds what.
//!
//! "Holding" is by record: both faces of one step are one holder, each release and each sealed tree that was
//! moved away is one, and all plain files together are one. Bytes that one holder alone has are `unique`: they
//! are what removing it would give back. Bytes that several have are stored once and counted as `shared`.

mod disk;
mod holders;

use serde::{Deserialize, Serialize};

use crate::catalog::{Checkpoint, Face};
use crate::error::Result;
use crate::record::FaceName;
use crate::store::Store;
use crate::subtree::Subtree;
use crate::time::rfc3339;

pub use disk::DiskUsage;
use holders::{Census, Group, HolderId};

/// Statistics of a whole store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// What all files have in sum, as `ls -l` shows them. A file with several hard links counts once.
    pub logical_bytes: u64,
    /// Content that one holder alone has.
    pub unique_bytes: u64,
    /// Content that several holders have, each byte counted once.
    pub shared_bytes: u64,
    pub disk: DiskUsage,
    pub checkpoints: u64,
    pub plain: Holding,
    pub runs: Vec<RunStatistics>,
}

/// What a holder has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    pub files: u64,
    pub logical_bytes: u64,
    pub unique_bytes: u64,
}

/// A run, or a released model with its versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatistics {
    pub run: String,
    pub kind: RunKind,
    pub logical_bytes: u64,
    /// What only this run holds, whichever of its steps.
    pub unique_bytes: u64,
    pub records: Vec<RecordStatistics>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    Run,
    Model,
    /// Sealed trees that were moved out of the views.
    Moved,
}

/// One step with its faces, or one version of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordStatistics {
    pub run: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// RFC 3339: of the newest seal.
    pub saved_at: String,
    /// RFC 3339: when every face was last found right, by the one checked longest ago.
    pub verified_at: Option<String>,
    /// The size of the fuller face.
    pub logical_bytes: u64,
    pub unique_bytes: u64,
    pub faces: Vec<FaceStatistics>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaceStatistics {
    /// None for a tree that was moved away.
    pub face: Option<FaceName>,
    pub path: String,
    pub files: u64,
    pub logical_bytes: u64,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatistics {
    pub path: String,
    pub size_bytes: u64,
    pub sha256: crate::digest::Sha256Digest,
    /// What only this checkpoint's record holds.
    pub unique_bytes: u64,
}

impl Store {
    /// Gathers the statistics of the whole store: one pass over the names, one over the recipes.
    pub fn statistics(&self) -> Result<Statistics> {
        let census = self.census()?;
        let groups = census.groups();
        let runs = groups.iter().map(|(group, unique_bytes, members)| {
            self.run_statistics(&census, group, *unique_bytes, members)
        });
        Ok(Statistics {
            logical_bytes: census.logical_bytes(),
            unique_bytes: census.unique_bytes(),
            shared_bytes: census.shared_bytes(),
            disk: disk::usage(&*self.io, &self.layout)?,
            checkpoints: census.checkpoints.len() as u64,
            plain: census.holding(HolderId::PLAIN),
            runs: runs.collect::<Result<_>>()?,
        })
    }

    fn run_statistics(
        &self,
        census: &Census,
        group: &Group,
        unique_bytes: u64,
        members: &[HolderId],
    ) -> Result<RunStatistics> {
        let records: Vec<RecordStatistics> =
            members.iter().map(|holder| self.record_statistics(census, *holder)).collect::<Result<_>>()?;
        Ok(RunStatistics {
            run: group.name.clone(),
            kind: group.kind,
            logical_bytes: records.iter().map(|record| record.logical_bytes).sum(),
            unique_bytes,
            records,
        })
    }

    fn record_statistics(&self, census: &Census, holder: HolderId) -> Result<RecordStatistics> {
        let faces = census.faces(holder);
        let mut listed = Vec::with_capacity(faces.len());
        for (checkpoint, holding) in &faces {
            listed.push(FaceStatistics {
                face: FaceName::of(checkpoint.face),
                path: self.tree_path(checkpoint)?,
                files: holding.files,
                logical_bytes: holding.logical_bytes,
            });
        }
        let first = faces[0].0;
        let release = !first.version.is_empty();
        let verified: Option<Vec<i64>> = faces.iter().map(|(face, _)| face.verified_at_ns).collect();
        Ok(RecordStatistics {
            run: first.run.clone(),
            step: (!release).then_some(first.step.0),
            version: release.then(|| first.version.clone()),
            saved_at: rfc3339(faces.iter().map(|(face, _)| face.sealed_at_ns).max().unwrap_or_default()),
            verified_at: verified.and_then(|times| times.into_iter().min()).map(rfc3339),
            logical_bytes: faces.iter().map(|(_, holding)| holding.logical_bytes).max().unwrap_or_default(),
            unique_bytes: census.holding(holder).unique_bytes,
            faces: listed,
        })
    }

    /// Lists a checkpoint's files.
    pub fn file_statistics(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<(RecordStatistics, Vec<FileStatistics>)> {
        let census = self.census()?;
        let holder = census.holder_of(checkpoint.root).unwrap_or(HolderId::PLAIN);
        let tree = self.read(|txn| Subtree::list(txn, checkpoint.root))?;
        let mut files = Vec::new();
        for node in tree.files() {
            let Some(id) = node.inode.recipe else { continue };
            let (row, recipe) = self.read(|txn| Ok((txn.recipe_row(id)?, txn.recipe(id)?)))?;
            files.push(FileStatistics {
                path: node.path.clone(),
                size_bytes: row.size_bytes,
                sha256: row.sha256,
                unique_bytes: census.unique_in(id, &recipe, holder),
            });
        }
        Ok((self.record_statistics(&census, holder)?, files))
    }
}

impl RunKind {
    fn of(checkpoint: &Checkpoint) -> Self {
        match checkpoint.face {
            Face::Resumable | Face::Portable => Self::Run,
            Face::Release => Self::Model,
            Face::Moved => Self::Moved,
        }
    }
}
