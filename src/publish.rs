//! The six steps.
