//! Splitters decide where a file is cut into chunks. Each reads the file and plans; none copies or hashes.
//!
//! A splitter that does not understand a file passes it on, so the last one, [`cdc`], takes everything.
//! Whatever the plan, the extents cover the file exactly and in order: content never depends on the splitter.

mod cdc;
mod safetensors;

use crate::error::Result;
use crate::recipe::MAX_CHUNK_BYTES;

/// Files below this size are kept as one literal; cutting them would cost more than it can save.
pub const LITERAL_BELOW_BYTES: u64 = 64 << 10;

/// Says how one stretch of a file is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    Literal,
    Chunk,
    Hole,
}

/// One planned stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub kind: ExtentKind,
    pub offset: u64,
    pub len_bytes: u64,
}

/// The bytes to be split.
pub trait Source: Sync {
    fn size_bytes(&self) -> u64;
    /// Fills `buf` from `offset`; the range lies within the file.
    fn read_exact(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Lists the ranges that hold data, in order; what lies between them are holes.
    fn data_ranges(&self) -> Result<Vec<(u64, u64)>>;
}

/// Plans the cuts of one file format.
trait Splitter: Sync {
    /// Gives the plan, or None when the file is not this splitter's or has anything odd about it.
    fn split(&self, source: &dyn Source) -> Result<Option<Vec<Extent>>>;
}

/// In the order asked; the last takes any file.
const SPLITTERS: &[&dyn Splitter] = &[&safetensors::Safetensors, &cdc::Cdc];

/// Plans the cuts of a large file from its header alone. None when that does not say.
pub fn plan_by_header(source: &dyn Source) -> Result<Option<Vec<Extent>>> {
    if source.size_bytes() < LITERAL_BELOW_BYTES { Ok(None) } else { safetensors::Safetensors.split(source) }
}

/// Plans the cuts of `source`.
pub fn plan(source: &dyn Source) -> Result<Vec<Extent>> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Ok(vec![]);
    }
    if size_bytes < LITERAL_BELOW_BYTES {
        return Ok(vec![Extent { kind: ExtentKind::Literal, offset: 0, len_bytes: size_bytes }]);
    }
    for splitter in SPLITTERS {
        if let Some(extents) = splitter.split(source)? {
            debug_assert!(covers(&extents, size_bytes));
            return Ok(extents);
        }
    }
    unreachable!("the last splitter takes any file")
}

/// Appends `len_bytes` from `offset` as chunks of the largest size, cut from the start of the stretch.
fn push_fixed(extents: &mut Vec<Extent>, offset: u64, len_bytes: u64) {
    let end = offset + len_bytes;
    let mut at = offset;
    while at < end {
        let len_bytes = (end - at).min(u64::from(MAX_CHUNK_BYTES));
        extents.push(Extent { kind: ExtentKind::Chunk, offset: at, len_bytes });
        at += len_bytes;
    }
}

fn covers(extents: &[Extent], size_bytes: u64) -> bool {
    let mut at = 0;
    extents.iter().all(|extent| {
        let joins = extent.offset == at && extent.len_bytes > 0;
        at += extent.len_bytes;
        joins
    }) && at == size_bytes
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A file in memory without holes.
    pub(crate) struct Memory(pub Vec<u8>);

    impl Source for Memory {
        fn size_bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_exact(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            let start = offset as usize;
            buf.copy_from_slice(&self.0[start..start + buf.len()]);
            Ok(())
        }

        fn data_ranges(&self) -> Result<Vec<(u64, u64)>> {
            Ok(vec![(0, self.size_bytes())])
        }
    }

    #[test]
    fn small_files_are_one_literal_and_empty_ones_nothing() {
        assert_eq!(plan(&Memory(vec![])).unwrap(), vec![]);
        let extents = plan(&Memory(vec![7; 100])).unwrap();
        assert_eq!(extents, vec![Extent { kind: ExtentKind::Literal, offset: 0, len_bytes: 100 }]);
    }
}
