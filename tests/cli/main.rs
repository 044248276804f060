//! The tinyllm command, run as people run it.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{Model, flip, packs, read_tree};
use tempfile::TempDir;
use tinyllm::store::Store;

/// A place with a store, a model outside it, and nothing of this machine's environment.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        place.ok(&["init"]);
        place
    }

    fn with_checkpoints() -> Self {
        let place = Self::new();
        for step in [100, 200] {
            let source = place.source("a", step);
            place.ok(&["import", source.to_str().unwrap(), &format!("a/step-{step}")]);
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn store(&self) -> PathBuf {
        self.path("store")
    }

    fn source(&self, run: &str, step: u64) -> PathBuf {
        Model::new(step, 3, 200_000).save(&self.path("sources").join(run), run, step)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinyllm"));
        command.args(arguments).env_clear().env("TINYLLM_STORE", self.store()).current_dir(self.dir.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert_eq!(output.stderr, b"", "{arguments:?}: quiet when nothing is wrong");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Checks the exit code and that the error is one clear line. Gives that line.
    fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.starts_with("tinyllm: ") && text.lines().count() == 1, "{arguments:?}: {text}");
        text
    }
}

#[test]
fn every_verb_speaks_json() {
    let place = Place::with_checkpoints();
    let status = place.json(&["status"]);
    assert_eq!(status["checkpoints"], 4);
    assert_eq!(status["store"], place.store().to_str().unwrap());
    assert!(status["disk"]["packs_bytes"].as_u64().unwrap() > 1_500_000);

    let list = place.json(&["ls"]);
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(
        (&list[0]["run"], &list[0]["step"], &list[0]["verified_at"]),
        (&"a".into(), &100.into(), &Value::Null)
    );
    assert!(list[0]["unique_bytes"].as_u64().unwrap() > 800_000);
    assert_eq!(place.json(&["ls", "a"]), list);

    let shown = place.json(&["show", "a/100"]);
    assert_eq!(shown["name"], "base:a:step-100");
    assert_eq!(shown["files"].as_array().unwrap().len(), 5);

    let verified = place.json(&["verify", "a/latest"]);
    assert_eq!(verified["checkpoints"][1]["path"], "checkpoints/a/step-000200", "both faces");
    assert!(place.json(&["verify", "--all"])["plain"]["files"].as_u64().unwrap() > 0);
    assert!(place.json(&["ls"])[0]["verified_at"].is_string());

    assert_eq!(place.json(&["gc"])["chunks"], 0);
    let source = place.source("b", 1);
    assert_eq!(
        place.json(&["import", source.to_str().unwrap(), "b/step-1"])["path"],
        "runs/b/ckpt/step-000001"
    );
    assert_eq!(place.json(&["export", "base:b:step-1", "out"])["files"], 5);
    assert_eq!(read_tree(&place.path("out")), read_tree(&source));
    assert!(place.json(&["--store", "other", "init"])["uuid"].is_string());
}

#[test]
fn tables_are_for_people() {
    let place = Place::with_checkpoints();
    let text = place.ok(&["ls"]);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split("  ").filter(|c| !c.is_empty()).map(str::trim).collect())
        .collect();
    assert_eq!(lines[0], ["RUN", "STEP", "SAVED", "LOGICAL", "ONLY ITS OWN", "VERIFIED"]);
    assert_eq!((lines[1][0], lines[1][1], lines[1][5]), ("a", "100", "never"));
    assert!(lines[1][3].ends_with("KiB"), "{text}");
    for verb in [vec!["status"], vec!["show", "a/latest"], vec!["verify"]] {
        assert!(place.ok(&verb).lines().count() > 3, "{verb:?}");
    }
}

