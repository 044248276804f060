//! The operations, and how sequences of them are drawn.

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::FallocateFlags;
use tinyllm::catalog::RenameMode;

use super::SLOTS;
use crate::checkpoint::manifest_of;

/// Names from the run's checkpoint directory down.
pub type Path = Vec<&'static str>;

/// Plain names: few, so that operations meet.
const NAMES: [&str; 4] = ["a", "b", "c", "model.safetensors"];
pub const STEPS: [&str; 3] = ["step-000001", "step-000002", "step-000003"];
const XATTRS: [&str; 2] = ["user.one", "user.two"];
const TIMES_NS: [i64; 3] = [1_000_000_001, 1_700_000_000_123_456_789, 987_654_321];
const MODES: [u32; 4] = [0o644, 0o600, 0o755, 0o444];
/// Files of 64 KiB and more settle into packs; both sides of that are drawn.
const MAX_OFFSET: u64 = 200 << 10;
const MAX_LEN: usize = 100 << 10;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
}

/// One operation. Files are opened into slots; an operation on an empty slot does nothing.
#[derive(Debug, Clone)]
pub enum Op {
    Open {
        slot: usize,
        path: Path,
        access: Access,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        at: u64,
        len: usize,
    },
    Write {
        slot: usize,
        at: u64,
        len: usize,
        seed: u64,
    },
    /// Stores into a shared mapping of a part of the file.
    MapWrite {
        slot: usize,
        at: u64,
        len: usize,
        seed: u64,
    },
    SetLen {
        slot: usize,
        len: u64,
    },
    Allocate {
        slot: usize,
        mode: FallocateFlags,
        at: u64,
        len: u64,
    },
    Copy {
        from: usize,
        from_at: u64,
        to: usize,
        to_at: u64,
        len: u64,
    },
    Seek {
        slot: usize,
        at: u64,
        hole: bool,
    },
    Sync {
        slot: usize,
    },
    Truncate {
        path: Path,
        len: u64,
    },
    Mkdir {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Unlink {
        path: Path,
    },
    Symlink {
        path: Path,
        target: &'static str,
    },
    Link {
        from: Path,
        to: Path,
    },
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    SetXattr {
        path: Path,
        name: &'static str,
        value: Vec<u8>,
        create: bool,
        replace: bool,
    },
    RemoveXattr {
        path: Path,
        name: &'static str,
    },
    Chmod {
        path: Path,
        mode: u32,
    },
    SetMtime {
        path: Path,
        ns: i64,
    },
    Stat {
        path: Path,
    },
    List {
        path: Path,
    },
    /// Writes files (name, length, seed) and a manifest into a directory, and renames it onto a step's name.
    Save {
        dir: Path,
        step: usize,
        mode: RenameMode,
        files: Vec<(&'static str, usize, u64)>,
    },
    /// Creates or overwrites a small file: what `Save` writes the manifest with.
    Put {
        path: Path,
        bytes: Vec<u8>,
    },
    /// Settles closed files now, where that can be asked for.
    Settle,
    /// Collects what nothing needs.
    Collect,
    /// Ends the daemon and starts another.
    Reopen,
    /// The same by SIGKILL.
    Crash,
}

/// Gives the bytes of the manifest under which files may be sealed as this step.
pub fn manifest_bytes(run: &str, step: usize, files: &[(String, Vec<u8>)]) -> Vec<u8> {
    serde_json::to_vec(&manifest_of(run, step as u64 + 1, files)).unwrap()
}

fn path(seals: bool) -> impl Strategy<Value = Path> {
    let first: Vec<&'static str> = if seals { [&NAMES[..], &STEPS[..]].concat() } else { NAMES.to_vec() };
    let first = proptest::sample::select(first);
    let depth = prop_oneof![5 => Just(0usize), 3 => Just(1), 1 => Just(2)];
    let rest = depth.prop_flat_map(|depth| vec(proptest::sample::select(&NAMES[..]), depth));
    (first, rest).prop_map(|(first, rest)| {
        let mut path = vec![first];
        path.extend(rest);
        path
    })
}

fn slot() -> impl Strategy<Value = usize> {
    0..SLOTS
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 2 => 0..=MAX_OFFSET, 1 => (0..=MAX_OFFSET / 4096).prop_map(|page| page * 4096)]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 3 => 1..300usize, 3 => 1..=MAX_LEN, 1 => (1..=16usize).prop_map(|pages| pages * 4096)]
}

/// Few seeds: the same bytes come again in other files, which then share them.
fn seed() -> impl Strategy<Value = u64> {
    0..6u64
}

