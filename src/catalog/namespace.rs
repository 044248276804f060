//! Names: directories, links and renames, with the rules of POSIX and none of the policy of checkpoints.
//!
//! Permissions are checked by the kernel before a call gets here; what is left is the structure of the tree.

use rusqlite::OptionalExtension;

use super::{FileKind, Inode, NewInode, ROOT_INO, Txn};
use crate::error::{Result, StoreError};

/// The longest name of a file or directory.
pub const MAX_NAME_BYTES: usize = 255;
/// The same as ext4's.
const MAX_LINKS: u32 = 65_000;
/// Deeper than any path the kernel can name; a longer chain of parents is a broken catalog.
const MAX_DEPTH: usize = 2048;

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: FileKind,
}

/// What a rename may do to the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

/// What a rename did to the file that had the new name.
#[derive(Debug, Clone)]
pub enum Replaced {
    Nothing,
    /// It lost this name, and is gone when its link count is 0.
    Unlinked(Inode),
}

/// Spells a name for an error message.
pub fn display(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl Txn<'_> {
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Option<u64>> {
        let mut statement =
            self.db.prepare_cached("SELECT ino FROM entries WHERE parent = ?1 AND name = ?2")?;
        Ok(statement.query_row((parent, name), |row| row.get(0)).optional()?)
    }

    /// Finds the inode that a name stands for; absence is an error.
    pub fn child(&self, parent: u64, name: &[u8]) -> Result<Inode> {
        match self.lookup(parent, name)? {
            Some(ino) => self.inode(ino),
            None => Err(StoreError::NotFound { what: display(name) }),
        }
    }

    /// Walks `names` down from the root. None when one of them is absent.
    pub fn resolve<'n>(&self, names: impl IntoIterator<Item = &'n [u8]>) -> Result<Option<Inode>> {
        let mut ino = ROOT_INO;
        for name in names {
            match self.lookup(ino, name)? {
                Some(next) => ino = next,
                None => return Ok(None),
            }
        }
        self.find_inode(ino)
    }

    /// Lists a directory in the order of names.
    pub fn list_dir(&self, ino: u64) -> Result<Vec<DirEntry>> {
        let mut statement = self.db.prepare_cached(
            "SELECT name, ino, kind FROM entries JOIN inodes USING (ino) WHERE parent = ?1 ORDER BY name",
        )?;
        let entry =
            |row: &rusqlite::Row<'_>| Ok(DirEntry { name: row.get(0)?, ino: row.get(1)?, kind: row.get(2)? });
        Ok(statement.query_map([ino], entry)?.collect::<rusqlite::Result<_>>()?)
    }

    /// Lists the names of a directory that begin with `prefix`.
    pub fn names_from(&self, parent: u64, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let sql = "SELECT name FROM entries WHERE parent = ?1 AND name >= ?2 ORDER BY name";
        let mut statement = self.db.prepare_cached(sql)?;
        let mut rows = statement.query((parent, prefix))?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        while let Some(row) = rows.next()? {
            let name: Vec<u8> = row.get(0)?;
            if !name.starts_with(prefix) {
                break;
            }
            names.push(name);
        }
        Ok(names)
    }

    pub fn is_empty_dir(&self, ino: u64) -> Result<bool> {
        let mut statement = self.db.prepare_cached("SELECT 1 FROM entries WHERE parent = ?1 LIMIT 1")?;
        Ok(!statement.exists([ino])?)
    }

    /// Gives the directory that holds a directory; the root holds itself. None when it has been removed.
    pub fn parent_of(&self, ino: u64) -> Result<Option<u64>> {
        if ino == ROOT_INO {
            return Ok(Some(ROOT_INO));
        }
        let mut statement = self.db.prepare_cached("SELECT parent FROM entries WHERE ino = ?1 LIMIT 1")?;
        Ok(statement.query_row([ino], |row| row.get(0)).optional()?)
    }

    /// Gives the names from the root to a directory (or to one of a file's names). None when it has none.
    pub fn path_of(&self, ino: u64) -> Result<Option<Vec<Vec<u8>>>> {
        let mut names = Vec::new();
        let mut at = ino;
        let mut statement =
            self.db.prepare_cached("SELECT parent, name FROM entries WHERE ino = ?1 LIMIT 1")?;
        while at != ROOT_INO {
            let found: Option<(u64, Vec<u8>)> =
                statement.query_row([at], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            let Some((parent, name)) = found else { return Ok(None) };
            names.push(name);
            at = parent;
            if names.len() > MAX_DEPTH {
                return Err(StoreError::Invalid {
                    what: format!("inode {ino}"),
                    why: "its parents form a circle".into(),
                });
            }
        }
        names.reverse();
        Ok(Some(names))
    }

    /// Gives the directory under which new names may be added, or the reason why not.
    fn open_dir(&self, parent: u64) -> Result<Inode> {
        let dir = self.inode(parent)?;
        if !dir.is_dir() {
            return Err(StoreError::NotADirectory { what: format!("inode {parent}") });
        }
        // A removed directory still has an inode while a process works in it.
        if dir.nlink == 0 {
            return Err(StoreError::NotFound { what: format!("inode {parent}") });
        }
        // Asked here, inside the transaction: a seal may have come since the caller looked.
        if dir.seal.immutable() {
            return Err(StoreError::Forbidden { what: format!("inode {parent}"), why: "it is sealed" });
        }
        Ok(dir)
    }

    /// Creates an inode under a new name.
    pub fn create(&self, parent: u64, name: &[u8], new: &NewInode) -> Result<Inode> {
        let mut dir = self.open_dir(parent)?;
        self.check_new_name(parent, name)?;
        let ino = self.add_inode(new)?;
        if new.kind == FileKind::Directory {
            dir.nlink += 1;
        } else {
            self.set_nlink(ino, 1)?;
        }
        self.add_entry(parent, name, ino)?;
        self.touch_dir(dir, new.now_ns)?;
        self.inode(ino)
    }

    fn check_new_name(&self, parent: u64, name: &[u8]) -> Result<()> {
        if name.len() > MAX_NAME_BYTES {
            return Err(StoreError::NameTooLong { what: display(name) });
        }
        if self.lookup(parent, name)?.is_some() {
            return Err(StoreError::Exists { what: display(name) });
        }
        Ok(())
    }

    fn set_nlink(&self, ino: u64, nlink: u32) -> Result<()> {
        self.db.prepare_cached("UPDATE inodes SET nlink = ?2 WHERE ino = ?1")?.execute((ino, nlink))?;
        Ok(())
    }

    /// Adds a name for an existing inode without touching its link count or any time.
    pub fn add_entry(&self, parent: u64, name: &[u8], ino: u64) -> Result<()> {
        self.db.prepare_cached("INSERT INTO entries VALUES (?1, ?2, ?3)")?.execute((parent, name, ino))?;
        Ok(())
    }

    /// Takes a name away without touching the inode's link count or any time.
    pub fn remove_entry(&self, parent: u64, name: &[u8]) -> Result<()> {
        self.db
            .prepare_cached("DELETE FROM entries WHERE parent = ?1 AND name = ?2")?
            .execute((parent, name))?;
        Ok(())
    }

    fn touch_dir(&self, mut dir: Inode, now_ns: i64) -> Result<()> {
        dir.mtime_ns = now_ns;
        dir.ctime_ns = now_ns;
        self.put_inode(&dir)
    }

    /// Adds a hard link.
    pub fn link(&self, ino: u64, parent: u64, name: &[u8], now_ns: i64) -> Result<Inode> {
        let dir = self.open_dir(parent)?;
        self.check_new_name(parent, name)?;
        let mut inode = self.inode(ino)?;
        if inode.is_dir() {
            return Err(StoreError::Forbidden { what: display(name), why: "directories have one name" });
        }
        if inode.nlink == 0 {
            return Err(StoreError::NotFound { what: display(name) });
        }
        if inode.nlink >= MAX_LINKS {
            return Err(StoreError::TooManyLinks { what: display(name) });
        }
        inode.nlink += 1;
        inode.ctime_ns = now_ns;
        self.put_inode(&inode)?;
        self.add_entry(parent, name, ino)?;
        self.touch_dir(dir, now_ns)?;
        Ok(inode)
    }

    /// Removes a name of anything but a directory. The inode stays, even without names, until it is dropped.
    pub fn unlink(&self, parent: u64, name: &[u8], now_ns: i64) -> Result<Inode> {
        let mut inode = self.child(parent, name)?;
        if inode.is_dir() {
            return Err(StoreError::IsADirectory { what: display(name) });
        }
        self.remove_entry(parent, name)?;
        inode.nlink = inode.nlink.saturating_sub(1);
        inode.ctime_ns = now_ns;
        self.put_inode(&inode)?;
        self.touch_dir(self.inode(parent)?, now_ns)?;
        Ok(inode)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &[u8], now_ns: i64) -> Result<Inode> {
        let mut inode = self.child(parent, name)?;
        self.check_removable_dir(&inode, name)?;
        self.remove_entry(parent, name)?;
        inode.nlink = 0;
        inode.ctime_ns = now_ns;
        self.put_inode(&inode)?;
        let mut dir = self.inode(parent)?;
        dir.nlink = dir.nlink.saturating_sub(1);
        self.touch_dir(dir, now_ns)?;
        Ok(inode)
    }

    /// Says why a directory can't be removed: it is none, or not empty.
    pub fn check_removable_dir(&self, inode: &Inode, name: &[u8]) -> Result<()> {
        if !inode.is_dir() {
            return Err(StoreError::NotADirectory { what: display(name) });
        }
        if !self.is_empty_dir(inode.ino)? {
            return Err(StoreError::NotEmpty { what: display(name) });
        }
        Ok(())
    }

    /// Moves a name, as renameat2 does.
    pub fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        mode: RenameMode,
        now_ns: i64,
    ) -> Result<Replaced> {
        let mut source = self.child(parent, name)?;
        self.open_dir(parent)?;
        self.open_dir(new_parent)?;
        if new_name.len() > MAX_NAME_BYTES {
            return Err(StoreError::NameTooLong { what: display(new_name) });
        }
        self.check_not_below(&source, new_parent, new_name)?;
        let target = self.lookup(new_parent, new_name)?.map(|ino| self.inode(ino)).transpose()?;
        let replaced = match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(StoreError::Exists { what: display(new_name) }),
            (RenameMode::Exchange, None) => return Err(StoreError::NotFound { what: display(new_name) }),
            (RenameMode::Exchange, Some(mut target)) => {
                self.check_not_below(&target, parent, name)?;
                self.set_entry(parent, name, target.ino)?;
                self.set_entry(new_parent, new_name, source.ino)?;
                self.move_dir_link(&target, new_parent, parent)?;
                target.ctime_ns = now_ns;
                self.put_inode(&target)?;
                Replaced::Nothing
            }
            // Two names of one file: POSIX says that nothing happens.
            (RenameMode::Replace, Some(target)) if target.ino == source.ino => return Ok(Replaced::Nothing),
            (RenameMode::Replace, Some(target)) => {
                let gone = self.replace(&source, target, (new_parent, new_name), now_ns)?;
                self.remove_entry(parent, name)?;
                self.set_entry(new_parent, new_name, source.ino)?;
                Replaced::Unlinked(gone)
            }
            (RenameMode::Replace | RenameMode::NoReplace, None) => {
                self.remove_entry(parent, name)?;
                self.add_entry(new_parent, new_name, source.ino)?;
                Replaced::Nothing
            }
        };
        self.move_dir_link(&source, parent, new_parent)?;
        source.ctime_ns = now_ns;
        self.put_inode(&source)?;
        self.touch_dir(self.inode(parent)?, now_ns)?;
        if new_parent != parent {
            self.touch_dir(self.inode(new_parent)?, now_ns)?;
        }
        Ok(replaced)
    }

    /// Takes the new name away from the file that has it.
    fn replace(
        &self,
        source: &Inode,
        mut target: Inode,
        (parent, name): (u64, &[u8]),
        now_ns: i64,
    ) -> Result<Inode> {
        match (source.is_dir(), target.is_dir()) {
            (true, true) => self.check_removable_dir(&target, name)?,
            (true, false) => return Err(StoreError::NotADirectory { what: display(name) }),
            (false, true) => return Err(StoreError::IsADirectory { what: display(name) }),
            (false, false) => {}
        }
        if target.is_dir() {
            target.nlink = 0;
            let mut dir = self.inode(parent)?;
            dir.nlink = dir.nlink.saturating_sub(1);
            self.put_inode(&dir)?;
        } else {
            target.nlink = target.nlink.saturating_sub(1);
        }
        target.ctime_ns = now_ns;
        self.put_inode(&target)?;
        Ok(target)
    }

    fn set_entry(&self, parent: u64, name: &[u8], ino: u64) -> Result<()> {
        let sql = "UPDATE entries SET ino = ?3 WHERE parent = ?1 AND name = ?2";
        self.db.prepare_cached(sql)?.execute((parent, name, ino))?;
        Ok(())
    }

    /// A directory's ".." is a link to its parent.
    fn move_dir_link(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        if !inode.is_dir() || from == to {
            return Ok(());
        }
        let mut old = self.inode(from)?;
        old.nlink = old.nlink.saturating_sub(1);
        self.put_inode(&old)?;
        let mut new = self.inode(to)?;
        new.nlink += 1;
        self.put_inode(&new)
    }

    /// A directory can't be moved into itself or below itself.
    fn check_not_below(&self, inode: &Inode, new_parent: u64, new_name: &[u8]) -> Result<()> {
        if !inode.is_dir() {
            return Ok(());
        }
        let mut at = new_parent;
        while at != ROOT_INO {
            if at == inode.ino {
                let why = "a directory can't be moved below itself".to_owned();
                return Err(StoreError::Invalid { what: display(new_name), why });
            }
            match self.parent_of(at)? {
                Some(parent) => at = parent,
                None => break,
            }
        }
        Ok(())
    }
}
