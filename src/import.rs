//! Import: an existing directory becomes a checkpoint of the store, with the checks that any seal makes.
//!
//! The files are copied into plain files of a directory with a temporary name beside the destination, which is
//! then sealed. A failure takes that directory away again; what a crash leaves of it, the next start removes.

mod names;
mod source;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::catalog::{Durability, Face, Inode, NewInode, ROOT_INO, Txn};
use crate::check::{PORTABLE_MANIFEST_FILE, WEIGHTS_FILE};
use crate::error::{IoContext, Result, StoreError};
use crate::faces;
use crate::io::OpenMode;
use crate::manifest::CheckpointManifest;
use crate::policy::{self, SealTarget};
use crate::progress::{Meter, Watcher};
use crate::seal::{Aftermath, SealRequest};
use crate::store::Store;
use crate::subtree::{join_path, remove_subtree};
use crate::time::{now_ns, rfc3339, system_time};

use names::{Name, checkpoint_dirs, is_temporary, names_along, target_named, temporary_name};
pub use source::SourceLayout;
use source::{Source, SourceFile};

const PIECE_BYTES: usize = 4 << 20;

/// Says how an import is to be done.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// The root of the lineage, for a directory that does not say; the run's name where this is absent too.
    pub base_model: Option<String>,
    /// Who gets the files.
    pub uid: u32,
    pub gid: u32,
}

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// The checkpoint's path in the tree.
    pub path: String,
    pub layout: SourceLayout,
    pub files: u64,
    pub logical_bytes: u64,
    /// Files of the source that such a checkpoint never holds: optimizer state and the like.
    pub left_out: Vec<String>,
}

impl Store {
    /// Imports the directory `source` as `name`: `<run>/step-<n>`, or a path of the tree. The caller hands the
    /// aftermath on as after any seal.
    pub fn import(
        &self,
        source: &Path,
        name: &str,
        options: &ImportOptions,
        watcher: Watcher<'_>,
    ) -> Result<(Imported, Aftermath)> {
        let mut source = Source::scan(source)?;
        let target = target_named(name, source.layout)?;
        let left_out = if source.layout == SourceLayout::HuggingFace {
            source.leave_out(|path| !policy::is_portable(path))
        } else {
            vec![]
        };
        let (parent, created) = self.prepare_parents(&target, options)?;
        let temporary = temporary_name()?;
        let meter = Meter::new(source.size_bytes(), watcher);
        let import = Import { store: self, source: &source, target: &target, options, meter: &meter };
        let sealed = import.copy(parent, &temporary).and_then(|()| {
            let path = target.path();
            let name = path.last().expect("a target's path has names");
            let (from, to) = ((parent, temporary.as_slice()), (parent, name.as_slice()));
            self.seal(SealRequest { from, to, target: &target, exchange: false })
        });
        let mut aftermath = match sealed {
            Ok(aftermath) => aftermath,
            Err(error) => {
                self.remove_temporary(parent, &temporary)?;
                self.remove_parents(&created)?;
                return Err(error);
            }
        };
        // The seal says what it replaced; whoever remembers that a name was absent must hear of it too.
        aftermath.stale.extend(self.new_names(&target)?);
        let imported = Imported {
            path: join_path(&target.path()),
            layout: source.layout,
            files: source.files.len() as u64,
            logical_bytes: source.size_bytes(),
            left_out,
        };
        Ok((imported, aftermath))
    }

    /// Makes the directories above the destination, which must be free. Gives the last of them, and the names
    /// of those that were missing.
    fn prepare_parents(&self, target: &SealTarget, options: &ImportOptions) -> Result<(u64, Vec<Name>)> {
        let mut path = target.path();
        let name = path.pop().expect("a target's path has names");
        self.write(Durability::Ordered, |txn| {
            if let Some(inode) = txn.resolve(path.iter().map(Vec::as_slice))?
                && txn.lookup(inode.ino, &name)?.is_some()
            {
                return Err(StoreError::Exists { what: join_path(&target.path()) });
            }
            let present = names_along(txn, &path)?.len();
            let like = Inode { mode: 0o755, uid: options.uid, gid: options.gid, ..txn.inode(ROOT_INO)? };
            let parent = faces::ensure_dir(txn, &path, &like, now_ns())?;
            Ok((parent, names_along(txn, &path)?.split_off(present)))
        })
    }

