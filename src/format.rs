//! The FORMAT file: the first thing read, so that an older program never touches a newer store.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Result, StoreError};
use crate::io::{self as store_io, Io};
use crate::layout::Layout;

/// The store version this program writes.
pub const VERSION: u32 = 1;

/// Identifies a store and lists what a program must understand to use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    pub format: String,
    pub version: u32,
    pub uuid: String,
    pub created_at: String,
    /// Features that any program may ignore.
    #[serde(default)]
    pub compatible: Vec<String>,
    /// Features that a program must know before it writes.
    #[serde(default)]
    pub read_only_compatible: Vec<String>,
    /// Features that a program must know before it reads.
    #[serde(default)]
    pub incompatible: Vec<String>,
}

impl Format {
    pub fn new(uuid: String, created_at: String) -> Self {
        Self {
            format: "tinyllm-store".to_owned(),
            version: VERSION,
            uuid,
            created_at,
            compatible: vec![],
            read_only_compatible: vec![],
            incompatible: vec![],
        }
    }

    pub fn write(&self, io: &dyn Io, layout: &Layout) -> Result<()> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("plain strings serialise");
        bytes.push(b'\n');
        store_io::write_durably(io, &layout.format(), &bytes)
    }

    /// Reads and checks the file; `writing` also refuses unknown read-only-compatible features.
    pub fn read(io: &dyn Io, layout: &Layout, writing: bool) -> Result<Self> {
        let path = layout.format();
        let bytes = match store_io::read_file(io, &path) {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotAStore { path: layout.root().to_owned() });
            }
            result => result?,
        };
        Self::parse(&bytes, &path, writing)
    }

    fn parse(bytes: &[u8], path: &Path, writing: bool) -> Result<Self> {
        let refuse = |detail: String| StoreError::UnsupportedFormat { path: path.to_owned(), detail };
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| {
            StoreError::Corrupt { path: path.to_owned(), detail: format!("not JSON: {error}") }
        })?;
        // The version decides before the fields do: a newer version may have fields unknown here.
        match value["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                return Err(refuse(format!(
                    "store format version {version} is not supported by this program (it knows version \
                     {VERSION}); use the program version that wrote it, or a newer one"
                )));
            }
            None => {
                return Err(StoreError::Corrupt { path: path.to_owned(), detail: "no version".to_owned() });
            }
        }
        let format: Self = serde_json::from_value(value)
            .map_err(|error| StoreError::Corrupt { path: path.to_owned(), detail: error.to_string() })?;
        if let Some(feature) = format.incompatible.first() {
            return Err(refuse(format!("the store needs the feature {feature:?}, unknown to this program")));
        }
        if let (true, Some(feature)) = (writing, format.read_only_compatible.first()) {
            return Err(refuse(format!(
                "writing to the store needs the feature {feature:?}, unknown to this program"
            )));
        }
        Ok(format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_and_unknown_features_are_refused() {
        let path = Path::new("FORMAT");
        let good = Format::new("u".into(), "t".into());
        let bytes = serde_json::to_vec(&good).unwrap();
        assert_eq!(Format::parse(&bytes, path, true).unwrap(), good);

        let newer = br#"{"version": 2, "surprise": true}"#;
        let error = Format::parse(newer, path, false).unwrap_err();
        assert!(matches!(error, StoreError::UnsupportedFormat { .. }), "{error}");

        let needs = Format { incompatible: vec!["zstd".into()], ..good.clone() };
        assert!(Format::parse(&serde_json::to_vec(&needs).unwrap(), path, false).is_err());
        let reads = Format { read_only_compatible: vec!["x".into()], ..good };
        let bytes = serde_json::to_vec(&reads).unwrap();
        assert!(Format::parse(&bytes, path, false).is_ok());
        assert!(Format::parse(&bytes, path, true).is_err());
    }
}
