//! What is done with an open file: reads, writes, syncs and the rest.

use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom};
use tinyllm::error::IoContext;
use tinyllm::policy;

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
        let file = self.handle(handle)?.writer.ok_or(Errno::BADF)?;
        file.write_all_at(data, offset)?;
        Ok(data.len())
    }

    /// Makes a file's bytes and its name durable.
    pub fn fsync(&self, ino: u64, handle: u64) -> Result<()> {
        if self.handle(handle)?.shared.raw_file().is_none() {
            return Ok(self.store.sync()?);
        }
        let path = self.store.read(|txn| txn.path_of(ino))?;
        if path.is_some_and(|path| policy::is_staged(&path)) {
            return Ok(self.store.sync_staged(ino)?);
        }
        Ok(self.store.sync_raw(ino)?)
    }

    /// Makes every name and change of metadata so far durable.
    pub fn fsyncdir(&self) -> Result<()> {
        let dir = self.store.layout().live_dir();
        self.store.io().sync_dir(&dir).at("sync directory", &dir)?;
        Ok(self.store.sync()?)
    }

    pub fn fallocate(&self, handle: u64, offset: u64, len_bytes: u64, mode: i32) -> Result<()> {
        let file = self.handle(handle)?.writer.ok_or(Errno::BADF)?;
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
        let to = to.writer.ok_or(Errno::BADF)?;
        let Some(from) = from.shared.raw_file() else { return Err(Errno::NOTSUP) };
        let len = usize::try_from(len_bytes.min(MAX_COPY_BYTES)).expect("at most 1 GiB");
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut from_offset), &to, Some(&mut to_offset), len)?;
        Ok(copied as u64)
    }
}
