//! Cuts a safetensors file at each tensor's own start, so that a changed header, a new order, other shards or
//! other names still find every tensor stored.
//!
//! Format: <https://github.com/huggingface/safetensors#format>. Only the offsets matter here: dtypes and shapes
//! are the reader's business, and files with an unknown dtype or empty tensors are cut all the same.

use serde::Deserialize;
use std::collections::BTreeMap;

use super::{Extent, ExtentKind, LITERAL_BELOW_BYTES, Source, Splitter, push_fixed};
use crate::error::Result;

/// The reference reader's own limit on headers.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Tensors below this size are kept in the recipe: a reference would cost about as much.
const INLINE_TENSOR_BELOW_BYTES: u64 = 256;

pub(super) struct Safetensors;

#[derive(Deserialize)]
struct Entry {
    data_offsets: (u64, u64),
}

impl Splitter for Safetensors {
    fn split(&self, source: &dyn Source) -> Result<Option<Vec<Extent>>> {
        let size_bytes = source.size_bytes();
        let mut prefix = [0u8; 8];
        source.read_exact(&mut prefix, 0)?;
        let header_bytes = u64::from_le_bytes(prefix);
        if header_bytes > MAX_HEADER_BYTES || header_bytes > size_bytes - 8 {
            return Ok(None);
        }
        let mut header = vec![0u8; usize::try_from(header_bytes).expect("at most 100 MB")];
        source.read_exact(&mut header, 8)?;
        let data_start = 8 + header_bytes;
        Ok(tensor_ranges(&header, size_bytes - data_start).map(|ranges| extents(data_start, &ranges)))
    }
}

/// Reads the tensors' byte ranges, in file order. None unless they tile the data exactly: gaps, overlaps,
/// trailing bytes and broken headers are left to the next splitter.
fn tensor_ranges(header: &[u8], data_bytes: u64) -> Option<Vec<(u64, u64)>> {
    if header.first() != Some(&b'{') {
        return None;
    }
    let entries: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let mut ranges = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        if name != "__metadata__" {
            ranges.push(serde_json::from_value::<Entry>(value).ok()?.data_offsets);
        }
    }
    ranges.sort_unstable();
    let mut at = 0;
    for &(begin, end) in &ranges {
        if begin != at || end < begin {
            return None;
        }
        at = end;
    }
    ranges.retain(|(begin, end)| begin < end);
    (at == data_bytes).then_some(ranges)
}

fn extents(data_start: u64, ranges: &[(u64, u64)]) -> Vec<Extent> {
    let mut extents = Vec::with_capacity(ranges.len() + 1);
    if data_start < LITERAL_BELOW_BYTES {
        extents.push(Extent { kind: ExtentKind::Literal, offset: 0, len_bytes: data_start });
    } else {
        push_fixed(&mut extents, 0, data_start);
    }
    for &(begin, end) in ranges {
        let (offset, len_bytes) = (data_start + begin, end - begin);
        if len_bytes >= INLINE_TENSOR_BELOW_BYTES {
            push_fixed(&mut extents, offset, len_bytes);
        } else {
            match extents.last_mut() {
                Some(last) if last.kind == ExtentKind::Literal && last.len_bytes < LITERAL_BELOW_BYTES => {
                    last.len_bytes += len_bytes;
                }
                _ => extents.push(Extent { kind: ExtentKind::Literal, offset, len_bytes }),
            }
        }
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::super::testing::Memory;
    use super::super::{covers, plan};
    use super::*;

    fn file(header: &str, data_bytes: usize) -> Memory {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 5);
        Memory(bytes)
    }

    #[test]
    fn tensors_are_cut_at_their_own_start_in_4_mib_pieces() {
        let mib5 = 5 << 20;
        let header = format!(
            r#"{{"b":{{"dtype":"F32","shape":[1],"data_offsets":[{mib5},{end}]}},
               "__metadata__":{{"format":"pt"}},
               "a":{{"dtype":"F99","shape":[],"data_offsets":[0,{mib5}]}},
               "empty":{{"dtype":"F32","shape":[0],"data_offsets":[{mib5},{mib5}]}}}}"#,
            end = mib5 + 1000
        );
        let source = file(&header, mib5 + 1000);
        let extents = Safetensors.split(&source).unwrap().unwrap();
        assert!(covers(&extents, source.size_bytes()));
        let lengths: Vec<u64> = extents.iter().map(|e| e.len_bytes).collect();
        assert_eq!(lengths, [8 + header.len() as u64, 4 << 20, 1 << 20, 1000]);
    }

    #[test]
    fn anything_odd_is_left_to_the_next_splitter() {
        let odd = [
            r#"{"a":{"data_offsets":[0,100]},"b":{"data_offsets":[104,200]}}"#, // a gap
            r#"{"a":{"data_offsets":[0,100]},"b":{"data_offsets":[50,200]}}"#,  // an overlap
            r#"{"a":{"data_offsets":[0,100]}}"#,                                // trailing bytes
            r#"{"a":{"data_offsets":[200,0]}}"#,                                // backwards
            r#"{"a":{"data_offsets":[0,9223372036854775808]}}"#,                // beyond the file
            r#"{"a":{"data_offsets":[-1,200]}}"#,
            r#"{},"__metadata__":{}"#,
            r#"not json"#,
        ];
        for header in odd {
            assert_eq!(Safetensors.split(&file(header, 200)).unwrap(), None, "{header}");
            let source = file(header, 100_000);
            assert!(covers(&plan(&source).unwrap(), source.size_bytes()));
        }
        let huge = Memory([u64::MAX.to_le_bytes().as_slice(), &[b'{'; 70_000]].concat());
        assert_eq!(Safetensors.split(&huge).unwrap(), None);
    }

    #[test]
    fn small_tensors_join_one_literal() {
        let header =
            r#"{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[4,8]},"c":{"data_offsets":[8,1008]}}"#;
        let extents = Safetensors.split(&file(header, 1008)).unwrap().unwrap();
        assert_eq!(extents.len(), 2);
        assert_eq!(extents[0].len_bytes, 8 + header.len() as u64 + 8);
    }
}
