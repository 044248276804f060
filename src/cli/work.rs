//! Commands that do something: init, verify, gc, rebuild, import, export.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tinyllm::control::Request;
use tinyllm::error::{ErrorKind, IoContext, StoreError};
use tinyllm::gc::Collected;
use tinyllm::import::Imported;
use tinyllm::store::Store;
use tinyllm::verify::{Problem, Verification, Verified};

use crate::failure::{Failure, exit_code};
use crate::output::{Output, human, with_progress};
use crate::reach::Reach;

/// Gives who runs this command, and so owns what it makes.
fn owner() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

pub fn init(reach: &Reach, out: &mut Output) -> Result<ExitCode, Failure> {
    let (uid, gid) = owner();
    let store = Store::create(reach.root(), uid, gid)?;
    store.sync()?;
    let value = json!({ "store": reach.root(), "uuid": store.format().uuid });
    out.show(&value, || format!("created {}\n", reach.root().display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Verifies through the store's writer, who alone may note when.
pub fn verify(reach: &Reach, checkpoint: Option<&str>, out: &mut Output) -> Result<ExitCode, Failure> {
    let checkpoint = checkpoint.map(|name| reach.checkpoint_name(name));
    let request = Request::Verify { checkpoint };
    let found: Verification = reach.ask("verifying", request)?;
    let sound = found.is_sound();
    out.show(&found, || verification_text(&found))?;
    Ok(if sound { ExitCode::SUCCESS } else { exit_code(ErrorKind::Corrupt) })
}

fn verification_text(found: &Verification) -> String {
    let mut text = String::new();
    let named = found.checkpoints.iter().map(|verified| (verified.path.as_str(), verified));
    for (name, verified) in named.chain(found.plain.iter().map(|plain| ("plain files", plain))) {
        let Verified { files, bytes, problems, .. } = verified;
        let verdict = if problems.is_empty() { "right" } else { "DAMAGED" };
        let _infallible = writeln!(text, "{verdict:<8}{name}  {files} files, {}", human(*bytes));
        push_problems(&mut text, problems);
    }
    if !found.structure.is_empty() {
        text.push_str("DAMAGED the store's own files\n");
        push_problems(&mut text, &found.structure);
    }
    text
}

fn push_problems(text: &mut String, problems: &[Problem]) {
    for Problem { path, what } in problems {
        let _infallible = writeln!(text, "        {path}: {what}");
    }
}

pub fn gc(reach: &Reach, out: &mut Output) -> Result<ExitCode, Failure> {
    let collected: Collected = reach.ask("collecting", Request::Gc)?;
    out.show(&collected, || {
        let Collected { chunks, packs_removed, freed_bytes, .. } = collected;
        format!("freed {}: {chunks} chunks, {packs_removed} packs\n", human(freed_bytes))
    })?;
    Ok(ExitCode::SUCCESS)
}

pub fn rebuild(reach: &Reach, force: bool, out: &mut Output) -> Result<ExitCode, Failure> {
    let (uid, gid) = owner();
    let rebuilt = tinyllm::rebuild::rebuild(reach.root(), force, uid, gid)?;
    let whole = rebuilt.problems.is_empty();
    out.show(&rebuilt, || {
        let mut text = format!(
            "{} sealed trees with {} files, from {} records and {} packs; {} files in lost+found\n",
            rebuilt.trees, rebuilt.files, rebuilt.records, rebuilt.packs, rebuilt.lost_and_found
        );
        for problem in &rebuilt.problems {
            let _infallible = writeln!(text, "        {problem}");
        }
        text
    })?;
    Ok(if whole { ExitCode::SUCCESS } else { exit_code(ErrorKind::Corrupt) })
}

pub fn import(
    reach: &Reach,
    directory: &Path,
    name: String,
    base_model: Option<String>,
    out: &mut Output,
) -> Result<ExitCode, Failure> {
    let (uid, gid) = owner();
    let source = absolute(directory)?;
    let imported: Imported =
        reach.ask("importing", Request::Import { source, name, base_model, uid, gid })?;
    out.show(&imported, || {
        let Imported { path, files, logical_bytes, left_out, .. } = &imported;
        let mut text = format!("{path}: {files} files, {}\n", human(*logical_bytes));
        if !left_out.is_empty() {
            let _infallible = writeln!(text, "left out, as only resuming needs it: {}", left_out.join(", "));
        }
        text
    })?;
    Ok(ExitCode::SUCCESS)
}

pub fn export(
    reach: &Reach,
    checkpoint: &str,
    directory: &Path,
    out: &mut Output,
) -> Result<ExitCode, Failure> {
    let store = reach.read()?;
    let checkpoint = store.select(&reach.checkpoint_name(checkpoint))?;
    let directory = absolute(directory)?;
    let exported = with_progress("exporting", |watcher| store.export(&checkpoint, &directory, watcher))?;
    out.show(&exported, || {
        format!("{}: {} files, {}\n", exported.directory.display(), exported.files, human(exported.bytes))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn absolute(path: &Path) -> Result<PathBuf, StoreError> {
    std::path::absolute(path).at("resolve", path)
}
