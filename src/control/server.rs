//! Answering for a store: one thread listens, one serves each connection.

use std::fs::Permissions;
use std::io::BufReader;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use super::wire::{MAX_REQUEST_BYTES, Reply, read_line, short_socket_path, write_line};
use super::{Host, Request, execute};
use crate::error::{ErrorKind, IoContext, Result, StoreError};
use crate::io::unlink_if_present;
use crate::progress::Progress;
use crate::store::Store;

/// How many connections may wait to be taken.
const BACKLOG: i32 = 16;
/// The least time between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Answers requests until it is stopped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

struct Shared {
    store: Arc<Store>,
    host: Arc<dyn Host>,
    stopping: AtomicBool,
    connections: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Shared").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// Starts to answer at the store's socket, which only the store's owner may use.
pub fn serve(store: Arc<Store>, host: Arc<dyn Host>) -> Result<Server> {
    if !store.writable() {
        return Err(StoreError::ReadOnly { path: store.layout().root().to_owned() });
    }
    // This process has the store's lock, so a socket that is there belongs to a daemon that died.
    let path = store.layout().socket();
    unlink_if_present(&*store.io, &path)?;
    let listener = bind_private(&store)?;
    let shared =
        Arc::new(Shared { store, host, stopping: AtomicBool::new(false), connections: Mutex::default() });
    let accepting = shared.clone();
    let listener = thread::Builder::new()
        .name("control".into())
        .spawn(move || accept_all(&listener, &accepting))
        .at("start a thread for", &path)?;
    Ok(Server { shared, listener })
}

/// The mode is set before the socket has a name, so that nobody else ever finds it open.
fn bind_private(store: &Store) -> Result<UnixListener> {
    let socket = store.layout().socket();
    let (_dir, path) = short_socket_path(store.layout())?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .at("create", &socket)?;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::fchmod(&fd, mode).at("set mode of", &socket)?;
    let address = SocketAddrUnix::new(&path).at("name", &socket)?;
    bind(&fd, &address).at("bind", &socket)?;
    listen(&fd, BACKLOG).at("listen at", &socket)?;
    // Filesystems differ in whether they take the mode from the socket.
    std::fs::set_permissions(&socket, Permissions::from_mode(0o600)).at("set mode of", &socket)?;
    Ok(UnixListener::from(fd))
}

fn accept_all(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let started = stream.and_then(|stream| {
            let (serving, input) = (shared.clone(), stream.try_clone()?);
            let thread = thread::Builder::new()
                .name("control-peer".into())
                .spawn(move || serve_connection(&serving, input))?;
            Ok(Connection { stream, thread })
        });
        match started {
            Ok(connection) => {
                let mut connections = shared.connections.lock();
                connections.retain(|connection| !connection.thread.is_finished());
                connections.push(connection);
            }
            Err(error) => {
                tracing::warn!(%error, "a control connection could not be served");
                // Out of descriptors or threads, for one: that passes, and asking at once would not help.
                thread::sleep(PROGRESS_INTERVAL);
            }
        }
    }
}

fn serve_connection(shared: &Shared, stream: UnixStream) {
    let closed = stream.try_clone().and_then(|output| {
        answer_all(shared, &stream, output);
        // Another handle of it is kept for `stop`, so that leaving it to be dropped would not close it.
        stream.shutdown(Shutdown::Both)
    });
    if let Err(error) = closed {
        tracing::debug!(%error, "a control connection ended by itself");
    }
}

fn answer_all(shared: &Shared, input: &UnixStream, output: UnixStream) {
    let output = Mutex::new(output);
    let mut input = BufReader::new(input);
    // Whoever went away needs no answer: every failure to read or write ends the connection.
    while let Ok(Some(line)) = read_line(&mut input, MAX_REQUEST_BYTES) {
        let reply = match answer(shared, &line, &output) {
            Ok(value) => Reply::Ok(value),
            Err(error) => Reply::Error { kind: error.kind(), message: error.to_string() },
        };
        if write_line(&mut output.lock(), &reply).is_err() {
            return;
        }
    }
}

fn answer(shared: &Shared, line: &[u8], output: &Mutex<UnixStream>) -> Result<serde_json::Value> {
    let request: Request = serde_json::from_slice(line).map_err(|error| StoreError::Daemon {
        kind: ErrorKind::Usage,
        message: format!("the request is not understood: {error}"),
    })?;
    let last = Mutex::new(Instant::now());
    let watch = |progress: Progress| {
        if shared.stopping.load(Ordering::Acquire) {
            return Err(StoreError::Interrupted);
        }
        // Threads that find it taken have nothing newer to say.
        let Some(mut last) = last.try_lock() else { return Ok(()) };
        if last.elapsed() < PROGRESS_INTERVAL {
            return Ok(());
        }
        *last = Instant::now();
        write_line(&mut output.lock(), &Reply::Progress(progress)).map_err(|_| StoreError::Interrupted)
    };
    execute(&shared.store, &*shared.host, request, &watch)
}

impl Server {
    /// Stops: verbs under way end early with "stopped", and the socket goes.
    pub fn stop(self) -> Result<()> {
        self.shared.stopping.store(true, Ordering::Release);
        let layout = self.shared.store.layout();
        let (_dir, path) = short_socket_path(layout)?;
        // Wakes the listener. When that fails the socket has been taken away, and nobody can connect any more.
        if UnixStream::connect(path).is_ok() {
            // It only ends early by panicking, which has been reported already.
            let _ = self.listener.join();
        }
        for connection in std::mem::take(&mut *self.shared.connections.lock()) {
            // One that the peer has closed needs no waking.
            let _ = connection.stream.shutdown(Shutdown::Read);
            let _ = connection.thread.join();
        }
        unlink_if_present(&*self.shared.store.io, &layout.socket())
    }
}
