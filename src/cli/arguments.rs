//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

const AFTER_HELP: &str = "\
A checkpoint CKPT is named by any of:
  <base_model>:<run>:step-<n>   its full name
  <run>/step-<n>                padded or not
  <run>/latest
  models/<model>/<version>
  a path inside a mount, or of the tree: runs/<run>/ckpt/step-000500, checkpoints/<run>/latest

Exit codes: 0 done, 1 other errors, 2 wrong usage, 3 not found, 4 refused (a check failed, or the name is
taken), 5 corrupt, 6 locked or busy, 7 store of a newer or unknown format.";

/// A content-addressed store for language-model checkpoints.
#[derive(Debug, Parser)]
#[command(name = "tinyllm", version, after_help = AFTER_HELP)]
pub struct Arguments {
    /// The store. Without it: $TINYLLM_STORE, else the user's data directory, else (for root)
    /// /var/lib/tinyllm.
    #[arg(long, global = true, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Print one JSON value, with sizes in bytes.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Create an empty store
    Init,
    /// Say how much the store holds and what it takes on the disk
    Status,
    /// List checkpoints with their sizes
    Ls {
        /// Only this run, or this model.
        run: Option<String>,
    },
    /// Show a checkpoint and its files
    Show {
        #[arg(value_name = "CKPT")]
        checkpoint: String,
    },
    /// Read everything again and compare it with what was recorded
    Verify {
        /// Only this checkpoint, in both of its views.
        #[arg(value_name = "CKPT", conflicts_with = "all")]
        checkpoint: Option<String>,
        /// The whole store: all checkpoints, settled plain files, pack indexes, records. The default.
        #[arg(long)]
        all: bool,
    },
    /// Give bytes that nothing needs back to the disk
    Gc,
    /// Make a lost catalog again, from packs and records
    Rebuild {
        /// Even if a catalog is there; it is kept as catalog.db.old.
        #[arg(long)]
        force: bool,
    },
    /// Take a checkpoint directory into the store
    ///
    /// The directory holds a MANIFEST.json (it goes to runs/), a manifest.json, or config.json with
    /// model.safetensors and no manifest at all (to checkpoints/).
    Import {
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// <run>/step-<n>, models/<model>/<version>, or a path of the tree.
        name: String,
        /// The model that the lineage began with, for a directory that does not say. Default: the run's name.
        #[arg(long, value_name = "NAME")]
        base_model: Option<String>,
    },
    /// Write a checkpoint to a new directory, byte for byte
    Export {
        #[arg(value_name = "CKPT")]
        checkpoint: String,
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}