fn access() -> impl Strategy<Value = Access> {
    (0..3usize, prop::bool::weighted(0.7), prop::bool::weighted(0.15), prop::bool::weighted(0.2)).prop_map(
        |(kind, create, exclusive, truncate)| {
            let (read, write) = [(true, true), (false, true), (true, false)][kind];
            Access { read, write, create, exclusive: create && exclusive, truncate: truncate && write }
        },
    )
}

fn rename_mode() -> impl Strategy<Value = RenameMode> {
    prop_oneof![
        3 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        1 => Just(RenameMode::Exchange),
    ]
}

fn allocate_mode() -> impl Strategy<Value = FallocateFlags> {
    proptest::sample::select(vec![
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocateFlags::ZERO_RANGE,
        FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    ])
}

fn on_open_files() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (slot(), offset(), length(), seed())
            .prop_map(|(slot, at, len, seed)| Op::Write { slot, at, len, seed }),
        2 => (slot(), offset(), length()).prop_map(|(slot, at, len)| Op::Read { slot, at, len }),
        2 => slot().prop_map(|slot| Op::Close { slot }),
        1 => (slot(), offset(), length(), seed())
            .prop_map(|(slot, at, len, seed)| Op::MapWrite { slot, at, len, seed }),
        1 => (slot(), offset()).prop_map(|(slot, len)| Op::SetLen { slot, len }),
        1 => (slot(), allocate_mode(), offset(), length())
            .prop_map(|(slot, mode, at, len)| Op::Allocate { slot, mode, at, len: len as u64 }),
        1 => (slot(), offset(), slot(), offset(), length()).prop_map(|(from, from_at, to, to_at, len)| {
            Op::Copy { from, from_at, to, to_at, len: len as u64 }
        }),
        1 => (slot(), offset(), any::<bool>()).prop_map(|(slot, at, hole)| Op::Seek { slot, at, hole }),
        1 => slot().prop_map(|slot| Op::Sync { slot }),
    ]
}

fn on_names(seals: bool) -> impl Strategy<Value = Op> {
    let path = move || path(seals);
    let xattr = || proptest::sample::select(&XATTRS[..]);
    prop_oneof![
        6 => (slot(), path(), access()).prop_map(|(slot, path, access)| Op::Open { slot, path, access }),
        4 => path().prop_map(|path| Op::Mkdir { path }),
        1 => path().prop_map(|path| Op::Rmdir { path }),
        2 => path().prop_map(|path| Op::Unlink { path }),
        1 => path().prop_map(|path| Op::Symlink { path, target: "nowhere" }),
        1 => (path(), path()).prop_map(|(from, to)| Op::Link { from, to }),
        3 => (path(), path(), rename_mode()).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        1 => (path(), xattr(), vec(any::<u8>(), 0..40), 0..3)
            .prop_map(|(path, name, value, kind)| Op::SetXattr {
                path, name, value, create: kind == 1, replace: kind == 2
            }),
        1 => (path(), xattr()).prop_map(|(path, name)| Op::RemoveXattr { path, name }),
        1 => (path(), proptest::sample::select(&MODES[..])).prop_map(|(path, mode)| Op::Chmod { path, mode }),
        1 => (path(), proptest::sample::select(&TIMES_NS[..])).prop_map(|(path, ns)| Op::SetMtime { path, ns }),
        1 => (path(), offset()).prop_map(|(path, len)| Op::Truncate { path, len }),
        1 => path().prop_map(|path| Op::Stat { path }),
        1 => path().prop_map(|path| Op::List { path }),
    ]
}

fn on_the_store() -> impl Strategy<Value = Op> {
    prop_oneof![5 => Just(Op::Settle), 3 => Just(Op::Collect), 1 => Just(Op::Reopen), 1 => Just(Op::Crash)]
}

fn save() -> impl Strategy<Value = Op> {
    let name = || proptest::sample::select(&NAMES[..]);
    let mode = prop_oneof![4 => Just(RenameMode::Replace), 1 => Just(RenameMode::Exchange)];
    let files = vec((name(), length(), seed()), 0..3);
    (name(), 0..STEPS.len(), mode, files).prop_map(|(dir, step, mode, files)| Op::Save {
        dir: vec![dir],
        step,
        mode,
        files,
    })
}

/// Draws sequences; with `seals` some of them save steps, and name steps in every other operation.
pub fn sequence(seals: bool) -> impl Strategy<Value = Vec<Op>> {
    let op = if seals {
        prop_oneof![10 => on_names(true), 10 => on_open_files(), 4 => save(), 2 => on_the_store()].boxed()
    } else {
        prop_oneof![10 => on_names(false), 12 => on_open_files(), 2 => on_the_store()].boxed()
    };
    vec(op, 1..60)
}
