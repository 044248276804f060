//! What the store's own files take on the disk.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{IoContext, Result};
use crate::io::Io;
use crate::layout::Layout;

/// Disk usage by allocated blocks, directories included, as `du` counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUsage {
    pub packs_bytes: u64,
    /// Plain files that are not settled yet.
    pub live_bytes: u64,
    pub cache_bytes: u64,
    pub catalog_bytes: u64,
    pub records_bytes: u64,
    pub other_bytes: u64,
    pub total_bytes: u64,
}

pub(super) fn usage(io: &dyn Io, layout: &Layout) -> Result<DiskUsage> {
    let root = layout.root();
    let (own_bytes, _) = own_bytes(io, root)?;
    let mut usage = DiskUsage { other_bytes: own_bytes, total_bytes: own_bytes, ..DiskUsage::default() };
    for name in io.list(root).at("list", root)? {
        let bytes = tree_bytes(io, &root.join(&name))?;
        let part = match name.to_string_lossy().as_ref() {
            "packs" => &mut usage.packs_bytes,
            "live" => &mut usage.live_bytes,
            "cache" => &mut usage.cache_bytes,
            "records" => &mut usage.records_bytes,
            name if name.starts_with("catalog.db") => &mut usage.catalog_bytes,
            _ => &mut usage.other_bytes,
        };
        *part += bytes;
        usage.total_bytes += bytes;
    }
    Ok(usage)
}

/// A file that goes away while it is looked at counts nothing: the store may be in use.
fn tree_bytes(io: &dyn Io, path: &Path) -> Result<u64> {
    let (mut bytes, is_dir) = own_bytes(io, path)?;
    if is_dir {
        for name in io.list(path).at("list", path)? {
            bytes += tree_bytes(io, &path.join(name))?;
        }
    }
    Ok(bytes)
}

fn own_bytes(io: &dyn Io, path: &Path) -> Result<(u64, bool)> {
    match io.metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((0, false)),
        found => {
            let stat = found.at("stat", path)?;
            Ok((stat.blocks() * 512, stat.is_dir()))
        }
    }
}
