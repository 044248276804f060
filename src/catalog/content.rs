//! Content: recipes, and where the chunks that they name lie.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{OptionalExtension, Row};

use super::Txn;
use crate::digest::{ChunkDigest, Sha256Digest};
use crate::error::{Result, StoreError};
use crate::pack::{Encoding, IndexEntry, PackId};
use crate::recipe::Recipe;

/// Numbers a recipe within one catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecipeId(pub u64);

/// Numbers a pack within one catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackRow(pub u64);

macro_rules! row_id {
    ($name:ident) => {
        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                self.0.to_sql()
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                u64::column_result(value).map(Self)
            }
        }
    };
}
row_id!(RecipeId);
row_id!(PackRow);

macro_rules! digest_column {
    ($name:ident) => {
        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(ToSqlOutput::Borrowed(ValueRef::Blob(&self.0)))
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                let bytes = value.as_blob()?;
                let size = FromSqlError::InvalidBlobSize { expected_size: 32, blob_size: bytes.len() };
                bytes.try_into().map(Self).map_err(|_| size)
            }
        }
    };
}
digest_column!(ChunkDigest);
digest_column!(Sha256Digest);

fn pack_id(bytes: [u8; 16]) -> PackId {
    PackId(u128::from_be_bytes(bytes))
}

/// Says where a chunk's bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLocation {
    pub pack: PackId,
    pub entry: IndexEntry,
}

/// A recipe's facts without its segments.
#[derive(Debug, Clone, Copy)]
pub struct RecipeRow {
    pub id: RecipeId,
    pub size_bytes: u64,
    pub sha256: Sha256Digest,
    /// A pack whose bytes are the file, in order.
    pub whole_pack: Option<PackId>,
}

/// A recipe to be stored.
#[derive(Debug, Clone, Copy)]
pub struct StoredRecipe<'a> {
    pub recipe: &'a Recipe,
    pub sha256: Sha256Digest,
    pub whole_pack: Option<PackRow>,
}

fn read_recipe_row(row: &Row<'_>) -> rusqlite::Result<RecipeRow> {
    let whole_pack: Option<[u8; 16]> = row.get(3)?;
    Ok(RecipeRow {
        id: row.get(0)?,
        size_bytes: row.get(1)?,
        sha256: row.get(2)?,
        whole_pack: whole_pack.map(pack_id),
    })
}

