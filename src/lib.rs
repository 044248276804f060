//! A content-addressed store for language-model checkpoints.
//!
//! Layers, lowest first; arrows run downwards only:
//! names and digests, the I/O seam, chunks and packs, the catalog, the store and its verbs.
//! The library never prints, reads no environment and knows neither a kernel mount nor a command line.

pub mod digest;
pub mod manifest;
pub mod names;
pub mod publish;
pub mod schema;
