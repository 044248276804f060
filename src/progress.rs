//! How long verbs say how far they are, and how they are stopped.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::Result;

/// How far a verb is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Is told again and again while a verb works, from any thread; its error stops the verb.
pub type Watcher<'a> = &'a (dyn Fn(Progress) -> Result<()> + Sync);

/// Watches nothing.
pub fn unwatched(_: Progress) -> Result<()> {
    Ok(())
}

/// Adds up the bytes that a verb has dealt with.
pub(crate) struct Meter<'a> {
    done_bytes: AtomicU64,
    total_bytes: u64,
    watcher: Watcher<'a>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(total_bytes: u64, watcher: Watcher<'a>) -> Self {
        Self { done_bytes: AtomicU64::new(0), total_bytes, watcher }
    }

    pub(crate) fn advance(&self, bytes: usize) -> Result<()> {
        let bytes = bytes as u64;
        let done_bytes = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.watcher)(Progress { done_bytes, total_bytes: self.total_bytes })
    }
}
