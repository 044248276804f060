//! Passes over the whole tree, for statistics.

use std::collections::HashMap;

use super::{RecipeId, Txn};
use crate::error::Result;

/// One name of a regular file.
#[derive(Debug, Clone, Copy)]
pub struct NamedFile {
    pub parent: u64,
    pub ino: u64,
    pub nlink: u32,
    pub size_bytes: u64,
    pub raw: bool,
    pub recipe: Option<RecipeId>,
}

impl Txn<'_> {
    /// Maps every directory but the root to the one that holds it.
    pub fn directory_parents(&self) -> Result<HashMap<u64, u64>> {
        let sql = "SELECT ino, parent FROM inodes JOIN entries USING (ino) WHERE kind = 2";
        let mut statement = self.db.prepare_cached(sql)?;
        Ok(statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?)
    }

    /// Calls `visit` for every name of every regular file.
    pub fn for_each_file_name(&self, mut visit: impl FnMut(NamedFile) -> Result<()>) -> Result<()> {
        let sql = "SELECT parent, ino, nlink, size, raw, recipe FROM entries JOIN inodes USING (ino)
                   WHERE kind = 1";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            visit(NamedFile {
                parent: row.get(0)?,
                ino: row.get(1)?,
                nlink: row.get(2)?,
                size_bytes: row.get(3)?,
                raw: row.get(4)?,
                recipe: row.get(5)?,
            })?;
        }
        Ok(())
    }
}
