//! The directory that is imported: its layout and its files.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::check::PORTABLE_MANIFEST_FILE;
use crate::error::{IoContext, Result, StoreError};
use crate::manifest::MANIFEST_FILE;

const CONFIG_FILE: &str = "config.json";

/// What kind of checkpoint directory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceLayout {
    /// MANIFEST.json lists every file.
    TinyLlm,
    /// manifest.json is a checkpoint-manifest-v1.
    Portable,
    /// config.json and safetensors files, without any manifest.
    HuggingFace,
}

#[derive(Debug)]
pub(super) struct SourceFile {
    /// Relative, with forward slashes.
    pub path: String,
    pub full_path: PathBuf,
    pub size_bytes: u64,
    pub mode: u32,
    pub mtime_ns: i64,
}

#[derive(Debug)]
pub(super) struct SourceDir {
    pub path: String,
    pub mode: u32,
    pub mtime_ns: i64,
}

/// A directory's whole content, in the order of names.
#[derive(Debug)]
pub(super) struct Source {
    pub layout: SourceLayout,
    pub files: Vec<SourceFile>,
    /// Parents before children.
    pub dirs: Vec<SourceDir>,
    pub mode: u32,
    pub mtime_ns: i64,
}

impl Source {
    /// Lists the directory. Links are followed if they lead to regular files, as those of a download cache do.
    pub fn scan(dir: &Path) -> Result<Self> {
        let stat = match fs::metadata(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound { what: dir.display().to_string() });
            }
            stat => stat.at("stat", dir)?,
        };
        if !stat.is_dir() {
            return Err(StoreError::NotADirectory { what: dir.display().to_string() });
        }
        let mut source = Self {
            layout: SourceLayout::HuggingFace,
            files: vec![],
            dirs: vec![],
            mode: mode(&stat),
            mtime_ns: mtime_ns(&stat),
        };
        source.list(dir, "")?;
        source.layout = layout_of(&source.files).ok_or_else(|| StoreError::Invalid {
            what: dir.display().to_string(),
            why: format!(
                "not a checkpoint directory: it holds neither {MANIFEST_FILE} nor {PORTABLE_MANIFEST_FILE} \
                 nor {CONFIG_FILE} with safetensors files"
            ),
        })?;
        Ok(source)
    }

    fn list(&mut self, dir: &Path, prefix: &str) -> Result<()> {
        let entries = fs::read_dir(dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let mut entries = entries.at("list", dir)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let full_path = entry.path();
            let refuse = |why: &str| {
                let what = full_path.display().to_string();
                Err(StoreError::Invalid { what, why: why.to_owned() })
            };
            let Ok(name) = entry.file_name().into_string() else { return refuse("the name is not UTF-8") };
            let path = format!("{prefix}{name}");
            let is_link = entry.file_type().at("stat", &full_path)?.is_symlink();
            let stat = fs::metadata(&full_path).at("stat", &full_path)?;
            let (mode, mtime_ns) = (mode(&stat), mtime_ns(&stat));
            if stat.is_file() {
                self.files.push(SourceFile { path, full_path, size_bytes: stat.len(), mode, mtime_ns });
            } else if is_link {
                return refuse("a link to something that is not a regular file");
            } else if stat.is_dir() {
                let below = format!("{path}/");
                self.dirs.push(SourceDir { path, mode, mtime_ns });
                self.list(&full_path, &below)?;
            } else {
                return refuse("neither a regular file nor a directory");
            }
        }
        Ok(())
    }

    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    /// Takes files out, by their path. Gives the paths.
    pub fn leave_out(&mut self, unwanted: impl Fn(&str) -> bool) -> Vec<String> {
        let out: Vec<SourceFile> = self.files.extract_if(.., |file| unwanted(&file.path)).collect();
        out.into_iter().map(|file| file.path).collect()
    }
}

fn layout_of(files: &[SourceFile]) -> Option<SourceLayout> {
    let has = |name: &str| files.iter().any(|file| file.path == name);
    let weights = |file: &SourceFile| !file.path.contains('/') && file.path.ends_with(".safetensors");
    if has(MANIFEST_FILE) {
        Some(SourceLayout::TinyLlm)
    } else if has(PORTABLE_MANIFEST_FILE) {
        Some(SourceLayout::Portable)
    } else {
        (has(CONFIG_FILE) && files.iter().any(weights)).then_some(SourceLayout::HuggingFace)
    }
}

fn mode(stat: &Metadata) -> u32 {
    stat.mode() & 0o7777
}

fn mtime_ns(stat: &Metadata) -> i64 {
    stat.mtime().saturating_mul(1_000_000_000).saturating_add(stat.mtime_nsec())
}
