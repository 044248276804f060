//! mount-tinyllm as a mount helper: what mount(8) calls, by the name `mount.tinyllm` or `mount.fuse.tinyllm`, for
//! `mount -t tinyllm`, for a line of fstab, and for `mount -o remount`. See mount(8), "External helpers".

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::background;
use crate::options::MountOptions;
use crate::remount::{self, RemountError};

/// Exit codes of mount(8).
const WRONG_USE: u8 = 1;
const SYSTEM_ERROR: u8 = 2;
const MOUNT_FAILURE: u8 = 32;

const NAMES: [&str; 2] = ["mount.tinyllm", "mount.fuse.tinyllm"];

/// Mounts a tinyllm store, called by mount(8). To mount by hand use mount-tinyllm.
#[derive(Debug, Parser)]
#[command(name = "mount.tinyllm", version)]
struct Arguments {
    /// The store; one that does not exist yet is created.
    source: PathBuf,
    /// The directory to mount it on.
    target: PathBuf,
    /// Tolerate unknown mount options.
    #[arg(short = 's')]
    sloppy: bool,
    /// Check the arguments and mount nothing.
    #[arg(short = 'f')]
    fake: bool,
    /// Keep no mtab: nothing does any more.
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Accepted, and nothing more is said.
    #[arg(short = 'v')]
    verbose: bool,
    /// The type that mount(8) was given.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<OsString>,
    /// Mount options, comma-separated.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Why a mount helper could not do what it was called for.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Remount(#[from] RemountError),
    #[error("cannot start the daemon: {0}")]
    Start(#[source] io::Error),
}

impl HelperError {
    /// Gives the exit code that mount(8) documents.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => WRONG_USE,
            Self::Remount(_) => MOUNT_FAILURE,
            Self::Start(_) => SYSTEM_ERROR,
        }
    }
}

/// Says whether a program that was called by this path is to be a mount helper.
pub fn is_helper(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| NAMES.iter().any(|helper| name == *helper))
}

/// Does what mount(8) asks for.
#[allow(clippy::print_stderr, reason = "said to the user who mounts")]
pub fn run() -> Result<ExitCode, HelperError> {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => return Err(HelperError::Usage(one_line(&error))),
        // Help or the version was asked for.
        Err(shown) => shown.exit(),
    };
    let words: Vec<&str> = arguments.options.iter().flat_map(|list| list.split(',')).collect();
    if words.contains(&"remount") {
        if !arguments.fake {
            for word in remount::remount(&arguments.target, &words)? {
                eprintln!("mount.tinyllm: {word}: takes effect at the next mount");
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let known = words.into_iter().filter(|word| !arguments.sloppy || MountOptions::parse([*word]).is_ok());
    let options = known.collect::<Vec<_>>().join(",");
    MountOptions::parse([options.as_str()]).map_err(HelperError::Usage)?;
    if arguments.fake {
        return Ok(ExitCode::SUCCESS);
    }
    let daemon: [OsString; 4] =
        [arguments.source.into(), arguments.target.into(), "-o".into(), options.into()];
    Ok(match background::run_in_background(daemon).map_err(HelperError::Start)? {
        0 => ExitCode::SUCCESS,
        2 => ExitCode::from(WRONG_USE),
        _ => ExitCode::from(MOUNT_FAILURE),
    })
}

/// The first line says what is wrong; the usage that clap adds is of no use in the output of mount(8).
fn one_line(error: &clap::Error) -> String {
    let said = error.to_string();
    said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
