//! Where things lie inside a store directory.

use std::path::{Path, PathBuf};

use crate::pack::PackId;

/// The paths of one store.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn format(&self) -> PathBuf {
        self.root.join("FORMAT")
    }

    pub fn catalog(&self) -> PathBuf {
        self.root.join("catalog.db")
    }

    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub fn socket(&self) -> PathBuf {
        self.root.join("daemon.sock")
    }

    pub fn log(&self) -> PathBuf {
        self.root.join("daemon.log")
    }

    pub fn packs(&self) -> PathBuf {
        self.root.join("packs")
    }

    pub fn pack_dir(&self, id: PackId) -> PathBuf {
        self.packs().join(&id.to_string()[..2])
    }

    pub fn pack(&self, id: PackId) -> PathBuf {
        self.pack_dir(id).join(format!("{id}.pack"))
    }

    pub fn pack_index(&self, id: PackId) -> PathBuf {
        self.pack_dir(id).join(format!("{id}.idx"))
    }

    pub fn live_dir(&self) -> PathBuf {
        self.root.join("live")
    }

    pub fn live(&self, ino: u64) -> PathBuf {
        self.live_dir().join(ino.to_string())
    }

    pub fn cache_dir(&self) -> PathBuf {
        self.root.join("cache")
    }

    pub fn records(&self) -> PathBuf {
        self.root.join("records")
    }

    pub fn record(&self, seq: u64) -> PathBuf {
        self.records().join(format!("{seq:012}.json"))
    }
}
