//! Runs a sequence on the model and on subjects, and compares.

use proptest::test_runner::TestCaseError;
use tinyllm::catalog::RenameMode;

use super::ops::{Op, Path, STEPS};
use super::reference::Reference;
use super::{Kind, Node, Outcome, Snapshot, Value};
use crate::checkpoint::noise;

/// Something that carries out operations in a run's checkpoint directory.
pub trait Subject {
    fn name(&self) -> String;

    /// Starts anew with an empty directory of this run; whatever an earlier sequence left open is closed.
    fn begin(&mut self, run: &str);

    fn apply(&mut self, op: &Op) -> Outcome;

    /// Describes everything in the directory; times that were not set are left to the comparison.
    fn snapshot(&mut self) -> Snapshot;

    /// Says what LATEST and latest name. They must agree.
    fn latest(&mut self) -> Option<String>;

    /// Gives one file of the step's portable face.
    fn portable(&mut self, step: &str, path: &str) -> Result<Vec<u8>, i32>;

    /// Whether links of directories are counted as POSIX systems of old did.
    fn counts_dir_links(&self) -> bool {
        true
    }
}

/// Runs a sequence on all subjects; an error says which of them did something else than the model.
/// Gives how many seals there were.
pub fn run_sequence(run: &str, subjects: &mut [&mut dyn Subject], ops: &[Op]) -> Result<u64, TestCaseError> {
    let mut model = Reference::new(run);
    for subject in subjects.iter_mut() {
        subject.begin(run);
    }
    for op in ops {
        if let Op::Save { dir, step, mode, files } = op {
            save(&mut model, subjects, (dir, *step, *mode), files)?;
            continue;
        }
        for step in expand(&model, op) {
            run_one(&mut model, subjects, &step)?;
        }
    }
    compare(&mut model, subjects, "at the end")?;
    Ok(model.seals())
}

