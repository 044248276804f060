//! What one process asks of another that has the store open for writing, and how it is done.
//!
//! Over the socket goes one JSON object a line: a [`Request`] in, then any number of `{"progress": {...}}`, then
//! `{"ok": ...}` or `{"error": {"kind": ..., "message": ...}}`. A connection may ask again.
//! A command that finds no daemon opens the store itself and does the same by [`execute`].

mod client;
mod server;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Result;
use crate::import::ImportOptions;
use crate::pack::PackId;
use crate::progress::Watcher;
use crate::seal::Aftermath;
use crate::store::Store;
use crate::verify::Verification;

pub use client::call;
pub use server::{Server, serve};

/// Something to be done with a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Gives the answering process: `{"pid": ...}`.
    Ping,
    /// Gives [`crate::stats::Statistics`].
    Status,
    /// Gives [`crate::gc::Collected`].
    Gc,
    /// Gives a [`Verification`], of every face of one checkpoint or of everything.
    Verify { checkpoint: Option<String> },
    /// Gives [`crate::import::Imported`]. The path is absolute: the daemon works elsewhere.
    Import { source: PathBuf, name: String, base_model: Option<String>, uid: u32, gid: u32 },
}

/// What stands above the store and must know what happens below it: a mount, or nothing.
pub trait Host: Send + Sync {
    /// Says whether a pack is open as a whole: no byte of it may go.
    fn pack_in_use(&self, pack: PackId) -> bool;
    /// Deals with what a seal or removal left to do.
    fn aftermath(&self, aftermath: Aftermath);
}

/// A store that nobody mounts: nothing is in use, and what has lost its name can go.
#[derive(Debug)]
pub struct NoMount {
    pub store: Arc<Store>,
}

impl Host for NoMount {
    fn pack_in_use(&self, _: PackId) -> bool {
        false
    }

    fn aftermath(&self, aftermath: Aftermath) {
        for ino in aftermath.orphans {
            if let Err(error) = self.store.reclaim(ino) {
                tracing::warn!(ino, %error, "an unlinked file could not be reclaimed; the next start does it");
            }
        }
    }
}

/// Does what is asked. The value is the JSON form of what [`Request`] says.
pub fn execute(store: &Store, host: &dyn Host, request: Request, watcher: Watcher<'_>) -> Result<Value> {
    match request {
        Request::Ping => Ok(serde_json::json!({ "pid": std::process::id() })),
        Request::Status => {
            // Through a connection of its own, so that a long count keeps nobody from the catalog.
            Ok(json(&Store::open_read_only(store.layout().root())?.statistics()?))
        }
        Request::Gc => {
            store.run_punches(|pack| host.pack_in_use(pack))?;
            let collected = store.collect(|pack| host.pack_in_use(pack))?;
            store.catalog().checkpoint_wal()?;
            Ok(json(&collected))
        }
        Request::Verify { checkpoint: None } => Ok(json(&store.verify_all(watcher)?)),
        Request::Verify { checkpoint: Some(name) } => {
            let faces = store.faces_of(&store.select(&name)?)?;
            let checkpoints = store.verify_checkpoints(&faces, watcher)?;
            Ok(json(&Verification { checkpoints, plain: None, structure: vec![] }))
        }
        Request::Import { source, name, base_model, uid, gid } => {
            let options = ImportOptions { base_model, uid, gid };
            let (imported, aftermath) = store.import(&source, &name, &options, watcher)?;
            host.aftermath(aftermath);
            Ok(json(&imported))
        }
    }
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("results are plain data with text keys")
}
