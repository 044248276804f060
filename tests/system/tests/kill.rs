//! The kill test: the daemon, and separately the trainer, die at every system call of saving a checkpoint, and
//! nothing that was acknowledged is ever lost, torn or out of order.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use std::io::Write;

use tinyllm::names::Step;
use tinyllm::publish::read_latest;
use tinyllm_system_tests::checkpoint::assert_complete;
use tinyllm_system_tests::strace::{self, Point, Watch};
use tinyllm_system_tests::{Line, Lines, Mount, eventually, read_text, verify_store};

const RUN: &str = "r";
const KEEP: u64 = 3;

/// Calls by which the daemon or the trainer changes files: each of them is a point.
const CHANGES_FILES: &[&str] = &[
    "fallocate",
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "openat",
    "pwrite64",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "unlink",
    "unlinkat",
    "write",
    "writev",
];
/// Of every other call only the first ones are: between them nothing changes.
const OTHERS: u32 = 2;

/// What the trainer does while the daemon is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Writes the files of a new step.
    Prepare,
    /// Seals it and moves LATEST.
    Finish,
    /// Seals the newest step again, with other content, in exchange.
    Resave,
    /// Removes an old step.
    Prune,
}

/// A trainer in a process of its own.
struct Saver {
    process: Child,
    input: ChildStdin,
    said: Lines,
}

impl Saver {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, said) = (process.stdin.take().unwrap(), Lines::of(process.stdout.take().unwrap()));
        Self { process, input, said }
    }

    /// Gives a command and hears the answer; `End` when the trainer has died.
    fn ask(&mut self, command: &str) -> Line {
        // EPIPE: it has died, which the answer says.
        let _ = writeln!(self.input, "{command}");
        self.said.next_line()
    }

    fn end(mut self) {
        drop(self.input);
        self.process.wait().unwrap();
    }
}

fn saver_command(ckpt: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saver"));
    command.arg(ckpt).arg(RUN).arg(KEEP.to_string());
    command
}

/// A mount with a run on it, and what was promised about the run.
struct Scene {
    mount: Mount,
    /// Steps whose saving was acknowledged.
    acknowledged: BTreeSet<u64>,
    /// The newest complete step, as last seen or acknowledged.
    newest: u64,
    /// Counts saves: each has content of its own.
    contents: u64,
}

impl Scene {
    fn new(passthrough: &str) -> Self {
        let mount = Mount::new(&format!("passthrough={passthrough}"));
        let mut scene = Self { mount, acknowledged: BTreeSet::new(), newest: 0, contents: 0 };
        // Warm: directories of packs exist, and removal has something to remove.
        for _ in 0..KEEP + 1 {
            scene.save();
        }
        scene
    }

    fn saver(&self) -> Saver {
        Saver::start(saver_command(&self.mount.run_dir(RUN)))
    }

    fn prepare_command(&mut self, step: u64) -> String {
        self.contents += 1;
        format!("prepare {step} {}", self.contents)
    }

    /// Asks, and remembers what is acknowledged. False when the answer is a failure.
    fn ask(&mut self, saver: &mut Saver, command: &str) -> bool {
        let Line::Said(said) = saver.ask(command) else { return false };
        if let Some(step) = said.strip_prefix("saved ").and_then(Step::from_dir_name) {
            self.acknowledged.insert(step.0);
            self.newest = step.0.max(self.newest);
        }
        !said.starts_with("failed")
    }

    fn save(&mut self) {
        let mut saver = self.saver();
        let prepare = self.prepare_command(self.newest + 1);
        for command in [&prepare, "finish", "prune"] {
            assert!(self.ask(&mut saver, command), "{command} failed");
        }
        saver.end();
    }

