//! The store's verbs against a real store on the disk, without a mount.
#![allow(clippy::unwrap_used)]

mod control;
mod import_export;
mod removal;
mod select;
mod statistics;
#[path = "../support/mod.rs"]
mod support;
mod verify;
