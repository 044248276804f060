//! A trainer for small language models whose checkpoints resume to the bit.
//!
//! Arrows run downwards: the loop, then checkpoints and resuming, then model, optimizer and data. The trainer
//! writes its checkpoints with ordinary file calls and knows of no particular filesystem. The library never
//! prints: what happens is told as [`progress::Event`]s to whoever runs it.

pub mod adamw;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod error;
pub mod logits;
pub mod model;
pub mod parameters;
pub mod pcg32;
pub mod progress;
pub mod resume;
pub mod run_dir;
pub mod schedule;
pub mod shuffle;
pub mod spec;
pub mod start;
pub mod tensors;
pub mod tokenizer;
pub mod train;
