//! `.tinyllm`: read-only files that show the store from inside the mount. Not listed in the root, so that
//! copying the whole mount copies no such thing.

use serde_json::json;
use tinyllm::catalog::{DirEntry, Face, FileKind, ROOT_INO};
use tinyllm::policy;
use tinyllm::subtree::join_path;
use tinyllm::time::{now_ns, rfc3339};

use super::{Result, Tree};
use crate::attr::{Attr, Validity};
use crate::errno::Errno;

/// Inode numbers from here on are generated; the catalog's stay far below.
pub(super) const DIR_INO: u64 = 1 << 62;

type Generate = fn(&Tree) -> String;

/// The files, in the order of their inode numbers after the directory's.
const FILES: &[(&str, Generate)] = &[
    ("checkpoints.json", checkpoints),
    ("problems.log", |tree| tree.problems.log()),
    ("status.json", status),
];

pub(super) fn is_virtual(ino: u64) -> bool {
    ino >= DIR_INO
}

fn file(ino: u64) -> Option<Generate> {
    let index = usize::try_from(ino.checked_sub(DIR_INO + 1)?).ok()?;
    FILES.get(index).map(|(_, make)| *make)
}

/// Gives a generated file's content now.
pub(super) fn generate(tree: &Tree, ino: u64) -> Option<Vec<u8>> {
    file(ino).map(|make| make(tree).into_bytes())
}

pub(super) fn attr(tree: &Tree, ino: u64) -> Option<Attr> {
    let (kind, mode, size) = match (ino == DIR_INO, generate(tree, ino)) {
        (true, _) => (FileKind::Directory, 0o555, 4096),
        (false, Some(content)) => (FileKind::File, 0o444, content.len() as u64),
        (false, None) => return None,
    };
    let now = now_ns();
    Some(Attr {
        ino,
        kind,
        mode,
        nlink: if kind == FileKind::Directory { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes: size,
        blocks: 0,
        atime_ns: now,
        mtime_ns: now,
        ctime_ns: now,
        validity: Validity::Never,
        name_lasts: false,
    })
}

/// Answers look-ups of and in the directory; None for every other name.
pub(super) fn lookup(tree: &Tree, parent: u64, name: &[u8]) -> Option<Result<Attr>> {
    if parent == ROOT_INO && name == policy::INSPECTION_DIR {
        return attr(tree, DIR_INO).map(Ok);
    }
    if parent != DIR_INO {
        return None;
    }
    let index = FILES.iter().position(|(file, _)| file.as_bytes() == name);
    Some(index.and_then(|index| attr(tree, DIR_INO + 1 + index as u64)).ok_or(Errno::NOENT))
}

pub(super) fn list(ino: u64) -> Option<Vec<DirEntry>> {
    let names = FILES.iter().map(|(name, _)| name.as_bytes().to_vec());
    let entry = |(ino, name)| DirEntry { name, ino, kind: FileKind::File };
    (ino == DIR_INO).then(|| (DIR_INO + 1..).zip(names).map(entry).collect())
}

fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

fn status(tree: &Tree) -> String {
    let (open_files, known_inodes) = {
        let state = tree.state.lock();
        (state.handles.len(), state.lookups.len())
    };
    let checkpoints = tree.store.read(|txn| Ok(txn.checkpoints()?.len())).unwrap_or_default();
    let format = tree.store.format();
    pretty(&json!({
        "store": tree.store.layout().root(),
        "uuid": format.uuid,
        "format_version": format.version,
        "program_version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "passthrough": tree.passthrough(),
        "read_only": tree.options.read_only,
        "checkpoints": checkpoints,
        "open_files": open_files,
        "known_inodes": known_inodes,
    }))
}

fn checkpoints(tree: &Tree) -> String {
    let listed = tree.store.read(|txn| {
        let mut listed = Vec::new();
        for checkpoint in txn.checkpoints()? {
            let face = match checkpoint.face {
                Face::Resumable => "resumable",
                Face::Portable => "portable",
                Face::Release => "release",
                Face::Moved => "moved",
            };
            listed.push(json!({
                "path": join_path(&txn.path_of(checkpoint.root)?.unwrap_or_default()),
                "face": face,
                "run": checkpoint.run,
                "step": checkpoint.step.0,
                "sealed_at": rfc3339(checkpoint.sealed_at_ns),
                "verified_at": checkpoint.verified_at_ns.map(rfc3339),
            }));
        }
        Ok(listed)
    });
    pretty(&listed.map_or_else(|error| json!({"error": error.to_string()}), serde_json::Value::from))
}
