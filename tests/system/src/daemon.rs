//! A mount's daemon, held by a descriptor of the process, so that no other process is ever signalled.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a daemon may take to end; far more than it needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running or ended daemon.
#[derive(Debug)]
pub struct Daemon {
    pub pid: i32,
    process: OwnedFd,
}

impl Daemon {
    /// Takes hold of the process; None when it is gone already.
    pub fn attach(pid: i32) -> Option<Self> {
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        Some(Self { pid, process })
    }

    pub fn signal(&self, signal: Signal) {
        // ESRCH: it is gone, which is what every signal here wants.
        let _ = pidfd_send_signal(&self.process, signal);
    }

    pub fn ended(&self) -> bool {
        self.wait_for(Duration::ZERO)
    }

    /// Waits for its end and fails the test when that does not come.
    pub fn wait(&self) {
        assert!(self.wait_for(PATIENCE), "daemon {} did not end within {PATIENCE:?}", self.pid);
    }

    /// Waits for its end; false when the time is up first.
    pub fn wait_for(&self, limit: Duration) -> bool {
        let timeout = Timespec::try_from(limit).unwrap();
        let mut process = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut process, Some(&timeout)).unwrap() > 0
    }
}