impl Txn<'_> {
    /// Stores a recipe, or finds the same one. A pack image is added to a recipe that has none.
    pub fn put_recipe(&self, stored: StoredRecipe<'_>) -> Result<RecipeId> {
        let body = stored.recipe.encode();
        let digest = ChunkDigest::of(&body);
        let id = self
            .db
            .prepare_cached(
                "INSERT INTO recipes (digest, size, sha256, whole_pack, body) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (digest) DO UPDATE SET whole_pack = coalesce(whole_pack, excluded.whole_pack)
             RETURNING id",
            )?
            .query_row(
                (digest, stored.recipe.size_bytes(), stored.sha256, stored.whole_pack, body),
                |row| row.get(0),
            )?;
        Ok(id)
    }

    /// Finds the row of a recipe that is stored already.
    pub fn find_recipe(&self, recipe: &Recipe) -> Result<Option<RecipeRow>> {
        let sql = "SELECT recipes.id, size, sha256, packs.name FROM recipes
                   LEFT JOIN packs ON packs.id = whole_pack WHERE digest = ?1";
        let digest = ChunkDigest::of(&recipe.encode());
        Ok(self.db.prepare_cached(sql)?.query_row([digest], read_recipe_row).optional()?)
    }

    pub fn recipe_row(&self, id: RecipeId) -> Result<RecipeRow> {
        let sql = "SELECT recipes.id, size, sha256, packs.name FROM recipes
                   LEFT JOIN packs ON packs.id = whole_pack WHERE recipes.id = ?1";
        Ok(self.db.prepare_cached(sql)?.query_row([id], read_recipe_row)?)
    }

    pub fn recipe(&self, id: RecipeId) -> Result<Recipe> {
        let mut statement = self.db.prepare_cached("SELECT body FROM recipes WHERE id = ?1")?;
        let body: Vec<u8> = statement.query_row([id], |row| row.get(0))?;
        decode_recipe(id, &body)
    }

    /// Calls `visit` for every stored recipe, in the order of ids.
    pub fn for_each_recipe(&self, mut visit: impl FnMut(RecipeId, Recipe) -> Result<()>) -> Result<()> {
        let mut statement = self.db.prepare_cached("SELECT id, body FROM recipes ORDER BY id")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let id: RecipeId = row.get(0)?;
            visit(id, decode_recipe(id, row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)?)?;
        }
        Ok(())
    }

    /// Lists every file's inode with its recipe, in the order of inodes.
    pub fn inode_recipes(&self) -> Result<Vec<(u64, RecipeId)>> {
        let sql = "SELECT ino, recipe FROM inodes WHERE recipe IS NOT NULL ORDER BY ino";
        let mut statement = self.db.prepare_cached(sql)?;
        Ok(statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?)
    }

    /// Deletes the recipes that no inode names.
    pub fn drop_unused_recipes(&self) -> Result<usize> {
        let sql = "DELETE FROM recipes WHERE NOT EXISTS (SELECT 1 FROM inodes WHERE recipe = recipes.id)";
        Ok(self.db.prepare_cached(sql)?.execute([])?)
    }

    pub fn chunk(&self, digest: ChunkDigest) -> Result<Option<ChunkLocation>> {
        let sql = "SELECT packs.name, start, stored, raw, encoding, base FROM chunks
                   JOIN packs ON packs.id = pack WHERE digest = ?1";
        let location = |row: &Row<'_>| {
            let base: Option<ChunkDigest> = row.get(5)?;
            Ok(ChunkLocation {
                pack: pack_id(row.get(0)?),
                entry: IndexEntry {
                    digest,
                    offset: row.get(1)?,
                    stored_bytes: row.get(2)?,
                    raw_bytes: row.get(3)?,
                    encoding: Encoding(row.get(4)?),
                    base: base.unwrap_or(ChunkDigest([0; 32])),
                },
            })
        };
        Ok(self.db.prepare_cached(sql)?.query_row([digest], location).optional()?)
    }

    /// Adds or finds a pack's row.
    pub fn put_pack(&self, id: PackId) -> Result<PackRow> {
        let name = id.0.to_be_bytes();
        self.db.prepare_cached("INSERT OR IGNORE INTO packs (name) VALUES (?1)")?.execute([name])?;
        self.db.prepare_cached("DELETE FROM pending_packs WHERE name = ?1")?.execute([name])?;
        let mut statement = self.db.prepare_cached("SELECT id FROM packs WHERE name = ?1")?;
        Ok(statement.query_row([name], |row| row.get(0))?)
    }

    /// Adds a chunk's location. False when the chunk is stored elsewhere already, and stays there.
    pub fn put_chunk(&self, pack: PackRow, entry: &IndexEntry) -> Result<bool> {
        let base = (entry.base.0 != [0; 32]).then_some(entry.base);
        let added = self
            .db
            .prepare_cached("INSERT OR IGNORE INTO chunks VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
            .execute((
                entry.digest,
                pack,
                entry.offset,
                entry.stored_bytes,
                entry.raw_bytes,
                entry.encoding.0,
                base,
            ))?;
        Ok(added == 1)
    }

    pub fn remove_chunk(&self, digest: ChunkDigest) -> Result<()> {
        self.db.prepare_cached("DELETE FROM chunks WHERE digest = ?1")?.execute([digest])?;
        Ok(())
    }

    pub fn packs(&self) -> Result<Vec<(PackRow, PackId)>> {
        let mut statement = self.db.prepare_cached("SELECT id, name FROM packs ORDER BY id")?;
        let pack = |row: &Row<'_>| Ok((row.get(0)?, pack_id(row.get(1)?)));
        Ok(statement.query_map([], pack)?.collect::<rusqlite::Result<_>>()?)
    }

    /// Lists a pack's chunks by offset.
    pub fn pack_chunks(&self, pack: PackRow) -> Result<Vec<IndexEntry>> {
        let sql =
            "SELECT digest, start, stored, raw, encoding, base FROM chunks WHERE pack = ?1 ORDER BY start";
        let mut statement = self.db.prepare_cached(sql)?;
        let entry = |row: &Row<'_>| {
            let base: Option<ChunkDigest> = row.get(5)?;
            Ok(IndexEntry {
                digest: row.get(0)?,
                offset: row.get(1)?,
                stored_bytes: row.get(2)?,
                raw_bytes: row.get(3)?,
                encoding: Encoding(row.get(4)?),
                base: base.unwrap_or(ChunkDigest([0; 32])),
            })
        };
        Ok(statement.query_map([pack], entry)?.collect::<rusqlite::Result<_>>()?)
    }

    /// Some recipe is served from this pack as a whole, so all of its bytes are in use.
    pub fn is_whole_image(&self, pack: PackRow) -> Result<bool> {
        Ok(self.db.prepare_cached("SELECT 1 FROM recipes WHERE whole_pack = ?1")?.exists([pack])?)
    }

    /// Calls `visit` for every chunk.
    pub fn for_each_chunk(
        &self,
        mut visit: impl FnMut(ChunkDigest, PackRow, u32) -> Result<()>,
    ) -> Result<()> {
        let mut statement = self.db.prepare_cached("SELECT digest, pack, stored FROM chunks")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            visit(row.get(0)?, row.get(1)?, row.get(2)?)?;
        }
        Ok(())
    }

    pub fn remove_pack(&self, pack: PackRow) -> Result<()> {
        self.db.prepare_cached("DELETE FROM packs WHERE id = ?1")?.execute([pack])?;
        self.db.prepare_cached("DELETE FROM punches WHERE pack = ?1")?.execute([pack])?;
        Ok(())
    }

    /// Notes a pack that is about to be written, so that a crash before its commit leaves no garbage for ever.
    pub fn add_pending_pack(&self, id: PackId) -> Result<()> {
        let sql = "INSERT OR IGNORE INTO pending_packs VALUES (?1)";
        self.db.prepare_cached(sql)?.execute([id.0.to_be_bytes()])?;
        Ok(())
    }

    pub fn pending_packs(&self) -> Result<Vec<PackId>> {
        let mut statement = self.db.prepare_cached("SELECT name FROM pending_packs")?;
        Ok(statement.query_map([], |row| Ok(pack_id(row.get(0)?)))?.collect::<rusqlite::Result<_>>()?)
    }

    pub fn remove_pending_pack(&self, id: PackId) -> Result<()> {
        self.db.prepare_cached("DELETE FROM pending_packs WHERE name = ?1")?.execute([id.0.to_be_bytes()])?;
        Ok(())
    }

    pub fn add_punch(&self, pack: PackRow, start: u64, len_bytes: u64) -> Result<()> {
        self.db
            .prepare_cached("INSERT INTO punches VALUES (?1, ?2, ?3)")?
            .execute((pack, start, len_bytes))?;
        Ok(())
    }

    /// Lists the ranges waiting to be given back: (pack, its id, start, length in bytes).
    pub fn punches(&self) -> Result<Vec<(PackRow, PackId, u64, u64)>> {
        let sql =
            "SELECT pack, name, start, len FROM punches JOIN packs ON packs.id = pack ORDER BY pack, start";
        let mut statement = self.db.prepare_cached(sql)?;
        let punch = |row: &Row<'_>| Ok((row.get(0)?, pack_id(row.get(1)?), row.get(2)?, row.get(3)?));
        Ok(statement.query_map([], punch)?.collect::<rusqlite::Result<_>>()?)
    }

    pub fn remove_punch(&self, pack: PackRow, start: u64, len_bytes: u64) -> Result<()> {
        let sql = "DELETE FROM punches WHERE pack = ?1 AND start = ?2 AND len = ?3";
        self.db.prepare_cached(sql)?.execute((pack, start, len_bytes))?;
        Ok(())
    }
}

fn decode_recipe(id: RecipeId, body: &[u8]) -> Result<Recipe> {
    Recipe::decode(body).map_err(|error| StoreError::Corrupt {
        path: format!("catalog, recipe {}", id.0).into(),
        detail: error.to_string(),
    })
}
