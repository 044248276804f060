//! mount-tinyllm: mounts a tinyllm store.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use tinyllm::error::{ErrorKind, StoreError};
use tinyllm::mounts::mounted_at;
use tinyllm::store::Store;
use tinyllm_fs::mountpoint::{self, MountpointError};
use tinyllm_fs::options::MountOptions;
use tinyllm_fs::session::{self, SessionError};
use tinyllm_fs::{background, helper};

/// How long to wait for a daemon that was just unmounted to let go of the store.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Mounts a tinyllm store as an ordinary directory.
#[derive(Debug, Parser)]
#[command(name = "mount-tinyllm", version, after_help = AFTER_HELP)]
struct Arguments {
    /// The store and the directory to mount it on; a store that does not exist yet is created. Without STORE:
    /// $TINYLLM_STORE, else the user's data directory, else (for root) /var/lib/tinyllm.
    #[arg(value_names = ["STORE", "MOUNTPOINT"], num_args = 1..=2, required = true)]
    paths: Vec<PathBuf>,
    /// Stay in the foreground.
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Mount options, comma-separated.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Be the daemon of a command that waits for it.
    #[arg(long, hide = true)]
    daemon: bool,
}

const AFTER_HELP: &str = "\
Options of -o:
  ro                  nothing can be changed
  passthrough=yes|no  let the kernel read and write backing files itself (default: yes, where it can)
  allow_other         let other users in (default for root; noallow_other turns it off)
  nonempty            mount over a directory that is not empty
  settle_after=SEC    when a closed plain file is deduplicated (default 60)
  gc_after=SEC        when the bytes of what was removed are collected (default 60)
  read_ahead=KIB      how far the kernel reads ahead (default 4096)
  threads=N           threads that serve requests (default 4)
  dev, suid, exec, sync, dirsync and their opposites as for any filesystem

The same for mount(8) and fstab: mount -t tinyllm STORE MOUNTPOINT -o OPTIONS

Unmount with `umount MOUNTPOINT` or `fusermount3 -u MOUNTPOINT`; SIGTERM and SIGINT do the same.

Exit codes: 0 mounted (with -f: ended), 1 other errors, 2 wrong usage, 3 no such mount point, 4 mount point not
empty or no directory, 5 damaged store, 6 store in use by another process, 7 store of a newer or unknown format,
8 not permitted, 9 a dead mount could not be removed.";

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Mountpoint(#[from] MountpointError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{}: this store is mounted on {} already", store.display(), target.display())]
    Mounted { store: PathBuf, target: PathBuf },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("cannot go into the background: {0}")]
    Background(#[source] io::Error),
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Mountpoint(MountpointError::Missing { .. }) => 3,
            Self::Mountpoint(MountpointError::NotADirectory { .. } | MountpointError::NotEmpty { .. }) => 4,
            Self::Store(error) if error.kind() == ErrorKind::Corrupt => 5,
            Self::Store(StoreError::Locked { .. }) | Self::Mounted { .. } => 6,
            Self::Store(StoreError::UnsupportedFormat { .. }) => 7,
            Self::Mountpoint(MountpointError::Unusable { source, .. }) if denied(source) => 8,
            Self::Store(StoreError::Io { source, .. }) if denied(source) => 8,
            Self::Session(SessionError::NotPermitted { .. }) => 8,
            Self::Mountpoint(MountpointError::Dead { .. }) => 9,
            Self::Mountpoint(_) | Self::Store(_) | Self::Session(_) | Self::Background(_) => 1,
        }
    }
}

fn denied(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied)
}

#[allow(clippy::print_stderr, reason = "this is where the program speaks to its user")]
fn main() -> ExitCode {
    if std::env::args_os().next().is_some_and(|program| helper::is_helper(&program)) {
        return helper::run().unwrap_or_else(|error| {
            eprintln!("mount.tinyllm: {error}");
            ExitCode::from(error.exit_code())
        });
    }
    match run() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("mount-tinyllm: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run() -> Result<ExitCode, Failure> {
    let arguments = Arguments::parse();
    let options =
        MountOptions::parse(arguments.options.iter().map(String::as_str)).map_err(Failure::Usage)?;
    let (store, mountpoint) = paths(&arguments)?;
    if !arguments.foreground && !arguments.daemon {
        let again: Vec<OsString> = std::env::args_os().skip(1).collect();
        let code = background::run_in_background(again).map_err(Failure::Background)?;
        return Ok(ExitCode::from(code));
    }
    if arguments.daemon {
        background::detach().map_err(Failure::Background)?;
    }
    log_to_stderr();
    mount(&store, &mountpoint, &options, arguments.daemon)?;
    Ok(ExitCode::SUCCESS)
}

/// Gives absolute paths: the daemon works from the root directory, and /proc/mounts shows the store's.
fn paths(arguments: &Arguments) -> Result<(PathBuf, PathBuf), Failure> {
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
    };
    match arguments.paths.as_slice() {
        [mountpoint] => {
            let store = tinyllm_fs::default_store().ok_or_else(|| {
                Failure::Usage(
                    "no store given, and neither TINYLLM_STORE nor HOME says where it could be".into(),
                )
            })?;
            Ok((absolute(&store)?, absolute(mountpoint)?))
        }
        [store, mountpoint] => Ok((absolute(store)?, absolute(mountpoint)?)),
        _ => Err(Failure::Usage("give a mount point, or a store and a mount point".into())),
    }
}

fn log_to_stderr() {
    tracing_subscriber::fmt().with_writer(io::stderr).with_target(false).with_ansi(false).init();
}

#[allow(clippy::print_stderr, reason = "said to the user who mounts")]
fn mount(store: &Path, mountpoint: &Path, options: &MountOptions, daemon: bool) -> Result<(), Failure> {
    if mountpoint::prepare(mountpoint, options.nonempty)? {
        eprintln!("mount-tinyllm: {}: took away the mount of a daemon that was killed", mountpoint.display());
    }
    let store = Arc::new(open_store(store)?);
    let log = store.layout().log();
    session::serve(store, mountpoint, options, || {
        // The mount is up by now; a full log disk is no reason to take it down.
        if daemon && let Err(error) = background::announce_ready(&log) {
            tracing::warn!(%error, "no log file");
        }
    })?;
    Ok(())
}

/// Opens the store, with a little patience for a daemon that is just going.
fn open_store(path: &Path) -> Result<Store, Failure> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    loop {
        match Store::open_or_create(path, uid, gid) {
            Err(StoreError::Locked { path }) => {
                let path = path.canonicalize().unwrap_or(path);
                let mounted = mounted_at(&path).unwrap_or_default();
                if let Some(target) = mounted.into_iter().find(|target| std::fs::metadata(target).is_ok()) {
                    return Err(Failure::Mounted { store: path, target });
                }
                if Instant::now() >= deadline {
                    return Err(StoreError::Locked { path }.into());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return Ok(other?),
        }
    }
}
