//! What is remembered of raw files' hashes, and when it may be believed.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{IoContext, Result, StoreError};
use crate::hash::{Hashed, Signature, hash_file, still_holds};
use crate::io::OpenMode;
use crate::recipe::Recipe;
use crate::store::Store;

/// Remembers the hashes of raw files.
#[derive(Debug, Default)]
pub(crate) struct HashMemory {
    by_ino: Mutex<HashMap<u64, Remembered>>,
}

#[derive(Debug, Default)]
struct Remembered {
    hashed: Option<Arc<Hashed>>,
    /// Nobody could write to the file when it was hashed.
    sure: bool,
    /// The file was made since the start and never open in a way that lets it be mapped for writing, so every
    /// change of it shows in its times.
    new: bool,
    /// How often it was synced while being staged.
    syncs: u32,
}

impl HashMemory {
    /// Forgets the hash of a file that is about to change.
    pub(crate) fn forget(&self, ino: u64) {
        if let Some(remembered) = self.by_ino.lock().get_mut(&ino) {
            remembered.hashed = None;
        }
    }

    /// Forgets a file that is not raw any more.
    pub(crate) fn forget_all(&self, ino: u64) {
        self.by_ino.lock().remove(&ino);
    }

    pub(crate) fn count_sync(&self, ino: u64) -> u32 {
        let mut by_ino = self.by_ino.lock();
        let remembered = by_ino.entry(ino).or_default();
        remembered.syncs += 1;
        remembered.syncs
    }

    /// Gives the remembered hash of this state of the file, and whether it is sure.
    fn get(&self, ino: u64, signature: Signature) -> Option<(Arc<Hashed>, bool)> {
        let by_ino = self.by_ino.lock();
        let remembered = by_ino.get(&ino)?;
        let hashed = remembered.hashed.clone().filter(|hashed| hashed.signature == signature)?;
        Some((hashed, remembered.sure))
    }

    fn put(&self, ino: u64, hashed: Arc<Hashed>) {
        self.entry(ino, |remembered| (remembered.hashed, remembered.sure) = (Some(hashed), true));
    }

    /// Remembers a hash that was begun at `began_ns`, while someone may have been writing.
    pub(crate) fn put_hashed_while_open(&self, ino: u64, hashed: Arc<Hashed>, began_ns: i64) {
        self.entry(ino, |remembered| {
            remembered.sure = remembered.new && hashed.signature.settled_before(began_ns);
            remembered.hashed = Some(hashed);
        });
    }

    fn entry(&self, ino: u64, change: impl FnOnce(&mut Remembered)) {
        change(self.by_ino.lock().entry(ino).or_default());
    }
}

impl Store {
    /// Hashes a raw file, or remembers it. `quiet` says that nobody can write to it, so that the result may be
    /// remembered until [`Store::forget_hash`]. A hash from a time when someone could is checked first.
    pub fn hash_raw(&self, ino: u64, quiet: bool) -> Result<Arc<Hashed>> {
        let path = self.layout.live(ino);
        let file = self.io.open(&path, OpenMode::Read).at("open", &path)?;
        let signature = Signature::of(&file, &path)?;
        if quiet && let Some((hashed, sure)) = self.hashes.get(ino, signature) {
            if sure {
                return Ok(hashed);
            }
            if still_holds(&*self.io, &file, &path, &hashed)? {
                self.hashes.put(ino, hashed.clone());
                return Ok(hashed);
            }
        }
        let hashed = Arc::new(self.hash_open(&file, &path)?);
        if quiet {
            if Signature::of(&file, &path)? != hashed.signature {
                return Err(StoreError::Busy { what: format!("inode {ino}") });
            }
            self.hashes.put(ino, hashed.clone());
        }
        Ok(hashed)
    }

    pub(crate) fn hash_open(&self, file: &File, path: &Path) -> Result<Hashed> {
        let known = |recipe: &Recipe| self.read(|txn| Ok(txn.find_recipe(recipe)?.map(|row| row.sha256)));
        hash_file(&*self.io, file, path, known)
    }

    /// Must be called for a raw file that was just made: nobody can have a mapping of it.
    pub fn note_new_raw(&self, ino: u64) {
        self.hashes.entry(ino, |remembered| *remembered = Remembered { new: true, ..Remembered::default() });
    }

    /// Must be called when a raw file is opened in a way that lets it be mapped for writing.
    pub fn note_mappable(&self, ino: u64) {
        self.hashes.entry(ino, |remembered| remembered.new = false);
    }

    /// Must be called before a raw file changes.
    pub fn forget_hash(&self, ino: u64) {
        self.hashes.forget(ino);
    }
}
