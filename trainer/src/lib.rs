//! Placeholder replaced by the trainer.
