//! The trail of refusals: what was refused last, and why.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tinyllm::time::{now_ns, rfc3339};

/// How many lines `.tinyllm/problems.log` shows.
const KEPT_LINES: usize = 1000;

/// Remembers refusals, by line and by the inode that was refused.
#[derive(Debug, Default)]
pub struct Problems {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    lines: VecDeque<String>,
    by_ino: HashMap<u64, String>,
}

impl Problems {
    /// Notes why something done to `ino` was refused.
    pub fn note(&self, ino: u64, message: &str) {
        tracing::warn!("{message}");
        let mut inner = self.inner.lock();
        if inner.lines.len() == KEPT_LINES {
            inner.lines.pop_front();
        }
        inner.lines.push_back(format!("{} {}", rfc3339(now_ns()), message.replace('\n', " ")));
        inner.by_ino.insert(ino, message.to_owned());
    }

    pub fn forget(&self, ino: u64) {
        self.inner.lock().by_ino.remove(&ino);
    }

    /// Gives the last refusal that concerned `ino`.
    pub fn of(&self, ino: u64) -> Option<String> {
        self.inner.lock().by_ino.get(&ino).cloned()
    }

    /// Gives the log, a line each, oldest first.
    pub fn log(&self) -> String {
        self.inner.lock().lines.iter().map(|line| format!("{line}\n")).collect()
    }
}