#[test]
fn exit_codes_tell_what_is_wrong() {
    let place = Place::with_checkpoints();
    let source = place.source("a", 100);
    let source = source.to_str().unwrap();
    // 2: usage. clap's own message has more than one line.
    assert_eq!(place.run(&["nonsense"]).status.code(), Some(2));
    assert_eq!(place.run(&["verify", "a/100", "--all"]).status.code(), Some(2));
    place.fails(&["import", source, "nonsense"], 2);
    // 3: not found.
    assert!(place.fails(&["show", "a/101"], 3).contains("run a has step-000100, step-000200"));
    place.fails(&["verify", "b/latest"], 3);
    place.fails(&["ls", "b"], 3);
    place.fails(&["import", "missing", "a/1"], 3);
    assert!(place.fails(&["--store", "missing", "ls"], 3).contains("tinyllm init"));
    // 4: refused.
    place.fails(&["import", source, "a/step-100"], 4);
    let reasons = place.fails(&["import", source, "b/step-7"], 4);
    assert!(reasons.contains("run_id") && reasons.contains("step"), "{reasons}");
    place.fails(&["export", "a/100", "sources"], 4);
    place.fails(&["init"], 4);
    place.fails(&["rebuild"], 4);
    // 6: in use.
    let writer = Store::open(&place.store()).unwrap();
    assert!(place.fails(&["gc"], 6).contains("another process"));
    place.fails(&["rebuild", "--force"], 6);
    assert!(place.ok(&["ls"]).contains("200"), "reading needs no lock");
    drop(writer);
    // 7: unsupported.
    let format = place.store().join("FORMAT");
    let text = fs::read_to_string(&format).unwrap();
    fs::write(&format, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    place.fails(&["ls"], 7);
    fs::write(&format, text).unwrap();
}

#[test]
fn damage_is_named_and_has_its_own_code() {
    let place = Place::with_checkpoints();
    let store = Store::open_read_only(&place.store()).unwrap();
    let pack = packs(&store).into_iter().find(|pack| fs::metadata(pack).unwrap().len() > 600_000).unwrap();
    flip(&pack, 300_000);
    let output = place.run(&["verify"]);
    assert_eq!(output.status.code(), Some(5));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("DAMAGED") && text.contains("model.safetensors: chunk"), "{text}");
    assert!(text.contains("right"), "the others are said to be right: {text}");
    let output = place.run(&["verify", "--json"]);
    assert_eq!(output.status.code(), Some(5));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems =
        found["checkpoints"].as_array().unwrap().iter().flat_map(|c| c["problems"].as_array().unwrap());
    assert_eq!(problems.count(), 2, "in both faces");
}

#[test]
fn a_lost_catalog_is_rebuilt() {
    let place = Place::with_checkpoints();
    place.ok(&["export", "a/latest", "before"]);
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(place.store().join(format!("catalog.db{suffix}")));
    }
    assert!(place.fails(&["ls"], 5).contains("tinyllm rebuild"));
    assert_eq!(place.json(&["rebuild"])["trees"], 4);
    place.ok(&["export", "a/latest", "after"]);
    assert_eq!(read_tree(&place.path("after")), read_tree(&place.path("before")));
    place.ok(&["verify"]);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let place = Place::with_checkpoints();
    let mut command = place.command(&["ls"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_store_is_found_by_option_environment_or_place() {
    let place = Place::new();
    let run = |command: &mut Command| {
        let output = command.arg("--json").arg("status").output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).ok().map(|value| value["store"].clone())
    };
    let bare = |name: &str, value: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tinyllm"));
        command.env_clear().env(name, value);
        command
    };
    let data = place.path("tinyllm");
    fs::rename(place.store(), &data).unwrap();
    let found = Some(Value::from(data.to_str().unwrap()));
    assert_eq!(run(&mut bare("XDG_DATA_HOME", place.dir.path())), found);
    assert_eq!(run(&mut bare("TINYLLM_STORE", &data)), found);
    assert_eq!(run(bare("TINYLLM_STORE", Path::new("/nowhere")).arg("--store").arg(&data)), found);
    assert_eq!(run(&mut bare("TINYLLM_STORE", Path::new("/nowhere"))), None);
}
