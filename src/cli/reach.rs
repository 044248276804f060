//! How a command reaches its store: through the daemon that has it, or by opening it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tinyllm::control::{self, NoMount, Request};
use tinyllm::error::{ErrorKind, StoreError};
use tinyllm::layout::Layout;
use tinyllm::location::{Environment, default_store};
use tinyllm::mounts::mounted_at;
use tinyllm::store::Store;

use crate::failure::Failure;
use crate::output::with_progress;

/// The store that a command is about.
#[derive(Debug)]
pub struct Reach {
    layout: Layout,
}

impl Reach {
    pub fn find(named: Option<PathBuf>) -> Result<Self, Failure> {
        let environment = Environment {
            tinyllm_store: std::env::var_os("TINYLLM_STORE"),
            xdg_data_home: std::env::var_os("XDG_DATA_HOME"),
            home: std::env::var_os("HOME"),
            is_root: rustix::process::geteuid().is_root(),
        };
        let path = named.or_else(|| default_store(environment)).ok_or(Failure::NoStore)?;
        Ok(Self { layout: Layout::new(&path) })
    }

    pub fn root(&self) -> &Path {
        self.layout.root()
    }

    /// Opens the store for reading.
    pub fn read(&self) -> Result<Store, Failure> {
        Ok(Store::open_read_only(self.root())?)
    }

    /// Has something done that only the store's writer may do.
    pub fn ask<T: DeserializeOwned>(&self, what: &'static str, request: Request) -> Result<T, Failure> {
        let value = with_progress(what, |watcher| {
            if let Some(answer) = control::call(&self.layout, &request, watcher)? {
                return Ok(answer);
            }
            let store = Arc::new(Store::open(self.root())?);
            let host = NoMount { store: store.clone() };
            let done = control::execute(&store, &host, request, watcher)?;
            store.sync()?;
            Ok::<_, StoreError>(done)
        })?;
        serde_json::from_value(value).map_err(|error| {
            let message = format!("{}: the daemon is of another version ({error})", self.root().display());
            StoreError::Daemon { kind: ErrorKind::Unsupported, message }.into()
        })
    }

    /// Lists where the store is mounted.
    pub fn mounts(&self) -> Vec<PathBuf> {
        // Without /proc nothing is known of mounts, and names still work.
        mounted_at(self.root()).unwrap_or_default()
    }

    /// Turns a path inside a mount into a path of the tree. Anything else stays as it was typed.
    pub fn checkpoint_name(&self, typed: &str) -> String {
        let path = Path::new(typed);
        let explicit = path.is_absolute() || typed.starts_with("./") || typed.starts_with("../");
        if !explicit && !path.exists() {
            return typed.to_owned();
        }
        let Ok(absolute) = path.canonicalize().or_else(|_| std::path::absolute(path)) else {
            return typed.to_owned();
        };
        let inside = self.mounts().into_iter().find_map(|mount| {
            let below = absolute.strip_prefix(mount.canonicalize().unwrap_or(mount)).ok()?;
            below.to_str().map(str::to_owned)
        });
        inside.unwrap_or_else(|| typed.to_owned())
    }
}
