//! Content-defined chunking for files of no known format: FastCDC with cuts of 256 KiB to 4 MiB, 1 MiB on
//! average, so an insertion moves the cuts around it only. Holes are kept as holes.
//!
//! Source: Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication Based Storage
//! Systems" (2020), as the `fastcdc` crate implements it.

use std::io::{self, Read};

use fastcdc::v2020::StreamCDC;

use super::{Extent, ExtentKind, Source, Splitter};
use crate::error::{Result, StoreError};
use crate::recipe::MAX_CHUNK_BYTES;

const MIN_BYTES: usize = 256 << 10;
const AVERAGE_BYTES: usize = 1 << 20;
const MAX_BYTES: usize = MAX_CHUNK_BYTES as usize;

/// Holes shorter than this are chunked like data.
const MIN_HOLE_BYTES: u64 = 64 << 10;

pub(super) struct Cdc;

impl Splitter for Cdc {
    fn split(&self, source: &dyn Source) -> Result<Option<Vec<Extent>>> {
        let mut extents = Vec::new();
        let mut at = 0;
        for (begin, end) in with_short_holes_joined(source.data_ranges()?) {
            push_hole(&mut extents, at, begin);
            push_cuts(&mut extents, source, begin, end)?;
            at = end;
        }
        push_hole(&mut extents, at, source.size_bytes());
        Ok(Some(extents))
    }
}

fn with_short_holes_joined(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (begin, end) in ranges {
        match joined.last_mut() {
            Some(last) if begin - last.1 < MIN_HOLE_BYTES => last.1 = end,
            _ => joined.push((begin, end)),
        }
    }
    joined
}

fn push_hole(extents: &mut Vec<Extent>, begin: u64, end: u64) {
    if begin < end {
        extents.push(Extent { kind: ExtentKind::Hole, offset: begin, len_bytes: end - begin });
    }
}

fn push_cuts(extents: &mut Vec<Extent>, source: &dyn Source, begin: u64, end: u64) -> Result<()> {
    let mut failure = None;
    let reader = Range { source, at: begin, end, failure: &mut failure };
    let mut offset = begin;
    for cut in StreamCDC::new(reader, MIN_BYTES, AVERAGE_BYTES, MAX_BYTES) {
        let Ok(cut) = cut else { break };
        let len_bytes = cut.length as u64;
        extents.push(Extent { kind: ExtentKind::Chunk, offset, len_bytes });
        offset += len_bytes;
    }
    match failure {
        Some(error) => Err(error),
        None => {
            debug_assert_eq!(offset, end);
            Ok(())
        }
    }
}

/// Reads one range as a stream and keeps the store's own error, which `io::Error` could not carry.
struct Range<'a> {
    source: &'a dyn Source,
    at: u64,
    end: u64,
    failure: &'a mut Option<StoreError>,
}

impl Read for Range<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = (self.end - self.at).min(buf.len() as u64) as usize;
        if let Err(error) = self.source.read_exact(&mut buf[..len], self.at) {
            *self.failure = Some(error);
            return Err(io::Error::other("kept beside"));
        }
        self.at += len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::covers;
    use super::super::testing::Memory;
    use super::*;

    fn noise(len: usize, mut state: u64) -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn an_insertion_moves_few_cuts() {
        let bytes = noise(12 << 20, 1);
        let mut shifted = bytes.clone();
        shifted.splice(100..100, [1, 2, 3]);
        let digests = |bytes: Vec<u8>| -> Vec<blake3::Hash> {
            let source = Memory(bytes);
            let extents = Cdc.split(&source).unwrap().unwrap();
            assert!(covers(&extents, source.size_bytes()));
            let cut = |e: &Extent| blake3::hash(&source.0[e.offset as usize..][..e.len_bytes as usize]);
            extents.iter().map(cut).collect()
        };
        let (before, after) = (digests(bytes), digests(shifted));
        let kept = after.iter().filter(|digest| before.contains(digest)).count();
        assert!(before.len() > 4 && kept >= before.len() - 2, "{kept} of {}", before.len());
    }

    #[test]
    fn holes_stay_holes() {
        struct Sparse;
        impl Source for Sparse {
            fn size_bytes(&self) -> u64 {
                10 << 30
            }
            fn read_exact(&self, buf: &mut [u8], _: u64) -> Result<()> {
                buf.fill(1);
                Ok(())
            }
            fn data_ranges(&self) -> Result<Vec<(u64, u64)>> {
                Ok(vec![(1 << 30, (1 << 30) + 5000), (9 << 30, (9 << 30) + 1)])
            }
        }
        let extents = Cdc.split(&Sparse).unwrap().unwrap();
        assert!(covers(&extents, 10 << 30));
        assert_eq!(extents.iter().filter(|e| e.kind == ExtentKind::Hole).count(), 3);
    }
}
