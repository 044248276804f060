//! What is done with an open file: reads, writes, syncs and the rest.

use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom};
use tinyllm::catalog::{Durability, Inode};
use tinyllm::error::IoContext;

use super::open::OpenContent;
use super::{Result, Tree};
use crate::errno::Errno;

/// Copies at most this much in one call, so that a signal is not ignored for long.
const MAX_COPY_BYTES: u64 = 1 << 30;

impl Tree {
    /// Fills `buf` from `offset`; fewer bytes only at the end of the file.
    pub fn read(&self, handle: u64, buf: &mut [u8], offset: u64) -> Result<usize> {
        let content = self.handle(handle)?.shared.content.read().clone();
        match content {
            OpenContent::Raw(file) | OpenContent::Packed(file) => {
                let mut filled = 0;
                while filled < buf.len() {
                    match self.store.io().read_at(&file, &mut buf[filled..], offset + filled as u64)? {
                        0 => break,
                        got => filled += got,
                    }
                }
                Ok(filled)
            }
            OpenContent::Settled(reader) => Ok(self.store.read_file_at(&reader, buf, offset)?),
            OpenContent::Empty => Ok(0),
            OpenContent::Generated(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let piece = &bytes[start..(start + buf.len()).min(bytes.len())];
                buf[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
    }

    /// Writes all of `data` at `offset`.
    pub fn write(&self, handle: u64, data: &[u8], offset: u64) -> Result<usize> {
        let handle = self.handle(handle)?;
        // The kernel's write-back cache may use any handle of the file that can write.
        let file = handle.shared.raw_file().filter(|_| handle.write).ok_or(Errno::BADF)?;
        file.write_all_at(data, offset)?;
        Ok(data.len())
    }

    /// Makes a file's bytes and its name durable.
    ///
    /// The raw file is synced first, then live/ (its name there), then the catalog (its name in the tree), so a
    /// name that survives a power cut has its bytes.
    pub fn fsync(&self, ino: u64, handle: u64) -> Result<()> {
        let raw = self.handle(handle)?.shared.raw_file();
        if let Some(file) = raw {
            let path = self.store.layout().live(ino);
            self.store.io().sync(&file).at("sync", &path)?;
            let dir = self.store.layout().live_dir();
            self.store.io().sync_dir(&dir).at("sync directory", &dir)?;
            self.store.write(Durability::Ordered, |txn| match txn.find_inode(ino)? {
                // The raw bytes are durable now, and newer than what was settled before.
                Some(inode) if inode.raw && inode.recipe.is_some() => {
                    txn.put_inode(&Inode { recipe: None, ..inode })
                }
                _ => Ok(()),
            })?;
        }
        Ok(self.store.sync()?)
    }

    /// Makes every name and change of metadata so far durable.
    pub fn fsyncdir(&self) -> Result<()> {
        let dir = self.store.layout().live_dir();
        self.store.io().sync_dir(&dir).at("sync directory", &dir)?;
        Ok(self.store.sync()?)
    }

    pub fn fallocate(&self, handle: u64, offset: u64, len_bytes: u64, mode: i32) -> Result<()> {
        let handle = self.handle(handle)?;
        let file = handle.shared.raw_file().filter(|_| handle.write).ok_or(Errno::BADF)?;
        let flags = FallocateFlags::from_bits(mode.cast_unsigned()).ok_or(Errno::NOTSUP)?;
        Ok(rustix::fs::fallocate(&file, flags, offset, len_bytes)?)
    }

    /// Finds the next data or hole at or after `offset`.
    pub fn seek(&self, handle: u64, offset: u64, hole: bool) -> Result<u64> {
        let content = self.handle(handle)?.shared.content.read().clone();
        match content {
            OpenContent::Raw(file) | OpenContent::Packed(file) => {
                let from = if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
                Ok(rustix::fs::seek(&file, from)?)
            }
            OpenContent::Settled(reader) => reader.seek(offset, hole).ok_or(Errno::NXIO),
            OpenContent::Empty => Err(Errno::NXIO),
            OpenContent::Generated(bytes) => {
                let end = bytes.len() as u64;
                if offset >= end { Err(Errno::NXIO) } else { Ok(if hole { end } else { offset }) }
            }
        }
    }

    /// Copies between two open files, as far as the disk beneath can do it by itself; else the kernel copies.
    pub fn copy_range(
        &self,
        (from, mut from_offset): (u64, u64),
        (to, mut to_offset): (u64, u64),
        len_bytes: u64,
    ) -> Result<u64> {
        let (from, to) = (self.handle(from)?, self.handle(to)?);
        let to = to.shared.raw_file().filter(|_| to.write).ok_or(Errno::BADF)?;
        let Some(from) = from.shared.raw_file() else { return Err(Errno::NOTSUP) };
        let len = usize::try_from(len_bytes.min(MAX_COPY_BYTES)).expect("at most 1 GiB");
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut from_offset), &to, Some(&mut to_offset), len)?;
        Ok(copied as u64)
    }
}
