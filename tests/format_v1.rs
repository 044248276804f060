//! docs/FORMAT.md promises that every store of version 1 can be read. `fixtures/store-v1` was written by the first
//! program of that version and is never edited; `fixtures/store-v1.sha256` lists what was put into it.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tinyllm::catalog::{Face, SealState};
use tinyllm::digest::Sha256Digest;
use tinyllm::pack;
use tinyllm::store::Store;

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn fixture() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_tree(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/store-v1"), dir.path());
    dir
}

/// Gives the expected files: tree path to SHA-256.
fn expected() -> BTreeMap<String, Sha256Digest> {
    let list = include_str!("fixtures/store-v1.sha256");
    let line = |line: &str| {
        let (digest, path) = line.split_once("  ").unwrap();
        (path.to_owned(), digest.parse().unwrap())
    };
    list.lines().map(line).collect()
}

fn check_content(store: &Store) {
    for (path, digest) in expected() {
        let inode = store.read(|txn| txn.resolve(path.split('/').map(str::as_bytes))).unwrap();
        let inode = inode.unwrap_or_else(|| panic!("{path} is gone"));
        assert!(inode.seal.immutable(), "{path}");
        assert_eq!(store.sha256_of_bytes(&inode).unwrap(), digest, "{path}");
    }
    let latest =
        store.read(|txn| txn.resolve([b"runs".as_slice(), b"fix", b"ckpt", b"LATEST"])).unwrap().unwrap();
    assert_eq!(latest.seal, SealState::Derived);
    assert_eq!(store.read_whole(&latest, 100).unwrap(), b"step-000020\n");
    let link =
        store.read(|txn| txn.resolve([b"checkpoints".as_slice(), b"fix", b"latest"])).unwrap().unwrap();
    assert_eq!(store.read(|txn| txn.symlink_target(link.ino)).unwrap(), b"step-000020");
    let portable = store.read(|txn| txn.newest(Face::Portable, "fix")).unwrap().unwrap();
    assert_eq!(portable.step.0, 20);
}

#[test]
fn a_store_of_version_1_opens_with_everything_in_it() {
    let dir = fixture();
    let store = Store::open(dir.path()).unwrap();
    check_content(&store);
    assert!(store.verify_all(&|_| Ok(())).unwrap().is_sound());
}

#[test]
fn a_store_of_version_1_is_rebuilt_from_its_packs_and_records() {
    let dir = fixture();
    fs::remove_file(dir.path().join("catalog.db")).unwrap();
    let rebuilt = tinyllm::rebuild::rebuild(dir.path(), false, 0, 0).unwrap();
    assert_eq!((rebuilt.trees, rebuilt.records, rebuilt.packs), (5, 3, 3));
    assert!(rebuilt.problems.is_empty(), "{:?}", rebuilt.problems);
    check_content(&Store::open(dir.path()).unwrap());
}

/// The bytes at the offsets that docs/FORMAT.md's tables give.
#[test]
fn a_pack_index_of_version_1_lies_as_documented() {
    let dir = fixture();
    let id = "25fa48698693b06e7ca59b5ea6235f1b".parse().unwrap();
    let path = dir.path().join(format!("packs/25/{id}.idx"));
    let bytes = fs::read(&path).unwrap();
    assert_eq!(&bytes[..8], b"TLPACKIX");
    assert_eq!(bytes[8..12], 1u32.to_le_bytes());
    let entries = pack::decode_index(&bytes, id, &path).unwrap();
    assert_eq!(bytes[12..16], u32::try_from(entries.len()).unwrap().to_le_bytes());
    assert_eq!(bytes.len(), 32 + 88 * entries.len() + 32);
    let packed = fs::read(path.with_extension("pack")).unwrap();
    for (at, entry) in entries.iter().enumerate() {
        let row = &bytes[32 + 88 * at..][..88];
        assert_eq!(row[..32], entry.digest.0);
        assert_eq!(row[32..40], entry.offset.to_le_bytes());
        assert_eq!(row[44..48], entry.raw_bytes.to_le_bytes());
        assert_eq!(row[48], 0);
        let start = usize::try_from(entry.offset).unwrap();
        let chunk = &packed[start..start + entry.stored_bytes as usize];
        assert_eq!(blake3::hash(chunk).as_bytes(), &entry.digest.0);
    }
}
