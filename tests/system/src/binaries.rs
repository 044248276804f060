//! The programs under test, and what they need.

use std::fs::OpenOptions;
use std::path::PathBuf;

/// Finds a program of the workspace beside the running test, `target/release/<name>`.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("tests run from target/<profile>/deps")
        .join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --release --workspace` first", path.display());
    path
}

/// Fails the test with a clear message where it can't work.
pub fn needs_root_and_fuse() {
    assert!(rustix::process::geteuid().is_root(), "the whole-system tests need root: they mount filesystems");
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    assert!(device.is_ok(), "the whole-system tests need /dev/fuse: {}", device.unwrap_err());
}