    /// Takes back the directories that an import made, unless somebody uses them by now.
    fn remove_parents(&self, created: &[Name]) -> Result<()> {
        for (parent, name) in created.iter().rev() {
            let removed = self.write(Durability::Ordered, |txn| txn.rmdir(*parent, name, now_ns()));
            match removed {
                Ok(gone) => {
                    self.reclaim(gone.ino)?;
                }
                Err(StoreError::NotEmpty { .. } | StoreError::NotFound { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lists the names that a seal of `target` may have made.
    fn new_names(&self, target: &SealTarget) -> Result<Vec<Name>> {
        self.read(|txn| {
            let mut names = Vec::new();
            for face in [target.face, Face::Portable] {
                let mut path = SealTarget { face, ..target.clone() }.path();
                names.extend(names_along(txn, &path)?);
                path.pop();
                if let Some(home) = txn.resolve(path.iter().map(Vec::as_slice))? {
                    let derived = [policy::LATEST_FILE, policy::LATEST_LINK];
                    names.extend(derived.map(|name| (home.ino, name.to_vec())));
                }
            }
            Ok(names)
        })
    }

    fn remove_temporary(&self, parent: u64, name: &[u8]) -> Result<()> {
        let orphans = self.write(Durability::Ordered, |txn| match txn.lookup(parent, name)? {
            Some(_) => remove_subtree(txn, parent, name, now_ns()),
            None => Ok(vec![]),
        })?;
        for ino in orphans {
            self.reclaim(ino)?;
        }
        Ok(())
    }

    /// Removes what imports left when the process died.
    pub(crate) fn remove_stale_imports(&self) -> Result<()> {
        let stale = self.read(|txn| {
            let mut stale = Vec::new();
            for parent in checkpoint_dirs(txn)? {
                let names = txn.names_from(parent, names::TEMPORARY_PREFIX.as_bytes())?;
                stale.extend(names.into_iter().filter(|n| is_temporary(n)).map(|name| (parent, name)));
            }
            Ok(stale)
        })?;
        stale.into_iter().try_for_each(|(parent, name)| self.remove_temporary(parent, &name))
    }
}

/// One import under way.
struct Import<'a> {
    store: &'a Store,
    source: &'a Source,
    target: &'a SealTarget,
    options: &'a ImportOptions,
    meter: &'a Meter<'a>,
}

impl Import<'_> {
    /// Copies the source into the directory `name` of `parent`.
    fn copy(&self, parent: u64, name: &[u8]) -> Result<()> {
        let options = self.options;
        let root = self.store.write(Durability::Ordered, |txn| {
            let new = NewInode::directory(self.source.mode, options.uid, options.gid, now_ns());
            Ok(txn.create(parent, name, &new)?.ino)
        })?;
        for dir in &self.source.dirs {
            let (at, name) = self.place(root, &dir.path)?;
            self.store.write(Durability::Ordered, |txn| {
                let new = NewInode::directory(dir.mode, options.uid, options.gid, now_ns());
                txn.create(at, name, &new)
            })?;
        }
        let mut weights = None;
        for file in &self.source.files {
            let ino = self.copy_file(root, file)?;
            if file.path == WEIGHTS_FILE {
                weights = Some(ino);
            }
        }
        if let (SourceLayout::HuggingFace, Some(weights)) = (self.source.layout, weights) {
            self.write_manifest(root, weights)?;
        }
        self.set_dir_times(root)
    }

    /// Finds the directory that a path's last name stands in.
    fn place<'p>(&self, root: u64, path: &'p str) -> Result<(u64, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let at = self.store.read(|txn| dir_at(txn, root, dir))?;
        Ok((at, name.as_bytes()))
    }

    fn copy_file(&self, root: u64, file: &SourceFile) -> Result<u64> {
        let input = std::fs::File::open(&file.full_path).at("open", &file.full_path)?;
        self.new_file(root, &file.path, file.mode, file.mtime_ns, |out, path| {
            let mut buf =
                vec![0; PIECE_BYTES.min(usize::try_from(file.size_bytes).unwrap_or(PIECE_BYTES)).max(1)];
            let mut at = 0;
            loop {
                let got = self.store.io.read_at(&input, &mut buf, at).at("read", &file.full_path)?;
                if got == 0 {
                    return Ok(());
                }
                self.store.io.write_all_at(out, &buf[..got], at).at("write", path)?;
                self.meter.advance(got)?;
                at += got as u64;
            }
        })
    }

    /// Makes a plain file whose raw bytes `fill` writes.
    fn new_file(
        &self,
        root: u64,
        path: &str,
        mode: u32,
        mtime_ns: i64,
        fill: impl FnOnce(&std::fs::File, &Path) -> Result<()>,
    ) -> Result<u64> {
        let (parent, name) = self.place(root, path)?;
        let new = NewInode::file(mode, self.options.uid, self.options.gid, now_ns());
        let ino = self.store.write(Durability::Ordered, |txn| {
            let inode = txn.create(parent, name, &new)?;
            txn.put_inode(&Inode { raw: true, ..inode })?;
            Ok(inode.ino)
        })?;
        let live = self.store.layout.live(ino);
        let out = self.store.io.open(&live, OpenMode::CreateNew).at("create", &live)?;
        fill(&out, &live)?;
        // The seal takes the time of the content from the raw file.
        out.set_modified(system_time(mtime_ns)).at("set times of", &live)?;
        Ok(ino)
    }

    /// Writes the manifest that a plain directory lacks. Importing the same files again gives the same bytes:
    /// its time is that of the newest of them.
    fn write_manifest(&self, root: u64, weights: u64) -> Result<()> {
        let weights_sha256 = self.store.hash_raw(weights, true)?.sha256;
        let newest_ns = self.source.files.iter().map(|file| file.mtime_ns).max().unwrap_or_default();
        let run = &self.target.run;
        let base_model = self.options.base_model.as_deref().unwrap_or(run);
        let manifest =
            CheckpointManifest::new(base_model, run, self.target.step, rfc3339(newest_ns), weights_sha256);
        let bytes = manifest.to_bytes();
        self.new_file(root, PORTABLE_MANIFEST_FILE, 0o644, newest_ns, |out, path| {
            self.store.io.write_all_at(out, &bytes, 0).at("write", path)
        })?;
        Ok(())
    }

    /// Making children moved the directories' times; their own come last.
    fn set_dir_times(&self, root: u64) -> Result<()> {
        self.store.write(Durability::Ordered, |txn| {
            for dir in &self.source.dirs {
                let inode = txn.inode(dir_at(txn, root, &dir.path)?)?;
                txn.put_inode(&Inode { mtime_ns: dir.mtime_ns, ..inode })?;
            }
            txn.put_inode(&Inode { mtime_ns: self.source.mtime_ns, ..txn.inode(root)? })
        })
    }
}

fn dir_at(txn: &Txn<'_>, root: u64, path: &str) -> Result<u64> {
    let mut at = root;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = txn.child(at, name.as_bytes())?.ino;
    }
    Ok(at)
}
