//! Export: a checkpoint becomes an ordinary directory, byte for byte.
//!
//! The directory appears whole or not at all, by the steps of [`crate::publish`]: files are written under a
//! temporary name and synced, the manifest comes last, and one rename gives the name. LATEST is left alone: where
//! an exported step belongs in someone's order of steps is not for an export to say.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::catalog::{Checkpoint, Inode};
use crate::check::PORTABLE_MANIFEST_FILE;
use crate::digest::Sha256Digest;
use crate::error::{IoContext, Result, StoreError};
use crate::io::OpenMode;
use crate::manifest::MANIFEST_FILE;
use crate::progress::{Meter, Watcher};
use crate::store::Store;
use crate::subtree::{Node, Subtree};
use crate::time::system_time;

/// What an export did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    pub directory: PathBuf,
    pub files: u64,
    pub bytes: u64,
}

impl Store {
    /// Writes a checkpoint to the new directory `dir`, with modes and times. Every chunk and every file's
    /// SHA-256 is checked on the way; damage stops the export and leaves nothing.
    ///
    /// A crash leaves `<dir>.tmp`, which is never complete under its final name; it must be removed by hand.
    pub fn export(&self, checkpoint: &Checkpoint, dir: &Path, watcher: Watcher<'_>) -> Result<Exported> {
        let tree = self.read(|txn| Subtree::list(txn, checkpoint.root))?;
        let temporary = temporary_beside(dir)?;
        for path in [dir, &temporary] {
            if path.symlink_metadata().is_ok() {
                return Err(StoreError::Exists { what: path.display().to_string() });
            }
        }
        let bytes = tree.files().map(|node| node.inode.size_bytes).sum();
        let meter = Meter::new(bytes, watcher);
        fs::create_dir(&temporary).at("create directory", &temporary)?;
        let written = self
            .export_tree(&tree, &temporary, &meter)
            .and_then(|()| rename_new(&temporary, dir))
            .and_then(|()| self.io.sync_dir(parent_of(dir)).at("sync directory", parent_of(dir)));
        if let Err(error) = written {
            // What matters to the caller is why the export failed, not whether tidying up did too.
            let _ = fs::remove_dir_all(&temporary);
            return Err(error);
        }
        Ok(Exported { directory: dir.to_owned(), files: tree.files().count() as u64, bytes })
    }

    fn export_tree(&self, tree: &Subtree, root: &Path, meter: &Meter<'_>) -> Result<()> {
        let (manifests, others): (Vec<&Node>, Vec<&Node>) = tree
            .nodes
            .iter()
            .partition(|n| [MANIFEST_FILE, PORTABLE_MANIFEST_FILE].contains(&n.path.as_str()));
        for node in others.iter().chain(&manifests).filter(|node| !node.path.is_empty()) {
            let path = root.join(&node.path);
            if node.inode.is_dir() {
                fs::create_dir(&path).at("create directory", &path)?;
            } else {
                self.export_file(&node.inode, &path, meter)?;
            }
        }
        // Children first: a directory may lose its write permission, and its time moves with its content.
        for node in tree.nodes.iter().rev().filter(|node| node.inode.is_dir()) {
            let path = root.join(&node.path);
            let dir = File::open(&path).at("open", &path)?;
            set_attributes(&dir, &node.inode, &path)?;
            dir.sync_all().at("sync directory", &path)?;
        }
        Ok(())
    }

    fn export_file(&self, inode: &Inode, path: &Path, meter: &Meter<'_>) -> Result<()> {
        let out = self.io.open(path, OpenMode::CreateNew).at("create", path)?;
        let mut hasher = sha2::Sha256::new();
        let mut at = 0;
        self.for_each_piece(inode, |piece| {
            hasher.update(piece);
            self.io.write_all_at(&out, piece, at).at("write", path)?;
            at += piece.len() as u64;
            meter.advance(piece.len())
        })?;
        let (found, recorded) = (Sha256Digest(hasher.finalize().into()), self.sha256(inode, false)?);
        if found != recorded {
            let detail = format!("the store's bytes have SHA-256 {found}, {recorded} was recorded");
            return Err(StoreError::Corrupt { path: path.to_owned(), detail });
        }
        set_attributes(&out, inode, path)?;
        self.io.sync(&out).at("sync", path)
    }
}

fn set_attributes(file: &File, inode: &Inode, path: &Path) -> Result<()> {
    file.set_permissions(Permissions::from_mode(inode.mode)).at("set mode of", path)?;
    file.set_modified(system_time(inode.mtime_ns)).at("set times of", path)
}

fn parent_of(dir: &Path) -> &Path {
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn temporary_beside(dir: &Path) -> Result<PathBuf> {
    let Some(name) = dir.file_name() else {
        return Err(StoreError::Exists { what: dir.display().to_string() });
    };
    let mut name = name.to_owned();
    name.push(".tmp");
    Ok(dir.with_file_name(name))
}

/// Gives the name, which must be free. Not every filesystem can promise that it still is.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => Err(StoreError::Exists { what: to.display().to_string() }),
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(from, to).at("rename into place", to),
        renamed => renamed.at("rename into place", to),
    }
}
