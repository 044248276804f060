//! Random sequences of file operations, run against a plain model in memory and against the real thing: the tree
//! without a kernel, mounts in both modes, and a directory of the host's own filesystem.

mod exec;
mod ops;
mod posix;
mod reference;
mod tree;

pub use exec::{Subject, run_sequence};
pub use ops::{Access, Op, Path, manifest_bytes, sequence};
pub use posix::{HostDir, MountedDir};
pub use reference::Reference;
pub use tree::KernelFree;

use std::collections::BTreeMap;

/// The run whose checkpoint directory a sequence works in.
pub const RUN_PREFIX: &str = "run";
/// How many files a sequence can have open at a time.
pub const SLOTS: usize = 4;

/// What an operation gave. Errors are errno values.
pub type Outcome = Result<Value, i32>;

/// What an operation gave when it worked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Done,
    Bytes(Vec<u8>),
    Count(u64),
    Names(Vec<String>),
    Node(Node),
}

/// What stat, readlink and the attributes say of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub nlink: u32,
    /// Of user attributes, by name.
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Nanoseconds since 1970; None when it was not set to a known time.
    pub mtime_ns: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File { size_bytes: u64 },
    Directory,
    Symlink { target: String },
}

/// A whole tree: its names, relative to its root, and the bytes of its files.
pub type Snapshot = BTreeMap<String, (Node, Vec<u8>)>;