    /// Runs one phase with the daemon watched. True when it was killed.
    fn run_watched(&mut self, phase: Phase, watch: impl FnOnce(i32) -> Watch) -> bool {
        let mut saver = self.saver();
        let step = match phase {
            Phase::Resave => self.newest,
            Phase::Prepare | Phase::Finish | Phase::Prune => self.newest + 1,
        };
        let prepare = self.prepare_command(step);
        let commands = [&prepare, "finish", "prune"];
        let watched = match phase {
            Phase::Prepare => 0,
            Phase::Finish | Phase::Resave => 1,
            Phase::Prune => 2,
        };
        for command in &commands[..watched] {
            assert!(self.ask(&mut saver, command), "{command} failed");
        }
        let watch = watch(self.mount.daemon().pid);
        let worked = self.ask(&mut saver, commands[watched]);
        drop(watch);
        if !worked {
            self.mount.daemon().wait();
        }
        let killed = self.mount.daemon().ended();
        if !killed {
            for command in &commands[watched + 1..] {
                assert!(self.ask(&mut saver, command), "{command} failed");
            }
        }
        saver.end();
        killed
    }

    fn count(&mut self, phase: Phase) -> Vec<Point> {
        let log = self.mount.outside().join("strace.log");
        assert!(!self.run_watched(phase, |pid| Watch::recording(pid, &log)));
        strace::points(&strace::read_counts(&log), CHANGES_FILES, OTHERS)
    }

    /// Mounts again after the daemon's death, which must clean the dead mount, and checks every promise.
    fn recover(&mut self) {
        self.mount.forget_daemon();
        let output = self.mount.mount();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("took away the mount"), "the dead mount was not mentioned: {said:?}");
        self.check();
    }

    fn check(&mut self) {
        let ckpt = self.mount.run_dir(RUN);
        let mut complete = BTreeSet::new();
        for entry in fs::read_dir(&ckpt).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(step) = Step::from_dir_name(&name) {
                assert_complete(&ckpt.join(&name), step.0);
                complete.insert(step.0);
            } else {
                let known = name == "LATEST" || name == "latest" || name.ends_with(".tmp");
                assert!(known, "{name} is neither a complete step nor temporary");
            }
        }
        // A step that was complete but not acknowledged counts for retention, too.
        let known: BTreeSet<u64> = complete.union(&self.acknowledged).copied().collect();
        for step in known.iter().rev().take(usize::try_from(KEEP).unwrap()) {
            assert!(complete.contains(step), "step {step} was acknowledged and is gone; there: {complete:?}");
        }
        let latest = read_latest(&ckpt).unwrap().expect("LATEST is there").0;
        assert_eq!(Some(&latest), complete.last(), "LATEST is not the newest complete step");
        let (last, next) = (self.newest, self.newest + 1);
        assert!(latest == last || latest == next, "LATEST is step {latest} after step {last}");
        self.newest = latest;
        let link = fs::read_link(ckpt.join("latest")).unwrap();
        assert_eq!(link, Path::new(read_text(ckpt.join("LATEST")).trim_end()));
        verify_store(&self.mount.store());
    }
}

/// What was tried, for the report.
#[derive(Default)]
struct Tried {
    points: usize,
    not_reached: usize,
}

/// Kills the daemon at every point of a phase, with and without passthrough in turn.
fn kill_daemon_at_every_point_of(phase: Phase) -> Tried {
    let mut scenes = ["yes", "no"].map(Scene::new);
    let points = scenes[0].count(phase);
    let mut tried = Tried::default();
    for (at, point) in points.iter().enumerate() {
        let scene = &mut scenes[at % 2];
        if scene.run_watched(phase, |pid| Watch::killing(pid, point)) {
            tried.points += 1;
            eprintln!("{phase:?}: killed at {} number {}", point.call, point.nth);
            scene.recover();
        } else {
            tried.not_reached += 1;
        }
    }
    for scene in &mut scenes {
        scene.save();
        scene.check();
        scene.mount.unmount();
    }
    eprintln!("daemon killed in {phase:?}: points tried: {}, failures: 0", tried.points);
    tried
}

#[test]
fn the_daemon_dies_at_every_call_of_the_seal() {
    let tried = kill_daemon_at_every_point_of(Phase::Finish);
    assert!(tried.points >= 60, "only {} points ({} not reached)", tried.points, tried.not_reached);
}

