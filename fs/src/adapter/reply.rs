//! Answers: from the tree's results to FUSE's replies.

use std::io;

use fuser::{BackingId, Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyXattr};

use super::Adapter;
use super::convert::{attr_ttl, errno, file_attr, name_ttl};
use crate::attr::Attr;
use crate::errno::Errno;
use crate::tree::{Backing, OpenFlags, Opened};

pub(super) fn reply_empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Err(error) => reply.error(errno(error)),
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(errno(Errno::RANGE)),
        Ok(value) => reply.data(&value),
    }
}

/// Registers a backing file with the kernel at its first open.
fn register(backing: &Backing, open: impl FnOnce(&Backing) -> io::Result<BackingId>) -> io::Result<()> {
    let mut registration = backing.registration.lock();
    if registration.is_none() {
        *registration = Some(Box::new(open(backing)?));
    }
    Ok(())
}

pub(super) fn with_backing_id(backing: &Backing, reply: impl FnOnce(&BackingId)) {
    let registration = backing.registration.lock();
    let id = registration.as_ref().and_then(|any| any.downcast_ref::<BackingId>());
    reply(id.expect("registered just before"));
}

impl Adapter {
    pub(super) fn reply_entry(&self, reply: ReplyEntry, found: Result<Attr, Errno>) {
        match found {
            Ok(attr) => {
                self.tree.remember(attr.ino);
                reply.entry_with_ttls(&attr_ttl(&attr), &name_ttl(&attr), &file_attr(&attr), Generation(0));
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    pub(super) fn reply_attr(reply: ReplyAttr, found: Result<Attr, Errno>) {
        match found {
            Ok(attr) => reply.attr(&attr_ttl(&attr), &file_attr(&attr)),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Registers an opened file's backing with the kernel. Where the kernel refuses that, all files are served
    /// from user space from now on, this one included.
    pub(super) fn with_kernel(
        &self,
        opened: Opened,
        ino: u64,
        flags: OpenFlags,
        open: impl FnOnce(&Backing) -> io::Result<BackingId>,
    ) -> Result<Opened, Errno> {
        let Some(backing) = &opened.backing else { return Ok(opened) };
        let Err(error) = register(backing, open) else { return Ok(opened) };
        tracing::info!(%error, "no passthrough: files are served from user space");
        self.tree.disable_passthrough();
        self.tree.release(opened.handle);
        self.tree.open(ino, flags)
    }
}
