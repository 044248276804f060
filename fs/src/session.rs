//! One life of a mount: from the open store to the unmounting.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tinyllm::control::{self, Host};
use tinyllm::pack::PackId;
use tinyllm::seal::Aftermath;
use tinyllm::store::Store;

use crate::adapter::Adapter;
use crate::attach::Attachment;
use crate::mountpoint;
use crate::options::MountOptions;
use crate::tree::{Tree, TreeOptions};

/// How long a stopped daemon waits for requests under way before it leaves.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Why a mount failed or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{}: not permitted to mount here ({source}); is /dev/fuse usable, and fusermount3 installed?", path.display())]
    NotPermitted { path: PathBuf, source: io::Error },
    #[error("{}: cannot mount: {source}", path.display())]
    Mount { path: PathBuf, source: io::Error },
    #[error("{}: the mount ended with an error: {source}", path.display())]
    Serve { path: PathBuf, source: io::Error },
    #[error("cannot start a thread or a signal handler: {source}")]
    Start { source: io::Error },
    #[error("{source}")]
    Store { source: tinyllm::error::StoreError },
}

/// Mounts `store` and serves it until it is unmounted or told to stop. `ready` is called once it answers.
pub fn serve(
    store: Arc<Store>,
    mountpoint: &Path,
    options: &MountOptions,
    ready: impl FnOnce(),
) -> Result<(), SessionError> {
    let root = rustix::process::geteuid().is_root();
    // Only a privileged daemon may register backing files; without them the write-back cache is worth having.
    let passthrough = options.passthrough && root;
    let tree_options = TreeOptions {
        passthrough,
        read_only: options.read_only,
        settle_after: options.settle_after,
        collect_after: options.collect_after,
    };
    let (tree, housekeeper) = Tree::new(store.clone(), tree_options);
    let adapter = Adapter::new(tree.clone(), !passthrough);
    let allow_other = options.allow_other.unwrap_or(root);
    let attachment = Attachment { store: store.layout().root(), mountpoint, options, allow_other };
    let session = attachment.attach(adapter, root).map_err(|source| {
        let path = mountpoint.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => SessionError::NotPermitted { path, source },
            _ => SessionError::Mount { path, source },
        }
    })?;
    let start = |source| SessionError::Start { source };
    let target = mountpoint.to_owned();
    let cached_writes = !passthrough;
    // A lease that is broken while it is asked for sends this; its default would end the program.
    signal_hook::flag::register(libc::SIGIO, Arc::default()).map_err(start)?;
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(start)?;
    let signal_handle = signals.handle();
    let (finished, all_served) = mpsc::channel();
    spawn("signals", move || {
        if signals.forever().next().is_some() {
            tracing::info!("stopping");
            if cached_writes {
                write_back(&target);
            }
            // A busy mount goes from the tree all the same, and ends with the last use of it.
            if let Err(error) = mountpoint::detach(&target) {
                tracing::warn!(%error, "the mount could not be taken away");
            }
            // Whoever still has a file open after this sees the mount end under it.
            let _ = finished.send(());
        }
    })
    .map_err(start)?;
    let housekeeper = spawn("housekeeper", move || housekeeper.run()).map_err(start)?;
    let (ended, session_end) = mpsc::channel();
    spawn("session", move || {
        // The receiver waits for exactly this.
        let _ = ended.send(session.run());
    })
    .map_err(start)?;
    let host = Arc::new(MountedTree { tree: tree.clone() });
    // A read-only mount changes nothing for commands either.
    let control = (!options.read_only)
        .then(|| control::serve(store.clone(), host))
        .transpose()
        .inspect_err(
            |error| tracing::warn!(%error, "commands that change the store will not reach this mount"),
        )
        .unwrap_or_default();
    match mountpoint::raise_read_ahead(mountpoint, options.read_ahead_kib) {
        Ok(true) => {}
        Ok(false) => tracing::debug!("read-ahead stays at the kernel's default: not permitted to raise it"),
        Err(error) => tracing::warn!(%error, "read-ahead stays at the kernel's default"),
    }
    ready();
    let ended = wait_for_end(&session_end, &all_served);
    if let Some(Err(error)) = control.map(control::Server::stop) {
        tracing::warn!(%error, "the command socket was not removed");
    }
    tree.stop();
    // It only ends early by panicking, which has been reported already.
    let _ = housekeeper.join();
    signal_handle.close();
    store.sync_unsettled().map_err(|source| SessionError::Store { source })?;
    ended.map_err(|source| SessionError::Serve { path: mountpoint.to_owned(), source })
}

/// The mount as the store's verbs see it.
struct MountedTree {
    tree: Arc<Tree>,
}

impl Host for MountedTree {
    fn pack_in_use(&self, pack: PackId) -> bool {
        self.tree.pack_in_use(pack)
    }

    fn aftermath(&self, aftermath: Aftermath) {
        self.tree.handle_aftermath(aftermath);
    }
}

/// Waits until the session is over: unmounted by someone, or told to stop and given time to finish.
fn wait_for_end(
    session_end: &mpsc::Receiver<io::Result<()>>,
    stopped: &mpsc::Receiver<()>,
) -> io::Result<()> {
    loop {
        match session_end.recv_timeout(Duration::from_millis(50)) {
            Ok(end) => return end,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the session thread died"));
            }
            Err(mpsc::RecvTimeoutError::Timeout) if stopped.try_recv().is_ok() => {
                return session_end.recv_timeout(STOP_PATIENCE).unwrap_or(Ok(()));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Brings in what the kernel's write-back cache holds for files that are open: once the mount is detached it
/// would be lost. In a process of its own, since a daemon that waits for its own mount could not be killed.
fn write_back(mountpoint: &Path) {
    let started = Command::new("sync").arg("-f").arg(mountpoint).stdin(Stdio::null()).spawn();
    let mut sync = match started {
        Ok(sync) => sync,
        Err(error) => {
            return tracing::warn!(%error, "cached writes of open files may be lost: sync did not start");
        }
    };
    let deadline = Instant::now() + STOP_PATIENCE;
    loop {
        match sync.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            _ => {
                return tracing::warn!(
                    "cached writes of open files may be lost: they could not be written in time"
                );
            }
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(body)
}