#[test]
fn the_daemon_dies_at_every_call_of_a_seal_in_exchange() {
    let tried = kill_daemon_at_every_point_of(Phase::Resave);
    assert!(tried.points >= 60, "only {} points ({} not reached)", tried.points, tried.not_reached);
}

#[test]
fn the_daemon_dies_while_files_are_written() {
    assert!(kill_daemon_at_every_point_of(Phase::Prepare).points >= 20);
}

#[test]
fn the_daemon_dies_while_an_old_step_is_removed() {
    assert!(kill_daemon_at_every_point_of(Phase::Prune).points >= 20);
}

#[test]
fn the_trainer_dies_at_every_call_of_a_save() {
    let mut tried = 0;
    for mut scene in ["yes", "no"].map(Scene::new) {
        let command = saver_command(&scene.mount.run_dir(RUN));
        let log = scene.mount.outside().join("strace.log");
        let start_up = strace::count(&command, &log);
        let mut counts = start_up.clone();
        let mut traced = Saver::start(strace::recorded(&command, &log));
        let prepare = scene.prepare_command(scene.newest + 1);
        for command in [&prepare, "finish", "prune"] {
            assert!(scene.ask(&mut traced, command), "{command} failed");
        }
        traced.end();
        counts.extend(strace::read_counts(&log));
        for point in strace::points(&counts, CHANGES_FILES, OTHERS) {
            if point.nth <= start_up.get(&point.call).copied().unwrap_or(0) {
                continue;
            }
            let mut saver = Saver::start(strace::killed_at(&command, &point));
            let prepare = scene.prepare_command(scene.newest + 1);
            let all_worked =
                [&prepare, "finish", "prune"].into_iter().all(|command| scene.ask(&mut saver, command));
            saver.end();
            tried += usize::from(!all_worked);
            scene.check();
        }
        scene.save();
        scene.check();
        scene.mount.unmount();
    }
    eprintln!("trainer killed: points tried: {tried}, failures: 0");
    assert!(tried >= 60, "only {tried} points");
}

#[test]
fn the_daemon_dies_while_it_recovers() {
    let mut scene = Scene::new("yes");
    // Dies with packs and a record that are durable and not committed.
    let renames = scene.count(Phase::Finish).into_iter().filter(|point| point.call.starts_with("rename"));
    let messy = renames.max_by_key(|point| point.nth).expect("a seal renames its record into place");
    let make_a_mess = |scene: &mut Scene| {
        assert!(
            scene.run_watched(Phase::Finish, |pid| Watch::killing(pid, &messy)),
            "the seal writes no record"
        );
        scene.mount.forget_daemon();
    };
    make_a_mess(&mut scene);
    let mut command = scene.mount.command();
    command.arg("-f");
    let log = scene.mount.outside().join("strace.log");
    assert!(!dies_on_its_way(&mut scene, strace::recorded(&command, &log)));
    let points = strace::points(&strace::read_counts(&log), CHANGES_FILES, 0);
    scene.mount.mount();
    scene.check();
    let mut tried = 0;
    for point in &points {
        make_a_mess(&mut scene);
        tried += usize::from(dies_on_its_way(&mut scene, strace::killed_at(&command, point)));
        scene.mount.mount();
        scene.check();
    }
    eprintln!("daemon killed while it started or stopped: points tried: {tried}, failures: 0");
    assert!(tried >= 20, "only {tried} points");
}

/// Runs a daemon in the foreground until it dies, or is up and can be unmounted. True when it died.
fn dies_on_its_way(scene: &mut Scene, mut command: Command) -> bool {
    let mut daemon = command.stderr(Stdio::null()).spawn().unwrap();
    let mut died = None;
    let status = scene.mount.join(".tinyllm/status.json");
    eventually("the daemon is up or dead", || {
        died = daemon.try_wait().unwrap();
        died.is_some() || fs::read(&status).is_ok()
    });
    if died.is_none() {
        // It may die of it; then its dead mount is for the next one to clean.
        let _ = rustix::mount::unmount(scene.mount.path(), rustix::mount::UnmountFlags::empty());
        died = Some(daemon.wait().unwrap());
    }
    !died.unwrap().success()
}
