//! The catalog: one SQLite database with the names, inodes, recipes and chunk locations.
//!
//! It runs in WAL mode. An ordinary commit is atomic and ordered but needs no disk flush; a durable one syncs
//! the WAL, and with it every commit before it. A power cut therefore leaves some prefix of the commits that
//! holds at least the last durable one.

mod checkpoints;
mod content;
mod inode;
mod namespace;
mod usage;

pub use checkpoints::{Checkpoint, Face};
pub use content::{ChunkLocation, PackRow, RecipeId, RecipeRow, StoredRecipe};
pub use inode::{FileKind, Inode, NewInode, SealState};
pub use namespace::{DirEntry, MAX_NAME_BYTES, RenameMode, Replaced};
pub use usage::NamedFile;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::{Result, StoreError};

/// The inode of the tree's root.
pub const ROOT_INO: u64 = 1;

/// "TLCK", so that `file` and other tools can tell this database from others.
const APPLICATION_ID: i32 = 0x544c_434b;

/// Each entry brings the database from version i to version i + 1.
const MIGRATIONS: &[&str] = &[include_str!("schema.sql")];

/// How long a reader in another process waits while a checkpoint of the WAL holds the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Says what a commit promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Atomic and in order; a power cut may take it back.
    Ordered,
    /// On disk when the call returns, with everything before it.
    Durable,
}

/// An open catalog.
#[derive(Debug)]
pub struct Catalog {
    connection: Connection,
    path: PathBuf,
    synchronous_full: bool,
    /// Something was committed since the last durable commit.
    unsynced: bool,
}

/// One transaction. All reads and writes of the catalog happen inside one.
#[derive(Debug)]
pub struct Txn<'a> {
    pub(super) db: &'a Connection,
}

impl Catalog {
    /// Opens the catalog for writing, creating or migrating it.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)
    }

    /// Opens an existing catalog of this version for reading.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Self::open_with(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    fn open_with(path: &Path, flags: OpenFlags) -> Result<Self> {
        let attach = |source| StoreError::Catalog { path: path.to_owned(), source };
        let connection =
            Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(attach)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(attach)?;
        connection.set_prepared_statement_cache_capacity(128);
        let mut catalog = Self { connection, path: path.to_owned(), synchronous_full: true, unsynced: true };
        if flags.contains(OpenFlags::SQLITE_OPEN_READ_WRITE) {
            catalog.configure().map_err(attach)?;
            catalog.migrate()?;
        } else {
            catalog.check_version()?;
        }
        Ok(catalog)
    }

    fn configure(&mut self) -> rusqlite::Result<()> {
        self.connection.pragma_update(None, "journal_mode", "WAL")?;
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        // Bounds how much a power cut's recovery replays and how large the WAL file stays afterwards.
        self.connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
        self.connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
        self.connection.pragma_update(None, "cache_size", -65536)?;
        self.connection.pragma_update(None, "temp_store", "MEMORY")
    }

    fn version(&self) -> Result<usize> {
        let version: i64 = self.connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let known = usize::try_from(version).ok().filter(|v| *v <= MIGRATIONS.len());
        known.ok_or_else(|| StoreError::UnsupportedFormat {
            path: self.path.clone(),
            detail: format!(
                "catalog version {version} is not supported by this program (it knows up to {})",
                MIGRATIONS.len()
            ),
        })
    }

    fn check_version(&self) -> Result<()> {
        if self.version()? == MIGRATIONS.len() {
            return Ok(());
        }
        Err(StoreError::UnsupportedFormat {
            path: self.path.clone(),
            detail: "the catalog is of an older version; open it once for writing to migrate it".to_owned(),
        })
    }

    fn migrate(&mut self) -> Result<()> {
        let done = self.version()?;
        for (at, migration) in MIGRATIONS.iter().enumerate().skip(done) {
            let txn = self.connection.transaction()?;
            txn.execute_batch(migration)?;
            txn.pragma_update(None, "user_version", i64::try_from(at + 1).expect("few migrations"))?;
            txn.pragma_update(None, "application_id", APPLICATION_ID)?;
            txn.commit()?;
        }
        Ok(())
    }

    /// Runs `body` in one transaction; an error takes all of it back.
    pub fn write<T>(
        &mut self,
        durability: Durability,
        body: impl FnOnce(&Txn<'_>) -> Result<T>,
    ) -> Result<T> {
        let full = durability == Durability::Durable;
        if full != self.synchronous_full {
            self.connection.pragma_update(None, "synchronous", if full { "FULL" } else { "NORMAL" })?;
            self.synchronous_full = full;
        }
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let done = body(&Txn { db: &self.connection })
            .and_then(|value| Ok(self.connection.prepare_cached("COMMIT")?.execute([]).map(|_| value)?));
        match done {
            Ok(value) => {
                self.unsynced = !full;
                Ok(value)
            }
            Err(error) => {
                // SQLite may have rolled back by itself (a full disk, for one); then this one fails, rightly.
                let _ = self.connection.execute_batch("ROLLBACK");
                Err(error)
            }
        }
    }

    /// Runs `body` in one read transaction: all of it sees the same state.
    pub fn read<T>(&mut self, body: impl FnOnce(&Txn<'_>) -> Result<T>) -> Result<T> {
        self.connection.prepare_cached("BEGIN")?.execute([])?;
        let done = body(&Txn { db: &self.connection });
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        done
    }

    /// Makes every commit so far durable.
    pub fn sync(&mut self) -> Result<()> {
        if !self.unsynced {
            return Ok(());
        }
        // SQLite syncs the WAL at a commit only, so commit something.
        self.write(Durability::Durable, |txn| txn.bump("sync").map(|_| ()))
    }

    /// Moves the WAL's content into the database file and empties it.
    pub fn checkpoint_wal(&mut self) -> Result<()> {
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(())
    }

    /// Asks SQLite whether the database file is sound.
    pub fn check_integrity(&self) -> Result<()> {
        let answer: String = self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if answer == "ok" {
            return Ok(());
        }
        Err(StoreError::Corrupt { path: self.path.clone(), detail: answer })
    }
}

impl Txn<'_> {
    pub fn meta(&self, key: &str) -> Result<u64> {
        Ok(self
            .db
            .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
            .query_row([key], |row| row.get(0))?)
    }

    pub fn set_meta(&self, key: &str, value: u64) -> Result<()> {
        self.db.prepare_cached("UPDATE meta SET value = ?2 WHERE key = ?1")?.execute((key, value))?;
        Ok(())
    }

    fn bump(&self, key: &str) -> Result<usize> {
        Ok(self.db.prepare_cached("UPDATE meta SET value = value + 1 WHERE key = ?1")?.execute([key])?)
    }
}
