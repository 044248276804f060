//! Kills at exact system calls, by strace's fault injection.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Lines, run};

/// The n-th call of one system call, counted from 1 in each thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    pub call: String,
    pub nth: u32,
}

impl Point {
    /// Spells strace's option: the process dies as it enters the call, which is not carried out.
    fn injection(&self) -> String {
        format!("inject={}:signal=KILL:when={}", self.call, self.nth)
    }
}

/// How many times each system call was made, by the thread that made it most often.
pub type Counts = BTreeMap<String, u32>;

/// A strace that watches a running process. Dropping it lets the process go.
#[derive(Debug)]
pub struct Watch {
    strace: Child,
    ends_by: Signal,
    _said: Lines,
}

impl Watch {
    /// Records the calls of a process and its threads into `log`.
    pub fn recording(pid: i32, log: &Path) -> Self {
        Self::attach(pid, Signal::INT, ["-o".as_ref(), log.as_os_str()])
    }

    /// Kills the process at a point.
    pub fn killing(pid: i32, point: &Point) -> Self {
        let (trace, inject) = (format!("trace={}", point.call), point.injection());
        let log = OsStr::new("/dev/null");
        // Interrupted while the process dies, strace may wait for it forever.
        Self::attach(
            pid,
            Signal::KILL,
            ["-o".as_ref(), log, "-e".as_ref(), trace.as_ref(), "-e".as_ref(), inject.as_ref()],
        )
    }

    fn attach<'a>(pid: i32, ends_by: Signal, options: impl IntoIterator<Item = &'a OsStr>) -> Self {
        let mut strace = Command::new("strace")
            .args(["-f", "-p", &pid.to_string()])
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace is installed");
        let said = Lines::of(strace.stderr.take().unwrap());
        assert!(said.wait_for("attached"), "strace could not attach to {pid}");
        Self { strace, ends_by, _said: said }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.strace);
        // When the process that it watched has ended, strace has too.
        let _ = kill_process(pid, self.ends_by);
        let _ = self.strace.wait();
    }
}

/// Gives a command that runs under strace and records its calls into `log`.
pub fn recorded(command: &Command, log: &Path) -> Command {
    under(command, ["-o".as_ref(), log.as_os_str()])
}

/// Runs a command to its end, with nothing on its input, and counts its calls.
pub fn count(command: &Command, log: &Path) -> Counts {
    run(recorded(command, log).stdin(Stdio::null()));
    read_counts(log)
}

/// Gives a command that runs under strace and is killed at a point.
pub fn killed_at(command: &Command, point: &Point) -> Command {
    let (trace, inject) = (format!("trace={}", point.call), point.injection());
    let log = OsStr::new("/dev/null");
    under(command, ["-o".as_ref(), log, "-e".as_ref(), trace.as_ref(), "-e".as_ref(), inject.as_ref()])
}

fn under<'a>(command: &Command, options: impl IntoIterator<Item = &'a OsStr>) -> Command {
    let mut traced = Command::new("strace");
    traced.arg("-f").args(options).arg(command.get_program()).args(command.get_args());
    traced
}

/// Counts the calls of a log that `-f -o` wrote: lines of a thread's number and a call.
pub fn read_counts(log: &Path) -> Counts {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned();
    let mut by_thread: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for line in text.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((call, _)) = rest.trim_start().split_once('(') else { continue };
        if call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            *by_thread.entry((thread, call)).or_insert(0) += 1;
        }
    }
    let mut counts = Counts::new();
    for ((_, call), count) in by_thread {
        let most = counts.entry(call.to_owned()).or_insert(0);
        *most = count.max(*most);
    }
    counts
}

/// Lists the points of all `counts`: every call that `changes_files`, and the first few of every other.
pub fn points(counts: &Counts, changes_files: &[&str], others: u32) -> Vec<Point> {
    let mut points = Vec::new();
    for (call, &count) in counts {
        let last = if changes_files.contains(&call.as_str()) { count } else { count.min(others) };
        points.extend((1..=last).map(|nth| Point { call: call.clone(), nth }));
    }
    points
}
