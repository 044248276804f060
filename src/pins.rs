//! Pins keep chunks that work in flight relies on, but that no committed recipe names yet, from collection.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::digest::ChunkDigest;

/// The chunks pinned now, with how many hold each.
#[derive(Debug, Default, Clone)]
pub struct Pins {
    counts: Arc<Mutex<HashMap<ChunkDigest, usize>>>,
}

/// Holds its chunks until it is dropped.
#[derive(Debug)]
pub struct PinGuard {
    pins: Pins,
    held: Vec<ChunkDigest>,
}

impl Pins {
    pub fn guard(&self) -> PinGuard {
        PinGuard { pins: self.clone(), held: Vec::new() }
    }

    pub fn contains(&self, digest: ChunkDigest) -> bool {
        self.counts.lock().contains_key(&digest)
    }
}

impl PinGuard {
    /// Adds a pin. The caller holds the catalog, so that no collection runs between its look-up and this.
    pub fn pin(&mut self, digest: ChunkDigest) {
        *self.pins.counts.lock().entry(digest).or_insert(0) += 1;
        self.held.push(digest);
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        let mut counts = self.pins.counts.lock();
        for digest in &self.held {
            if let Some(count) = counts.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(digest);
                }
            }
        }
    }
}
