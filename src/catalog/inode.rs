//! Inodes: what a name stands for.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{OptionalExtension, Row};

use super::{RecipeId, Txn};
use crate::error::{Result, StoreError};

macro_rules! stored_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                let value: i64 = match self { $(Self::$variant => $value),+ };
                Ok(value.into())
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                match value.as_i64()? {
                    $($value => Ok(Self::$variant),)+
                    other => Err(FromSqlError::OutOfRange(other)),
                }
            }
        }
    };
}
pub(super) use stored_enum;

stored_enum!(
    /// The file types of POSIX.
    FileKind { File = 1, Directory = 2, Symlink = 3, Fifo = 4, Socket = 5, CharDevice = 6, BlockDevice = 7 }
);

stored_enum!(
    /// How far an inode may still change.
    SealState {
        Open = 0,
        /// Part of a sealed checkpoint: never changes, may be removed.
        Sealed = 1,
        /// A directory of a sealed checkpoint whose removal has begun: entries may only go.
        Dissolving = 2,
        /// LATEST or latest: follows the seals.
        Derived = 3,
        /// Part of a released model: never changes, never goes.
        Released = 4,
    }
);

impl SealState {
    /// Content and attributes may not change.
    pub fn immutable(self) -> bool {
        self != Self::Open
    }
}

/// One inode as the catalog knows it. While `raw` is set, the size and times of content are those of the raw
/// file, which is written to without the catalog's knowledge.
#[derive(Debug, Clone)]
pub struct Inode {
    pub ino: u64,
    pub kind: FileKind,
    /// Permission bits, 0o7777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub size_bytes: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    /// live/<ino> exists and holds the newest bytes.
    pub raw: bool,
    /// The settled content; beside `raw`, what was durable at the last fsync.
    pub recipe: Option<RecipeId>,
    pub seal: SealState,
    /// Stored bytes charged to this inode, for st_blocks.
    pub charged_bytes: u64,
}

impl Inode {
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }
}

/// What a new inode starts with.
#[derive(Debug, Clone)]
pub struct NewInode {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub now_ns: i64,
    /// A symlink's target.
    pub target: Option<Vec<u8>>,
    pub seal: SealState,
}

impl NewInode {
    pub fn directory(mode: u32, uid: u32, gid: u32, now_ns: i64) -> Self {
        let seal = SealState::Open;
        Self { kind: FileKind::Directory, mode, uid, gid, rdev: 0, now_ns, target: None, seal }
    }

    pub fn file(mode: u32, uid: u32, gid: u32, now_ns: i64) -> Self {
        Self { kind: FileKind::File, ..Self::directory(mode, uid, gid, now_ns) }
    }
}

const SELECT: &str = "SELECT ino, kind, mode, uid, gid, nlink, rdev, size, atime, mtime, ctime, raw, recipe,
    seal, charged FROM inodes WHERE ino = ?1";

fn read_inode(row: &Row<'_>) -> rusqlite::Result<Inode> {
    Ok(Inode {
        ino: row.get(0)?,
        kind: row.get(1)?,
        mode: row.get(2)?,
        uid: row.get(3)?,
        gid: row.get(4)?,
        nlink: row.get(5)?,
        rdev: row.get(6)?,
        size_bytes: row.get(7)?,
        atime_ns: row.get(8)?,
        mtime_ns: row.get(9)?,
        ctime_ns: row.get(10)?,
        raw: row.get(11)?,
        recipe: row.get(12)?,
        seal: row.get(13)?,
        charged_bytes: row.get(14)?,
    })
}

