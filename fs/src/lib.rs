//! The kernel-free tree and its FUSE adapter.
