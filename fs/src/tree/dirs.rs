//! Listing directories. A listing is taken when it begins, so that entries that come and go while someone
//! reads it neither repeat nor hide others.

use std::sync::Arc;

use parking_lot::Mutex;
use tinyllm::catalog::{DirEntry, FileKind, ROOT_INO};

use super::{Result, Tree, inspect};
use crate::attr::Attr;
use crate::errno::Errno;

/// One name of a listing.
#[derive(Debug, Clone)]
pub struct Listed {
    pub entry: DirEntry,
    /// The position after this entry.
    pub next: u64,
}

#[derive(Debug)]
pub(super) struct DirHandle {
    ino: u64,
    entries: Mutex<Arc<Vec<DirEntry>>>,
}

impl Tree {
    pub fn opendir(&self, ino: u64) -> Result<u64> {
        if !inspect::is_virtual(ino) && !self.inode(ino)?.is_dir() {
            return Err(Errno(libc::ENOTDIR));
        }
        let handle = self.new_handle();
        self.state.lock().dirs.insert(handle, Arc::new(DirHandle { ino, entries: Mutex::default() }));
        Ok(handle)
    }

    pub fn releasedir(&self, handle: u64) {
        self.state.lock().dirs.remove(&handle);
    }

    /// Calls `visit` with the names from position `offset` on, until it says that it has enough.
    pub fn readdir(&self, handle: u64, offset: u64, mut visit: impl FnMut(&Listed) -> bool) -> Result<()> {
        let dir = self.state.lock().dirs.get(&handle).cloned().ok_or(Errno::BADF)?;
        if offset == 0 {
            *dir.entries.lock() = Arc::new(self.list(dir.ino)?);
        }
        let entries = dir.entries.lock().clone();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(entries.len());
        for (at, entry) in entries.iter().enumerate().skip(start) {
            if visit(&Listed { entry: entry.clone(), next: at as u64 + 1 }) {
                break;
            }
        }
        Ok(())
    }

    fn list(&self, ino: u64) -> Result<Vec<DirEntry>> {
        let dot = |name: &str, ino| DirEntry { name: name.into(), ino, kind: FileKind::Directory };
        if let Some(entries) = inspect::list(ino) {
            let parent = if ino == inspect::DIR_INO { ROOT_INO } else { inspect::DIR_INO };
            return Ok([vec![dot(".", ino), dot("..", parent)], entries].concat());
        }
        let (parent, entries) =
            self.store.read(|txn| Ok((txn.parent_of(ino)?.unwrap_or(ROOT_INO), txn.list_dir(ino)?)))?;
        Ok([vec![dot(".", ino), dot("..", parent)], entries].concat())
    }

    /// Gives a listed entry's attributes for readdirplus; None when it has gone since.
    pub fn attr_listed(&self, dir: u64, entry: &DirEntry) -> Option<Attr> {
        if inspect::is_virtual(dir) {
            return self.getattr(entry.ino).ok();
        }
        self.attr_of_entry(dir, &entry.name, &self.inode(entry.ino).ok()?).ok()
    }
}