impl Txn<'_> {
    /// Gives an inode that must exist.
    pub fn inode(&self, ino: u64) -> Result<Inode> {
        self.find_inode(ino)?.ok_or_else(|| StoreError::NotFound { what: format!("inode {ino}") })
    }

    pub fn find_inode(&self, ino: u64) -> Result<Option<Inode>> {
        Ok(self.db.prepare_cached(SELECT)?.query_row([ino], read_inode).optional()?)
    }

    /// Adds an inode that no name refers to yet. A directory starts with 2 links, anything else with 0.
    pub fn add_inode(&self, new: &NewInode) -> Result<u64> {
        let nlink = if new.kind == FileKind::Directory { 2 } else { 0 };
        let size = new.target.as_ref().map_or(0, Vec::len);
        self.db
            .prepare_cached(
                "INSERT INTO inodes (kind, mode, uid, gid, nlink, rdev, size, atime, mtime, ctime, raw, seal, charged)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?8, 0, ?9, 0)",
            )?
            .execute((new.kind, new.mode, new.uid, new.gid, nlink, new.rdev, size, new.now_ns, new.seal))?;
        let ino = u64::try_from(self.db.last_insert_rowid()).expect("SQLite numbers rows from 1");
        if let Some(target) = &new.target {
            self.db.prepare_cached("INSERT INTO targets VALUES (?1, ?2)")?.execute((ino, target))?;
        }
        Ok(ino)
    }

    /// Adds an inode under a number that is free.
    pub fn add_inode_numbered(&self, ino: u64, new: &NewInode) -> Result<()> {
        let made = self.add_inode(new)?;
        self.db.prepare_cached("UPDATE inodes SET ino = ?2 WHERE ino = ?1")?.execute((made, ino))?;
        self.reserve_inodes_to(ino.max(made))
    }

    /// Stores every field of `inode`.
    pub fn put_inode(&self, inode: &Inode) -> Result<()> {
        self.db
            .prepare_cached(
                "UPDATE inodes SET mode = ?2, uid = ?3, gid = ?4, nlink = ?5, size = ?6, atime = ?7, mtime = ?8,
                 ctime = ?9, raw = ?10, recipe = ?11, seal = ?12, charged = ?13 WHERE ino = ?1",
            )?
            .execute((
                inode.ino,
                inode.mode,
                inode.uid,
                inode.gid,
                inode.nlink,
                inode.size_bytes,
                inode.atime_ns,
                inode.mtime_ns,
                inode.ctime_ns,
                inode.raw,
                inode.recipe,
                inode.seal,
                inode.charged_bytes,
            ))?;
        Ok(())
    }

    /// Forgets an inode that has no names left.
    pub fn drop_inode(&self, ino: u64) -> Result<()> {
        for sql in [
            "DELETE FROM inodes WHERE ino = ?1",
            "DELETE FROM targets WHERE ino = ?1",
            "DELETE FROM xattrs WHERE ino = ?1",
        ] {
            self.db.prepare_cached(sql)?.execute([ino])?;
        }
        Ok(())
    }

    /// Lists inodes without a name: files that were unlinked while open.
    pub fn unlinked_inodes(&self) -> Result<Vec<u64>> {
        let mut statement = self.db.prepare_cached("SELECT ino FROM inodes WHERE nlink = 0")?;
        Ok(statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    }

    /// Lists files that have raw bytes.
    pub fn raw_inodes(&self) -> Result<Vec<u64>> {
        let mut statement = self.db.prepare_cached("SELECT ino FROM inodes WHERE raw = 1")?;
        Ok(statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    }

    /// Makes sure that no new inode gets a number up to `ino`.
    pub fn reserve_inodes_to(&self, ino: u64) -> Result<()> {
        self.db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'inodes'", [ino])?;
        Ok(())
    }

    /// Counts inodes of any kind.
    pub fn inode_count(&self) -> Result<u64> {
        Ok(self.db.prepare_cached("SELECT count(*) FROM inodes")?.query_row([], |row| row.get(0))?)
    }

    pub fn symlink_target(&self, ino: u64) -> Result<Vec<u8>> {
        let found: Option<Vec<u8>> = self
            .db
            .prepare_cached("SELECT target FROM targets WHERE ino = ?1")?
            .query_row([ino], |row| row.get(0))
            .optional()?;
        found.ok_or_else(|| StoreError::Invalid { what: format!("inode {ino}"), why: "not a symlink".into() })
    }

    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut statement =
            self.db.prepare_cached("SELECT value FROM xattrs WHERE ino = ?1 AND name = ?2")?;
        Ok(statement.query_row((ino, name), |row| row.get(0)).optional()?)
    }

    pub fn xattr_names(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let mut statement = self.db.prepare_cached("SELECT name FROM xattrs WHERE ino = ?1 ORDER BY name")?;
        Ok(statement.query_map([ino], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    }

    pub fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8]) -> Result<()> {
        let sql = "INSERT INTO xattrs VALUES (?1, ?2, ?3)
                   ON CONFLICT DO UPDATE SET value = excluded.value";
        self.db.prepare_cached(sql)?.execute((ino, name, value))?;
        Ok(())
    }

    /// Removes an attribute; false when there was none.
    pub fn remove_xattr(&self, ino: u64, name: &[u8]) -> Result<bool> {
        let mut statement = self.db.prepare_cached("DELETE FROM xattrs WHERE ino = ?1 AND name = ?2")?;
        Ok(statement.execute((ino, name))? > 0)
    }
}
