//! A content-addressed store for language-model checkpoints.
//!
//! Layers, lowest first; arrows run downwards only:
//! names and digests, the I/O seam, chunks and packs, the catalog, the store and its verbs.
//! The library never prints, reads no environment and knows neither a kernel mount nor a command line.

pub mod catalog;
pub mod check;
mod content;
pub mod control;
pub mod digest;
pub mod error;
pub mod export;
mod faces;
pub mod format;
pub mod gate;
pub mod gc;
pub mod hash;
mod hash_memory;
pub mod import;
pub mod io;
pub mod layout;
pub mod location;
pub mod manifest;
pub mod mounts;
pub mod names;
pub mod pack;
pub mod pins;
pub mod policy;
pub mod progress;
pub mod publish;
pub mod reader;
pub mod rebuild;
pub mod recipe;
pub mod record;
pub mod schema;
pub mod seal;
pub mod select;
pub mod settle;
pub mod split;
mod staged;
pub mod stats;
pub mod store;
pub mod subtree;
pub mod time;
mod unseal;
pub mod verify;
