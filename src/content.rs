//! A file's content as a whole, wherever its bytes lie.

use sha2::Digest as _;

use crate::catalog::{Inode, RecipeId};
use crate::digest::Sha256Digest;
use crate::error::{IoContext, Result, StoreError};
use crate::io::{OpenMode, read_exact_at};
use crate::reader::FileReader;
use crate::store::Store;

const PIECE_BYTES: u64 = 4 << 20;

impl Store {
    /// Finds where the bytes of a settled file lie.
    pub fn file_reader(&self, recipe: RecipeId) -> Result<FileReader> {
        self.read(|txn| {
            let body = txn.recipe(recipe)?;
            FileReader::new(txn, body)
        })
    }

    /// Reads up to `buf.len()` bytes of an open settled file; fewer only at its end.
    pub fn read_file_at(&self, file: &FileReader, buf: &mut [u8], offset: u64) -> Result<usize> {
        file.read_at(&self.reader, buf, offset)
    }

    /// Calls `visit` with a file's bytes from start to end, in pieces of at most 4 MiB, each checked if it is
    /// stored as a chunk.
    pub fn for_each_piece(&self, inode: &Inode, mut visit: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if !inode.raw {
            let Some(recipe) = inode.recipe else { return Ok(()) };
            return self.file_reader(recipe)?.for_each_verified(&self.reader, visit);
        }
        let path = self.layout.live(inode.ino);
        let file = self.io.open(&path, OpenMode::Read).at("open", &path)?;
        let len = file.metadata().at("stat", &path)?.len();
        let mut buf = vec![0; len.min(PIECE_BYTES) as usize];
        let mut at = 0;
        while at < len {
            let piece = &mut buf[..(len - at).min(PIECE_BYTES) as usize];
            read_exact_at(&*self.io, &file, piece, at, &path)?;
            visit(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Reads a file whole into memory; one of more than `max_bytes` is refused.
    pub fn read_whole(&self, inode: &Inode, max_bytes: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.for_each_piece(inode, |piece| {
            if bytes.len() as u64 + piece.len() as u64 > max_bytes {
                let why = format!("larger than {max_bytes} bytes");
                return Err(StoreError::Invalid { what: format!("inode {}", inode.ino), why });
            }
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Recomputes a file's SHA-256 from its bytes.
    pub fn sha256_of_bytes(&self, inode: &Inode) -> Result<Sha256Digest> {
        let mut hasher = sha2::Sha256::new();
        self.for_each_piece(inode, |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(Sha256Digest(hasher.finalize().into()))
    }

    /// Gives a file's SHA-256, remembered where it can be. `quiet` says that nobody has it open for writing.
    pub fn sha256(&self, inode: &Inode, quiet: bool) -> Result<Sha256Digest> {
        match inode.recipe {
            _ if inode.raw => Ok(self.hash_raw(inode.ino, quiet)?.sha256),
            Some(recipe) => self.read(|txn| Ok(txn.recipe_row(recipe)?.sha256)),
            None => Ok(Sha256Digest::of(b"")),
        }
    }
}
