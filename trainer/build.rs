//! Records the commit the trainer is built from, where there is one; trainer_state.json names it.

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        emit(&format!("rustc-env=TINYLLM_GIT_SHA={commit}"));
    }
    // The log of HEAD changes with every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        emit(&format!("rerun-if-changed={log}"));
    }
    emit("rerun-if-changed=build.rs");
}

/// Build scripts speak to cargo on standard output.
#[allow(clippy::print_stdout)]
fn emit(instruction: &str) {
    println!("cargo::{instruction}");
}
