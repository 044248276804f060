//! Steps 1 to 4 of the protocol.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use sha2::Digest as _;

use super::{IoContext as _, LATEST_FILE, LATEST_TMP_FILE, PublishError, remove_tree, sync_dir, tmp_path};
use crate::digest::Sha256Digest;
use crate::manifest::{FileEntry, MANIFEST_FILE, Manifest, Subject, rfc3339_utc, sha256_of};
use crate::names::{RunId, Step};

/// Where a filesystem that knows a file's SHA-256 gives it, as 64 hexadecimal digits.
const SHA256_XATTR: &str = "user.tinyllm.sha256";
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// Says who a checkpoint belongs to: what MANIFEST.json records beside the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    pub run_id: RunId,
    pub base_model: Option<String>,
    /// Full name of the checkpoint this one continues.
    pub parent: Option<String>,
}

/// What was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub dir: PathBuf,
    pub manifest: Manifest,
}

impl Published {
    /// Sums the sizes of all files but MANIFEST.json.
    pub fn size_bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.size_bytes).sum()
    }
}

/// Who computes the SHA-256 of the files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hashing {
    /// No file was closed yet: the first one is hashed here, then the filesystem is asked for it.
    Unknown,
    Here,
    ByFilesystem,
}

/// Writes one checkpoint. Dropping it before `finish` leaves a stale `.tmp` directory and nothing else.
pub struct CheckpointWriter {
    ckpt_dir: PathBuf,
    tmp_dir: PathBuf,
    step: Step,
    files: Vec<FileEntry>,
    /// Directories below `tmp_dir` that hold files, to be fsynced.
    subdirs: BTreeSet<PathBuf>,
    hashing: Hashing,
}

impl CheckpointWriter {
    /// Makes an empty `step-N.tmp` in `ckpt_dir`, which is created when missing; a stale one goes first.
    pub fn create(ckpt_dir: &Path, step: Step) -> Result<Self, PublishError> {
        fs::create_dir_all(ckpt_dir).context("creating", ckpt_dir)?;
        let tmp_dir = tmp_path(ckpt_dir, step);
        remove_tree(&tmp_dir)?;
        fs::create_dir(&tmp_dir).context("creating", &tmp_dir)?;
        Ok(Self {
            ckpt_dir: ckpt_dir.to_owned(),
            tmp_dir,
            step,
            files: Vec::new(),
            subdirs: BTreeSet::new(),
            hashing: Hashing::Unknown,
        })
    }

    /// Writes one file with `fill`, fsyncs it and records its size and SHA-256. Where the filesystem gives the
    /// hash, the bytes are hashed there only; a small first file makes finding that out free.
    pub fn write_file(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), PublishError> {
        self.check_name(name)?;
        let path = self.tmp_dir.join(name);
        self.create_parents(&path)?;
        let (size_bytes, hashed_here) = self.write_bytes(&path, fill)?;
        let sha256 = match (self.filesystem_sha256(&path), hashed_here) {
            (Some(sha256), _) | (None, Some(sha256)) => sha256,
            // The filesystem had hashes for earlier files but not for this one.
            (None, None) => sha256_of(&path).context("hashing", &path)?,
        };
        self.files.push(FileEntry { path: name.to_owned(), size_bytes, sha256 });
        Ok(())
    }

    /// Completes the checkpoint with a MANIFEST.json of its own (steps 2 to 4) and returns it.
    pub fn finish(self, lineage: Lineage) -> Result<Published, PublishError> {
        let Lineage { run_id, base_model, parent } = lineage;
        let manifest = Manifest {
            subject: Subject::Checkpoint { run_id, step: self.step },
            base_model,
            parent,
            created_at: rfc3339_utc(SystemTime::now()),
            files: self.files.clone(),
        };
        self.publish(&manifest.to_bytes())
    }

    /// Completes a copy of an existing checkpoint with that one's own MANIFEST.json, byte for byte. The files
    /// written must be the ones it lists.
    pub fn finish_verbatim(mut self, manifest_bytes: &[u8]) -> Result<Published, PublishError> {
        let manifest = Manifest::parse(manifest_bytes)?;
        if !matches!(manifest.subject, Subject::Checkpoint { step, .. } if step == self.step) {
            return Err(PublishError::ManifestDiffers(format!("it is not of {}", self.step)));
        }
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        let listed: BTreeSet<&FileEntry> = manifest.files.iter().collect();
        let written: BTreeSet<&FileEntry> = self.files.iter().collect();
        if let Some(file) = listed.symmetric_difference(&written).next() {
            return Err(PublishError::ManifestDiffers(file.path.clone()));
        }
        self.publish(manifest_bytes)
    }

