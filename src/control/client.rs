//! Asking the daemon.

use std::io::{self, BufReader, ErrorKind as IoErrorKind};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::Request;
use super::wire::{MAX_REPLY_BYTES, Reply, read_line, short_socket_path, write_line};
use crate::error::{ErrorKind, IoContext, Result, StoreError};
use crate::layout::Layout;
use crate::progress::Watcher;

/// Asks the daemon of a store. None when no daemon answers; its errors come back as `StoreError::Daemon`.
pub fn call(layout: &Layout, request: &Request, watcher: Watcher<'_>) -> Result<Option<Value>> {
    let socket = layout.socket();
    if !socket.exists() {
        return Ok(None);
    }
    let (_dir, path) = short_socket_path(layout)?;
    let mut stream = match UnixStream::connect(path) {
        // A killed daemon leaves its socket behind.
        Err(error) if matches!(error.kind(), IoErrorKind::NotFound | IoErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        connected => connected.at("connect to", &socket)?,
    };
    write_line(&mut stream, request).at("write to", &socket)?;
    let mut input = BufReader::new(stream);
    loop {
        let line = match read_line(&mut input, MAX_REPLY_BYTES) {
            Err(error) if error.kind() == IoErrorKind::ConnectionReset => None,
            line => line.at("read from", &socket)?,
        };
        let Some(line) = line else {
            let message = format!("{}: the daemon went away before it had answered", socket.display());
            return Err(StoreError::Daemon { kind: ErrorKind::Busy, message });
        };
        let reply = serde_json::from_slice(&line).map_err(io::Error::other).at("understand", &socket)?;
        match reply {
            Reply::Progress(progress) => watcher(progress)?,
            Reply::Ok(value) => return Ok(Some(value)),
            Reply::Error { kind, message } => return Err(StoreError::Daemon { kind, message }),
        }
    }
}
