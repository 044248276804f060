//! Sealed trees and their order.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{OptionalExtension, Row};

use super::Txn;
use super::inode::stored_enum;
use crate::error::Result;
use crate::names::Step;

stored_enum!(
    /// Which view a sealed tree is.
    Face {
        /// A sealed tree that was moved to a name outside the views.
        Moved = 0,
        /// runs/<run>/ckpt/<step>: everything that resuming needs.
        Resumable = 1,
        /// checkpoints/<run>/<step>: the model files and manifest.json.
        Portable = 2,
        /// models/<id>/<version>.
        Release = 3,
    }
);

/// One sealed tree.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Orders the seals: twice the number of the record that sealed it, one more for a face that came with it.
    pub seq: u64,
    pub face: Face,
    /// The run, or a release's model id.
    pub run: String,
    pub step: Step,
    /// A release's version; empty otherwise.
    pub version: String,
    pub root: u64,
    pub sealed_at_ns: i64,
    pub verified_at_ns: Option<i64>,
}

const SELECT: &str = "SELECT seq, face, run, step, version, root, sealed_at, verified_at FROM checkpoints";

fn read_checkpoint(row: &Row<'_>) -> rusqlite::Result<Checkpoint> {
    Ok(Checkpoint {
        seq: row.get(0)?,
        face: row.get(1)?,
        run: row.get(2)?,
        step: Step(row.get(3)?),
        version: row.get(4)?,
        root: row.get(5)?,
        sealed_at_ns: row.get(6)?,
        verified_at_ns: row.get(7)?,
    })
}

impl Txn<'_> {
    pub fn put_checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        self.db
            .prepare_cached("INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?
            .execute((
                checkpoint.seq,
                checkpoint.face,
                &checkpoint.run,
                checkpoint.step.0,
                &checkpoint.version,
                checkpoint.root,
                checkpoint.sealed_at_ns,
                checkpoint.verified_at_ns,
            ))?;
        Ok(())
    }

    pub fn remove_checkpoint(&self, root: u64) -> Result<()> {
        self.db.prepare_cached("DELETE FROM checkpoints WHERE root = ?1")?.execute([root])?;
        Ok(())
    }

    pub fn checkpoint_at(&self, root: u64) -> Result<Option<Checkpoint>> {
        let sql = format!("{SELECT} WHERE root = ?1");
        Ok(self.db.prepare_cached(&sql)?.query_row([root], read_checkpoint).optional()?)
    }

    pub fn checkpoint(&self, face: Face, run: &str, step: Step) -> Result<Option<Checkpoint>> {
        let sql = format!("{SELECT} WHERE run = ?1 AND face = ?2 AND step = ?3");
        Ok(self.db.prepare_cached(&sql)?.query_row((run, face, step.0), read_checkpoint).optional()?)
    }

    /// Gives a run's newest sealed step, by the order of commits.
    pub fn newest(&self, face: Face, run: &str) -> Result<Option<Checkpoint>> {
        let sql = format!("{SELECT} WHERE run = ?1 AND face = ?2 ORDER BY seq DESC LIMIT 1");
        Ok(self.db.prepare_cached(&sql)?.query_row((run, face), read_checkpoint).optional()?)
    }

    /// Lists every sealed tree, in the order of run, step and face.
    pub fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        let sql = format!("{SELECT} ORDER BY run, step, version, face");
        let mut statement = self.db.prepare_cached(&sql)?;
        Ok(statement.query_map([], read_checkpoint)?.collect::<rusqlite::Result<_>>()?)
    }

    pub fn set_verified(&self, root: u64, at_ns: i64) -> Result<()> {
        let sql = "UPDATE checkpoints SET verified_at = ?2 WHERE root = ?1";
        self.db.prepare_cached(sql)?.execute((root, at_ns))?;
        Ok(())
    }
}
