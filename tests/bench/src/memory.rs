//! The machine's memory, as far as it disturbs measurements.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use memmap2::{Advice, MmapMut};

const PAGE_BYTES: usize = 4096;
/// How much is held at once at most; pages that are given back are used again first.
const PIECE_BYTES: u64 = 1 << 30;

/// Touches `mib` MiB of memory and gives them back. A virtual machine gets its memory from the host page by page
/// at the first touch, which costs more than most of what is measured here.
pub fn warm(mib: u64) -> anyhow::Result<()> {
    let mut held = Vec::new();
    let mut left_bytes = mib << 20;
    while left_bytes > 0 {
        let piece_bytes = left_bytes.min(PIECE_BYTES);
        let mut piece = MmapMut::map_anon(usize::try_from(piece_bytes)?).context("mapping memory")?;
        // File data of this size is cached in large pieces too.
        piece.advise(Advice::HugePage).context("advising on memory")?;
        piece.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
        held.push(piece);
        left_bytes -= piece_bytes;
    }
    Ok(())
}

/// Makes the kernel forget all cached file data that is on the disk already.
pub fn drop_caches() -> anyhow::Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3\n")
        .context("dropping the kernel's caches, which takes root")
}

/// Writes all that is cached of one filesystem to its disk. Not of all filesystems: another one may be stuck.
pub fn sync_disk(dir: &Path) -> anyhow::Result<()> {
    let opened = File::open(dir).with_context(|| dir.display().to_string())?;
    rustix::fs::syncfs(&opened).with_context(|| dir.display().to_string())
}
