//! The mount: [`tree`] holds all of its semantics and runs without a kernel; [`adapter`] connects it to FUSE.

pub mod adapter;
pub mod attr;
pub mod background;
pub mod errno;
pub mod mountpoint;
pub mod options;
pub mod problems;
pub mod session;
pub mod tree;

use std::path::PathBuf;

/// Finds the store when none is named: $TINYLLM_STORE, else the user's data directory, else (for root)
/// /var/lib/tinyllm.
pub fn default_store() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(store) = set("TINYLLM_STORE") {
        return Some(store);
    }
    if let Some(data) = set("XDG_DATA_HOME") {
        return Some(data.join("tinyllm"));
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/tinyllm".into());
    }
    set("HOME").map(|home| home.join(".local/share/tinyllm"))
}
