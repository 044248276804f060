//! The mount: [`tree`] holds all of its semantics and runs without a kernel; [`adapter`] connects it to FUSE.

pub mod adapter;
pub mod attach;
pub mod attr;
pub mod background;
pub mod errno;
pub mod helper;
pub mod lease;
pub mod mountpoint;
pub mod options;
pub mod problems;
pub mod remount;
pub mod session;
pub mod tree;

use std::path::PathBuf;

use tinyllm::location::{Environment, default_store as default_store_of};

/// Finds the store when none is named, from this process's environment.
pub fn default_store() -> Option<PathBuf> {
    default_store_of(Environment {
        tinyllm_store: std::env::var_os("TINYLLM_STORE"),
        xdg_data_home: std::env::var_os("XDG_DATA_HOME"),
        home: std::env::var_os("HOME"),
        is_root: rustix::process::geteuid().is_root(),
    })
}
