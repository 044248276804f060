//! The lines that go over the socket, and how both sides reach it.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ErrorKind, IoContext, Result};
use crate::layout::Layout;
use crate::progress::Progress;

/// The longest request: paths and names.
pub(super) const MAX_REQUEST_BYTES: u64 = 64 << 10;
/// The longest reply: a verification of very many checkpoints.
pub(super) const MAX_REPLY_BYTES: u64 = 256 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    Progress(Progress),
    Ok(Value),
    Error { kind: ErrorKind, message: String },
}

/// Reads one line without its end. None at the end of the stream, or when the line is too long.
pub(super) fn read_line(input: &mut impl BufRead, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.by_ref().take(max_bytes).read_until(b'\n', &mut line)?;
    Ok(if line.pop() == Some(b'\n') { Some(line) } else { None })
}

pub(super) fn write_line(output: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    output.write_all(&line)
}

/// A socket's path may have 107 bytes only, a store's has no limit; so the store's directory is opened and the
/// socket reached through it. The file must be kept open while the path is used.
pub(super) fn short_socket_path(layout: &Layout) -> Result<(File, PathBuf)> {
    let root = layout.root();
    let dir = File::open(root).at("open", root)?;
    let socket = layout.socket();
    let name = socket.file_name().expect("a socket's path has a name");
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    Ok((dir, path))
}
