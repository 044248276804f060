//! Whole directories at once: listing one, and taking one out of the tree.

use crate::catalog::{FileKind, Inode, Txn};
use crate::error::Result;

/// A file or directory below some directory, which itself has the path "".
#[derive(Debug, Clone)]
pub struct Node {
    /// Relative, with forward slashes.
    pub path: String,
    pub inode: Inode,
}

/// A directory's content, parents before children, in the order of names.
#[derive(Debug, Default)]
pub struct Subtree {
    pub nodes: Vec<Node>,
    /// Names that no checkpoint can have, with the reason.
    pub problems: Vec<String>,
}

impl Subtree {
    /// Lists everything below `root`.
    pub fn list(txn: &Txn<'_>, root: u64) -> Result<Self> {
        let mut tree = Self::default();
        tree.visit(txn, txn.inode(root)?, String::new())?;
        Ok(tree)
    }

    fn visit(&mut self, txn: &Txn<'_>, inode: Inode, path: String) -> Result<()> {
        let (ino, is_dir) = (inode.ino, inode.is_dir());
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        self.nodes.push(Node { path, inode });
        if !is_dir {
            return Ok(());
        }
        for entry in txn.list_dir(ino)? {
            match String::from_utf8(entry.name) {
                Ok(name) => self.visit(txn, txn.inode(entry.ino)?, format!("{prefix}{name}"))?,
                Err(bad) => {
                    let name = String::from_utf8_lossy(bad.as_bytes()).into_owned();
                    self.problems.push(format!("{prefix}{name}: the name is not UTF-8"));
                }
            }
        }
        Ok(())
    }

    pub fn files(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.inode.kind == FileKind::File)
    }
}

/// Takes a directory with all its content out of the tree, whatever its seal. Gives the inodes that lost their
/// last name.
pub fn remove_subtree(txn: &Txn<'_>, parent: u64, name: &[u8], now_ns: i64) -> Result<Vec<u64>> {
    let mut orphans = Vec::new();
    let inode = txn.child(parent, name)?;
    if inode.is_dir() {
        for entry in txn.list_dir(inode.ino)? {
            orphans.extend(remove_subtree(txn, inode.ino, &entry.name, now_ns)?);
        }
        txn.rmdir(parent, name, now_ns)?;
        orphans.push(inode.ino);
    } else if txn.unlink(parent, name, now_ns)?.nlink == 0 {
        orphans.push(inode.ino);
    }
    Ok(orphans)
}

/// Joins path names for records and messages. Names of sealed trees are UTF-8; others are shown as they can be.
pub fn join_path(names: &[impl AsRef<[u8]>]) -> String {
    let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name.as_ref())).collect();
    names.join("/")
}
