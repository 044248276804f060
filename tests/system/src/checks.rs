//! Checks that many tests make.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tinyllm::digest::Sha256Digest;
use tinyllm::store::Store;
use tinyllm::subtree::Subtree;

/// How long something that must happen may take; far more than it needs.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Fails unless `result` is exactly this error.
#[track_caller]
pub fn assert_errno<T: Debug, E: Into<io::Error>>(what: &str, result: Result<T, E>, wanted: Errno) {
    match result {
        Ok(value) => panic!("{what}: worked ({value:?}), {wanted:?} expected"),
        Err(error) => {
            let error: io::Error = error.into();
            assert_eq!(
                error.raw_os_error(),
                Some(wanted.raw_os_error()),
                "{what}: {error}, {wanted:?} expected"
            );
        }
    }
}

/// Waits for something that happens in the background.
#[track_caller]
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(PAUSE);
    }
}

#[track_caller]
pub fn read_text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads an extended attribute; None when there is none.
pub fn text_xattr(path: &Path, name: &str) -> Option<String> {
    let mut value = vec![0; 64 << 10];
    match rustix::fs::getxattr(path, name, &mut value[..]) {
        Ok(len_bytes) => Some(String::from_utf8(value[..len_bytes].to_vec()).unwrap()),
        Err(Errno::NODATA) => None,
        Err(error) => panic!("{}: {name}: {error}", path.display()),
    }
}

/// Describes everything below a directory: each path with its kind, mode, content and, but for symbolic links,
/// whose time few tools keep, its modification time.
pub fn listing(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    list_into(dir, "", &mut found);
    found
}

fn list_into(dir: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_string_lossy());
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = if stat.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if stat.is_file() {
            format!("{} bytes {}", stat.len(), Sha256Digest::of(&fs::read(&path).unwrap()))
        } else {
            "directory".to_owned()
        };
        let mode = stat.permissions().mode();
        let time = if stat.is_symlink() {
            String::new()
        } else {
            format!(" {}.{:09}", stat.mtime(), stat.mtime_nsec())
        };
        found.insert(name.clone(), format!("{mode:o}{time} {content}"));
        if stat.is_dir() {
            list_into(&path, &format!("{name}/"), found);
        }
    }
}

/// Reads every byte of every sealed tree through the library and compares it with its hashes. The store may be
/// mounted meanwhile.
pub fn verify_store(store: &Path) {
    let store = Store::open_read_only(store).expect("the store opens");
    store.catalog().check_integrity().expect("the catalog is sound");
    let checkpoints = store.read(|txn| txn.checkpoints()).unwrap();
    for checkpoint in checkpoints {
        let tree = store.read(|txn| Subtree::list(txn, checkpoint.root)).unwrap();
        for node in tree.files() {
            let what = format!("{} step {} {}", checkpoint.run, checkpoint.step, node.path);
            assert!(!node.inode.raw, "{what}: sealed but raw");
            let found = store.sha256_of_bytes(&node.inode).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(found, store.sha256(&node.inode, true).unwrap(), "{what}");
        }
    }
}
