//! MANIFEST.json.
