//! safetensors files of F32 tensors: written in one pass, one tensor in memory at a time, and read strictly.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use candle_core::{Device, Tensor};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::error::{IoContext as _, TensorContext as _, TrainError};

/// Elements converted to bytes at a time.
const CHUNK_ELEMENTS: usize = 1 << 16;
const F32_BYTES: usize = size_of::<f32>();

/// Tensors by name; the order of names is the order of the bytes in the file.
pub type NamedTensors = BTreeMap<String, Tensor>;

/// Writes `tensors` in the safetensors format (huggingface/safetensors, format section of its README): an
/// 8-byte little-endian header length, the JSON header padded with spaces to 8 bytes, then the data. Equal
/// tensors and metadata always give equal bytes.
pub fn write(
    tensors: &NamedTensors,
    metadata: &BTreeMap<String, String>,
    output: &mut dyn Write,
) -> io::Result<()> {
    let mut header = BTreeMap::from([("__metadata__", json!(metadata))]);
    let mut offset_bytes = 0;
    for (name, tensor) in tensors {
        let end_bytes = offset_bytes + tensor.elem_count() * F32_BYTES;
        let entry =
            json!({"dtype": "F32", "shape": tensor.dims(), "data_offsets": [offset_bytes, end_bytes]});
        header.insert(name, entry);
        offset_bytes = end_bytes;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    output.write_all(&(header.len() as u64).to_le_bytes())?;
    output.write_all(&header)?;
    tensors.values().try_for_each(|tensor| write_elements(tensor, output))
}

fn write_elements(tensor: &Tensor, output: &mut dyn Write) -> io::Result<()> {
    let elements = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(CHUNK_ELEMENTS.min(elements.len()) * F32_BYTES);
    for chunk in elements.chunks(CHUNK_ELEMENTS) {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|element| element.to_le_bytes()));
        output.write_all(&bytes)?;
    }
    Ok(())
}

/// Reads a file that must hold exactly the tensors of `shapes`, all F32, and the given metadata.
pub fn read(
    path: &Path,
    shapes: &BTreeMap<String, Vec<usize>>,
    metadata: &BTreeMap<String, String>,
) -> Result<NamedTensors, TrainError> {
    let broken = |reason: String| TrainError::State { path: path.to_owned(), reason };
    let file = File::open(path).context("opening", path)?;
    // SAFETY: a checkpoint's files are never changed after its rename; should another process truncate one
    // all the same, the read faults and kills this process, which has written nothing yet.
    let bytes = unsafe { Mmap::map(&file) }.context("mapping", path)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| broken(error.to_string()))?;
    for (key, value) in metadata {
        let found = header.metadata().as_ref().and_then(|found| found.get(key));
        if found != Some(value) {
            return Err(broken(format!("metadata {key} is {found:?}, not {value:?}")));
        }
    }
    let stored = SafeTensors::deserialize(&bytes).map_err(|error| broken(error.to_string()))?;
    if let Some(extra) = stored.names().into_iter().find(|name| !shapes.contains_key(*name)) {
        return Err(broken(format!("it holds {extra}, which this model does not have")));
    }
    let mut tensors = NamedTensors::new();
    for (name, shape) in shapes {
        let view = stored.tensor(name).map_err(|_| broken(format!("{name} is missing")))?;
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            let (dtype, found) = (view.dtype(), view.shape());
            return Err(broken(format!("{name} is {dtype:?} {found:?}, not F32 {shape:?}")));
        }
        let elements: Vec<f32> = view.data().chunks_exact(F32_BYTES).map(from_le_bytes).collect();
        let tensor = Tensor::from_vec(elements, shape.as_slice(), &Device::Cpu).doing("loading a tensor")?;
        tensors.insert(name.clone(), tensor);
    }
    Ok(tensors)
}

fn from_le_bytes(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("chunks of four bytes"))
}

/// Builds metadata from pairs.
pub fn metadata<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Result<Value, TrainError> {
    let bytes = std::fs::read(path).context("reading", path)?;
    serde_json::from_slice(&bytes).map_err(|source| TrainError::Json { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> NamedTensors {
        let tensor =
            |values: &[f32], shape: &[usize]| Tensor::from_vec(values.to_vec(), shape, &Device::Cpu).unwrap();
        NamedTensors::from([
            ("b".to_owned(), tensor(&[1.0, -0.0, f32::MIN_POSITIVE, 4.5], &[2, 2])),
            ("a".to_owned(), tensor(&[7.0], &[1])),
        ])
    }

    fn shapes(pairs: &[(&str, &[usize])]) -> BTreeMap<String, Vec<usize>> {
        pairs.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
    }

    #[test]
    fn what_is_written_reads_back_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let meta = metadata([("format", "pt")]);
        let mut bytes = Vec::new();
        write(&sample(), &meta, &mut bytes).unwrap();
        assert_eq!((bytes.len() - 5 * F32_BYTES) % 8, 0);
        std::fs::write(&path, &bytes).unwrap();

        let good = shapes(&[("a", &[1]), ("b", &[2, 2])]);
        let back = read(&path, &good, &meta).unwrap();
        let mut again = Vec::new();
        write(&back, &meta, &mut again).unwrap();
        assert_eq!(again, bytes);

        let reason = |shapes, meta| read(&path, &shapes, &meta).unwrap_err().to_string();
        assert!(reason(shapes(&[("a", &[1])]), meta.clone()).contains("holds b"));
        let missing = shapes(&[("a", &[1]), ("b", &[2, 2]), ("c", &[1])]);
        assert!(reason(missing, meta.clone()).contains("c is missing"));
        assert!(reason(shapes(&[("a", &[1]), ("b", &[4])]), meta).contains("b is F32 [2, 2]"));
        assert!(reason(good, metadata([("format", "tf")])).contains("metadata format"));
    }
}
