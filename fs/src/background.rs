//! Going into the background: the command starts itself again as a daemon and returns when the mount answers.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The hidden argument that makes a process the daemon of a command that waits for it.
pub const DAEMON_FLAG: &str = "--daemon";
const READY: &[u8] = b"ready\n";

/// Starts the daemon with this process's own arguments and waits until it is ready or has failed; its error
/// message goes to this process's stderr. Gives its exit code, 0 when it is ready.
pub fn run_in_background(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> io::Result<u8> {
    let mut daemon = Command::new(std::env::current_exe()?)
        .args(arguments)
        .arg(DAEMON_FLAG)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    let mut pipe = daemon.stdout.take().ok_or_else(|| io::Error::other("no pipe to the daemon"))?;
    pipe.read_to_end(&mut said)?;
    if said == READY {
        return Ok(0);
    }
    let status = daemon.wait()?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Cuts the daemon loose from the terminal and the session it was started from.
pub fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(rustix::process::chdir("/")?)
}

/// Tells the waiting command that the mount answers, and sends everything said from now on to the log file.
pub fn announce_ready(log: &Path) -> io::Result<()> {
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    rustix::stdio::dup2_stderr(&log)?;
    // Closing the pipe is what the waiting command waits for.
    rustix::stdio::dup2_stdout(&log)?;
    Ok(())
}