/// Saves as a trainer does, by plain operations. Each may be refused.
fn save(
    model: &mut Reference,
    subjects: &mut [&mut dyn Subject],
    (dir, step, mode): (&Path, usize, RenameMode),
    files: &[(&'static str, usize, u64)],
) -> Result<(), TestCaseError> {
    run_one(model, subjects, &Op::Mkdir { path: dir.clone() })?;
    if model.is_open_dir(dir) {
        for (name, len, seed) in files {
            let path = [&dir[..], &[*name]].concat();
            run_one(model, subjects, &Op::Put { path, bytes: noise(*seed, *len) })?;
        }
        let path = [&dir[..], &["MANIFEST.json"]].concat();
        let bytes = model.manifest_for(dir, step);
        run_one(model, subjects, &Op::Put { path, bytes })?;
    }
    let rename = Op::Rename { from: dir.clone(), to: vec![STEPS[step]], mode };
    for op in expand(model, &rename) {
        run_one(model, subjects, &op)?;
    }
    Ok(())
}

/// Gives the plain operations of one.
fn expand(model: &Reference, op: &Op) -> Vec<Op> {
    let empty = |slot: &usize| !model.is_open(*slot);
    match op {
        // A slot is free before it is used again.
        Op::Open { slot, .. } if model.is_open(*slot) => vec![Op::Close { slot: *slot }, op.clone()],
        Op::Close { slot }
        | Op::Read { slot, .. }
        | Op::Write { slot, .. }
        | Op::MapWrite { slot, .. }
        | Op::SetLen { slot, .. }
        | Op::Allocate { slot, .. }
        | Op::Seek { slot, .. }
        | Op::Sync { slot }
            if empty(slot) =>
        {
            vec![]
        }
        Op::Copy { from, to, .. } if empty(from) || empty(to) => vec![],
        // A seal waits for writers; that it refuses them in the end has a test of its own.
        Op::Rename { to, .. } if STEPS.contains(&to[0]) && to.len() == 1 => {
            let open = (0..super::SLOTS).filter(|slot| model.is_open(*slot));
            open.map(|slot| Op::Close { slot }).chain([op.clone()]).collect()
        }
        _ => vec![op.clone()],
    }
}

fn run_one(model: &mut Reference, subjects: &mut [&mut dyn Subject], op: &Op) -> Result<(), TestCaseError> {
    let wanted = model.apply(op);
    for subject in subjects.iter_mut() {
        let found = subject.apply(op);
        let right = match (op, &wanted, &found) {
            (Op::Seek { slot, at, hole }, _, _) => right_seek(model.bytes_of(*slot), *at, *hole, &found),
            (_, Ok(Value::Node(wanted)), Ok(Value::Node(found))) => {
                *wanted == comparable(found.clone(), wanted, *subject)
            }
            _ => wanted == found,
        };
        if !right {
            return Err(TestCaseError::fail(format!(
                "{}: {}: gave {}, {} expected",
                subject.name(),
                brief(op),
                say(&found),
                say(&wanted)
            )));
        }
    }
    if matches!(op, Op::Settle | Op::Collect | Op::Reopen | Op::Crash) {
        compare(model, subjects, &format!("after {op:?}"))?;
    }
    Ok(())
}

/// Leaves out what the model does not know of a node: times that nobody set, and links that a host does not count.
fn comparable(mut found: Node, wanted: &Node, subject: &dyn Subject) -> Node {
    if wanted.mtime_ns.is_none() {
        found.mtime_ns = None;
    }
    if wanted.kind == Kind::Directory && !subject.counts_dir_links() {
        found.nlink = wanted.nlink;
    }
    found
}

/// Where data or a hole is said to be must not contradict the bytes.
fn right_seek(bytes: &[u8], at: u64, hole: bool, found: &Outcome) -> bool {
    let size = bytes.len() as u64;
    let zeros = |from: u64, to: u64| bytes[from as usize..to as usize].iter().all(|byte| *byte == 0);
    match found {
        Err(libc::ENXIO) => at >= size || (!hole && zeros(at, size)),
        Ok(Value::Count(found)) if at < size && hole => {
            (at..=size).contains(found) && (*found == size || bytes[*found as usize] == 0)
        }
        Ok(Value::Count(found)) => (at..size).contains(found) && zeros(at, *found),
        _ => false,
    }
}

fn compare(
    model: &mut Reference,
    subjects: &mut [&mut dyn Subject],
    when: &str,
) -> Result<(), TestCaseError> {
    let wanted = model.snapshot();
    for subject in subjects.iter_mut() {
        let name = subject.name();
        let found = subject.snapshot();
        let names = |snapshot: &Snapshot| snapshot.keys().cloned().collect::<Vec<_>>();
        if names(&found) != names(&wanted) {
            let (found, wanted) = (names(&found), names(&wanted));
            return Err(TestCaseError::fail(format!("{name}: {when}: holds {found:?}, {wanted:?} expected")));
        }
        for ((path, (node, bytes)), (found, found_bytes)) in wanted.iter().zip(found.into_values()) {
            let found = comparable(found, node, *subject);
            if *node != found {
                return Err(TestCaseError::fail(format!(
                    "{name}: {when}: {path}: {found:?}, {node:?} expected"
                )));
            }
            if *bytes != found_bytes {
                let at = bytes.iter().zip(&found_bytes).position(|(a, b)| a != b);
                return Err(TestCaseError::fail(format!(
                    "{name}: {when}: {path}: wrong bytes from {at:?} on"
                )));
            }
        }
        let (found, wanted) = (subject.latest(), model.latest());
        if found != wanted {
            return Err(TestCaseError::fail(format!(
                "{name}: {when}: LATEST says {found:?}, {wanted:?} expected"
            )));
        }
        for (step, files) in model.portable() {
            for (path, bytes) in files {
                if subject.portable(step, path).as_ref() != Ok(bytes) {
                    return Err(TestCaseError::fail(format!(
                        "{name}: {when}: the portable {step}/{path} is not as saved"
                    )));
                }
            }
        }
    }
    Ok(())
}

fn brief(op: &Op) -> String {
    match op {
        Op::Put { path, bytes } => format!("Put {} bytes into {path:?}", bytes.len()),
        op => format!("{op:?}"),
    }
}

fn say(outcome: &Outcome) -> String {
    match outcome {
        Ok(Value::Bytes(bytes)) => format!("{} bytes, BLAKE3 {}", bytes.len(), blake3::hash(bytes).to_hex()),
        Ok(value) => format!("{value:?}"),
        Err(errno) => format!("{:?}", rustix::io::Errno::from_raw_os_error(*errno)),
    }
}
