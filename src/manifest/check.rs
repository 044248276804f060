//! Compares a directory with its manifest.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};
use sha2::Digest as _;

use super::{FileEntry, MANIFEST_FILE, Manifest, ManifestError};
use crate::digest::Sha256Digest;

const READ_BYTES: usize = 1 << 20;

/// Names a file that differs from its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProblem {
    /// Relative to the directory.
    pub path: String,
    pub fault: FileFault,
}

/// Says how a file differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileFault {
    Missing,
    Unlisted,
    /// A link, a device or a directory under a listed name.
    NotAFile,
    Size {
        listed_bytes: u64,
        found_bytes: u64,
    },
    Sha256 {
        listed: Sha256Digest,
        found: Sha256Digest,
    },
}

impl fmt::Display for FileProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, fault } = self;
        match fault {
            FileFault::Missing => write!(out, "{path} is missing"),
            FileFault::Unlisted => write!(out, "{path} is not listed"),
            FileFault::NotAFile => write!(out, "{path} is not a regular file"),
            FileFault::Size { listed_bytes, found_bytes } => {
                write!(out, "{path} has {found_bytes} bytes, not {listed_bytes}")
            }
            FileFault::Sha256 { listed, found } => write!(out, "{path} has SHA-256 {found}, not {listed}"),
        }
    }
}

/// Joins problems into one line for an error message.
pub(super) fn join(problems: &[FileProblem]) -> String {
    problems.iter().map(FileProblem::to_string).collect::<Vec<_>>().join("; ")
}

pub(super) fn check_dir(manifest: &Manifest, dir: &Path) -> Result<(), ManifestError> {
    let mut found = BTreeSet::new();
    list_below(dir, "", &mut found)?;
    let listed: BTreeSet<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    let mut problems: Vec<FileProblem> = found
        .iter()
        .filter(|path| !listed.contains(path.as_str()) && *path != MANIFEST_FILE)
        .map(|path| FileProblem { path: path.clone(), fault: FileFault::Unlisted })
        .collect();
    let differing: Result<Vec<Option<FileProblem>>, ManifestError> =
        manifest.files.par_iter().map(|file| check_file(dir, file)).collect();
    problems.extend(differing?.into_iter().flatten());
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort_by(|a, b| a.path.cmp(&b.path));
    Err(ManifestError::Differs { dir: dir.to_owned(), problems })
}

/// Collects every path below `dir` that is not a directory. A name that is not UTF-8 is never listed by a
/// manifest, so its lossy spelling only has to be readable.
fn list_below(dir: &Path, prefix: &str, found: &mut BTreeSet<String>) -> Result<(), ManifestError> {
    let failed = |source| ManifestError::Read { path: dir.to_owned(), source };
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().map_err(failed)?.is_dir() {
            list_below(&entry.path(), &format!("{name}/"), found)?;
        } else {
            found.insert(name);
        }
    }
    Ok(())
}

fn check_file(dir: &Path, listed: &FileEntry) -> Result<Option<FileProblem>, ManifestError> {
    let path = dir.join(&listed.path);
    let fault = match fault_of(&path, listed) {
        Ok(fault) => fault,
        Err(source) if source.kind() == io::ErrorKind::NotFound => Some(FileFault::Missing),
        Err(source) => return Err(ManifestError::Read { path, source }),
    };
    Ok(fault.map(|fault| FileProblem { path: listed.path.clone(), fault }))
}

fn fault_of(path: &Path, listed: &FileEntry) -> io::Result<Option<FileFault>> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_file() {
        return Ok(Some(FileFault::NotAFile));
    }
    let found_bytes = metadata.len();
    if found_bytes != listed.size_bytes {
        return Ok(Some(FileFault::Size { listed_bytes: listed.size_bytes, found_bytes }));
    }
    let found = sha256_of(path)?;
    Ok((found != listed.sha256).then_some(FileFault::Sha256 { listed: listed.sha256, found }))
}

/// Reads a whole file and gives its SHA-256.
pub(crate) fn sha256_of(path: &Path) -> io::Result<Sha256Digest> {
    let mut file = File::open(path)?;
    let mut hasher = sha2::Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(Sha256Digest(hasher.finalize().into())),
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
