//! What the whole-system tests share: mounts that always go away, checkpoints with known content, and checks.
//!
//! These tests need root and /dev/fuse, and the release binaries (`cargo build --release`). Where one of them is
//! missing they fail and say so; none is skipped.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "test support: a panic is how a test fails")]

mod binaries;
pub mod checkpoint;
mod checks;
mod commands;
mod daemon;
pub mod model;
mod mount;
pub mod strace;

pub use binaries::{binary, needs_root_and_fuse};
pub use checks::{assert_errno, eventually, listing, read_text, text_xattr, verify_store};
pub use commands::{Line, Lines, output_of, run, succeeds};
pub use daemon::Daemon;
pub use mount::{Mount, both_modes, both_modes_with};