    /// Accepts a relative path of plain segments that was not written yet.
    fn check_name(&self, name: &str) -> Result<(), PublishError> {
        let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        let new = name != MANIFEST_FILE && self.files.iter().all(|file| file.path != name);
        if plain && new && !name.is_empty() {
            return Ok(());
        }
        Err(PublishError::FileName { name: name.to_owned() })
    }

    /// Makes the directories between `tmp_dir` and `path`; most files need none.
    fn create_parents(&mut self, path: &Path) -> Result<(), PublishError> {
        match path.parent() {
            Some(parent) if parent != self.tmp_dir => {
                let parents = parent.ancestors().take_while(|dir| *dir != self.tmp_dir);
                self.subdirs.extend(parents.map(Path::to_owned));
                fs::create_dir_all(parent).context("creating", parent)
            }
            _ => Ok(()),
        }
    }

    /// Writes, fsyncs and closes a new file; gives its size and, unless the filesystem hashes, its SHA-256.
    fn write_bytes(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(u64, Option<Sha256Digest>), PublishError> {
        // Not for reading: what can't be mapped for writing changes only by write(2), and its hash of the fsync
        // holds.
        let file = OpenOptions::new().write(true).create_new(true).open(path).context("creating", path)?;
        let hasher = (self.hashing != Hashing::ByFilesystem).then(sha2::Sha256::new);
        let mut output =
            BufWriter::with_capacity(WRITE_BUFFER_BYTES, CountingWriter { file, size_bytes: 0, hasher });
        fill(&mut output).context("writing", path)?;
        let output = output.into_inner().map_err(io::IntoInnerError::into_error).context("writing", path)?;
        output.file.sync_all().context("syncing", path)?;
        Ok((output.size_bytes, output.hasher.map(|hasher| Sha256Digest(hasher.finalize().into()))))
    }

    /// Asks the filesystem for a closed file's SHA-256. The first answer decides whether it is asked again.
    fn filesystem_sha256(&mut self, path: &Path) -> Option<Sha256Digest> {
        if self.hashing == Hashing::Here {
            return None;
        }
        let mut text = [0u8; 64];
        let sha256 = rustix::fs::getxattr(path, SHA256_XATTR, &mut text[..])
            .ok()
            .filter(|&length| length == text.len())
            .and_then(|_| std::str::from_utf8(&text).ok()?.parse().ok());
        if self.hashing == Hashing::Unknown {
            self.hashing = if sha256.is_some() { Hashing::ByFilesystem } else { Hashing::Here };
        }
        sha256
    }

    fn publish(self, manifest_bytes: &[u8]) -> Result<Published, PublishError> {
        let manifest = Manifest::parse(manifest_bytes)?;
        // Step 2. The manifest comes last, so its presence says that every other file is complete.
        write_synced(&self.tmp_dir.join(MANIFEST_FILE), manifest_bytes)?;
        self.subdirs.iter().try_for_each(|dir| sync_dir(dir))?;
        sync_dir(&self.tmp_dir)?;
        let dir = self.rename_into_place()?;
        self.move_latest()?;
        Ok(Published { dir, manifest })
    }

    /// Step 3. A step that already stands there (a run that resumed from an older one saves it again) is
    /// exchanged in one system call, so that the final name never lacks a complete checkpoint; a crash right
    /// after it leaves the old one under the `.tmp` name.
    fn rename_into_place(&self) -> Result<PathBuf, PublishError> {
        let dir = self.ckpt_dir.join(self.step.dir_name());
        match rustix::fs::rename(&self.tmp_dir, &dir) {
            Err(Errno::EXIST | Errno::NOTEMPTY) => {
                rustix::fs::renameat_with(CWD, &self.tmp_dir, CWD, &dir, RenameFlags::EXCHANGE)
                    .context("exchanging", &dir)?;
                remove_tree(&self.tmp_dir)?;
            }
            renamed => renamed.context("renaming into place", &dir)?,
        }
        Ok(dir)
    }

    /// Step 4. The last fsync makes both renames durable.
    fn move_latest(&self) -> Result<(), PublishError> {
        let (latest, latest_tmp) = (self.ckpt_dir.join(LATEST_FILE), self.ckpt_dir.join(LATEST_TMP_FILE));
        write_synced(&latest_tmp, format!("{}\n", self.step.dir_name()).as_bytes())?;
        fs::rename(&latest_tmp, &latest).context("replacing", &latest)?;
        sync_dir(&self.ckpt_dir)
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), PublishError> {
    let mut file = File::create(path).context("creating", path)?;
    file.write_all(bytes).context("writing", path)?;
    file.sync_all().context("syncing", path)
}

struct CountingWriter {
    file: File,
    size_bytes: u64,
    hasher: Option<sha2::Sha256>,
}

impl Write for CountingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.size_bytes += count as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&bytes[..count]);
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
